"""Bounds by ranks that are kept exactly: known values, and never above an optimum."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest

import debubble as db
from debubble.core.errors import DebubbleError
from debubble.optimize.bounds.exact_rank import (
    StateBudget,
    ends_before,
    exact_rank_bound,
    relax_others,
)
from debubble.optimize.bounds.exact_rank_long import far_bound
from debubble.optimize.bounds.paths import lower_bound
from debubble.optimize.bounds.strategies import several_ranks, single_ranks, strongest
from debubble.optimize.cp_sat.rounding import all_times, factor_for, round_times
from debubble.optimize.problem import Problem
from debubble.optimize.programs.backward import fusable, relaxed
from debubble.optimize.stop import Stop
from tests.conftest import EXPLORES
from tests.optimize.problems import optimum, problem, random_problem

CASES, PARTS = (2000 if EXPLORES else 40), 4
ENOUGH = 1e9
"""States that are never looked at."""


def bound_by(asked: Problem, *ranks: int, best: float = 0.0) -> float:
    """The bound of some ranks, whatever other bounds say."""
    best = best or 3 * lower_bound(asked)
    return exact_rank_bound(asked, ranks, 0.0, best, StateBudget(ENOUGH), Stop())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("p", "m", "memory", "times", "ranks", "bound"),
    [
        (4, 8, 4, (1, 1, 1), [0], 53),
        (4, 8, 4, (1, 1, 1), [1], 55),
        (4, 8, 4, (1, 1, 1), [2], 57),
        (4, 8, 4, (1, 1, 1), [3], 59),
        (4, 16, 4, (1, 1, 1), [3], 107),
        (8, 16, 8, (1, 1, 1), [7], 119),
        (4, 8, 4, (5, 6, 4), [0], 277),
        (4, 8, 4, (5, 6, 4), [1], 283),
        (4, 8, 4, (5, 6, 4), [2], 300),
        (4, 8, 4, (5, 6, 4), [3], 311),
        (4, 8, 4, (5, 6, 4), [2, 3], 317),
        (4, 16, 4, (5, 6, 4), [3], 563),
        (16, 128, 12, (1, 1, 1), [15], 827),
        pytest.param(4, 8, 4, (5, 6, 4), [1, 2, 3], 321, marks=pytest.mark.slow),
    ],
)
def test_known_bounds(
    p: int, m: int, memory: int, times: tuple[int, int, int], ranks: list[int], bound: float
) -> None:
    F, I, W = times
    assert bound_by(problem(p, m, memory / 2, F=F, I=I, W=W), *ranks) == bound


def test_a_profile_needs_no_coarse_times() -> None:
    profile = db.Costs.per_rank(F=44.18, I=40.265, W=38.0, p2p=2.17, chunks=2)
    for p, known in ((4, 2304), (8, 2508)):
        place = db.Placement.wave(p, 2)
        asked = Problem(place, profile.resolve(place), 16, np.full(p, p / 2), backward="split")
        assert bound_by(asked, p - 1) >= known


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_no_bound_is_above_an_optimum(part: int) -> None:
    for seed in range(part, CASES, PARTS):
        asked = random_problem(np.random.default_rng(seed))
        easy = relaxed(asked)
        try:
            best, proven = optimum(asked)
        except DebubbleError:
            continue  # with blocking transfers the solver's order may be a deadlock
        assert lower_bound(easy) <= best * (1 + 1e-9) + 1e-9, seed
        for ranks in single_ranks(easy) + several_ranks(easy):
            bound = bound_by(easy, *ranks, best=1.5 * best + 1)
            assert bound <= best * (1 + 1e-9) + 1e-9, (seed, ranks)
        for pair in permutations(range(asked.ranks), 2):
            bound = far_bound(easy, pair, 0.0, 1.5 * best + 1, StateBudget(ENOUGH), Stop())
            assert bound <= best * (1 + 1e-9) + 1e-9, (seed, pair)
        if proven and asked.mode == "overlapped" and not fusable(asked).any():
            # With all ranks nothing is relaxed but the last digits of times.
            whole = bound_by(easy, *range(asked.ranks), best=1.5 * best + 1)
            assert whole >= best * (1 - 5e-4) - 1e-9, seed


@pytest.mark.parametrize("mode", ["channel", "blocking", "group"])
def test_other_modes_only_raise_bounds(mode: Any) -> None:
    asked = problem(4, 6, 1, F=2, I=3, W=1, p2p=1)
    assert bound_by(replace(asked, mode=mode), 3) >= bound_by(asked, 3)


def test_memory_without_a_limit() -> None:
    asked = problem(2, 4, np.inf, F=5, I=6, W=4)
    enough = problem(2, 4, 4, F=5, I=6, W=4)
    assert lower_bound(asked) <= bound_by(asked, 0, 1) == bound_by(enough, 0, 1)


def test_too_many_states_prove_nothing() -> None:
    asked = problem(4, 8, 2, F=5, I=6, W=4)
    kept = relax_others(asked, [2, 3], factor_for(all_times(asked), 321))
    assert ends_before(kept, 317, StateBudget(ENOUGH), Stop()) is False
    assert ends_before(kept, 318, StateBudget(ENOUGH), Stop()) is True
    assert ends_before(kept, 317, StateBudget(10), Stop()) is None
    low = lower_bound(asked)
    assert exact_rank_bound(asked, [2, 3], low, 321, StateBudget(10), Stop()) == low


@pytest.mark.parametrize("grid", [2, 7, 30, 200])
def test_a_grid_only_lowers_what_is_proven(grid: int) -> None:
    kept = relax_others(problem(4, 8, 2, F=5, I=6, W=4), [3])
    assert ends_before(kept, 311, StateBudget(ENOUGH), Stop()) is False
    assert ends_before(kept, 312, StateBudget(ENOUGH), Stop(), grid) is True
    assert ends_before(kept, 200, StateBudget(ENOUGH), Stop(), grid) is False


@pytest.mark.slow
def test_the_first_rank_of_a_loop_needs_few_states_on_a_grid() -> None:
    asked = problem(12, 24, 7, F=5, I=6, W=4, placement=db.Placement.loop(12, 2))
    kept = relax_others(asked, [0])
    assert ends_before(kept, 899, StateBudget(3e4), Stop()) is None
    assert ends_before(kept, 899, StateBudget(3e4), Stop(), 60) is False


def test_delays_are_rounded_down_as_sums() -> None:
    profile = db.Costs(F=[5.3] * 7 + [5.0], I=6.4, W=4, p2p=0.3)
    place = db.Placement.wave(4, 2)
    asked = Problem(place, profile.resolve(place), 8, np.full(4, 2.0), backward="split")
    fine, coarse, each = (
        relax_others(asked, [3], 10.0),
        relax_others(asked, [3]),
        relax_others(round_times(asked, 1.0), [3]),
    )
    for name in ("times", "delays", "heads", "tails"):
        exact = getattr(fine, name) / 10
        assert (getattr(coarse, name) == np.floor(exact)).all()
        assert (getattr(coarse, name) >= getattr(each, name)).all()
    assert (coarse.delays > each.delays).any()


def test_the_turn_of_a_v_is_the_strongest_rank() -> None:
    asked = problem(8, 16, 4)
    assert strongest(asked) == [7, 6, 5, 4, 3, 2, 1, 0]
    assert single_ranks(asked)[:2] == [(7,), (6,)]
    assert several_ranks(asked)[:2] == [(7, 6), (7, 6, 5)]


def test_a_result_says_why_it_cannot_be_faster() -> None:
    result = db.optimize(
        ranks=4, chunks=2, microbatches=16, memory=2, placement="wave", cache=False,
        published=False, effort=0.1, costs=db.Costs(F=1),
    )  # fmt: skip
    assert (result.makespan, result.status) == (107, "optimal")
    assert "rank 3 cannot free memory before 13 and has room for no more than 4" in result.why
    assert result.why in str(result)
    assert result.to_dict()["why"] == result.why


def test_a_result_from_the_cache_says_it_as_well(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    asked: dict[str, Any] = {
        "ranks": 4, "chunks": 2, "microbatches": 16, "memory": 2, "placement": "wave",
        "published": False, "effort": 0.1,
    }  # fmt: skip
    first, again = db.optimize(**asked), db.optimize(**asked)
    assert again.cached
    assert again.why == first.why


@pytest.mark.slow
@pytest.mark.parametrize("name", ["v-min", "v-half"])
@pytest.mark.parametrize(("p", "m"), [(4, 8), (4, 32), (8, 16), (8, 64), (16, 32), (16, 128)])
def test_published_orders_in_little_memory_are_optimal_at_equal_times(
    name: str, p: int, m: int
) -> None:
    timeline = db.simulate(db.make(name, ranks=p, microbatches=m))
    asked = problem(p, m, float(timeline.peak_activation.max()))
    known = lower_bound(asked)
    bound = exact_rank_bound(asked, [p - 1], known, timeline.makespan, StateBudget(ENOUGH), Stop())
    assert bound == pytest.approx(timeline.makespan)
