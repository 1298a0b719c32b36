"""Recomputes further ahead than right before their backwards: bounds, searches and results."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import debubble as db
from debubble.core.actions import Kind, kinds_of
from debubble.optimize import strategies
from debubble.optimize.anneal import early_recompute as ahead
from debubble.optimize.anneal.annealer import Annealer
from debubble.optimize.anneal.early_recompute import in_waits
from debubble.optimize.bounds.exact_rank import StateBudget, exact_rank_bound
from debubble.optimize.bounds.paths import lower_bound
from debubble.optimize.bounds.strategies import several_ranks, single_ranks
from debubble.optimize.cp_sat.interval_model import AGAIN
from debubble.optimize.cp_sat.model import ExactModel
from debubble.optimize.problem import Problem
from debubble.optimize.programs.backward import relaxed
from debubble.optimize.programs.list_scheduling import list_programs
from debubble.optimize.stop import Stop
from tests.conftest import EXPLORES
from tests.optimize.problems import fastest, orders, problem, random_problem, recomputes_between

CASES, MOST_ORDERS = (3000, 3000) if EXPLORES else (120, 300)
PARTS = 8
FAST: dict[str, Any] = {"cache": False, "published": False, "effort": 0.02, "workers": 1}


def recomputing(seed: int, few: bool = True) -> Problem | None:
    """A small problem in which some stages recompute; None where it has too many orders."""
    rng = np.random.default_rng(seed)
    asked = random_problem(rng)
    asked = replace(asked, recompute=tuple((rng.random(asked.stages) < 0.7).tolist()))
    slack = float(rng.choice([1, 1.2, 1.5, 2, np.inf]))
    asked = replace(asked, limits=asked.smallest_limits * slack)
    if not asked.can_run_ahead or not few:
        return asked if asked.can_run_ahead else None
    held = np.bincount(asked.homes) * len(asked.kinds) + np.bincount(asked.homes, asked.recomputed)
    if held.max() * asked.microbatches > 9:
        return None
    count = math.prod(len(orders(asked, rank, in_turn(asked))) for rank in range(asked.ranks))
    return asked if count * (3 if asked.backward == "free" else 1) <= MOST_ORDERS else None


def in_turn(asked: Problem) -> bool:
    return asked.stages * asked.microbatches > 4


def with_recomputes(asked: Problem, programs: Any) -> list[np.ndarray]:
    schedule = asked.schedule(programs)
    return [schedule.program(rank) for rank in range(asked.ranks)]


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_bounds_and_the_exact_solver_know_recomputes_anywhere(part: int) -> None:
    tried = 0
    for seed in range(part, 100_000, PARTS):
        if tried == CASES // PARTS:
            break
        asked = recomputing(seed)
        if asked is None:
            continue
        tried += 1
        easy, best = relaxed(asked), fastest(asked, in_turn(asked))
        assert lower_bound(easy) <= best * (1 + 1e-9) + 1e-9, seed
        for ranks in single_ranks(easy) + several_ranks(easy):
            bound = exact_rank_bound(easy, ranks, 0.0, 1.5 * best + 1, StateBudget(1e9), Stop())
            assert bound <= best * (1 + 1e-9) + 1e-9, (seed, ranks)
        alone = asked.mode == "overlapped"
        if alone and easy is asked:
            # With all ranks nothing is relaxed but the last digits of times.
            assert bound >= best * (1 - 5e-4) - 1e-9, seed
        if tried % 4 or not alone:
            continue
        known = with_recomputes(asked, list_programs(asked, (), 0.02))
        solution = ExactModel(asked, known, lower_bound(easy)).solve(20, 60, 1, 0)
        assert solution.proven
        assert solution.programs is not None
        order = asked.schedule(solution.programs)
        assert db.check(order).ok
        assert asked.fits(order)
        assert asked.timeline(order).makespan == pytest.approx(best, rel=1e-4), seed
        assert solution.bound <= best * (1 + 1e-9) + 1e-9, seed


def waiting(memory: float, **more: Any) -> Problem:
    """Rank 0 waits for the first gradient, in which both its recomputes would fit."""
    asked = problem(2, 2, memory, chunks=1, backward="fused", F=1, I=1, W=[2, 1], R=1, **more)
    return replace(asked, recompute=(True, False))


def test_a_recompute_in_a_wait_is_faster_where_memory_allows_it() -> None:
    asked = waiting(2)
    known = list_programs(asked, ())
    model = ExactModel(asked, known, lower_bound(asked))
    solution = model.solve(20, 20, 1, 0)
    assert solution.bound == 10 == fastest(asked)
    assert solution.programs is not None
    order = asked.schedule(solution.programs)
    assert order.rows()[0] == ["0F0", "0F1", "0R0", "0R1", "0B0", "0B1"]
    assert order.options["recompute_at"] == "bubbles"
    # Nothing has to be kept of what R would bring back too early.
    assert fastest(waiting(1)) == 11
    assert ExactModel(waiting(1), known).solve(20, 20, 1, 0).bound == 11


def test_a_recompute_of_no_time_takes_its_memory_where_another_takes_time() -> None:
    asked = problem(2, 2, 1, chunks=1, F=1, I=[1, 2], W=1, R=[1, 0])
    asked = replace(asked, recompute=(True, True))
    asked = replace(asked, limits=asked.smallest_limits)
    model = ExactModel(asked, list_programs(asked, ()), 0.0)
    assert {(AGAIN, stage, b) for stage in range(2) for b in range(2)} <= set(model.start)
    solution = model.solve(20, 20, 1, 0)
    # Without the memory of the second rank's R it would be 9, in an order that does not fit.
    assert solution.bound == 10 == fastest(asked)
    assert solution.programs is not None
    assert asked.fits(asked.schedule(solution.programs))


def test_an_order_without_recomputes_gets_them_right_before_backwards() -> None:
    asked = waiting(2)
    known = list_programs(asked, ())
    plain = asked.schedule(known)
    assert plain.options["recompute_at"] == "just-in-time"
    assert asked.schedule(with_recomputes(asked, known)) == plain
    numbers = asked.actions(with_recomputes(asked, known))
    assert sorted(numbers.tolist()) == list(range(asked.size + 2))
    again = asked.programs(numbers)
    assert all(map(np.array_equal, again, with_recomputes(asked, known)))


def test_waits_are_filled_within_memory() -> None:
    for memory, makespan in ((2, 10), (1, 11)):
        asked = waiting(memory)
        known = list_programs(asked, ())
        schedule = asked.schedule(in_waits(asked, known))
        assert asked.fits(schedule)
        assert asked.timeline(schedule).makespan <= asked.timeline(asked.schedule(known)).makespan
        assert asked.timeline(schedule).makespan >= makespan
    full = problem(2, 8, 1.0, chunks=1)
    assert in_waits(full, db_programs(db.make("gpipe", ranks=2, microbatches=8))) == []


def db_programs(schedule: db.Schedule) -> list[np.ndarray]:
    return [schedule.program(rank) for rank in range(schedule.ranks)]


@pytest.mark.slow
def test_annealed_recomputes_stay_between_and_within_memory() -> None:
    tried = 0
    for seed in range(90):
        asked = recomputing(seed, few=False)
        if asked is None:
            continue
        tried += 1
        asked = replace(asked.shortened(5), mode="overlapped")
        start = with_recomputes(asked, list_programs(asked, (), 0.02))
        annealer = Annealer(asked, start, seed=seed, ahead=True)
        order = annealer.best.copy()
        annealer.run(2000, 2.0, 0.1, 0.0, order)
        for programs in (annealer.programs, asked.programs(order)):
            schedule = asked.schedule(programs)
            assert db.check(schedule).ok
            assert recomputes_between(schedule)
            assert asked.fits(schedule)
        makespan = asked.timeline(asked.schedule(annealer.programs)).makespan
        assert makespan <= annealer.makespan * (1 + 1e-9)
        assert makespan <= asked.timeline(asked.schedule(start)).makespan * (1 + 1e-9)
        assert makespan >= lower_bound(relaxed(asked)) - 1e-9
    assert tried > 50


@pytest.mark.slow
@pytest.mark.parametrize(("m", "recompute"), [(6, "full"), (4, "free")])
def test_results_are_no_slower_than_with_recomputes_right_before(
    m: int, recompute: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {
        "ranks": 3, "chunks": 2, "microbatches": m, "memory": 0.7, "recompute": recompute,
        "costs": db.Costs(F=10, I=12, W=8, recompute_kept=0.1),
    }  # fmt: skip
    result = db.optimize(**asked, **FAST)
    assert db.check(result.schedule, memory=0.7, costs=asked["costs"]).ok
    assert recomputes_between(result.schedule)
    apart = (strategies.recompute_early, strategies.solve)
    rest = [one for one in strategies.STRATEGIES if one.run not in apart]
    monkeypatch.setattr(strategies, "STRATEGIES", rest)
    before = db.optimize(**asked, **FAST)
    assert result.makespan <= before.makespan * (1 + 1e-9)
    assert result.lower_bound <= result.makespan
    assert before.lower_bound <= result.makespan * (1 + 1e-9)


@pytest.mark.slow
def test_results_say_it_and_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    costs = db.Costs(F=1, I=1, W=[2, 1], R=1)
    asked: dict[str, Any] = {
        "ranks": 2, "chunks": 1, "microbatches": 2, "memory": 2, "recompute": [0],
        "backward": "fused", "costs": costs, "published": False, "effort": 0.1, "workers": 1,
    }  # fmt: skip
    result = db.optimize(**asked)
    assert "2 of 2 further ahead than right before the backward" in str(result)
    assert (result.makespan, result.status) == (10, "optimal")
    result.schedule.save(tmp_path / "x.json")
    again = db.load(tmp_path / "x.json")
    assert again.rows() == result.schedule.rows()
    timeline = db.simulate(again, costs)
    assert timeline.makespan == result.makespan
    assert timeline.peak_activation.max() <= 2
    cached = db.optimize(**asked)
    assert cached.cached
    assert cached.schedule == result.schedule


def test_nothing_runs_ahead_where_nothing_recomputes(monkeypatch: pytest.MonkeyPatch) -> None:
    def called(*_: Any, **__: Any) -> None:
        raise AssertionError("no stage recomputes")

    monkeypatch.setattr(ahead, "refine", called)
    result = db.optimize(ranks=2, chunks=2, microbatches=6, memory=1.5, **FAST)
    assert not kinds_of(result.schedule.actions)[kinds_of(result.schedule.actions) == Kind.R].size
