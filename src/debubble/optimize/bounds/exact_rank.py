r"""Bounds that know memory over time: some ranks are modeled exactly, all others are delays.

**The relaxation.** Keep some ranks with all their actions, one machine each, and their memory from
the start of every forward to the end of its W. Of all other ranks nothing is left but the time they
take: an exact action of a microbatch starts no sooner than the end of its exact action
before it and everything on the way between the two, no sooner than its head, and is followed by its
tail (:func:`~debubble.optimize.bounds.paths.longest_paths`). Every order of the whole problem, with
each chain in microbatch order as in :mod:`debubble.optimize.bounds.paths`, is an order here that
ends no later, so that no order is faster than the fastest one here. That holds in all modes of
transfers, none of which is faster than its delays. W only needs its I, which is on its rank; those
of equal time and memory are interchangeable, and which one runs is left open. That relaxes more.

**Recomputes.** An R of an exact rank is work that runs after its forward and before its backward,
in microbatch order, and may be far ahead of that; it holds its memory from its start on. On ranks
that are not exact nothing is left of R but at the turn, where the last stage's backward follows its
forward.

**Is there an order that ends before a target?** Sort the F and I (or B) of an order by their
starts. On a rank, and on the way of a microbatch, starts never fall. So every order is a sequence
of actions, each run as soon as its rank, its input, its memory and the start before it allow, and
such a run is at no time later than the order. A *state* describes the beginning of a sequence: the
actions of every chain that have run, the numbers of W and R that have run, the time at which each
rank is free, the last start, and the arrivals of results under way.

* Of two states whose chains are equally far, R among them, one is no worse if as many W have run or
  more, and all times are as early or earlier: whatever follows the other one can follow it, no
  later. The other one is dropped.
* W run right before an action that waits, for memory or for its input. One that runs before an
  action which waits for neither can run after it instead: the action starts earlier, nothing else
  changes. So it is enough to try the numbers of W of which each either starts before the action's
  input is there, or frees memory that the action needs. The same is true of R, which never frees
  any, but for the one that the action needs itself: one that runs later holds no more memory. Of
  what runs right before an action W goes first, so that what fits with the action fits before it.
* A state is dropped if the rest of the work of a rank, or the rest of a chain with its tail, cannot
  end before the target.

If no state is left there is no such order, and the target is a bound. Targets grow until one can be
met. States of one level, which have run as many actions, are all that is kept, and in the steady
state their number does not depend on the level: the time grows with the number of microbatches, not
faster. Where states get too many a target counts as one that can be met.

**Times** are multiplied by a factor and rounded down to whole numbers, which relaxes once more:
run in the order of its rank by times, delays, heads and tails none of which is longer, no action
starts later. Delays, heads and tails are rounded as sums. So the factor may be one that makes the
times of the exact ranks alone whole; then it is small, and states differ less.

**A grid.** Results under way may be taken to arrive sooner than they do, at multiples of a step.
Again no action starts later. States that differ only in such arrivals become one, of which there
are few enough where memory and work are about equally short, as on the first rank of a loop. An
arrival is sooner by less than one step of a way that is many steps long, so that little is lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from debubble.listing import TOLERANCE
from debubble.optimize.bounds._exact_rank_kernel import Counts, Relaxation, keep_best, next_states
from debubble.optimize.bounds.paths import longest_paths
from debubble.optimize.cp_sat.rounding import Whole, all_times, factor_for, whole_times
from debubble.optimize.problem import Problem
from debubble.optimize.stop import Stop

MOST_CELLS = 4_000_000
"""States of one level times their columns; with more a target counts as one that can be met."""

MOST_STORED = 20_000_000
"""States of all levels together, times their columns, if an order is to be found."""

COLUMNS, LEVEL_WORK = 32, 20
"""Columns that count as one state, and the work of a level on top of its states."""

GRIDS = (2.0, 0.5)
"""Steps of grids, relative to a rank's work for one microbatch, coarsest first."""

FIRST_STEPS, COARSE_STEPS = 64, 8
"""Targets between the bound that is known and the makespan to beat, to begin with; on a grid."""

PRECISION, COARSE_PRECISION = 2e-4, 5e-3
"""Tolerance of the largest target, relative to it; and that on a grid."""


def relax_others(problem: Problem, ranks: Sequence[int], factor: float = 1.0) -> Relaxation:
    """Return the relaxation of a problem to some of its ranks, with times scaled by a factor."""
    stages, m = problem.stages, problem.microbatches
    way = [(0, s) for s in range(stages)] + [(1, s) for s in reversed(range(stages))]
    lags = [*problem.forward_link, *problem.backward_link[::-1]]
    heads, tails, *_ = longest_paths(problem)
    place = {rank: number for number, rank in enumerate(ranks)}
    if problem.homes[-1] not in place:
        lags[stages] += problem.recompute_time[-1]
    chains, gaps, gap = [], [], 0.0
    for chain, lag in zip(way, lags, strict=True):
        gap += lag
        if problem.homes[chain[1]] in place:
            chains.append(chain)
            gaps.append(gap)
            gap = 0.0
        else:
            gap += problem.pass_times[chain]
    rank_of = [place[int(problem.homes[s])] for _, s in chains]
    times, delays, head, tail = (
        whole_times(np.array(values), factor)
        for values in (
            [problem.pass_times[chain] for chain in chains], gaps,
            [heads[chain] for chain in chains], [tails[chain] for chain in chains],
        )
    )  # fmt: skip
    again_time = whole_times(problem.recompute_time, factor)
    taken, freed = (
        np.array([values[chain] for chain in chains]) for values in (problem.taken, problem.freed)
    )
    class_of, needs = np.full(len(chains), -1), np.full(len(chains), -1)
    whole: list[tuple[int, int, float]] = []
    for c, (backward, s) in enumerate(chains):
        if backward and again_time[s]:
            back = float(problem.taken_by_recompute[s])
            class_of[chains.index((0, s))] = needs[c] = len(whole)
            whole.append((rank_of[c], int(again_time[s]), -back))
            taken[c] -= back
    again, classes = len(whole), dict[tuple[int, int, float], int]()
    for c, (backward, s) in enumerate(chains):
        if backward and not problem.fused:
            time, free = (
                int(whole_times(problem.pass_times[2, s], factor)),
                float(problem.freed[2, s]),
            )
            if time:
                number = again + len(classes)
                class_of[c] = classes.setdefault((rank_of[c], time, free), number)
            else:
                freed[c] += free
    whole += classes
    limits = problem.limits_with_slack[list(ranks)]
    width = len(chains) + len(whole) + len(ranks) + 1
    waits = np.zeros(len(chains), dtype=np.int64)
    for c in range(1, len(chains)):
        if delays[c] > 0 or rank_of[c] != rank_of[c - 1]:
            waits[c] = width
            # On one side of the gap every microbatch in it has its activation.
            holder = c - 1 if chains[c - 1][0] == 0 else c
            stored = problem.taken[0, chains[holder][1]]
            width += int(min(m, limits[rank_of[holder]] / stored + 1)) if stored > 0 else m
    return Relaxation(
        m, np.array(rank_of), times, delays, waits, head, tail, taken, taken - freed, limits,
        class_of, needs, np.array([rank for rank, _, _ in whole], dtype=np.int64),
        np.array([time for _, time, _ in whole], dtype=np.int64),
        np.array([free for _, _, free in whole]), again, width,
    )  # fmt: skip


class StateBudget:
    """Number of states that may still be examined, and the limit of cells at once."""

    def __init__(self, states: float, cells: int = MOST_CELLS) -> None:
        self.left = states
        self.cells = cells

    @property
    def spent(self) -> bool:
        """True if no states are left."""
        return self.left < 0


def ends_before(
    kept: Relaxation, target: int, left: StateBudget, stop: Stop, grid: int = 1
) -> bool | None:
    """Return whether a schedule ends before a target; None where that took too much.

    With a grid of more than one step there may be none where one was found.
    """
    done = 0
    for states, _ in _levels(kept, target, left, stop, grid):
        done += 1
        if not len(states):
            return False
    return True if done == len(kept.times) * kept.microbatches else None


def starts_before(kept: Relaxation, target: int, left: StateBudget, stop: Stop) -> Whole | None:
    """Return starts of an order that ends before a target, shape ``(chains, microbatches)``.

    None where there is none, or finding one takes too much.
    """
    chains, m = len(kept.times), kept.microbatches
    now_at = chains + len(kept.class_time)
    levels = [(np.zeros((1, kept.width), dtype=np.int64), np.zeros(1, dtype=np.int64))]
    for level in _levels(kept, target, left, stop):
        levels.append(level)
        if not len(level[0]) or sum(states.size for states, _ in levels) > MOST_STORED:
            return None
    if len(levels) <= chains * m:
        return None
    ends = levels[-1][0][:, now_at : now_at + len(kept.limits)].max(axis=1)
    place, starts = int(ends.argmin()), np.zeros((chains, m), dtype=np.int64)
    for (before, _), (states, parents) in zip(levels[-2::-1], levels[:0:-1], strict=True):
        state, place = states[place], int(parents[place])
        c = int(np.argmax(state[:chains] > before[place, :chains]))
        starts[c, before[place, c]] = state[now_at + kept.rank_of[c]] - kept.times[c]
    return starts


def _levels(
    kept: Relaxation, target: int, left: StateBudget, stop: Stop, grid: int = 1
) -> Iterator[tuple[Whole, Whole]]:
    """Yield one level of states after another, with their places in the level before.

    Ends early where no state is left, or where they are too many.
    """
    chains = len(kept.times)
    states = np.zeros((1, kept.width), dtype=np.int64)
    # Sums of counts with these are different for different counts, or else nothing is dropped.
    alike = chains + kept.again
    multipliers = np.random.default_rng(0).integers(1 << 62, size=alike) * 2 + 1
    counts = Counts(*np.zeros((4, len(kept.class_time) + 1), dtype=np.int64))
    room = 1024
    for _ in range(chains * kept.microbatches):
        number = room + 1
        while number > room:
            if room * kept.width > 4 * left.cells:
                return
            found = np.empty((room, kept.width), dtype=np.int64)
            parents = np.empty(room, dtype=np.int64)
            args = (states, target, grid, kept, counts, found, parents)
            if stop.left < float("inf") and not next_states.wait_for(args, stop):
                return
            number = next_states.compiled(*args)
            room = max(room, 2 * number if number > room else 0)
        found = found[:number]
        keys = found[:, :alike] @ multipliers
        order = np.lexsort((found[:, alike:].sum(axis=1), keys))
        best = np.empty(number, dtype=np.int64)
        best = best[: keep_best.compiled(found, order, keys, alike, best)]
        states = found[best]
        left.left -= len(states) * max(1.0, kept.width / COLUMNS) + LEVEL_WORK
        if len(states) * kept.width > left.cells or left.spent or stop():
            return
        yield states, parents[best]
        if not len(states):
            return


def exact_rank_bound(
    problem: Problem, ranks: Sequence[int], low: float, best: float, left: StateBudget, stop: Stop
) -> float:
    """Return the largest target that some exact ranks do not meet.

    It is sought between a bound `low` and a makespan `best`, as far as the states that are left go.
    """
    exact = factor_for(all_times(problem), best)
    ways = [(exact, 1)]
    if len(ranks) == 1:
        # Between several ranks most ways are too short for a grid.
        few = factor_of(problem, ranks[0], best)
        work = few * problem.work[ranks[0]]
        coarse = [(few, int(work * step)) for step in GRIDS if work * step >= 2]
        ways = [*coarse, *([(few, 1)] if few != exact else []), *ways]
    for factor, grid in ways:
        if stop() or left.spent:
            break
        kept = relax_others(problem, ranks, factor)
        bound = int(low * factor * (1 + TOLERANCE))
        highest = int(np.ceil(best * factor * (1 - TOLERANCE)))
        step = max(1, (highest - bound) // (FIRST_STEPS if grid == 1 else COARSE_STEPS))
        grows = True
        near = COARSE_PRECISION if grid > 1 else 0.0 if factor == round(factor) else PRECISION
        while bound < highest and not stop() and not left.spent:
            if not grows and highest - bound <= near * highest:
                break
            target = min(bound + step, highest)
            if ends_before(kept, target, left, stop, grid) is False:
                bound = target
                step = 2 * step if grows else max(1, (highest - bound) // 2)
            else:
                highest, grows = target - 1, False
                step = max(1, (highest - bound) // 2)
        low = max(low, bound / factor)
    return low


def factor_of(problem: Problem, rank: int, best: float) -> float:
    """Return the factor that makes the times of one rank whole numbers."""
    own = problem.homes == rank
    return factor_for(np.append(problem.times[:, own], problem.recompute_time[own]), best)
