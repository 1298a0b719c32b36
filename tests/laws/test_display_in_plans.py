"""Options that say what is shown, or where, change nothing about which plan is best."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from debubble.cli.plan import plan
from debubble.planner.options import PLAN_OPTIONS

Run = Callable[..., Any]

QUESTION = (
    "plan", "llama-3.2-1b", "--gpu", "h100", "--gpus", 2, "--batch", 8, "--pp", 2,
    "--microbatch-size", 1, "--recompute", "none", "--schedule", "1f1b,gis,interleaved-1f1b,zb-v",
)  # fmt: skip

DISPLAY: dict[str, list[tuple[object, ...]]] = {
    "top": [("--top", 1), ("--top", 2), ("--top", 20)],
    "why": [("--why", "schedule=1f1b"), ("--why", "chunks=2")],
    "output": [("-o", "plan.yaml"), ("-o", "plan.csv"), ("-o", "plan.sh")],
    "explain": [("--explain",)],
    "as_json": [],  # how the answer is read here
}
"""Options of display, with values."""

QUESTIONS = {
    "model", "gpu", "gpus", "batch", "seq", "tp", "cp", "ep", "dp", "pp", "chunks",
    "microbatch_size", "schedule", "layers", "recompute", "zero", "precision", "framework",
    "memory", "imbalance", "gradients", "moments", "weights", "offload", "graph_pools",
    "calibrate", "optimize", "time_limit",
}  # fmt: skip
"""Options that ask for something else, or look for more."""


def test_every_option_is_of_one_sort() -> None:
    own = set(inspect.signature(plan).parameters) - {"options"}
    assert own | {row.name for row in PLAN_OPTIONS} == set(DISPLAY) | QUESTIONS


@pytest.fixture(scope="module")
def known() -> dict[str, Any]:
    return {}


@pytest.mark.parametrize("more", [more for each in DISPLAY.values() for more in each])
def test_what_is_shown_changes_no_best_plan(
    run: Run, known: dict[str, Any], more: tuple[object, ...], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    if not known:
        known |= run(*QUESTION, "--json").data
    found = run(*QUESTION, "--json", *more).data
    assert found["plans"][0] == known["plans"][0]
    count = min(len(found["plans"]), len(known["plans"]))
    assert [one["step_time"] for one in found["plans"]][:count] == pytest.approx(
        [one["step_time"] for one in known["plans"]][:count], rel=1e-9
    )
    assert found["buys"] == known["buys"]
