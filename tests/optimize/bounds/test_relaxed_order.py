"""Orders made from what one rank does at best."""

from __future__ import annotations

import numpy as np
import pytest

from debubble.optimize.anneal.annealer import refine
from debubble.optimize.bounds.exact_rank import Count, keep, kept_bound, starts_before
from debubble.optimize.bounds.paths import lower_bound
from debubble.optimize.bounds.relaxed_order import relaxed_order
from debubble.optimize.bounds.strategies import strongest
from debubble.optimize.problem import Problem
from debubble.optimize.programs.list_scheduling import listed
from debubble.optimize.stop import Stop
from tests.optimize.problems import problem, random_problem

ENOUGH = 1e9
"""States that are never looked at."""


def even(p: int, m: int, memory: float) -> Problem:
    return problem(p, m, memory, F=5, I=6, W=4)


def made(asked: Problem) -> tuple[float, list[np.ndarray] | None]:
    rank, best = strongest(asked)[0], 3 * lower_bound(asked)
    bound = kept_bound(asked, [rank], lower_bound(asked), best, Count(ENOUGH), Stop())
    return bound, relaxed_order(asked, rank, bound, Count(ENOUGH), Stop())


def test_the_kept_rank_ends_before_the_target_and_no_sooner_than_its_bound() -> None:
    asked = even(4, 8, 2)
    kept = keep(asked, [3])
    assert starts_before(kept, 311, Count(ENOUGH), Stop()) is None
    starts = starts_before(kept, 312, Count(ENOUGH), Stop())
    assert starts is not None
    assert (starts >= kept.heads).all()
    assert (starts + kept.times[:, None] + kept.tails).max() <= 311
    # Inputs come when the chain before has ended, and one action runs at a time.
    assert (starts[1:] >= starts[:-1] + kept.times[:-1, None] + kept.delays[1:, None]).all()
    order = np.argsort(starts, axis=None)
    times = np.repeat(kept.times, 8)[order]
    assert (np.diff(starts.ravel()[order]) >= times[:-1]).all()


def test_too_few_states_make_no_order() -> None:
    kept = keep(even(4, 8, 2), [3])
    assert starts_before(kept, 400, Count(10), Stop()) is None


@pytest.mark.parametrize("seed", range(60))
def test_orders_run_within_memory(seed: int) -> None:
    asked = random_problem(np.random.default_rng(seed))
    bound, programs = made(asked)
    found = [] if programs is None else [programs]
    assert all(len(np.concatenate(order)) == asked.size for order in found)
    orders = [asked.schedule(order) for order in found]
    assert all(asked.fits(order) for order in orders)
    judged = orders if asked.mode == "overlapped" else []
    assert all(asked.timeline(order).makespan >= bound * (1 - 1e-9) for order in judged)


@pytest.mark.slow
def test_annealing_comes_to_better_orders_from_there_than_from_lists() -> None:
    asked = even(8, 16, 4)
    bound, programs = made(asked)
    assert bound == 617
    assert programs is not None
    found = refine(asked, programs, Stop(), 4)
    other = refine(asked, listed(asked, ()), Stop(), 4)
    spans = [asked.timeline(asked.schedule(order)).makespan for order in (found, other)]
    assert spans[0] < spans[1]
