"""Annealing keeps orders right, knows their makespan, and depends on nothing but the seed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import debubble as db
from debubble.optimize.anneal._kernel import anneal
from debubble.optimize.anneal.annealer import Annealer, empty_state, refine
from debubble.optimize.anneal.moves import Cooling
from debubble.optimize.programs.list_scheduling import list_programs
from debubble.optimize.stop import Stop
from tests.optimize.problems import problem

TIMES = st.integers(0, 12).map(lambda n: n / 4)


@settings(max_examples=30)
@given(st.data())
def test_every_order_is_right_and_its_makespan_the_engines(data: st.DataObject) -> None:
    p, v, m = (data.draw(st.integers(1, most)) for most in (5, 3, 8))
    per_stage = st.lists(TIMES, min_size=p * v, max_size=p * v)
    memory = data.draw(st.floats(1, p + 1))
    asked = problem(
        p, m, memory, chunks=v, F=data.draw(per_stage), I=data.draw(per_stage),
        W=data.draw(per_stage), p2p=data.draw(TIMES),
        backward=data.draw(st.sampled_from(["split", "fused"])),
        kept_for_weight=data.draw(st.sampled_from([0.0, 0.5, 1.0])),
    )  # fmt: skip
    start = list_programs(asked, ())
    annealer = Annealer(asked, start, seed=data.draw(st.integers(0, 9)))
    order = annealer.best.copy()
    annealer.run(3000, 2.0, 0.1, 0.0, order)
    for programs in (annealer.programs, asked.programs(order)):
        schedule = asked.schedule(programs)
        assert db.check(schedule).ok
        assert asked.fits(schedule)
    best = asked.timeline(asked.schedule(annealer.programs)).makespan
    assert annealer.makespan == pytest.approx(best)
    assert best <= asked.timeline(asked.schedule(start)).makespan + 1e-9


def test_compiled_and_interpreted_do_the_same() -> None:
    asked = problem(2, 4, 1.5, F=2, I=3, W=1, p2p=0.5)
    results = []
    for run in (anneal.compiled, anneal.interpret):
        annealer = Annealer(asked, list_programs(asked, ()))
        order, best = annealer.best.copy(), annealer.best.copy()
        run(Cooling(500, 2.0, 0.1, 0.0, 1e-9), annealer._actions, empty_state(order), best,
            annealer._counters, annealer.halt)  # fmt: skip
        results.append((best.tolist(), order.tolist(), annealer._counters.tolist()))
    assert results[0] == results[1]


@pytest.mark.slow
def test_the_seed_decides() -> None:
    asked = problem(4, 8, 2, F=5, I=6, W=4)
    start = list_programs(asked, ())

    def run(seed: int) -> list[list[int]]:
        programs = refine(asked, start, Stop(), 1, seed=seed)
        return [program.tolist() for program in programs]

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_fixed_places_stay() -> None:
    asked = problem(4, 8, 2, F=5, I=6, W=4)
    start = list_programs(asked, ())
    begin, end = np.full(4, 10), np.full(4, 25)
    refined = refine(asked, start, Stop(), 1, fixed=(begin, end))
    assert any(np.any(a != b) for a, b in zip(start, refined, strict=True))
    for before, after in zip(start, refined, strict=True):
        assert np.array_equal(before[10:25], after[10:25])


def test_it_stops_at_once_when_asked() -> None:
    asked = problem(4, 8, 2)
    stop = Stop()
    stop.ask()
    start = list_programs(asked, ())
    same = refine(asked, start, stop, 100)
    assert all(np.array_equal(a, b) for a, b in zip(start, same, strict=True))
