"""Schedules of all microbatches from patterns that repeat.

Repeated as it is, a pattern idles while the pipeline fills and drains, and both ends look the same
for any number of microbatches. So the ends are repaired on few microbatches, with one whole period
in the middle of every rank's program left as it is. For many microbatches that period is repeated:
what comes before it and what comes after it stay as they are.

Orders that were found in another way repeat, too, by chance: if a rank has run so many actions of
each of its chains, and later k more of all of them, it is in the same state, and its actions in
between can be repeated. Cuts of all ranks at about the same time belong together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import MICROBATCH_SHIFT, Program
from debubble.core.sequence import sequence
from debubble.optimize.cp_sat.from_start_times import programs_by_start
from debubble.optimize.problem import Problem

Places = tuple[NDArray[np.int64], NDArray[np.int64]]

PERIODS = (1, 2, 3, 4, 6, 12)
"""Microbatches after which an order may repeat."""

CUTS = 9
"""Times at which an order is cut."""

MARGIN = 4
"""Whole periods between the ends, on few microbatches."""

STEPS = 10**9
"""Whole steps of the period of a pattern."""


@dataclass(frozen=True)
class Pattern:
    """The starts of a cycle's actions, in steps of its period.

    Parameters
    ----------
    width
        Microbatches per period.
    starts
        Start of every action of the first `width` microbatches, shape ``(kinds, stages, width)``.
    laps
        Period in which an action runs, counted from the rank's first forward; the same shape.
    """

    width: int
    starts: NDArray[np.int64]
    laps: NDArray[np.int64]

    @property
    def depth(self) -> int:
        """Whole periods between a microbatch's first and last action on any rank."""
        return int(self.laps.max())

    def unroll(self, problem: Problem) -> list[Program]:
        """Return the order for all microbatches, repeated as it is."""
        lap, inner = np.divmod(np.arange(problem.microbatches), self.width)
        starts = self.starts[:, :, inner] + STEPS * lap
        times = np.repeat(problem.times.ravel(), problem.microbatches)
        return programs_by_start(problem, starts.ravel(), times)


def few_microbatches(pattern: Pattern, microbatches: int) -> int:
    """Return the number of microbatches on which ends are repaired."""
    few = (2 * pattern.depth + MARGIN) * pattern.width
    few += (microbatches - few) % pattern.width
    return min(few, microbatches)


def middle_period(problem: Problem, pattern: Pattern) -> Places:
    """Return a whole period in the middle of every rank's program: places from, to."""
    period = (pattern.depth + problem.microbatches // pattern.width - 1) // 2
    lap, inner = np.divmod(np.arange(problem.microbatches), pattern.width)
    laps = (pattern.laps[:, :, inner] + lap).reshape(len(problem.kinds), problem.stages, -1)
    before, until = np.zeros(problem.ranks, np.int64), np.zeros(problem.ranks, np.int64)
    for stage, rank in enumerate(problem.homes.tolist()):
        before[rank] += np.count_nonzero(laps[:, stage] < period)
        until[rank] += np.count_nonzero(laps[:, stage] <= period)
    return before, until


def stretched(
    programs: Sequence[Program], places: Places, microbatches: int, times: int
) -> list[Program]:
    """Repeat a part of every program `times` more times, `microbatches` later each time."""
    result = []
    for program, begin, end in zip(programs, *places, strict=True):
        shift = np.arange(1, times + 1)[:, None] * (microbatches << MICROBATCH_SHIFT)
        more = (program[begin:end] + shift).ravel()
        rest = program[end:] + (times * microbatches << MICROBATCH_SHIFT)
        result.append(sequence(program[:end], more, rest))
    return result


def repeatable(problem: Problem, programs: Sequence[Program], width: int) -> Iterator[Places]:
    """Yield parts of programs after which every rank is in the same state, `width` later.

    A part is the places from and to in every rank's program; those of one pair are about
    simultaneous.
    """
    timeline = problem.timeline(problem.schedule(programs))
    every_start = problem.starts(timeline)
    found = []
    for rank, program in enumerate(programs):
        begin = problem.offsets[rank]
        starts = every_start[begin : begin + len(program)]
        chains, chain = np.unique(problem.actions([program]) // problem.microbatches,
                                  return_inverse=True)  # fmt: skip
        done = np.zeros((len(program) + 1, len(chains)), dtype=np.int32)
        done[np.arange(1, len(program) + 1), chain] = 1
        done = done.cumsum(axis=0, dtype=np.int32)
        place = {counts.tobytes(): index for index, counts in enumerate(done)}
        later = [place.get(counts.tobytes(), 0) for counts in done[:-1] + np.int32(width)]
        begins = np.flatnonzero(later)
        if len(begins) == 0 and len(program):
            return
        found.append((begins, np.array(later)[begins], starts[begins] if len(program) else starts))
    for time in np.linspace(0.2, 0.7, CUTS) * timeline.makespan:
        nearest = [int(np.abs(times - time).argmin()) if len(times) else 0 for *_, times in found]
        pairs = [
            (int(begin[i]), int(end[i])) if len(begin) else (0, 0)
            for (begin, end, _), i in zip(found, nearest, strict=True)
        ]
        yield np.array([begin for begin, _ in pairs]), np.array([end for _, end in pairs])
