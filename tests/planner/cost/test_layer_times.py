from dataclasses import replace

import pytest

from debubble.planner.candidate import Candidate, Degrees, Training
from debubble.planner.case import Case
from debubble.planner.cost.layer_times import INTERFERENCE, LayerTimes, layer_times
from debubble.planner.cost.layer_work import Times
from debubble.planner.cost.published_efficiencies import Factors
from debubble.planner.frameworks.torch.runtime import TORCH
from debubble.planner.hardware.cluster import Cluster, find_gpu
from debubble.planner.hardware.links import RankGroup, reduce_scatter
from debubble.planner.model.files import read_model
from debubble.planner.model.transformer import Layer
from tests.planner.published import korthikanti

FACTORS = Factors()


def times(training: Training, recompute: str = "none") -> LayerTimes:
    """A layer of the 22B model of arXiv 2205.05198 under the efficiency of its step."""
    case = korthikanti("22B", "selective")
    candidate = replace(case.candidate, recompute=recompute)
    layer = case.model.layers[0]
    return layer_times(
        Case(case.model, case.cluster, training, candidate, case.calibrated()), layer
    )


@pytest.mark.parametrize(
    ("recompute", "split", "forward", "backward"),
    [("none", False, 7.7, 11.9), ("none", True, 7.2, 11.8), ("full", False, 7.7, 19.5),
     ("selective", False, 7.7, 13.2), ("selective", True, 7.2, 13.1)],
)  # fmt: skip
def test_a_layer_takes_what_was_measured(
    recompute: str, split: bool, forward: float, backward: float
) -> None:
    # Table 4 there, in ms.
    training = replace(korthikanti("22B", "full").training, sequence_parallel=split)
    found = times(training, recompute)
    assert pytest.approx(forward, rel=0.06) == found.F * 1e3
    assert pytest.approx(backward, rel=0.12) == (found.I + found.W + found.R) * 1e3


def test_parts_sum_to_the_layer() -> None:
    found = times(korthikanti("22B", "full").training)
    assert sum(part.F for _, part in found.parts) == pytest.approx(found.F)
    assert sum(part.I for _, part in found.parts) == pytest.approx(found.I)
    assert sum(part.W for _, part in found.parts) == pytest.approx(found.W)


def modern(degrees: Degrees, name: str = "llama-3.1-8b", **fields: object) -> LayerTimes:
    model = read_model(name)
    cluster = Cluster(find_gpu("h100"), degrees.gpus)
    candidate = Candidate(degrees, 1, 1, "1f1b", (len(model.layers),))
    training = Training(128, 8192)
    options = {key: value for key, value in fields.items() if hasattr(candidate, key)}
    rest = {key: value for key, value in fields.items() if key not in options}
    layer: Layer = model.layers[-1]
    return layer_times(
        Case(model, cluster, replace(training, **rest), replace(candidate, **options), FACTORS),
        layer,
    )


def parts(times: LayerTimes) -> dict[str, float]:
    return {name: part.F + part.I for name, part in times.parts}


def test_one_gpu_communicates_nothing() -> None:
    found = parts(modern(Degrees()))
    assert {name for name, seconds in found.items() if seconds} == {"compute"}


def test_every_group_pays_for_its_communication() -> None:
    assert parts(modern(Degrees(tp=8)))["tp"] > 0
    assert parts(modern(Degrees(cp=8)))["cp"] > 0
    assert parts(modern(Degrees(dp=8, ep=8), "mixtral-8x7b"))["ep"] > 0


def test_communication_between_nodes_costs_more() -> None:
    inside, outside = modern(Degrees(tp=8)), modern(Degrees(tp=16))
    assert parts(outside)["tp"] > 2 * parts(inside)["tp"]


def test_overlap_hides_half_of_tensor_parallel_communication() -> None:
    hidden, shown = (
        dict(modern(Degrees(tp=8), overlap_tp=overlap).parts)["tp"].F for overlap in (True, False)
    )
    assert hidden == pytest.approx(shown / 2)


def test_full_recompute_is_another_forward() -> None:
    found = modern(Degrees(tp=2), recompute="full")
    assert found.R == found.F


def test_selective_recompute_costs_what_it_names() -> None:
    norms = modern(Degrees(), recompute="selective")
    mlp = modern(Degrees(), recompute="selective", modules=("mlp",))
    both = modern(Degrees(), recompute="selective", modules=("mlp", "layernorm"))
    assert 0 < norms.R < mlp.R < both.R < both.F
    assert pytest.approx(norms.R + mlp.R) == both.R


def test_recompute_of_experts_sends_tokens_again() -> None:
    degrees = Degrees(dp=8, ep=8)
    found = modern(degrees, "mixtral-8x7b", recompute="selective", modules=("moe",))
    assert found.R > dict(found.parts)["ep"].F > 0


def test_imbalance_makes_experts_slower() -> None:
    degrees = Degrees(dp=8, ep=8)
    even, uneven = (modern(degrees, "mixtral-8x7b", imbalance=x) for x in (1.0, 1.5))
    assert even.F < uneven.F < 1.5 * even.F


def test_the_efficiency_scales_kernels_alone() -> None:
    case = korthikanti("22B", "full")
    layer = case.model.layers[0]
    slow, fast = (
        dict(layer_times(case.case(factors), layer).parts)
        for factors in (Factors(), case.calibrated())
    )
    assert slow["tp"] == fast["tp"]
    assert slow["compute"] != fast["compute"]


def test_gradients_in_shards_are_scattered_by_every_microbatch() -> None:
    whole, split = (modern(Degrees(dp=64), zero=zero) for zero in (1, 2))
    gpu, model = find_gpu("h100"), read_model("llama-3.1-8b")
    size = 4 * model.layer_parameters(model.layers[0])
    scatter = reduce_scatter(gpu, RankGroup(64, 8), size)
    assert split.F == whole.F
    assert split.I == whole.I
    exposed = max(scatter - whole.I - whole.W, 0.0)
    assert pytest.approx(INTERFERENCE * scatter + exposed) == split.W - whole.W
    assert dict(split.parts)["dp"].W == split.W - whole.W
    # PyTorch's pipelines add them up first: see test_state.
    assert dict(modern(Degrees(dp=64), zero=2, runtime=TORCH).parts)["dp"] == Times()


def test_weights_in_shards_are_exposed_where_links_are_slow() -> None:
    found = modern(Degrees(dp=64), zero=3)
    assert parts(found)["dp"] >= 0
    assert parts(modern(Degrees(dp=64), zero=1))["dp"] == 0
