"""Patterns: their pace, memory, unrolling and stretching; and what repeats in any order."""

from __future__ import annotations

import numpy as np
import pytest

import debubble as db
from debubble.optimize.anneal.annealer import refine
from debubble.optimize.periodic.unroll import few_microbatches, middle_period, repeatable, stretched
from debubble.optimize.stop import Stop
from tests.optimize.periodic.test_cycles import best_cycle, pattern_of
from tests.optimize.problems import problem


@pytest.mark.slow
@pytest.mark.parametrize("width", [1, 2])
def test_unrolled_patterns_run_within_memory_at_their_pace(width: int) -> None:
    asked = problem(3, 24, 2, F=5, I=6, W=4, p2p=0.5)
    cycle = best_cycle(asked, width)
    makespans = []
    for m in (24, 25, 48):
        longer = asked.shortened(m)
        schedule = longer.schedule(pattern_of(asked, cycle).unroll(longer))
        assert db.check(schedule, memory=2).ok
        makespans.append(longer.timeline(schedule).makespan)
    assert makespans[2] - makespans[0] <= 24 * cycle.pace * (1 + 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("width", [1, 2])
def test_stretching_repeats_the_middle(width: int) -> None:
    asked = problem(3, 60, 2, F=5, I=6, W=4)
    pattern = pattern_of(asked, best_cycle(asked, width))
    few = few_microbatches(pattern, 60)
    assert few < 60
    assert (60 - few) % width == 0
    short = asked.shortened(few)
    places = middle_period(short, pattern)
    assert np.all(places[1] - places[0] == 6 * width)
    order = refine(short, pattern.unroll(short), Stop(), 1, fixed=places)
    long = stretched(order, places, width, (60 - few) // width)
    schedule = asked.schedule(long)
    assert db.check(schedule, memory=2).ok
    repaired = asked.timeline(schedule).makespan
    assert repaired <= asked.timeline(asked.schedule(pattern.unroll(asked))).makespan


def test_what_repeats_in_any_order_can_be_repeated() -> None:
    schedule = db.make("1f1b", ranks=4, microbatches=12)
    asked = problem(4, 12, 4, chunks=1, backward="fused")
    programs = [schedule.program(rank) for rank in range(4)]
    longer = db.make("1f1b", ranks=4, microbatches=24)
    found = list(repeatable(asked, programs, 2))
    assert found
    for places in found:
        assert np.all(places[1] - places[0] == 4)
        repeated = stretched(programs, places, 2, 6)
        for rank in range(4):
            assert np.array_equal(repeated[rank], longer.program(rank))


def test_no_order_repeats_after_more_microbatches_than_it_has() -> None:
    schedule = db.make("gpipe", ranks=3, microbatches=6)
    asked = problem(3, 6, 6, chunks=1, backward="fused")
    programs = [schedule.program(rank) for rank in range(3)]
    assert not list(repeatable(asked, programs, 7))
