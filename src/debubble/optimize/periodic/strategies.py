"""Strategies for many microbatches: orders of few of them that repeat.

Patterns are sought for one microbatch, then for two; each is unrolled, its ends are repaired, and
its middle is stretched. Or an order of few is annealed, and what repeats in it is stretched, and
annealed for its period, which makes a pattern of it.
"""

from __future__ import annotations

from itertools import takewhile

from debubble.optimize.anneal.annealer import TEMPERATURES, refine
from debubble.optimize.anneal.strategies import ROUNDS, is_small
from debubble.optimize.bounds.strategies import LONG_EFFORT
from debubble.optimize.incumbent import Incumbent
from debubble.optimize.periodic import unroll
from debubble.optimize.periodic.cycles import Cycle, annealed, as_cycle, pattern_of, repeated
from debubble.optimize.periodic.pattern import Pattern, find_pattern
from debubble.optimize.problem import Problem
from debubble.optimize.programs.backward import separate
from debubble.optimize.programs.list_scheduling import list_programs
from debubble.optimize.programs.published import published_orders
from debubble.optimize.stop import Stop

WIDTHS = (1, 2)
"""Microbatches per period of the patterns that are sought, in this order, up to the effort."""

FEW_MORE = 8
"""Microbatches beyond 2p on which orders of many are annealed."""

PATTERN_SHARE = 0.35
"""Share of its time limit for finding one pattern."""

PATTERN_WORK = 0.02
"""Solver work per period that is tried, per stage and microbatch."""

MOST_ENDS = 6
"""Most repairs of the ends of a pattern, each time from the pattern, up to the effort."""

LARGEST_PATTERN = 256
"""Stages times microbatches of a pattern beyond which there is no more work for it."""

LONGEST_WORK = 10.0
"""Largest factor of that work under a time limit."""

CYCLE_WIDTHS = (1, 2, 3, 4)
"""Microbatches per period of orders that are annealed for it."""

CYCLE_MOVES, MOST_CYCLE_MOVES = 50_000, 100_000
"""Moves of a round of annealing for the period, times the effort, and at most."""

MOST_LAST_MOVES = 1_000_000
"""Most moves of such a round for the best order, which comes once: there they grow with the square
of the effort."""

CYCLE_SHARE = 0.3
"""Share of the time that is left for annealing cycles."""


def patterns(problem: Problem, incumbent: Incumbent, stop: Stop) -> None:
    """Find repeating patterns, and repair their ends."""
    effort, seed = stop.work.effort, stop.work.seed
    for width in WIDTHS:
        if stop() or problem.microbatches < 2 * width or width > max(effort, 1):
            break
        share = Stop(PATTERN_SHARE * stop.left, stop)
        size = min(problem.stages * width, LARGEST_PATTERN)
        work = PATTERN_WORK * min(effort, LONGEST_WORK) * size
        pattern = find_pattern(problem, width, share, work, seed)
        if pattern is None:
            continue
        name = f"a pattern of {width} microbatch{'es' if width > 1 else ''}"
        _offer_pattern(problem, incumbent, pattern, name, stop, seed)
        if pattern.tight:
            break


def _offer_pattern(
    problem: Problem, incumbent: Incumbent, pattern: Pattern, name: str, stop: Stop, seed: int
) -> None:
    """Offer a pattern as it is, and with ends that are repaired on few microbatches."""
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


def repeat(problem: Problem, incumbent: Incumbent, stop: Stop) -> None:
    """Anneal an order of few microbatches, then repeat its repeatable part."""
    if _is_too_short(problem, stop):
        return
    m, few = problem.microbatches, 2 * problem.ranks + FEW_MORE
    few += (m - few) % max(unroll.PERIODS)
    short = problem.shortened(few)
    effort, seed = stop.work.effort, stop.work.seed
    order = list_programs(
        short, [separate(short, programs) for _, programs in published_orders(short)]
    )
    annealings = 0
    while True:
        parts = [
            (width, places)
            for width in unroll.PERIODS
            for places in unroll.repeatable(short, order, width)
        ]
        for width, places in parts:
            if stop():
                return
            made = unroll.stretched(order, places, width, (m - few) // width)
            incumbent.offer(made, "repeating an annealed order")
        if annealings and effort >= LONG_EFFORT:
            found = [as_cycle(short, order, places, w) for w, places in parts if w in CYCLE_WIDTHS]
            moves = int(min(CYCLE_MOVES * effort, MOST_CYCLE_MOVES))
            _offer_cycles(problem, incumbent, found, moves, stop, seed + annealings)
        if annealings >= effort or stop():
            return
        rounds = (annealings + 1) * len(TEMPERATURES)
        order = refine(short, order, stop, rounds, seed=seed + annealings)
        annealings += 1


def _offer_cycles(
    problem: Problem, incumbent: Incumbent, cycles: list[Cycle], moves: int, stop: Stop, seed: int
) -> None:
    """Anneal the fastest cycle of each width for its period, and offer the best with ends.

    Parameters
    ----------
    problem, incumbent, stop
        As of every strategy.
    cycles
        Cycles to begin with, of some widths; one of half the width is another beginning, twice.
    moves
        Moves of a round of annealing.
    seed
        Seed of the annealing.
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
    best = min(found.values(), key=lambda cycle: cycle.pace, default=None)
    if best is None or stop() or best.period == float("inf"):
        return
    _offer_pattern(problem, incumbent, pattern_of(problem, best), "annealing a cycle", stop, seed)


def repeat_best(problem: Problem, incumbent: Incumbent, stop: Stop) -> None:
    """Anneal the repeatable part of the best order for its period."""
    if _is_too_short(problem, stop):
        return
    order = separate(problem, incumbent.programs)
    found = [
        as_cycle(problem, order, places, width)
        for width in CYCLE_WIDTHS
        for places in unroll.repeatable(problem, order, width)
    ]
    moves = int(min(CYCLE_MOVES * stop.work.effort**2, MOST_LAST_MOVES))
    _offer_cycles(problem, incumbent, found, moves, stop, stop.work.seed)


def can_repeat(problem: Problem) -> bool:
    """Return whether there are enough microbatches for :func:`repeat`, if it may take long."""
    return not is_small(problem) and problem.microbatches >= _least(problem)


def _is_too_short(problem: Problem, stop: Stop) -> bool:
    """Return whether there are too few microbatches to repeat any without much effort."""
    return problem.microbatches < 2 * _least(problem) and stop.work.effort < LONG_EFFORT


def _least(problem: Problem) -> int:
    return 2 * problem.ranks + FEW_MORE + max(unroll.PERIODS)
