from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import pytest

from debubble.core.errors import ParameterError
from debubble.planner.candidate import Candidate, Degrees, Training
from debubble.planner.cost.calibrate import calibrated, with_measured
from debubble.planner.cost.published_efficiencies import (
    DEFAULT,
    MATCHES,
    MEASURED,
    Factor,
    Factors,
    generation,
    range_of,
    shipped_factors,
)
from debubble.planner.frameworks.published_runtimes import AA_SCALING, NANOTRON
from debubble.planner.frameworks.table import FRAMEWORKS
from debubble.planner.frameworks.torch.runtime import TORCH
from debubble.planner.hardware.gpus import GPUS
from tests.planner.cases import case_of
from tests.planner.published import korthikanti, llama_70b

TRAINING = Training(128, 8192)
H100 = GPUS["h100"]
TABLE = Factors(
    (
        Factor("h100", 4, "bf16", 0.8),
        Factor("h100", 8, "bf16", 0.6),
        Factor("h100", 4, "fp8", 0.7),
        Factor("h100", 4, "bf16", 0.5, "torch"),
        Factor("h100", 1, "bf16", 0.4, experts=True),
    )
)


def efficiency(factors: Factors, tp: int, name: str = "h100", **fields: Any) -> float:
    return factors.efficiency(GPUS[name], tp, replace(TRAINING, **fields), experts=False)


def test_the_nearest_factor_counts() -> None:
    assert efficiency(TABLE, 4) == 0.8
    assert efficiency(TABLE, 2) == 0.8
    assert efficiency(TABLE, 16) == 0.6
    assert efficiency(TABLE, 8, precision="fp8") == 0.7
    assert efficiency(TABLE, 8, precision="mxfp8") == 0.7
    assert efficiency(TABLE, 4, precision="fp16") == 0.8
    assert efficiency(TABLE, 8, runtime=TORCH) == 0.5
    assert TABLE.efficiency(H100, 8, TRAINING, experts=True) == 0.4


def test_a_gpu_without_factors_has_those_of_its_generation() -> None:
    assert efficiency(TABLE, 4, "h200") == 0.8
    assert efficiency(Factors((Factor("a100-80gb", 1, "bf16", 0.3),)), 1) == DEFAULT
    assert efficiency(Factors(), 1) == DEFAULT


def test_a_measured_step_scales_other_degrees() -> None:
    measured = Factors((*TABLE.table, Factor("h100", 4, "bf16", 0.4, measured=True)))
    assert efficiency(measured, 4) == 0.4
    assert efficiency(measured, 8) == pytest.approx(0.3)
    assert efficiency(measured, 8, runtime=TORCH) == 0.5


def test_matches_say_what_an_efficiency_has_in_common_with_a_plan() -> None:
    measured = Factors((*TABLE.table, Factor("h100", 4, "bf16", 0.4, measured=True)))

    def match(name: str, tp: int, factors: Factors = TABLE, **fields: Any) -> str:
        training = replace(TRAINING, **fields)
        return factors.match(GPUS[name], tp, training, experts=False)

    assert match("h100", 4, measured) == "measured"
    assert match("h100", 8, measured) == "measured, other degree"
    assert match("h100", 8) == "published"
    assert match("h200", 8) == "other GPU"
    assert match("h100", 8, precision="nvfp4") == "other precision"
    assert match("h100", 8, runtime=AA_SCALING) == "other framework"
    assert match("mi300x", 8) == "nothing"


@pytest.mark.parametrize("shape", ["pipelined", "one stage", "experts"])
@pytest.mark.parametrize("runtime", ["megatron", "nanotron", "a new one"])
def test_errors_widen_with_what_differs(runtime: str, shape: str) -> None:
    ranges = [range_of(runtime, "hopper", match, shape) for match in MATCHES]
    assert ranges[0].error <= MEASURED["measured"] + 1e-9
    assert all(low < 1 < high for low, high in ranges)
    widths = [own.width for own in ranges]
    assert widths == sorted(widths)
    for (low, high), further in pairwise(ranges[2:]):
        assert further.low < low < high < further.high


@pytest.mark.parametrize("shape", ["pipelined", "one stage", "experts"])
def test_every_range_has_the_prediction_within_it(shape: str) -> None:
    runtimes = {row.runtime.name for row in FRAMEWORKS.values()}
    chips = {generation(name) for name in GPUS}
    for runtime, chip, match in product(runtimes, chips, MATCHES):
        low, high = range_of(runtime, chip, match, shape)
        assert 0 < low < 1 < high


def test_errors_are_of_the_framework_and_the_shape() -> None:
    known = shipped_factors()

    def width(name: str, tp: int, *, piped: bool = True, **fields: Any) -> float:
        degrees = Degrees(tp=tp, pp=2 if piped else 1)
        own = Candidate(degrees, 1, 1, "1f1b", (1,) * degrees.stages)
        case = case_of(llama_70b().model, replace(TRAINING, **fields), own, GPUS[name])
        return replace(case, factors=known).step_range.width

    assert width("h100", 4) < width("h100", 4, piped=False)
    assert width("h100", 4) < width("a100-80gb", 4, precision="fp16")
    assert width("h100", 4) < width("h100", 4, runtime=NANOTRON)


def test_efficiencies_say_where_they_are_from() -> None:
    measured = Factors((*TABLE.table, Factor("h100", 4, "bf16", 0.4, measured=True)))
    known = shipped_factors()

    def origin(factors: Factors, name: str, tp: int) -> str:
        return factors.origin(GPUS[name], tp, TRAINING, experts=False)

    assert origin(measured, "h100", 4) == "measured"
    assert origin(measured, "h100", 8) == "measured, scaled from tp 4"
    assert origin(known, "h100", 8).startswith("published: dgxc-benchmarking")
    assert origin(known, "h200", 8).startswith("published on h100 with tp 8 in bf16: dgxc")
    assert origin(known, "mi300x", 8).startswith("assumed")


def test_calibration_explains_the_step() -> None:
    case = llama_70b()
    factors = calibrated(case.case(shipped_factors()), case.measured)
    assert case.seconds(factors) == pytest.approx(case.measured, rel=1e-5)
    [new] = set(factors.table) - set(shipped_factors().table)
    assert (new.gpu, new.tp, new.precision, new.measured) == ("h100", 4, "bf16", True)
    assert 0.8 < new.efficiency < 0.95


def test_a_second_step_replaces_the_first() -> None:
    case = llama_70b()
    once = calibrated(case.case(), case.measured)
    twice = calibrated(case.case(once), 20.0)
    assert len(once.table) == len(twice.table) == 1
    assert case.seconds(twice) == pytest.approx(20.0, rel=1e-5)


@pytest.mark.parametrize("seconds", [7.5, 5000.0])
def test_a_time_that_nothing_explains_is_refused(seconds: float) -> None:
    case = llama_70b()._replace(measured=seconds)
    with pytest.raises(ParameterError, match=f"{seconds:g} s is no time of this plan"):
        case.calibrated()


def test_a_known_efficiency_can_be_given() -> None:
    case = korthikanti("175B", "full")
    factors = with_measured(case.case(), 0.7)
    assert factors.efficiency(case.cluster.gpu, 8, case.training, experts=False) == 0.7


def test_shipped_factors_are_one_per_gpu_degree_precision_and_software() -> None:
    keys = [item.key for item in shipped_factors().table]
    assert len(keys) == len(set(keys))
    for item in shipped_factors().table:
        assert item.gpu in GPUS
        assert item.source
        assert item.rows > 0
        assert not item.measured
        assert 0.3 < item.efficiency < 1.25
