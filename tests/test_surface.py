"""The public surface: what is exported, and with which parameters. Extend it, rename nothing."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

import debubble as db
from debubble.core.errors import deprecated
from tests import typed_client

EXPORTED = {
    "Action", "ClosedForm", "Comparison", "Constraint", "CostError", "Costs",
    "DebubbleDeprecationWarning", "DebubbleError", "Diagnosis", "FormatError", "Jitter", "Kind",
    "ParameterError", "Placement", "Plan", "Report", "Result", "Schedule", "ScheduleError",
    "Spread", "Timeline", "check", "compare", "load", "make", "optimize", "plan", "read_trace",
    "register", "schedules", "simulate",
}  # fmt: skip

PARAMETERS = {
    "make": {"name", "ranks", "microbatches", "chunks", "iterations", "sync", "costs", "memory"},
    "simulate": {"schedule", "costs", "p2p_mode", "durations"},
    "check": {"schedule", "memory", "costs", "p2p_mode", "makespan"},
    "compare": {"schedules", "ranks", "microbatches", "chunks", "costs", "memory", "p2p_mode"},
    "load": {"path"},
    "read_trace": {"path"},
    "plan": {
        "model",
        "gpu",
        "gpus",
        "batch",
        "seq",
        "tp",
        "cp",
        "ep",
        "dp",
        "pp",
        "chunks",
        "microbatch_size",
        "schedule",
        "layers",
        "recompute",
        "zero",
        "precision",
        "framework",
        "memory",
        "imbalance",
        "calibrate",
        "why",
        "top",
        "optimize",
        "time_limit",
    },
    "schedules": set(),
}
"""Parameters that callers rely on; there may be more."""

MEMBERS = {
    "Timeline": {
        "makespan", "bubble_ratio", "stage_bubble_rate", "overhead", "stage_time", "busy",
        "peak_activation", "critical_path", "sensitivity", "start", "end", "plot", "save", "jitter",
    },
    "Schedule": {
        "name", "ranks", "stages", "chunks", "microbatches", "iterations", "placement", "program",
        "rows", "save", "from_text", "from_programs", "to_dict",
    },
    "Comparison": {"rows", "skipped", "notes", "headline", "save", "to_dict"},
    "Result": {"schedule", "makespan", "lower_bound", "status", "seconds"},
    "Plan": {
        "fits", "best", "alternatives", "candidate", "schedule", "costs", "timeline",
        "step_seconds", "step_error", "step_range", "memory", "flags", "to_dict",
    },
    "Report": {"problems", "ok"},
    "Jitter": {"times", "samples", "seed", "replicas", "slow"},
    "Spread": {"mean", "p50", "p95", "p99", "quantile", "times", "planned", "slowdown", "to_dict"},
    "Diagnosis": {"schedule", "costs", "findings", "timeline", "to_dict"},
    "Costs": {"per_rank"},
}  # fmt: skip


def test_what_is_exported() -> None:
    assert set(db.__all__) == EXPORTED
    assert set(dir(db)) >= EXPORTED
    for name in EXPORTED:
        assert getattr(db, name) is not None


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_keep_their_names(name: str) -> None:
    assert set(inspect.signature(getattr(db, name)).parameters) >= PARAMETERS[name]


@pytest.mark.parametrize("name", MEMBERS)
def test_members_keep_their_names(name: str) -> None:
    cls = getattr(db, name)
    fields = set(getattr(cls, "__dataclass_fields__", ()))
    assert fields | set(dir(cls)) >= MEMBERS[name]


def test_errors_are_value_errors_with_one_root() -> None:
    for name in ("CostError", "FormatError", "ParameterError", "ScheduleError"):
        assert issubclass(getattr(db, name), db.DebubbleError)
    assert issubclass(db.DebubbleError, ValueError)


def test_what_goes_away_warns_where_it_is_used() -> None:
    def old_function() -> None:
        deprecated("old_function", "new_function", "0.3")

    with pytest.warns(db.DebubbleDeprecationWarning, match="use new_function") as caught:
        old_function()
    line = Path(__file__).read_text(encoding="utf-8").splitlines()[caught[0].lineno - 1]
    assert (caught[0].filename, line.strip()) == (__file__, "old_function()")
    assert str(caught[0].message) == (
        "old_function is deprecated and goes away in debubble 0.3; use new_function"
    )
    # Shown to users of programs, not to their developers alone, and never taken for an error.
    assert issubclass(db.DebubbleDeprecationWarning, FutureWarning)
    assert not issubclass(db.DebubbleDeprecationWarning, db.DebubbleError)


def test_a_typed_client_runs(tmp_path: Path) -> None:
    """Its types are checked with those of the package, see ``[tool.mypy]``."""
    assert typed_client.fastest(["gpipe", "1f1b"], 4, 8, 4.0) == "1f1b"
    numbers = typed_client.measure(db.make("1f1b", ranks=4, microbatches=8), tmp_path)
    assert numbers == {"makespan": 33.0, "bubble_ratio": 3 / 11, "peak": 4.0}
    assert "ranks" in typed_client.refused(0)
