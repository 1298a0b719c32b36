"""Bounds of long runs: what still follows is no less than before, and two ranks far apart."""

from __future__ import annotations

import pytest

from debubble.optimize.bounds.exact_rank import StateBudget, exact_rank_bound, relax_others
from debubble.optimize.bounds.exact_rank_long import far_bound, follow, with_rests
from debubble.optimize.bounds.paths import lower_bound
from debubble.optimize.bounds.strategies import far_ranks, is_long
from debubble.optimize.stop import Stop
from tests.optimize.problems import problem

ENOUGH = 1e9
"""States that are never looked at."""


@pytest.mark.parametrize(("p", "m", "memory"), [(4, 12, 2), (8, 20, 4)])
def test_what_follows_on_a_rank_is_its_bound_without_a_head(p: int, m: int, memory: int) -> None:
    asked, rank = problem(p, m, memory, F=5, I=6, W=4), p - 1
    rests = follow(asked, rank, 1.0, Stop())
    assert rests[0] == 0
    assert (rests[1:] >= rests[:-1]).all()
    for n in (1, 3, m):
        short = problem(p, n, memory, F=5, I=6, W=4)
        best = exact_rank_bound(
            short, [rank], 0.0, 3 * lower_bound(short), StateBudget(ENOUGH), Stop()
        )
        head = relax_others(short, [rank]).heads[0, 0]
        assert 0 <= best - head - rests[n] <= 1


def test_tails_are_those_of_the_way_to_the_rank() -> None:
    asked = problem(4, 6, 2, F=5, I=6, W=4)
    rests = follow(asked, 3, 1.0, Stop())
    kept = relax_others(asked, (3, 0))
    longer = with_rests(asked, kept, (3, 0), rests, 1.0)
    assert longer.tails[0, 2] == rests[4] + 3 * 5 - 5
    assert longer.tails[1, 2] == rests[4] - 5
    assert (longer.tails[2:] == kept.tails[2:]).all()


@pytest.mark.slow
def test_two_ranks_far_apart_prove_more_than_one() -> None:
    asked = problem(12, 48, 4.5, F=5, I=6, W=4)
    assert is_long(asked)
    assert far_ranks(asked) == (11, 0)
    one = exact_rank_bound(asked, [11], lower_bound(asked), 2800, StateBudget(ENOUGH), Stop())
    assert one == 1854
    assert far_bound(asked, (11, 0), one, 1874, StateBudget(ENOUGH), Stop()) == 1874


def test_a_search_that_is_stopped_proves_what_was_known() -> None:
    asked = problem(4, 16, 2, F=5, I=6, W=4)
    stop = Stop()
    stop.ask()
    assert (follow(asked, 3, 1.0, stop) == 0).all()
    assert far_bound(asked, (3, 0), 500.0, 594, StateBudget(ENOUGH), stop) == 500
