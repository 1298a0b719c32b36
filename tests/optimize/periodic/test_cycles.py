"""Cycles: their period is the engine's, annealing keeps memory, and patterns are made of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import debubble as db
from debubble.optimize.periodic import cycles
from debubble.optimize.periodic._cycle_kernel import anneal_cycle
from debubble.optimize.periodic.cycles import Cycle, annealed, as_cycle, pattern_of, repeated
from debubble.optimize.periodic.unroll import repeatable
from debubble.optimize.problem import Problem
from debubble.optimize.programs.list_scheduling import list_programs
from debubble.optimize.stop import Stop
from tests.optimize.problems import problem

TIMES = st.integers(0, 12).map(lambda n: n / 4)


def cycles_in(asked: Problem, width: int) -> list[Cycle]:
    order = list_programs(asked, ())
    return [as_cycle(asked, order, places, width) for places in repeatable(asked, order, width)]


def best_cycle(asked: Problem, width: int) -> Cycle:
    found = [annealed(asked, cycle, 20_000, Stop()) for cycle in cycles_in(asked, width)]
    return min(found, key=lambda cycle: cycle.period)


def long_run_pace(asked: Problem, cycle: Cycle) -> float:
    """Time per microbatch of the unrolled order, in the engine, once it is in its steady state."""
    pattern, makespans = pattern_of(asked, cycle), []
    for periods in (500, 1000):
        longer = asked.shortened(periods * cycle.width)
        schedule = longer.schedule(pattern.unroll(longer))
        assert db.check(schedule).ok
        assert longer.fits(schedule)
        makespans.append(longer.timeline(schedule).makespan)
    return float(makespans[1] - makespans[0]) / (500 * cycle.width)


@pytest.mark.slow
@settings(max_examples=20)
@given(st.data())
def test_the_period_is_the_engines_and_memory_is_kept(data: st.DataObject) -> None:
    p, width = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    per_stage = st.lists(TIMES.map(lambda time: time + 0.25), min_size=2 * p, max_size=2 * p)
    asked = problem(
        p, 24, data.draw(st.floats(1, p + 1)), F=data.draw(per_stage), I=data.draw(per_stage),
        W=data.draw(per_stage), p2p=data.draw(TIMES),
        kept_for_weight=data.draw(st.sampled_from([0.0, 0.5, 1.0])),
    )  # fmt: skip
    # Cuts of ranks that do not belong together make a deadlock.
    some = [cycle for cycle in cycles_in(asked, width) if cycle.period < np.inf][:2]
    assume(some)
    for cycle in some:
        found = annealed(asked, cycle, 300, Stop(), data.draw(st.integers(0, 9)))
        assert found.period <= cycle.period
        for one in (cycle, found):
            assert one.pace >= asked.work.max() * (1 - 1e-9)
            # Circles that are slower by less than one in a hundred may not show yet.
            assert long_run_pace(asked, one) == pytest.approx(one.pace, rel=0.01)
        longer = repeated(asked, found, data.draw(st.integers(1, 3)))
        assert longer.pace == pytest.approx(found.pace)
        measured = annealed(asked, replace(longer, period=np.inf), 0, Stop())
        assert measured.period == pytest.approx(longer.period)
        assert long_run_pace(asked, longer) == pytest.approx(longer.pace, rel=0.01)


@pytest.mark.slow
def test_one_forward_one_backward_never_waits() -> None:
    schedule = db.make("1f1b", ranks=4, microbatches=12)
    asked = problem(4, 12, 4, chunks=1, backward="fused")
    programs = [schedule.program(rank) for rank in range(4)]
    for places in repeatable(asked, programs, 2):
        cycle = as_cycle(asked, programs, places, 2)
        assert cycle.pace == 3
        longer = asked.shortened(20)
        unrolled = longer.schedule(pattern_of(asked, cycle).unroll(longer))
        assert longer.timeline(unrolled).makespan == (20 + 3) * 3


@pytest.mark.slow
@pytest.mark.parametrize(("memory", "pace"), [(2, 34), (3, 30)])
def test_annealing_finds_the_known_period(memory: float, pace: float) -> None:
    # V-Min repeats every 36; 30 is the work of a rank, so that nothing idles.
    asked = problem(4, 24, memory, F=5, I=6, W=4)
    assert best_cycle(asked, 1).pace == pytest.approx(pace)


def test_no_work_has_a_period_of_about_nothing() -> None:
    asked = problem(2, 12, 2, F=0, I=0, W=0)
    assert all(cycle.period < 0.01 for cycle in cycles_in(asked, 1))


def test_a_deadlock_has_no_period() -> None:
    asked = problem(2, 12, 2, F=1, I=1, W=1)
    cycle = cycles_in(asked, 1)[0]
    ahead = cycle.ahead.copy()
    # The weights' pass of a microbatch would come long before its gradient.
    ahead[-1] += 100
    broken = Cycle(1, cycle.order, ahead, np.inf)
    assert annealed(asked, broken, 100, Stop()).period == np.inf


def test_compiled_and_interpreted_do_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = problem(2, 12, 1.5, F=2, I=3, W=1, p2p=0.5)
    cycle = cycles_in(asked, 2)[0]
    fast = annealed(asked, cycle, 200, Stop())
    monkeypatch.setattr(cycles.anneal_cycle, "_compiled", anneal_cycle.interpret)
    slow = annealed(asked, cycle, 200, Stop())
    assert fast.period == pytest.approx(slow.period)
    assert np.array_equal(fast.order, slow.order)
    assert np.array_equal(fast.ahead, slow.ahead)
