"""The critical cycle of an order that repeats, for :mod:`._cycle_kernel`."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from debubble.engine.jit import Array, helper
from debubble.optimize.anneal.moves import ActionArrays

MOST_STEPS = 1000
"""Improvements of the critical cycle of one order, at most: more are errors of rounding."""


class CycleState(NamedTuple):
    """An order that repeats, with its starts and critical cycle, one entry per action.

    Parameters
    ----------
    order, ahead, place
        Actions rank after rank, how many repetitions ahead of its rank's each is, and its place.
    start
        Start of every action in repetition 0.
    by_input
        True if an action waits for its input, false if for its rank.
    critical
        The actions of the critical cycle that wait for their rank.
    mark, stack, queue, queued, block, trial, ratio
        Scratch.
    """

    order: Array
    ahead: Array
    place: Array
    start: Array
    by_input: Array
    critical: Array
    mark: Array
    stack: Array
    queue: Array
    queued: Array
    block: Array
    trial: Array
    ratio: Array


@helper
def previous(x: int, actions: ActionArrays, state: CycleState) -> int:
    """Return the action ahead of another on its rank, which may be of the repetition before."""
    rank = actions.rank[x]
    if state.place[x] > actions.offsets[rank]:
        return int(state.order[state.place[x] - 1])
    return int(state.order[actions.offsets[rank + 1] - 1])


@helper
def find_critical_cycle(tiny: float, actions: ActionArrays, state: CycleState) -> tuple[float, int]:
    """Return the least period of an order, and an action on the cycle that takes it.

    This is Howard's algorithm. Of every action's waits, for its rank or its input, one is looked
    at, `by_input` or not. By that every action leads back to a cycle; as long as a choice leads to
    a slower cycle, or to a later start with the same one, it is taken. Starts are those of the
    slowest cycle in the end. The period is infinite for a deadlock.
    """
    for _ in range(MOST_STEPS):
        period, root = _follow_choices(actions, state)
        if period == inf:
            return inf, -1
        if _choose_slower_cycles(tiny, actions, state):
            continue
        if not _choose_later_starts(period, tiny, actions, state):
            return period, root
    return inf, -1


@helper
def _follow_choices(actions: ActionArrays, state: CycleState) -> tuple[float, int]:
    """Find the cycle that every action waits for, its time per repetition, `ratio`, and starts.

    Return the longest ratio and an action of that cycle; infinite where a cycle spans none.
    """
    mark, stack, ratio = state.mark, state.stack, state.ratio
    for x in range(len(state.order)):
        mark[x] = 0
    period = 0.0
    root = -1
    for s in range(len(state.order)):
        # Marks are 1 where the cycle is known, and −1 − s on the way back from s.
        x = s
        depth = 0
        while mark[x] == 0:
            mark[x] = -1 - s
            stack[depth] = x
            depth += 1
            x = actions.pred[x] if state.by_input[x] != 0 else previous(x, actions, state)
        if mark[x] == -1 - s:
            # A new cycle: the start of x stays as it is.
            ratio[x] = _time_of_cycle(x, actions, state)
            if ratio[x] == inf:
                return inf, -1
            mark[x] = 1
            if ratio[x] > period:
                period = ratio[x]
                root = x
        for k in range(depth - 1, -1, -1):
            y = stack[k]
            if mark[y] == 1:
                continue
            mark[y] = 1
            z = actions.pred[y] if state.by_input[y] != 0 else previous(y, actions, state)
            ratio[y] = ratio[z]
            state.start[y] = _start_after(y, z, ratio[z], actions, state)
    return period, root


@helper
def _start_after(y: int, z: int, period: float, actions: ActionArrays, state: CycleState) -> float:
    """Return the start of an action by the one that it waits for, its input or its rank's."""
    start: float = state.start[z]
    if state.by_input[y] != 0:
        return float(start + actions.lag[y] - period * (state.ahead[z] - state.ahead[y]))
    start += actions.duration[z]
    if state.place[y] == actions.offsets[actions.rank[y]]:
        start -= period
    return start


@helper
def _time_of_cycle(x: int, actions: ActionArrays, state: CycleState) -> float:
    """Return the time of the cycle through an action per repetition; infinite for a deadlock."""
    y = x
    time = 0.0
    laps = 0
    while True:
        if state.by_input[y] != 0:
            z = actions.pred[y]
            time += actions.lag[y]
            laps += state.ahead[z] - state.ahead[y]
        else:
            z = previous(y, actions, state)
            time += actions.duration[z]
            laps += state.place[y] == actions.offsets[actions.rank[y]]
        y = z
        if y == x:
            break
    return time / laps if laps > 0 else inf


@helper
def _choose_slower_cycles(tiny: float, actions: ActionArrays, state: CycleState) -> bool:
    """Let actions wait for those that lead to a slower cycle; return whether there was any."""
    slower = False
    for y in range(len(state.order)):
        if actions.pred[y] >= 0:
            z = actions.pred[y]
            if state.by_input[y] != 0:
                z = previous(y, actions, state)
            if state.ratio[z] > state.ratio[y] + tiny:
                state.by_input[y] = 1 - state.by_input[y]
                slower = True
    return slower


@helper
def _choose_later_starts(
    period: float, tiny: float, actions: ActionArrays, state: CycleState
) -> bool:
    """Let actions wait for those that delay them more; return whether there was any."""
    later = False
    for y in range(len(state.order)):
        if actions.pred[y] < 0:
            continue
        state.by_input[y] = 1 - state.by_input[y]
        z = actions.pred[y] if state.by_input[y] != 0 else previous(y, actions, state)
        if _start_after(y, z, period, actions, state) > state.start[y] + tiny:
            later = True
        else:
            state.by_input[y] = 1 - state.by_input[y]
    return later
