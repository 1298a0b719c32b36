"""Self: what a search says of its schedule is what every other surface says of it.

Also of questions with each option and with all at random: test_effect_in_searches.py asks them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import debubble as db
from tests.optimize.searches import BASE, ask, costs_of

LENGTHS: dict[str, Any] = {"costs": {"microbatch": (1.25, 0.75, 1.0)}}

QUESTIONS: list[dict[str, Any]] = [
    *(LENGTHS | change for change in (
        {"backward": "fused"}, {"memory": 2.0}, {"offload": [0]}, {"recompute": "free"},
        {"layers": 6}, {"chunks": 2},
    )),
    {"layers": 7, "chunks": 2, "microbatches": 2, "recompute": "full", "p2p_mode": "channel",
     "costs": {"F": 1, "I": 3, "W": 2, "launch": 0.5, "runtime": "torch",
               "microbatch": (0.8, 0.8)}},
    {"microbatches": 2, "backward": "fused", "recompute": [0], "p2p_mode": "blocking",
     "memory": 2.5, "costs": {"F": 1, "I": 3, "W": 2, "B": 4, "p2p": 0.5, "R": 1,
                              "kept_for_weight": 1, "recompute_kept": 0, "runtime": "torch"}},
]  # fmt: skip


@pytest.mark.parametrize("asked", QUESTIONS, ids=str)
def test_simulated_again_it_takes_and_holds_the_same(asked: dict[str, Any], tmp_path: Path) -> None:
    agrees(asked, ask(asked), tmp_path)


def agrees(asked: dict[str, Any], result: db.Result, folder: Path) -> None:
    """The schedule, read from its file, by simulate, compare and check, with what was given."""
    whole = BASE | asked
    costs, mode = costs_of(asked, result), whole["p2p_mode"]
    result.schedule.save(folder / "found.json")
    schedule = db.load(folder / "found.json")
    timeline = db.simulate(schedule, costs, mode)
    peaks = result.timeline.peak_activation.tolist()
    assert timeline.makespan == pytest.approx(result.makespan, rel=1e-12)
    assert timeline.peak_activation.tolist() == pytest.approx(peaks)
    (row,) = db.compare([schedule], costs=costs, memory=whole["memory"], p2p_mode=mode).rows
    assert row.makespan == pytest.approx(result.makespan, rel=1e-12)
    assert row.fits in (True, None)
    assert db.check(schedule, memory=whole["memory"], costs=costs, p2p_mode=mode).ok
    met = result.makespan <= result.lower_bound * (1 + 1e-9)
    assert (result.status == "optimal") == met


def test_a_csv_with_lengths_takes_what_the_result_says(tmp_path: Path) -> None:
    result = ask(LENGTHS)
    result.schedule.save(tmp_path / "found.csv")
    timeline = db.simulate(db.load(tmp_path / "found.csv"), costs_of(LENGTHS, result))
    assert timeline.makespan == result.makespan
