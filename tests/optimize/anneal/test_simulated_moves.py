"""Orders that are moved action by action, and simulated, where ranks meet for transfers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import debubble as db
from debubble.core.actions import STAGE_SHIFT
from debubble.engine.modes import MEETING
from debubble.optimize.anneal.simulated_moves import move_actions, move_one_action
from debubble.optimize.incumbent import Incumbent
from debubble.optimize.problem import Problem
from debubble.optimize.stop import Stop
from debubble.optimize.strategies import begin
from tests.optimize.problems import problem

COSTS: dict[str, Any] = {"F": 2, "I": 3, "W": 1, "p2p": 0.5}


def test_no_action_passes_one_of_its_own_stage_and_microbatch() -> None:
    schedule = db.make("zb-h1", ranks=3, microbatches=4)
    programs = [schedule.program(rank) for rank in range(3)]
    rng, changed = np.random.default_rng(0), 0
    for _ in range(400):
        found = move_one_action(programs, rng)
        if found is None:
            continue
        changed += 1
        assert sum(not np.array_equal(a, b) for a, b in zip(found, programs, strict=True)) == 1
        for before, after in zip(programs, found, strict=True):
            assert sorted(before.tolist()) == sorted(after.tolist())
            for cell in np.unique(before >> STAGE_SHIFT):
                own = [each[each >> STAGE_SHIFT == cell].tolist() for each in (before, after)]
                assert own[0] == own[1]
    assert changed > 100
    assert move_one_action([programs[0][:1]], rng) is None


def move(asked: Problem, programs: list[Any], found: Callable[[list[Any]], object]) -> None:
    move_actions(
        programs, lambda some: asked.makespan(asked.schedule(some)), 600,
        np.random.default_rng(0), lambda: False, found, heat=0.5,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("mode", MEETING)
def test_every_order_that_is_found_is_faster_and_fits(mode: str) -> None:
    asked = problem(3, 6, 2.0, chunks=2, mode=mode, **COSTS)
    incumbent = Incumbent(asked, Stop())
    begin(incumbent)
    times = [incumbent.makespan]

    def look(programs: list[Any]) -> None:
        schedule = asked.schedule(programs)
        assert asked.fits(schedule)
        assert db.check(schedule, p2p_mode=asked.mode).ok
        times.append(asked.timeline(schedule).makespan)

    move(asked, incumbent.programs, look)
    assert len(times) > 1
    assert times == sorted(times, reverse=True)
    assert times[-1] >= incumbent.bound * (1 - 1e-9)
    again = list[Any]()
    move(asked, incumbent.programs, again.append)
    assert len(again) == len(times) - 1


@pytest.mark.slow
def test_a_search_makes_use_of_it() -> None:
    found = db.optimize(
        ranks=3, microbatches=6, chunks=2, memory=3, p2p_mode="group", cache=False, effort=0.1,
        costs=db.Costs(F=4, I=3, W=1, p2p=2), workers=1,
    )  # fmt: skip
    assert found.found_by == "moving single actions"
    assert found.published is not None
    rows = [row for row in found.published.rows if row.schedule is not found.schedule]
    assert found.makespan < min(row.timeline.makespan for row in rows)
