"""Ends of actions and longest paths to the end, and their changes, for :mod:`._kernel`."""

from __future__ import annotations

from typing import NamedTuple

from debubble.engine.jit import Array, helper
from debubble.optimize.anneal.moves import ActionArrays


class OrderState(NamedTuple):
    """An order with its times and memory, one entry per action.

    Parameters
    ----------
    order, place
        Actions rank after rank, and the place of every action among them.
    before
        Memory held right before each place.
    line, at
        A topological order of all actions, and the place of every action in it.
    head, tail
        End of every action, and the longest path from its start to the end of all.
    fresh, trial, marked
        Scratch: a part of a new topological order, new ends, and marks.
    """

    order: Array
    place: Array
    before: Array
    line: Array
    at: Array
    head: Array
    tail: Array
    fresh: Array
    trial: Array
    marked: Array


class BlockMove(NamedTuple):
    """A move of a rank's actions at places begin … middle − 1 after those at middle … end − 1."""

    rank: int
    begin: int
    middle: int
    end: int


class Part(NamedTuple):
    """The part of the topological order from `low` to `high` that a move concerns."""

    low: int
    high: int


@helper
def find_makespan(actions: ActionArrays, state: OrderState) -> float:
    """Return the end of the last action of all ranks."""
    makespan = 0.0
    for r in range(len(actions.memory)):
        if actions.offsets[r] < actions.offsets[r + 1]:
            makespan = max(makespan, state.head[state.order[actions.offsets[r + 1] - 1]])
    return makespan


@helper
def find_topological_order(actions: ActionArrays, state: OrderState) -> None:
    """Run the order, which fills all of the state but `tail`: ranks go on in turn.

    Meanwhile `fresh` has the place at which every rank goes on.
    """
    order, offsets = state.order, actions.offsets
    ranks = len(actions.memory)
    for r in range(ranks):
        held = 0.0
        for i in range(offsets[r], offsets[r + 1]):
            state.place[order[i]] = i
            state.before[i] = held
            held += actions.taken[order[i]] - actions.freed[order[i]]
    for x in range(len(order)):
        state.at[x] = -1
        state.head[x] = 0.0
        state.marked[x] = 0
    done = 0
    while done < len(order):
        reached = done
        for r in range(ranks):
            i = state.fresh[r] if reached > 0 else offsets[r]
            end = state.head[order[i - 1]] if i > offsets[r] else 0.0
            while i < offsets[r + 1]:
                x = order[i]
                z = actions.pred[x]
                start = end
                if z >= 0:
                    if state.at[z] < 0:
                        break
                    arrival = state.head[z] + actions.lag[x]
                    start = max(start, arrival)
                end = start + actions.duration[x]
                state.head[x] = end
                state.at[x] = done
                state.line[done] = x
                done += 1
                i += 1
            state.fresh[r] = i
        assert done > reached, "the first order can run"


@helper
def find_tails(actions: ActionArrays, state: OrderState) -> None:
    """Set the longest path from the start of every action, last ones first."""
    for i in range(len(state.line) - 1, -1, -1):
        x = state.line[i]
        state.tail[x] = _tail(x, actions, state)


@helper
def _tail(x: int, actions: ActionArrays, state: OrderState) -> float:
    """Return the longest path from the start of an action, by the tails of what follows it."""
    after = 0.0
    z = actions.succ[x]
    if z >= 0:
        after = actions.lag[z] + state.tail[z]
    z = actions.other[x]
    if z >= 0:
        after = max(after, actions.lag[z] + state.tail[z])
    j = state.place[x] + 1
    if j < actions.offsets[actions.rank[x] + 1]:
        after = max(after, state.tail[state.order[j]])
    return float(after + actions.duration[x])


@helper
def _new_neighbors(
    y: int, move: BlockMove, actions: ActionArrays, state: OrderState
) -> tuple[int, int]:
    """Return the places, before a move, of the neighbors of an action after it."""
    rank, begin, middle, end = move
    j = state.place[y]
    previous = j - 1
    following = j + 1
    if actions.rank[y] == rank and begin <= j < end:
        if j == middle:
            previous = begin - 1
        elif j == begin:
            previous = end - 1
        if j == middle - 1:
            following = end
        elif j == end - 1:
            following = begin
    return previous, following


@helper
def longest_path(
    move: BlockMove, part: Part, limit: float, actions: ActionArrays, state: OrderState
) -> float:
    """Return the longest path through a part after a move, or one that is longer than a limit.

    New ends of the part go to `trial`. Ends before the part and tails after it stay valid.
    """
    low, high = part
    head, tail, at, trial = state.head, state.tail, state.at, state.trial
    longest = 0.0
    for k in range(high - low + 1):
        y = state.fresh[k]
        r = actions.rank[y]
        previous, following = _new_neighbors(y, move, actions, state)
        start = 0.0
        if previous >= actions.offsets[r]:
            z = state.order[previous]
            start = trial[z] if low <= at[z] <= high else head[z]
        z = actions.pred[y]
        if z >= 0:
            arrival = (trial[z] if low <= at[z] <= high else head[z]) + actions.lag[y]
            start = max(start, arrival)
        finish = start + actions.duration[y]
        trial[y] = finish
        path = finish
        if following < actions.offsets[r + 1]:
            z = state.order[following]
            if at[z] > high:
                path = max(path, finish + tail[z])
        z = actions.succ[y]
        if z >= 0 and at[z] > high:
            path = max(path, finish + actions.lag[z] + tail[z])
        z = actions.other[y]
        if z >= 0 and at[z] > high:
            path = max(path, finish + actions.lag[z] + tail[z])
        if path > longest:
            longest = path
            if longest > limit:
                break
    return longest


@helper
def propagate_heads(part: Part, actions: ActionArrays, state: OrderState) -> None:
    """Compute ends of a part anew, and those that follow from one that changed."""
    at, head = state.at, state.head
    far = part.high
    i = part.low
    while i <= far:
        y = state.line[i]
        j = state.place[y]
        r = actions.rank[y]
        start = 0.0
        if j > actions.offsets[r]:
            start = head[state.order[j - 1]]
        z = actions.pred[y]
        if z >= 0:
            start = max(start, head[z] + actions.lag[y])
        finish = start + actions.duration[y]
        if finish != head[y]:
            head[y] = finish
            if actions.succ[y] >= 0:
                far = max(far, at[actions.succ[y]])
            if actions.other[y] >= 0:
                far = max(far, at[actions.other[y]])
            if j + 1 < actions.offsets[r + 1]:
                far = max(far, at[state.order[j + 1]])
        i += 1


@helper
def propagate_tails(part: Part, actions: ActionArrays, state: OrderState) -> None:
    """Compute tails of a part anew, and those ahead that a changed one follows from."""
    near = part.low
    i = part.high
    while i >= near:
        y = state.line[i]
        after = _tail(y, actions, state)
        if after != state.tail[y]:
            state.tail[y] = after
            if actions.pred[y] >= 0:
                near = min(near, state.at[actions.pred[y]])
            j = state.place[y]
            if j > actions.offsets[actions.rank[y]]:
                near = min(near, state.at[state.order[j - 1]])
        i -= 1
