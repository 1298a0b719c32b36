"""Move single actions of an order, and simulate it after each move.

:mod:`debubble.optimize.anneal.annealer` is many times as fast, and takes transfers to occupy
nobody. Where links carry one at a time, or ranks wait for each other, the engine alone knows how
long an order takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from debubble.core.actions import STAGE_SHIFT, Program
from debubble.core.errors import DebubbleError
from debubble.listing import TOLERANCE
from debubble.optimize.problem import Problem

REACH = 6
"""Places that an action is moved by, at most."""

HOT = 0.3
"""Temperature to begin with, in mean times of an action; it falls to nothing."""


def moved(programs: Sequence[Program], rng: np.random.Generator) -> list[Program] | None:
    """Programs in which one action, drawn at random, stands elsewhere on its rank.

    None where it would pass another of its stage and microbatch, or stay where it is.
    """
    rank = int(rng.integers(len(programs)))
    program = programs[rank]
    if len(program) < 2:
        return None
    source = int(rng.integers(len(program)))
    step = int(rng.integers(1, REACH + 1)) * (1 if rng.random() < 0.5 else -1)
    target = min(max(source + step, 0), len(program) - 1)
    low, high = sorted((source, target))
    passed = np.delete(program[low : high + 1], source - low)
    if not len(passed) or np.any(passed >> STAGE_SHIFT == program[source] >> STAGE_SHIFT):
        return None
    other = np.insert(np.delete(program, source), target, program[source])
    return [*programs[:rank], other, *programs[rank + 1 :]]


def move_actions(
    problem: Problem,
    programs: Sequence[Program],
    moves: int,
    seed: int,
    stop: Callable[[], bool],
    found: Callable[[list[Program]], object],
) -> None:
    """Anneal an order by moves of single actions.

    Parameters
    ----------
    problem, programs
        What is solved, without copies to the host, and an order for it.
    moves
        How many orders are simulated.
    seed
        Start of the random numbers.
    stop
        Ends the search early.
    found
        Called with every order that is faster than all before.
    """
    rng = np.random.default_rng(seed)
    order = list(programs)
    time = best = problem.timeline(problem.schedule(order)).makespan
    mean = float(problem.times.mean()) or 1.0
    for count in range(moves):
        if stop():
            return
        other = moved(order, rng)
        if other is None:
            continue
        try:
            schedule = problem.schedule(other)
            if not problem.fits(schedule):
                continue
            its = problem.timeline(schedule).makespan
        except DebubbleError:
            # The order is a deadlock.
            continue
        heat = HOT * mean * (1 - count / moves)
        if its > time and rng.random() >= math.exp((time - its) / heat):
            continue
        order, time = other, its
        if time < best * (1 - TOLERANCE):
            best = time
            found(order)
