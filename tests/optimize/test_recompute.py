"""Stages that recompute: the model of R, every search with it, and the choice of stages."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import debubble as db
from debubble.core.actions import STAGE_SHIFT, Kind, kinds_of
from debubble.optimize import cache, variants
from debubble.optimize.anneal.annealer import Annealer
from debubble.optimize.bounds.paths import lower_bound
from debubble.optimize.cp_sat.model import ExactModel
from debubble.optimize.cp_sat.rounding import whole_units
from debubble.optimize.periodic.cycles import pattern_of
from debubble.optimize.problem import Problem
from debubble.optimize.programs.backward import relaxed
from debubble.optimize.programs.list_scheduling import list_programs
from debubble.optimize.stage_choices.choices import choice_of, same_for_all, ways_of, with_choice
from debubble.optimize.stage_choices.space import (
    bound_of_all,
    families,
    fits_without_copies,
    relaxation,
)
from tests.optimize.periodic.test_cycles import best_cycle
from tests.optimize.problems import fastest, problem, recomputes_between

TIMES = st.integers(1, 6).map(lambda n: n / 2)
FAST: dict[str, Any] = {"cache": False, "published": False, "effort": 0.02, "workers": 1}
"""Little work, and by one worker: two workers may find something else every time."""

FREE = ways_of("free", "none", 2)

SHAPES = ((2, 1, 2, "split"), (2, 1, 2, "fused"), (1, 2, 1, "split"), (2, 2, 1, "fused"),
          (1, 3, 1, "fused"))  # fmt: skip
"""Ranks, chunks, microbatches and backward with few enough orders to look at all."""


def drawn(data: st.DataObject, shapes: Any = SHAPES) -> Problem:
    """A problem in which some stages recompute, with limits from the smallest that works."""
    p, v, m, backward = data.draw(st.sampled_from(shapes))
    per_stage = st.lists(TIMES, min_size=p * v, max_size=p * v)
    sizes = st.lists(st.sampled_from([1.0, 1.5, 2.0]), min_size=p * v, max_size=p * v)
    share = st.sampled_from([0.0, 1 / 3, 0.5, 1.0])
    asked = problem(
        p, m, 1.0, chunks=v, backward=backward, F=data.draw(per_stage), I=data.draw(per_stage),
        W=data.draw(per_stage), R=data.draw(per_stage), p2p=data.draw(st.sampled_from([0, 0.5, 2])),
        activation=data.draw(sizes), kept_for_weight=data.draw(share),
        recompute_kept=data.draw(share), kv=data.draw(st.sampled_from([0.0, 0.0, 0.25])),
    )  # fmt: skip
    asked = with_choice(asked, data.draw(st.tuples(*(st.booleans() for _ in range(p * v)))))
    more = data.draw(st.lists(st.sampled_from([0.0, 0.3, 1.0, 2.0]), min_size=p, max_size=p))
    return replace(asked, limits=asked.smallest_limits * (1 + np.array(more)))


def recomputes_right_before_backwards(schedule: db.Schedule) -> bool:
    """Whether every R is followed by its backward."""
    for rank in range(schedule.ranks):
        program = schedule.program(rank)
        spots = np.flatnonzero(kinds_of(program) == Kind.R)
        after = program[spots + 1]
        if not np.all(np.isin(kinds_of(after), (Kind.I, Kind.B))):
            return False
        if np.any(after >> STAGE_SHIFT != program[spots] >> STAGE_SHIFT):
            return False
    return True


@pytest.mark.slow
@settings(max_examples=25)
@given(st.data())
def test_every_search_and_bound_agrees_with_the_fastest_of_all_orders(data: st.DataObject) -> None:
    asked = drawn(data)
    best = fastest(asked)
    start = list_programs(asked, ())
    order = asked.schedule(start)
    assert db.check(order).ok
    assert asked.fits(order)
    assert recomputes_right_before_backwards(order)
    listing = asked.timeline(order).makespan
    assert lower_bound(asked) <= best + 1e-9 <= listing + 2e-9
    solution = ExactModel(asked, start, lower_bound(asked)).solve(20, 20, 1, 0)
    assert solution.proven
    assert solution.programs is not None
    solved = asked.schedule(solution.programs)
    assert asked.fits(solved)
    assert solution.bound == pytest.approx(best)
    assert recomputes_between(solved)
    assert asked.timeline(solved).makespan == pytest.approx(best)


@settings(max_examples=30)
@given(st.data())
def test_lists_and_annealed_orders_are_right(data: st.DataObject) -> None:
    sizes = [(p, v, m, "split") for p in (1, 2, 4) for v in (1, 2, 3) for m in (1, 4, 9)]
    asked = drawn(data, sizes)
    start = list_programs(asked, (), 0.02)
    annealer = Annealer(asked, start, seed=data.draw(st.integers(0, 9)))
    order = annealer.best.copy()
    annealer.run(3000, 2.0, 0.1, 0.0, order)
    for programs in (start, annealer.programs, asked.programs(order)):
        schedule = asked.schedule(programs)
        assert db.check(schedule).ok
        assert asked.fits(schedule)
        assert asked.timeline(schedule).makespan >= lower_bound(asked) - 1e-9
    best = asked.timeline(asked.schedule(annealer.programs)).makespan
    assert annealer.makespan == pytest.approx(best)


def test_a_recompute_runs_while_the_gradient_is_under_way() -> None:
    asked = with_choice(problem(2, 1, 1, chunks=1, F=1, I=1, W=1, R=3), (1, 0))
    assert asked.backward_lag.tolist() == [-3, 0]
    # F of both stages, I of the last, I and W of the first: R has no time of its own but one. No
    # place is better than right before the backward.
    assert fastest(asked) == lower_bound(asked) == 1 + 3 + 1 + 1
    order = asked.schedule(list_programs(asked, ()))
    assert recomputes_right_before_backwards(order)
    assert asked.timeline(order).makespan == fastest(asked)


@pytest.mark.slow
@settings(max_examples=8)
@given(st.data())
def test_the_bound_of_all_choices_holds_for_each(data: st.DataObject) -> None:
    asked = drawn(data, [s for s in SHAPES if s[0] * s[1] == 2])
    spans = {
        chosen: fastest(with_choice(asked, chosen)) for chosen in product((False, True), repeat=2)
    }
    best = min(spans.values())
    for nodes in (0, 1, 2, 9):
        bound, _ = bound_of_all(asked, FREE, float("inf"), {}, nodes)
        assert bound <= best + 1e-9
    for decided in product((False, True, None), repeat=2):
        easy = relaxation(asked, decided, FREE)
        least = min(
            makespan for chosen, makespan in spans.items()
            if all(a is None or a == b for a, b in zip(decided, chosen, strict=True))
        )  # fmt: skip
        if fits_without_copies(easy):
            assert lower_bound(relaxed(easy)) <= least + 1e-9
        else:
            assert least == float("inf")


@pytest.mark.slow
@settings(max_examples=12)
@given(st.data())
def test_the_free_choice_is_the_best_of_all_sets_and_orders(data: st.DataObject) -> None:
    asked = drawn(data, [s for s in SHAPES if s[0] * s[1] == 2])
    result = db.optimize(
        ranks=asked.ranks, microbatches=asked.microbatches, costs=asked.table.costs,
        memory=asked.limits.tolist(), placement=asked.placement, backward=asked.backward,
        recompute="free", cache=False, published=False, effort=0.05,
    )  # fmt: skip
    sets = product((False, True), repeat=2)
    assert result.makespan == pytest.approx(min(fastest(with_choice(asked, s)) for s in sets))
    assert result.status == "optimal"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "memory", "mode"),
    [
        # Every pair of two values.
        ("wave", 0.5, "overlapped"), ("wave", 1.0, "blocking"), ("wave", 2.5, "overlapped"),
        ("loop", 0.5, "blocking"), ("loop", 1.0, "overlapped"), ("loop", 2.5, "blocking"),
    ],
)  # fmt: skip
def test_results_fit_and_read_back(shape: Any, memory: float, mode: Any, tmp_path: Path) -> None:
    costs = db.Costs(F=3, I=4, W=2, p2p=0.5, recompute_kept=0.1)
    memory = max(memory, 0.55)
    asked: dict[str, Any] = {
        "ranks": 2,
        "chunks": 2,
        "microbatches": 3,
        "costs": costs,
        "memory": memory,
        "placement": shape,
        "p2p_mode": mode,
    }
    free = db.optimize(**asked, recompute="free", **FAST)
    assert db.check(free.schedule, memory=memory, costs=costs, p2p_mode=mode).ok
    assert recomputes_between(free.schedule)
    timeline = db.simulate(free.schedule, costs, mode)
    assert timeline.peak_activation.max() <= memory * (1 + 1e-9)
    assert timeline.makespan == free.makespan >= free.lower_bound * (1 - 1e-9)
    full = db.optimize(**asked, recompute="full", **FAST)
    assert free.makespan <= full.makespan
    assert full.recompute == list(range(4))
    if memory >= 1:
        none = db.optimize(**asked, **FAST)
        assert free.makespan <= none.makespan
        assert none.recompute == []
    # PyTorch's CSV has no R.
    for name in ("x.json", "x.csv")[: 1 if free.recompute else 2]:
        free.schedule.save(tmp_path / name)
        again = db.load(tmp_path / name)
        assert again.rows() == free.schedule.rows()
        assert db.simulate(again, costs, mode).makespan == free.makespan


@pytest.mark.slow
def test_less_memory_than_one_microbatch_is_enough_and_faster_above() -> None:
    costs = db.Costs(F=5, I=6, W=4)
    asked: dict[str, Any] = {
        "ranks": 4,
        "chunks": 2,
        "microbatches": 5,
        "costs": costs,
        "placement": "wave",
    }
    little = db.optimize(**asked, memory=0.5, recompute="free", **FAST)
    assert little.timeline.peak_activation.max() <= 0.5
    none = db.optimize(**asked, memory=1.5, **FAST)
    free = db.optimize(**asked, memory=1.5, recompute="free", **FAST)
    assert free.makespan < 0.8 * none.makespan
    assert 0 < len(free.recompute) < 8
    assert free.to_dict()["recompute"] == free.recompute
    assert "\nrecompute on stages " in str(free)
    assert "recompute" not in str(none)


def test_without_a_limit_nothing_recomputes() -> None:
    asked: dict[str, Any] = {"ranks": 4, "chunks": 2, "microbatches": 8}
    free = db.optimize(**asked, recompute="free", **FAST)
    assert free.recompute == []
    assert free.status == "optimal"


@pytest.mark.parametrize(
    ("recompute", "message"),
    [
        ("none", r"memory 0\.4 is too small .* leaves 1; give at least 1, or 0\.5 with recompute"),
        ([0], r"one microbatch needs 1; give at least 1, or 0\.5 with recompute"),
        ("full", r"one microbatch needs 0\.5; give at least 0\.5$"),
        ("free", r"one microbatch needs 0\.5; give at least 0\.5$"),
        ("fre", "recompute is 'fre'; give none, full, free, or stages"),
        ([8], "stages go from 0 to 7"),
    ],
)
def test_what_cannot_be_used_is_refused(recompute: Any, message: str) -> None:
    with pytest.raises(db.ParameterError, match=message):
        db.optimize(
            ranks=4, chunks=2, microbatches=8, memory=0.4, placement="wave", recompute=recompute,
            **FAST,
        )  # fmt: skip


def test_families_begin_with_whole_chunks_and_fit() -> None:
    asked, ways = problem(4, 8, 0.9), ways_of("free", "none", 8)
    sets = families(asked, ways)
    assert sets[0] == (1, 1, 1, 1, 0, 0, 0, 0)
    assert (1,) * 8 in sets
    # One microbatch does not fit without recomputes on the first chunk.
    assert all(all(chosen[:4]) for chosen in sets)
    assert all(fits_without_copies(with_choice(asked, chosen)) for chosen in sets)
    assert (0,) * 8 in families(problem(4, 8, 1), ways)


def test_ways_of_stages() -> None:
    assert same_for_all(ways_of("none", None, 2)) == [(0, 0)]
    assert same_for_all(ways_of("free", "none", 2)) == [(0, 0), (1, 1)]
    assert same_for_all(ways_of([1], "free", 2)) == [(0, 1), (2, 3)]
    assert same_for_all(ways_of("free", "free", 2)) == [(0, 0), (1, 1), (2, 2)]
    assert ways_of("free", [0], 2) == [(2, 3), (0, 1)]
    assert ways_of({0: False, 1: True}, "none", 2) == [(0,), (1,)]
    assert choice_of(with_choice(problem(2, 1, 1, chunks=1), (0, 3))) == (0, 3)


@pytest.mark.slow
def test_patterns_with_recomputes_keep_memory_and_pace() -> None:
    asked = with_choice(problem(4, 24, 1.5, F=5, I=6, W=4), (True,) * 4 + (False,) * 4)
    cycle = best_cycle(asked, 1)
    pattern = pattern_of(asked, cycle)
    makespans = []
    for m in (24, 48):
        longer = asked.shortened(m)
        schedule = longer.schedule(pattern.unroll(longer))
        assert db.check(schedule, memory=1.5).ok
        makespans.append(longer.timeline(schedule).makespan)
    assert makespans[1] - makespans[0] <= 24 * cycle.pace * (1 + 1e-6)


@pytest.mark.slow
def test_many_microbatches_go_through_all_searches() -> None:
    asked: dict[str, Any] = {
        "ranks": 4, "chunks": 2, "microbatches": 40, "memory": 1.5,
        "costs": db.Costs(F=5, I=6, W=4), "cache": False, "published": False, "effort": 0.03,
        "workers": 1,
    }  # fmt: skip
    result = db.optimize(**asked, recompute=range(4), placement="loop")
    assert db.check(result.schedule, memory=1.5).ok
    assert recomputes_between(result.schedule)
    assert result.recompute == [0, 1, 2, 3]


def test_memory_is_rounded_in_favour_of_fitting() -> None:
    asked = problem(2, 3, 1 + 2 / 3, chunks=1, kept_for_weight=2 / 3)
    taken, changes = whole_units(asked, 1 / 1000, False)
    assert taken[:, 0].tolist() == [1000, 0, 0, 0]
    assert changes[:, 0].tolist() == [1000, -334, -666, 0]


def test_keys_and_values_are_part_of_the_limit() -> None:
    costs = db.Costs(F=1, kv=0.25)
    result = db.optimize(ranks=2, microbatches=4, memory=1.5, costs=costs, **FAST)
    assert db.check(result.schedule, memory=1.5, costs=costs).ok
    with pytest.raises(db.ParameterError, match=r"give at least 1\.5"):
        db.optimize(ranks=2, microbatches=4, memory=1.2, costs=costs, **FAST)


@pytest.mark.slow
def test_the_cache_knows_choices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    asked: dict[str, Any] = {
        "ranks": 2, "chunks": 2, "microbatches": 4, "memory": 1, "published": False,
        "effort": 0.1,
    }  # fmt: skip
    made = {str(how): db.optimize(**asked, recompute=how) for how in ("none", "full", "free", [0])}
    assert not any(result.cached for result in made.values())

    def no_search(*_: Any, **__: Any) -> None:
        raise AssertionError("searched again")

    monkeypatch.setattr(variants.Variants, "run", no_search)
    for how in ("none", "full", "free", [0]):
        again = db.optimize(**asked, recompute=how)
        first = made[str(how)]
        assert again.cached
        assert again.schedule == first.schedule
        assert (again.makespan, again.lower_bound) == (first.makespan, first.lower_bound)
    assert cache.key([problem(2, 4, 1)]) != cache.key([problem(2, 4, 1)], ["recompute"])


@pytest.mark.slow
def test_published_schedules_recompute_where_that_makes_them_fit() -> None:
    asked: dict[str, Any] = {"ranks": 2, "chunks": 2, "microbatches": 4, "cache": False,
                             "effort": 0.02}  # fmt: skip
    result = db.optimize(**asked, memory=0.75, recompute="free")
    assert result.published is not None
    rows = {row.name: row for row in result.published.rows}
    assert rows["interleaved-1f1b"].fits
    assert rows["optimized"].makespan <= rows["interleaved-1f1b"].makespan


def test_however_short_the_time_published_orders_are_not_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Seconds for the comparison alone, enough on a machine with other work.
    monkeypatch.setattr("debubble.optimize.search.AFTER_CTRL_C", 60.0)
    sizes: dict[str, Any] = {"ranks": 4, "microbatches": 8, "chunks": 2}
    found = db.optimize(
        **sizes, costs=db.Costs(activation=1.0), layers=30, memory=1.3, recompute="free",
        time_limit=1e-9, cache=False,
    )  # fmt: skip
    assert found.published is not None
    rows = [row for row in found.published.rows if row.schedule.placement.copies == 1]
    assert len(rows) > 10
    assert found.makespan <= min(row.makespan for row in rows if row.fits)
