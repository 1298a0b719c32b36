"""Arrays and random moves that both annealing kernels share."""

from __future__ import annotations

from math import log
from typing import NamedTuple

from debubble.engine.jit import Array, helper

RANDOM_BITS = 31
"""Bits of one random number."""

MULTIPLIER = 0x5DEECE66D
MASK = (1 << 48) - 1
"""The linear congruential generator of POSIX."""

LONGEST_BLOCK = 4
"""Neighboring actions of a rank that change places in one move, at most, on either side."""


class ActionArrays(NamedTuple):
    """The actions to be ordered, one entry for each; −1 stands for no action.

    Parameters
    ----------
    offsets
        ``order[offsets[r]:offsets[r + 1]]`` are the actions of rank r; shape ``(ranks + 1,)``.
    rank, chain
        Rank of every action, and its chain: actions of one chain keep their order.
    duration
        Time of every action.
    pred, lag
        Action whose result is needed, and the time from its end to the arrival.
    succ, other
        Actions that need the result of this one.
    mate
        Action of the same rank that has to stay ahead.
    taken, freed
        Memory taken at the start, and freed at the end.
    memory
        Limit of every rank.
    fixed_from, fixed_to
        Places of every rank's order that stay as they are.
    """

    offsets: Array
    rank: Array
    chain: Array
    duration: Array
    pred: Array
    lag: Array
    succ: Array
    other: Array
    mate: Array
    taken: Array
    freed: Array
    memory: Array
    fixed_from: Array
    fixed_to: Array


class Cooling(NamedTuple):
    """One run of annealing.

    Parameters
    ----------
    moves
        Number of exchanges that are drawn.
    hot, cold
        Temperature of the first and last move, in units of time: a move that makes the result
        longer by x is accepted with probability exp(−x / temperature).
    stop_at
        Value at which there is nothing left to gain.
    tiny
        Times differ when by more than this.
    """

    moves: int
    hot: float
    cold: float
    stop_at: float
    tiny: float


@helper
def next_random(random: int) -> int:
    """Return the next state of the random numbers, whose upper bits are one of them."""
    return (random * MULTIPLIER + 11) & MASK


@helper
def random_below(random: int, n: int) -> int:
    """Return the whole number from 0 to n − 1 that a state stands for."""
    return ((random >> 17) * n) >> RANDOM_BITS


@helper
def draw_blocks(random: int, middle: int) -> tuple[int, int, int]:
    """Draw two blocks that change places: `begin` to `middle` − 1, and `middle` to `end` − 1.

    One of both is a single action. The other has the smaller of two random sizes.
    """
    random = next_random(random)
    draw = random >> 17
    size = 1 + ((draw >> 1) * LONGEST_BLOCK >> (RANDOM_BITS - 1))
    random = next_random(random)
    size = min(size, 1 + random_below(random, LONGEST_BLOCK))
    if draw & 1:
        return random, middle - size, middle + 1
    return random, middle - 1, middle + size


@helper
def draw_limit(random: int, value: float, temperature: float) -> tuple[int, float]:
    """Draw the largest result that is accepted in place of a value: ahead of the move is enough.

    That is the rule of Metropolis, x ≤ −temperature · log(chance), decided before x is known.
    """
    random = next_random(random)
    chance = ((random >> 17) + 1.0) / 2147483649.0
    return random, value - temperature * log(chance)
