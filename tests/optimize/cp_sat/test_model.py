"""The exact solver: known optima, rounding, transfers."""

from __future__ import annotations

import numpy as np
import pytest

import debubble as db
from debubble.optimize.anneal.strategies import pairs
from debubble.optimize.bounds.paths import lower_bound
from debubble.optimize.cp_sat.model import Model
from debubble.optimize.cp_sat.rounding import factor_for, rounded_down
from debubble.optimize.programs.list_scheduling import listed
from tests.optimize.problems import problem


@pytest.mark.slow
@pytest.mark.parametrize(
    ("times", "memory", "optimum"),
    [((1, 1, 1), 4, 59), ((1, 1, 1), 5, 56), ((1, 1, 1), 8, 51), ((5, 6, 4), 4, 321)],
)
def test_known_optima(times: tuple[int, int, int], memory: int, optimum: float) -> None:
    F, I, W = times
    result = db.optimize(
        ranks=4, chunks=2, microbatches=8, memory=memory / 2, costs=db.Costs(F=F, I=I, W=W),
        cache=False, published=False, effort=0.1, workers=1,
    )  # fmt: skip
    assert (result.makespan, result.lower_bound, result.status) == (optimum, optimum, "optimal")
    assert db.check(result.schedule, memory=memory / 2).ok
    assert db.simulate(result.schedule, db.Costs(F=F, I=I, W=W)).makespan == optimum


def test_times_are_multiplied_by_their_common_denominator() -> None:
    assert factor_for(np.array([0.5, 0.75, 0.0]), 10) == 4
    assert factor_for(np.array([10.0, 25.0]), 10) == 0.2
    assert factor_for(np.array([22.09, 20.1325]), 10) == 400


def test_other_times_are_rounded_down() -> None:
    times = np.array([np.pi, np.sqrt(2)])
    factor = factor_for(times, 100.0)
    assert np.all(rounded_down(times, factor) <= times * factor)
    assert rounded_down(times, factor) / factor == pytest.approx(times, abs=1e-3)


def test_a_bound_holds_for_times_without_a_denominator() -> None:
    asked = problem(2, 3, 1.5, chunks=1, F=np.pi, I=np.sqrt(2), W=np.e)
    solution = Model(asked, listed(asked, ()), lower_bound(asked)).solve(30, 30, 1, 0)
    assert solution.proven
    assert solution.programs is not None
    makespan = asked.timeline(asked.schedule(solution.programs)).makespan
    assert makespan * (1 - 1e-4) <= solution.bound <= makespan * (1 + 1e-9)


def test_channels_carry_one_transfer_at_a_time() -> None:
    asked = problem(2, 3, 3, chunks=1, mode="channel", F=1, I=1, W=1, p2p=4)
    solution = Model(asked, listed(asked, ()), 0.0).solve(30, 30, 1, 0)
    assert solution.proven
    assert solution.programs is not None
    # Three transfers up, one down after the last, and the work before and after them.
    assert solution.bound == 1 + 3 * 4 + 1 + 1 + 4 + 1 + 1
    assert asked.timeline(asked.schedule(solution.programs)).makespan == solution.bound


def test_pairs_grow_with_the_square_of_the_microbatches() -> None:
    assert pairs(problem(4, 8, 4)) == 4 * pairs(problem(4, 4, 4))
