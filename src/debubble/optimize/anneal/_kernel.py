"""Loops of simulated annealing on whole schedules, for :mod:`.annealer`."""

from __future__ import annotations

from debubble.engine.jit import Array, helper, kernel
from debubble.optimize.anneal._times import (
    BlockMove,
    OrderState,
    Part,
    find_makespan,
    find_tails,
    find_topological_order,
    longest_path,
    propagate_heads,
    propagate_tails,
)
from debubble.optimize.anneal.moves import (
    ActionArrays,
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


@kernel(writes=("state", "best", "counters"), allocates=False)
def anneal(
    cooling: Cooling,
    actions: ActionArrays,
    state: OrderState,
    best: Array,
    counters: Array,
    halt: Array,
) -> None:
    """Try exchanges of neighboring blocks of actions on one rank.

    Times are propagated from the actions whose ends change. If the last action of a move ends as
    before, its successors on the rank may keep times that are too late: an order is never slower
    than it is taken for. With exact times the orders of five problems, twelve seeds each, were 0 to
    0.6 % slower.

    The state's `order` is the order at the beginning, and after the call; all else is scratch, and
    `best` gets the best order. The last of the :data:`COUNTERS`, not 0, is where the random numbers
    go on. Another thread makes the number in `halt` 1 to end the loop.
    """
    random = int(counters[3])
    find_topological_order(actions, state)
    find_tails(actions, state)
    _copy(state.order, best)
    makespan = find_makespan(actions, state)
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
        move = BlockMove(rank, begin, middle, end)
        if not _keeps_chains(move, actions, state) or not _fits(move, actions, state):
            continue
        part = Part(state.at[state.order[begin]], state.at[state.order[end - 1]])
        if not _sort_part(move, part, actions, state):
            continue
        random, limit = draw_limit(random, makespan + tiny, temperature)
        if longest_path(move, part, limit, actions, state) > limit:
            continue
        accepted += 1
        _exchange(move, part, actions, state)
        propagate_heads(part, actions, state)
        propagate_tails(part, actions, state)
        makespan = find_makespan(actions, state)
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
def _draw_action(
    random: int, makespan: float, tiny: float, actions: ActionArrays, state: OrderState
) -> tuple[int, int]:
    """Draw an action on the critical path that starts when its rank's previous action ends.

    Others cannot help at once. If none is found soon, the last one drawn is returned.
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
def _keeps_chains(move: BlockMove, actions: ActionArrays, state: OrderState) -> bool:
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
def _fits(move: BlockMove, actions: ActionArrays, state: OrderState) -> bool:
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
def _sort_part(move: BlockMove, part: Part, actions: ActionArrays, state: OrderState) -> bool:
    """Write the topological order of a part after a move to `fresh`; False for a deadlock.

    Actions that depend on the delayed block go after all others, each group in its own order.
    The move is a deadlock if the other block depends on it. Marks are 0 before and after.
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
def _exchange(move: BlockMove, part: Part, actions: ActionArrays, state: OrderState) -> None:
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
