"""PACI: steps between a forward and its backward, counted, and what does not follow from them."""

from __future__ import annotations

from pathlib import Path

import pytest

import debubble as db
from debubble.core.kinds import GRADIENT_KINDS


def crossed(program: tuple[db.Action, ...]) -> int:
    """Most optimizer steps between the forward and the backward of a microbatch."""
    steps, before, most = 0, {}, 0
    for action in program:
        if action.kind == db.Kind.OPT:
            steps += 1
        elif action.kind == db.Kind.F:
            before[action.microbatch] = steps
        elif action.kind in GRADIENT_KINDS:
            most = max(most, steps - before[action.microbatch])
    return most


@pytest.mark.parametrize("p", [1, 2, 3, 4, 7, 8])
@pytest.mark.parametrize("k", [1, 2, 3, 4, 7, 8])
def test_steps_that_a_microbatch_meets(p: int, k: int) -> None:
    schedule = db.make("paci", ranks=p, microbatches=k, iterations=12)
    assert db.check(schedule).ok
    for rank, program in enumerate(schedule):
        bound = -(-(p - 1 - rank) // k)
        assert crossed(program) == bound == schedule.versions[rank] - 1
        assert bound <= 1 or k < p - 1


def test_no_more_weights_than_one_version() -> None:
    sizes = {"ranks": 4, "microbatches": 1, "iterations": 8}
    ours, other = (db.simulate(db.make(name, **sizes)) for name in ("paci", "pipedream"))
    assert ours.schedule == other.schedule
    assert ours.makespan == other.makespan
    assert ours.peak_activation.tolist() == other.peak_activation.tolist() == [4, 3, 2, 1]
    rows = {row.name: row for row in db.compare(["paci", "pipedream"], **sizes).rows}
    assert (rows["paci"].parameter_copies, rows["pipedream"].parameter_copies) == (1, 2.5)
    assert rows["paci"].weight_versions == rows["pipedream"].weight_versions == 4


def test_files_keep_that_no_weights_are_stored(tmp_path: Path) -> None:
    schedule = db.make("paci", ranks=4, microbatches=2, iterations=3)
    schedule.save(tmp_path / "x.json")
    again = db.load(tmp_path / "x.json")
    assert again.newest_weights
    assert again.versions == (3, 2, 2, 1)
    assert again.stored_versions == (1, 1, 1, 1)
    assert db.check(again).ok


def test_a_run_is_refused_with_the_reason() -> None:
    torch = pytest.importorskip("torch", reason="runs a pipeline; install torch")
    from types import SimpleNamespace

    from debubble.torch.models.find_stages import find_stages

    schedule = db.make("paci", ranks=2, microbatches=1, iterations=3)
    ranks = SimpleNamespace(rank=0, device=torch.device("cpu"))
    with pytest.raises(db.ParameterError, match=r"runs backwards on newer weights .* 'pipedream'"):
        find_stages({0: torch.nn.Linear(2, 2)}, schedule, ranks)  # type: ignore[arg-type]
