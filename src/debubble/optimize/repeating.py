"""Strategies for many microbatches: orders of few of them that repeat.

Patterns are sought for one microbatch, then for two; each is unrolled, its ends are repaired, and
its middle is stretched. Or an order of few is annealed, and what repeats in it is stretched.
"""

from __future__ import annotations

from itertools import takewhile

from debubble.optimize import unroll
from debubble.optimize.annealing import ROUNDS, small
from debubble.optimize.backward import separate
from debubble.optimize.incumbent import Incumbent
from debubble.optimize.listed import listed
from debubble.optimize.pattern import find_pattern
from debubble.optimize.problem import Problem
from debubble.optimize.published import published_orders
from debubble.optimize.refine import TEMPERATURES, refine
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
"""How often the ends of a pattern are repaired, each time from the pattern, up to the effort."""

LARGEST_PATTERN = 256
"""Stages times microbatches of a pattern beyond which there is no more work for it."""

LONGEST_WORK = 10.0
"""How many times as much there is at most when there is a time limit."""


def patterns(problem: Problem, incumbent: Incumbent, stop: Stop) -> None:
    """Find repeating patterns, and repair their ends."""
    effort, seed = stop.work.effort, stop.work.seed
    rounds = ROUNDS * min(effort, 2.0)
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
        incumbent.offer(pattern.unroll(problem), name)
        few = unroll.few_microbatches(pattern, problem.microbatches)
        short = problem.shortened(few)
        fixed = unroll.middle_period(short, pattern) if few < problem.microbatches else None
        order, turns = pattern.unroll(short), max(1, int(min(effort, MOST_ENDS)))
        for turn in takewhile(lambda turn: not (turn and stop()), range(turns)):
            made = refine(short, order, stop, rounds, seed=seed + turn, fixed=fixed)
            if fixed is not None:
                times = (problem.microbatches - few) // width
                made = unroll.stretched(made, fixed, width, times)
            incumbent.offer(made, name)
        if pattern.tight:
            break


def repeat(problem: Problem, incumbent: Incumbent, stop: Stop) -> None:
    """Anneal an order of few microbatches, then repeat what repeats in it."""
    m, few = problem.microbatches, 2 * problem.ranks + FEW_MORE
    few += (m - few) % max(unroll.PERIODS)
    short = problem.shortened(few)
    order = listed(short, [separate(short, programs) for _, programs in published_orders(short)])
    cycles = 0
    while True:
        for width in unroll.PERIODS:
            for places in unroll.repeatable(short, order, width):
                if stop():
                    return
                times = (m - few) // width
                made = unroll.stretched(order, places, width, times)
                incumbent.offer(made, "repeating an annealed order")
        if cycles >= stop.work.effort or stop():
            return
        cycles += 1
        rounds = cycles * len(TEMPERATURES)
        order = refine(short, order, stop, rounds, seed=stop.work.seed + cycles - 1)


def can_repeat(problem: Problem) -> bool:
    """Whether there are enough microbatches for :func:`repeat`."""
    few = 2 * problem.ranks + FEW_MORE + max(unroll.PERIODS)
    return not small(problem) and problem.microbatches >= 2 * few
