"""Moves of single actions, after each of which the engine simulates the schedule.

:mod:`.annealer` is many times as fast, and knows neither links that carry one transfer at a time,
nor ranks that wait for each other, nor times that vary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from debubble.core.actions import STAGE_SHIFT, Program
from debubble.listing import TOLERANCE

REACH = 6
"""Places by which an action is moved, at most."""

HOT = 0.3
"""Temperature to begin with, in mean times of an action; it falls to nothing."""


def move_one_action(programs: Sequence[Program], rng: np.random.Generator) -> list[Program] | None:
    """Return programs in which one action, drawn at random, stands elsewhere on its rank.

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
    programs: Sequence[Program],
    evaluate: Callable[[list[Program]], float],
    moves: int,
    rng: np.random.Generator,
    stop: Callable[[], bool],
    found: Callable[[list[Program]], object],
    heat: float = 0.0,
) -> None:
    """Anneal programs by moves of single actions.

    `evaluate` returns the time of programs, infinite if they cannot run or do not fit. `found` is
    called with programs that are faster than all before. The temperature falls from `heat` to
    nothing; with 0 only faster programs are kept.
    """
    order = list(programs)
    time = best = evaluate(order)
    for count in range(moves):
        if stop():
            return
        other = move_one_action(order, rng)
        its = math.inf if other is None else evaluate(other)
        if other is None or its == math.inf:
            continue
        if not heat:
            refused = its >= time * (1 - TOLERANCE)
        else:
            temperature = heat * (1 - count / moves)
            refused = its > time and rng.random() >= math.exp((time - its) / temperature)
        if refused:
            continue
        order, time = other, its
        if time < best * (1 - TOLERANCE):
            best = time
            found(order)
