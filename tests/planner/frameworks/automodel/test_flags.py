"""Our YAML in NeMo Automodel's own functions: read, and meant as we mean it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
import yaml

from debubble.interchange.layouts import AUTOMODEL
from debubble.planner.case import Case
from debubble.planner.frameworks.table import FRAMEWORKS, flags
from debubble.planner.frameworks.torch.flags import NAMES
from tests import wheels
from tests.patience import patience
from tests.planner.cases import case, dense, latent, mixture, sampled

VERSION = "0.7.0"
SECONDS = 900

GOOD: list[Case] = [
    case(dense(), tp=8, dp=4, recompute="full"),
    case(dense(), tp=4, cp=2, pp=4, b=2, m=8, zero=3),
    case(dense(), "interleaved-1f1b", tp=4, dp=2, pp=4, chunks=4, m=12, recompute="selective"),
    case(dense(30), "zb-v", tp=2, dp=2, pp=4, chunks=2, zero=2),
    case(dense(), "dualpipe-v", pp=4, chunks=2, sequence_parallel=False, tp=2),
    case(dense(), "zb-h1", pp=4, layers=(0, 16, 16, 0)),
    case(mixture(), tp=2, ep=8, dp=4, pp=2, recompute="selective"),
]
Read = list[tuple[Case, dict[str, Any]]]


@pytest.fixture(scope="module")
def made(request: pytest.FixtureRequest) -> Read:
    """Plans, and what it makes of them."""
    pytest.importorskip("torch", reason="NeMo Automodel imports PyTorch")
    pytest.importorskip("transformers", reason="NeMo Automodel imports transformers")
    wheel = wheels.fetch(wheels.folder_of(request, "automodel"), "nemo-automodel", VERSION)
    cases = [*GOOD, *sampled("automodel", 8)]
    write = FRAMEWORKS["automodel"].files[".yaml"]
    jobs = [{"yaml": write(one), "gpus": one.cluster.gpus, "layers": len(one.model.layers)}
            for one in cases]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "tests.planner.automodel_job"],
        input=json.dumps({"wheel": str(wheel), "jobs": jobs}),
        capture_output=True, text=True, timeout=patience(SECONDS), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return list(zip(cases, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("one", GOOD)
def test_the_file_has_all_settings_of_the_flags(one: Case) -> None:
    settings = yaml.safe_load(text_of(one))
    content = yaml.safe_load(FRAMEWORKS["automodel"].files[".yaml"](one))
    assert content["distributed"] == settings["distributed"]
    assert content["step_scheduler"] == {"max_steps": 100} | settings["step_scheduler"]
    assert content["dataset"]["seq_len"] == one.training.sequence
    assert ("fp8" in content) == (one.training.precision == "fp8")


def text_of(one: Case) -> str:
    return flags(one, "automodel")


@pytest.mark.slow
def test_automodel_reads_our_yaml_and_means_the_same(made: Read) -> None:
    for one, theirs in made:
        assert "error" not in theirs, (one.candidate, theirs)
        d, own = one.degrees, one.candidate
        sizes = {"tp": d.tp, "cp": d.cp, "ep": d.ep, "dp": d.dp, "pp": d.pp}
        assert theirs["sizes"] == sizes
        assert theirs["checkpointing"] == {
            "none": False, "full": True, "selective": "selective"
        }[own.recompute]  # fmt: skip
        assert theirs["reshard"] == (own.zero == 3)
        assert theirs["sequence_parallel"] == (d.tp > 1 and one.training.sequence_parallel)
        if d.pp == 1:
            continue
        assert theirs["v"] == (one.placement.name == "V")
        assert (theirs["csv"] is None) == (own.schedule in NAMES and not theirs["v"])
        assert theirs["microbatch_size"] == own.microbatch_size
        assert theirs["modules"] == AUTOMODEL.of(own.layers)
        if len(set(own.layers)) == 1:
            assert theirs["modules"] == theirs["even"]


@pytest.mark.parametrize("one", GOOD)
def test_batches_are_those_of_the_plan(one: Case) -> None:
    scheduler = yaml.safe_load(text_of(one))["step_scheduler"]
    local, own = scheduler["local_batch_size"], one.candidate
    assert scheduler["global_batch_size"] == one.training.batch
    accumulated = scheduler["global_batch_size"] // (local * one.degrees.dp)
    assert local * accumulated == own.microbatch_size * own.microbatches
    assert accumulated == (own.microbatches if one.degrees.pp == 1 else 1)


def test_what_it_does_not_run_is_said() -> None:
    text = text_of(case(dense(), dp=4, pp=2, zero=0))
    assert text == (
        "# NeMo Automodel does not run this plan: dp_replicate_size 4 has to be less than dp 4 "
        "(ZeRO 0); the nearest that works is ZeRO 2\n"
    )
    assert yaml.safe_load(text_of(case(latent(), pp=4))) is None


def test_the_file_says_what_is_planned_and_not_done() -> None:
    write = FRAMEWORKS["automodel"].files[".yaml"]
    note = "tensor-parallel communication hidden"
    assert note in write(case(dense(), tp=2, dp=2))
    assert note not in write(case(dense(), dp=4))
