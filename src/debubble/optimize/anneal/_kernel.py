"""Loops of simulated annealing on whole schedules, for :mod:`.annealer`."""

from __future__ import annotations

from typing import NamedTuple

from debubble.engine.jit import Array, helper, kernel
from debubble.optimize.anneal._moves import (
    Actions,
    Cooling,
    draw_blocks,
    draw_limit,
    next_random,
    random_below,
)

TRIES = 64
"""Actions drawn until one is on the critical path and waits for its rank, at most."""

COUNTERS = 4
"""Numbers that come back: makespan, best makespan, moves accepted, state of the random numbers."""


class State(NamedTuple):
    """An order and what is known about it, one entry per action.

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


class Move(NamedTuple):
    """Actions at places begin … middle − 1 of a rank go behind those at middle … end − 1."""

    rank: int
    begin: int
    middle: int
    end: int


class Part(NamedTuple):
    """The part of the topological order from `low` to `high` that a move concerns."""

    low: int
    high: int


@kernel(writes=("state", "best", "counters"), allocates=False)
def anneal(
    cooling: Cooling, actions: Actions, state: State, best: Array, counters: Array, halt: Array
) -> None:
    """Try exchanges of neighboring blocks of actions on one rank.

    Times are propagated from the actions whose ends change. Where the last action of a move ends as
    before, what follows it on the rank may be kept later than it is: an order is never slower than
    it is taken for. Exact times made the orders of five problems, twelve seeds each, 0 to 0.6 %
    slower.

    Parameters
    ----------
    cooling, actions
        Moves and temperatures, and what is fixed.
    state
        Its `order` is the order at the beginning, and after the call; all else is scratch.
    best
        The best order seen.
    counters
        See :data:`COUNTERS`; the last one, not 0, is where the random numbers go on.
    halt
        One number, which another thread makes 1 to end the loop.
    """
    random = int(counters[3])
    _find_topological_order(actions, state)
    _find_tails(actions, state)
    _copy(state.order, best)
    makespan = _makespan(actions, state)
    shortest = makespan
    accepted = 0
    tiny = cooling.tiny
    factor = (cooling.cold / cooling.hot) ** (1.0 / max(cooling.moves, 1))
    temperature = cooling.hot
    for _ in range(cooling.moves):
        temperature *= factor
        if shortest <= cooling.stop_at or halt[0] != 0:
            break
        random, x = _draw_action(random, makespan, tiny, actions, state)
        rank = actions.rank[x]
        middle = state.place[x]
        if middle == actions.offsets[rank]:
            continue
        random, begin, end = draw_blocks(random, middle)
        begin = max(begin, actions.offsets[rank])
        end = min(end, actions.offsets[rank + 1])
        move = Move(rank, begin, middle, end)
        if not _keeps_chains(move, actions, state) or not _fits(move, actions, state):
            continue
        part = Part(state.at[state.order[begin]], state.at[state.order[end - 1]])
        if not _sort_part(move, part, actions, state):
            continue
        random, limit = draw_limit(random, makespan + tiny, temperature)
        if _longest_path(move, part, limit, actions, state) > limit:
            continue
        accepted += 1
        _exchange(move, part, actions, state)
        _propagate_heads(part, actions, state)
        _propagate_tails(part, actions, state)
        makespan = _makespan(actions, state)
        if makespan < shortest - tiny:
            shortest = makespan
            _copy(state.order, best)
    counters[0] = makespan
    counters[1] = shortest
    counters[2] = accepted
    counters[3] = random


@helper
def _copy(source: Array, target: Array) -> None:
    """Copy numbers; slices would be other arrays in compiled code."""
    for i in range(len(source)):
        target[i] = source[i]


@helper
def _makespan(actions: Actions, state: State) -> float:
    """Return the end of the last action of all ranks."""
    makespan = 0.0
    for r in range(len(actions.memory)):
        if actions.offsets[r] < actions.offsets[r + 1]:
            makespan = max(makespan, state.head[state.order[actions.offsets[r + 1] - 1]])
    return makespan


@helper
def _find_topological_order(actions: Actions, state: State) -> None:
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
def _find_tails(actions: Actions, state: State) -> None:
    """Set the longest path from the start of every action, last ones first."""
    for i in range(len(state.line) - 1, -1, -1):
        x = state.line[i]
        state.tail[x] = _tail(x, actions, state)


@helper
def _tail(x: int, actions: Actions, state: State) -> float:
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
def _draw_action(
    random: int, makespan: float, tiny: float, actions: Actions, state: State
) -> tuple[int, int]:
    """Draw an action on the critical path that starts when its rank's previous action ends.

    Others cannot help at once. Where none is found soon, the last that was drawn has to do.
    """
    x = 0
    for _ in range(TRIES):
        random = next_random(random)
        x = random_below(random, len(state.order))
        i = state.place[x]
        if i == actions.offsets[actions.rank[x]]:
            continue
        start = state.head[x] - actions.duration[x]
        critical = start + state.tail[x] >= makespan - tiny
        if critical and state.head[state.order[i - 1]] >= start - tiny:
            break
    return random, x


@helper
def _keeps_chains(move: Move, actions: Actions, state: State) -> bool:
    """Return whether a move leaves fixed places, chains, inputs and mates in their order."""
    rank, begin, middle, end = move
    if end > actions.fixed_from[rank] and begin < actions.fixed_to[rank]:
        return False
    for i in range(begin, middle):
        y = state.order[i]
        for j in range(middle, end):
            z = state.order[j]
            same = actions.chain[y] == actions.chain[z]
            if same or actions.pred[z] == y or actions.mate[z] == y:
                return False
    return True


@helper
def _fits(move: Move, actions: Actions, state: State) -> bool:
    """Return whether the rank's memory is enough between both ends of a move; beyond it was."""
    limit = actions.memory[move.rank]
    held = state.before[move.begin]
    for i in range(move.middle, move.end):
        held += actions.taken[state.order[i]]
        if held > limit:
            return False
        held -= actions.freed[state.order[i]]
    for i in range(move.begin, move.middle):
        held += actions.taken[state.order[i]]
        if held > limit:
            return False
        held -= actions.freed[state.order[i]]
    return True


@helper
def _sort_part(move: Move, part: Part, actions: Actions, state: State) -> bool:
    """Write the topological order of a part after a move to `fresh`; False for a deadlock.

    What follows from the delayed block goes behind all else, each in the order that it has. The
    move is a deadlock where the other block is among what follows. Marks are 0 before and after.
    """
    rank, begin, middle, _ = move
    marked, line = state.marked, state.line
    for i in range(begin, middle):
        marked[state.order[i]] = 1
    count = 0
    for i in range(part.low, part.high + 1):
        y = line[i]
        j = state.place[y]
        here = actions.rank[y]
        if marked[y] == 0:
            z = actions.pred[y]
            if z >= 0 and marked[z] != 0:
                marked[y] = 1
            if j > actions.offsets[here]:
                previous = j - 1
                if j == middle and here == rank:
                    previous = begin - 1
                if previous >= actions.offsets[here] and marked[state.order[previous]] != 0:
                    marked[y] = 1
            if marked[y] != 0 and here == rank and j >= middle:
                for k in range(part.low, i + 1):
                    marked[line[k]] = 0
                for k in range(begin, middle):
                    marked[state.order[k]] = 0
                return False
        if marked[y] == 0:
            state.fresh[count] = y
            count += 1
    for i in range(part.low, part.high + 1):
        y = line[i]
        if marked[y] != 0:
            state.fresh[count] = y
            count += 1
            marked[y] = 0
    return True


@helper
def _new_neighbors(y: int, move: Move, actions: Actions, state: State) -> tuple[int, int]:
    """Return the places, before a move, of what is next to an action after it."""
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
def _longest_path(move: Move, part: Part, limit: float, actions: Actions, state: State) -> float:
    """Return the longest path through a part after a move, or one that is longer than a limit.

    New ends of the part go to `trial`. Beyond the part ends before it and tails behind it hold.
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
def _exchange(move: Move, part: Part, actions: Actions, state: State) -> None:
    """Take over the new topological order of a part, and let both blocks change places."""
    order, fresh = state.order, state.fresh
    for k in range(part.high - part.low + 1):
        state.line[part.low + k] = fresh[k]
        state.at[fresh[k]] = part.low + k
    _, begin, middle, end = move
    for k in range(middle - begin):
        fresh[k] = order[begin + k]
    for k in range(end - middle):
        order[begin + k] = order[middle + k]
    for k in range(middle - begin):
        order[begin + end - middle + k] = fresh[k]
    held = state.before[begin]
    for i in range(begin, end):
        y = order[i]
        state.place[y] = i
        state.before[i] = held
        held += actions.taken[y] - actions.freed[y]


@helper
def _propagate_heads(part: Part, actions: Actions, state: State) -> None:
    """Compute ends of a part anew, and of all behind it that follow from one that changed."""
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
def _propagate_tails(part: Part, actions: Actions, state: State) -> None:
    """Compute tails of a part anew, and of all ahead of it that one that changed follows from."""
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
