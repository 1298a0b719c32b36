"""Loops of simulated annealing on an order that repeats, for :mod:`.cycles`."""

from __future__ import annotations

from math import floor, inf
from typing import NamedTuple

from debubble.engine.jit import Array, helper, kernel
from debubble.optimize.anneal.moves import (
    ActionArrays,
    Cooling,
    draw_blocks,
    draw_limit,
    next_random,
    random_below,
)
from debubble.optimize.periodic._critical_cycle import CycleState, find_critical_cycle, previous

ANYWHERE = 5
"""One move in so many is somewhere, all others on the critical cycle."""


class Best(NamedTuple):
    """The order with the least period so far, as in a :class:`CycleState`."""

    order: Array
    ahead: Array


class CycleMove(NamedTuple):
    """A move of the actions at places begin … middle − 1 after those at middle … end − 1.

    Places are counted from the rank's `first` action, whose place is `length` here: those below
    are of the repetition before, and those from 2 · `length` on of the next one.
    """

    first: int
    length: int
    begin: int
    middle: int
    end: int


@kernel(writes=("state", "best", "counters"), allocates=False)
def anneal_cycle(
    cooling: Cooling,
    actions: ActionArrays,
    state: CycleState,
    best: Best,
    counters: Array,
    halt: Array,
) -> None:
    """Try exchanges of neighboring blocks of actions on one rank.

    Every rank runs its part of the order again and again. In repetition q, action x is that of
    group q + ahead[x], where a group are the microbatches of one period. The `lag` of an action is
    counted from the start of the needed one, not its end.

    The state's `order` and `ahead` are those at the beginning, and after the call; all else is
    scratch. `counters` get the best period, infinite where the order is a deadlock, and where the
    random numbers go on. Another thread makes the number in `halt` 1 to end the loop.
    """
    random = int(counters[1])
    for i in range(len(state.order)):
        state.place[state.order[i]] = i
        state.by_input[i] = 0
        state.queued[i] = 0
        state.start[i] = 0.0
    period = 0.0
    shortest = inf
    count = 0
    changed = True
    factor = (cooling.cold / cooling.hot) ** (1.0 / max(cooling.moves, 1))
    temperature = cooling.hot
    # Once more than there are moves, to look at the last one.
    for turn in range(cooling.moves + 1):
        if changed:
            changed = False
            period, root = find_critical_cycle(cooling.tiny, actions, state)
            if period == inf:
                break
            _cut_at_zero(period, cooling.tiny, actions, state)
            if period < shortest - cooling.tiny:
                shortest = period
                for i in range(len(state.order)):
                    best.order[i] = state.order[i]
                    best.ahead[i] = state.ahead[i]
            count = _list_critical(root, actions, state)
        if turn == cooling.moves or count == 0 or halt[0] != 0:
            break
        temperature *= factor
        random, move = _draw_move(random, count, actions, state)
        if move.end - move.begin >= move.length or not _keeps_chains(move, actions, state):
            continue
        _exchange(move, state)
        if _fits(move, actions, state):
            random, limit = draw_limit(random, period + cooling.tiny, temperature)
            changed = _can_repeat(move, limit, cooling.tiny, actions, state)
        if not changed:
            _exchange_back(move, state)
    counters[0] = shortest
    counters[1] = random


@helper
def _list_critical(root: int, actions: ActionArrays, state: CycleState) -> int:
    """List the actions of the cycle through `root` that wait for their rank; return the number."""
    count = 0
    x = root
    while True:
        if state.by_input[x] != 0:
            x = actions.pred[x]
        else:
            state.critical[count] = x
            count += 1
            x = previous(x, actions, state)
        if x == root:
            return count


@helper
def _draw_move(
    random: int, count: int, actions: ActionArrays, state: CycleState
) -> tuple[int, CycleMove]:
    """Draw a move whose second block begins on the critical cycle, or sometimes anywhere."""
    random = next_random(random)
    draw = random >> 17
    random = next_random(random)
    if draw % ANYWHERE == 0:
        x = random_below(random, len(state.order))
    else:
        x = state.critical[random_below(random, count)]
    rank = actions.rank[x]
    first = actions.offsets[rank]
    length = actions.offsets[rank + 1] - first
    middle = state.place[x] - first + length
    random, begin, end = draw_blocks(random, middle)
    return random, CycleMove(first, length, begin, middle, end)


@helper
def _keeps_chains(move: CycleMove, actions: ActionArrays, state: CycleState) -> bool:
    """Return whether a move leaves chains, and inputs of the same group, in their order."""
    first, length, begin, middle, end = move
    for i in range(begin, middle):
        y = state.order[first + i % length]
        for j in range(middle, end):
            z = state.order[first + j % length]
            if actions.chain[y] == actions.chain[z]:
                return False
            same = state.ahead[y] + i // length == state.ahead[z] + j // length
            if actions.pred[z] == y and same:
                return False
    return True


@helper
def _exchange(move: CycleMove, state: CycleState) -> None:
    """Let both blocks of a move change places; `block` has the previous actions."""
    first, length, begin, middle, end = move
    for i in range(begin, end):
        state.block[i - begin] = state.order[first + i % length]
    for i in range(begin, end):
        x = state.block[i - begin]
        now = i + end - middle if i < middle else i - middle + begin
        state.order[first + now % length] = x
        state.place[x] = first + now % length
        state.ahead[x] += i // length - now // length


@helper
def _exchange_back(move: CycleMove, state: CycleState) -> None:
    """Undo a move: its blocks change places once more."""
    between = move.begin + move.end - move.middle
    _exchange(CycleMove(move.first, move.length, move.begin, between, move.end), state)


@helper
def _fits(move: CycleMove, actions: ActionArrays, state: CycleState) -> bool:
    """Return whether a rank's order fits into its memory.

    At the beginning of a repetition it holds the memory of later groups that is not yet freed.
    """
    limit = actions.memory[actions.rank[state.order[move.first]]]
    held = 0.0
    for i in range(move.first, move.first + move.length):
        x = state.order[i]
        held += state.ahead[x] * (actions.taken[x] - actions.freed[x])
    fits = True
    for i in range(move.first, move.first + move.length):
        x = state.order[i]
        held += actions.taken[x]
        if held > limit:
            fits = False
        held -= actions.freed[x]
    return fits


@helper
def _can_repeat(
    move: CycleMove, limit: float, tiny: float, actions: ActionArrays, state: CycleState
) -> bool:
    """Return whether the order after a move can repeat every `limit`; then take over its starts.

    Starts that can repeat every period can every `limit`, which is no less, as no action waits for
    a later repetition. New neighbors on the rank, at the three joints of the move, delay some.
    """
    first, length, begin, middle, end = move
    for i in range(len(state.start)):
        state.trial[i] = state.start[i]
    for i in range(begin, end):
        now = i + end - middle if i < middle else i - middle + begin
        state.trial[state.block[i - begin]] += limit * (i // length - now // length)
    between = begin + end - middle
    valid = True
    for i in (begin, between, end):
        y = state.order[first + (i - 1) % length]
        # The joints after this one are not there yet.
        loose = state.order[first + (between - 1) % length] if i == begin else -1
        free = state.order[first + (end - 1) % length] if i < end else -1
        valid = valid and _delay(y, limit, tiny, loose, free, actions, state)
    if valid:
        for i in range(len(state.start)):
            state.start[i] = state.trial[i]
    return valid


@helper
def _cut_at_zero(period: float, tiny: float, actions: ActionArrays, state: CycleState) -> None:
    """Count repetitions so that all starts are between 0 and the period, each rank's in order."""
    order, block = state.order, state.block
    for rank in range(len(actions.memory)):
        first = actions.offsets[rank]
        length = actions.offsets[rank + 1] - first
        least = inf
        cut = 0
        for i in range(length):
            x = order[first + i]
            laps = floor((state.start[x] + tiny) / period)
            state.start[x] -= laps * period
            state.ahead[x] -= int(laps)
            if state.start[x] < least - tiny:
                least = state.start[x]
                cut = i
        for i in range(length):
            block[i] = order[first + (i + cut) % length]
        for i in range(length):
            order[first + i] = block[i]
            state.place[block[i]] = first + i


@helper
def _delay(
    source: int,
    period: float,
    tiny: float,
    loose: int,
    free: int,
    actions: ActionArrays,
    state: CycleState,
) -> bool:
    """Delay all that follows from `source` through the next action of its rank, in `trial`.

    The next actions after `loose` and `free` do not wait for them. Return False, with meaningless
    starts, if that would delay the source itself: then the period is too short.
    """
    queue, queued, start = state.queue, state.queued, state.trial
    n = len(start)
    # A ring of actions that start later than before, each once: `waiting` ones from `head` on.
    head = 0
    waiting = 1
    queue[0] = source
    arrived = False
    while waiting > 0 and not arrived:
        x = queue[head]
        head = head + 1 if head + 1 < n else 0
        waiting -= 1
        queued[x] = 0
        for way in range(3):
            y, reached = _follower(x, way, period, loose, free, actions, state)
            if y < 0 or reached <= start[y] + tiny:
                continue
            if y == source:
                arrived = True
                break
            start[y] = reached
            if queued[y] == 0:
                queued[y] = 1
                i = head + waiting
                queue[i if i < n else i - n] = y
                waiting += 1
    for i in range(waiting):
        k = head + i
        queued[queue[k if k < n else k - n]] = 0
    return not arrived


@helper
def _follower(
    x: int, way: int, period: float, loose: int, free: int, actions: ActionArrays, state: CycleState
) -> tuple[int, float]:
    """Return the action that waits for another on its rank (way 0) or for its result, and the time.

    −1 where there is none; see :func:`_delay`.
    """
    if way == 0:
        if x in (loose, free):
            return -1, 0.0
        i = state.place[x] + 1
        reached = state.trial[x] + actions.duration[x]
        if i == actions.offsets[actions.rank[x] + 1]:
            i = actions.offsets[actions.rank[x]]
            reached -= period
        return state.order[i], reached
    y = actions.succ[x] if way == 1 else actions.other[x]
    if y < 0:
        return -1, 0.0
    return y, state.trial[x] + actions.lag[y] - period * (state.ahead[x] - state.ahead[y])
