"""Strategies for orders of few microbatches that repeat.

An order of few is annealed; what repeats in it is stretched over all microbatches as it is, and is
annealed for its period. The fastest cycle is unrolled, its ends are repaired, and its middle is
stretched. At the end the same is done with what repeats in the best order.
"""

from __future__ import annotations

from itertools import takewhile

from debubble.core.actions import Program
from debubble.listing import TOLERANCE
from debubble.optimize.anneal.annealer import TEMPERATURES, refine
from debubble.optimize.anneal.strategies import ROUNDS, is_small
from debubble.optimize.incumbent import Incumbent
from debubble.optimize.periodic import unroll
from debubble.optimize.periodic.cycles import Cycle, annealed, as_cycle, pattern_of, repeated
from debubble.optimize.problem import Problem, without_recomputes
from debubble.optimize.programs.backward import separate
from debubble.optimize.programs.list_scheduling import list_programs
from debubble.optimize.programs.published import published_orders
from debubble.optimize.stop import Stop

FEW_MORE = 8
"""Microbatches beyond 2p on which orders of many are annealed."""

MOST_ENDS = 6
"""Most repairs of the ends of a cycle, each time from the cycle, up to the effort."""

CYCLE_WIDTHS = (1, 2, 3, 4)
"""Microbatches per period of orders that are annealed for it."""

CYCLE_MOVES, MOST_CYCLE_MOVES = 25_000, 100_000
"""Moves of a round of annealing for the period, times the effort, and at most."""

LAST_MOVES, MOST_LAST_MOVES = 50_000, 1_000_000
"""Moves of such a round for the best order, which comes once: there they grow with the square of
the effort."""

CYCLE_SHARE = 0.3
"""Share of the time that is left for annealing cycles."""


def repeat(problem: Problem, incumbent: Incumbent, stop: Stop) -> None:
    """Anneal an order of few microbatches, then repeat its repeatable part."""
    few = 2 * problem.ranks + FEW_MORE
    few = min(few + (problem.microbatches - few) % max(unroll.PERIODS), problem.microbatches)
    short = problem.shortened(few)
    effort, seed = stop.work.effort, stop.work.seed
    order = list_programs(
        short, [separate(short, programs) for _, programs in published_orders(short)]
    )
    annealings = 0
    while not stop():
        _offer_repeated(problem, short, order, incumbent, stop, annealings)
        # Else this order is annealed by others.
        if annealings >= effort or few == problem.microbatches:
            return
        rounds = (annealings + 1) * len(TEMPERATURES)
        order = refine(short, order, stop, rounds, seed=seed + annealings)
        annealings += 1


def _offer_repeated(
    problem: Problem, short: Problem, order: list[Program], incumbent: Incumbent, stop: Stop,
    annealings: int,
) -> None:  # fmt: skip
    """Offer what repeats in an order of few microbatches, as it is and annealed as cycles."""
    found, more = [], problem.microbatches - short.microbatches
    for width in unroll.PERIODS:
        for places in unroll.repeatable(short, order, width):
            if stop():
                return
            if more:
                made = unroll.stretched(order, places, width, more // width)
                incumbent.offer(made, "repeating an annealed order")
            if width in CYCLE_WIDTHS:
                found.append(as_cycle(short, order, places, width, stop))
    moves = int(min(CYCLE_MOVES * stop.work.effort, MOST_CYCLE_MOVES))
    _offer_cycles(problem, incumbent, found, moves, stop, stop.work.seed + annealings)


def _offer_cycles(
    problem: Problem, incumbent: Incumbent, cycles: list[Cycle], moves: int, stop: Stop, seed: int
) -> None:
    """Anneal the fastest cycle of each width for its period, and offer the best with ends.

    One of half the width, twice, is another beginning.
    """
    until = Stop(CYCLE_SHARE * stop.left, stop)
    found: dict[int, Cycle] = {}
    for width in CYCLE_WIDTHS:
        starts = [cycle for cycle in cycles if cycle.width == width]
        if width % 2 == 0 and width // 2 in found:
            starts.append(repeated(problem, found[width // 2], 2))
        if starts:
            start = min(starts, key=lambda cycle: cycle.period)
            found[width] = annealed(problem, start, moves, until, seed)
            if found[width].pace <= problem.work.max() * (1 + TOLERANCE):
                break
    best = min(found.values(), key=lambda cycle: cycle.pace, default=None)
    if best is not None and not stop() and best.period < float("inf"):
        _offer_with_ends(problem, incumbent, pattern_of(problem, best), stop, seed)


def _offer_with_ends(
    problem: Problem, incumbent: Incumbent, pattern: unroll.Pattern, stop: Stop, seed: int
) -> None:
    """Offer a pattern as it is, and with ends that are repaired on few microbatches."""
    name = "annealing a cycle"
    incumbent.offer(pattern.unroll(problem), name)
    few = unroll.few_microbatches(pattern, problem.microbatches)
    short = problem.shortened(few)
    fixed = unroll.middle_period(short, pattern) if few < problem.microbatches else None
    order, effort = pattern.unroll(short), stop.work.effort
    turns, rounds = max(1, int(min(effort, MOST_ENDS))), ROUNDS * min(effort, 2.0)
    for turn in takewhile(lambda turn: not (turn and stop()), range(turns)):
        made = refine(short, order, stop, rounds, seed=seed + turn, fixed=fixed)
        if fixed is not None:
            times = (problem.microbatches - few) // pattern.width
            made = unroll.stretched(made, fixed, pattern.width, times)
        incumbent.offer(made, name)


def repeat_best(problem: Problem, incumbent: Incumbent, stop: Stop) -> None:
    """Anneal the repeatable part of the best order for its period."""
    order = separate(problem, without_recomputes(incumbent.programs))
    found = [
        as_cycle(problem, order, places, width, stop)
        for width in CYCLE_WIDTHS
        for places in unroll.repeatable(problem, order, width)
    ]
    moves = int(min(LAST_MOVES * stop.work.effort**2, MOST_LAST_MOVES))
    _offer_cycles(problem, incumbent, found, moves, stop, stop.work.seed)


def can_repeat(problem: Problem) -> bool:
    """Return whether there are enough microbatches for :func:`repeat_best`."""
    least = 2 * problem.ranks + FEW_MORE + max(unroll.PERIODS)
    return not is_small(problem) and problem.microbatches >= 2 * least
