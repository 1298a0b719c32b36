"""Loops of simulated annealing on an order that repeats, for :mod:`.cycles`."""

from __future__ import annotations

from math import floor, inf, log

from debubble.engine.jit import Array, helper, kernel
from debubble.optimize.anneal._kernel import LONGEST_BLOCK, MASK, MULTIPLIER, RANDOM_BITS

ANYWHERE = 5
"""One move in so many is somewhere, all others on the critical cycle."""

MOST_STEPS = 1000
"""Improvements of the critical cycle of one order, at most: more are errors of rounding."""


@kernel(writes=("order", "ahead", "best", "best_ahead", "counters"))
def anneal(
    moves: int,
    hot: float,
    cold: float,
    tiny: float,
    offsets: Array,
    rank_of: Array,
    chain: Array,
    duration: Array,
    pred: Array,
    gap: Array,
    succ: Array,
    other: Array,
    taken: Array,
    freed: Array,
    memory: Array,
    order: Array,
    ahead: Array,
    best: Array,
    best_ahead: Array,
    whole: Array,
    times: Array,
    counters: Array,
    halt: Array,
) -> None:
    """Try `moves` exchanges of neighbouring blocks of actions on one rank.

    Every rank runs its part of `order` again and again. In repetition q, action x is that of group
    q + ahead[x], where a group are the microbatches of one period.

    Parameters
    ----------
    moves
        How many exchanges are drawn.
    hot, cold
        Temperature of the first and last move, in units of time: a move that makes the period
        longer by x is accepted with probability exp(−x / temperature).
    tiny
        Times differ when by more than this.
    offsets, rank_of, chain, duration, pred, succ, other, taken, freed, memory
        As in :mod:`debubble.optimize.anneal._kernel`, of the actions of one group.
    gap
        Time from the start of what an action needs to its own start.
    order, ahead
        The order at the beginning, and after the call.
    best, best_ahead
        The one with the least period that was seen.
    whole, times
        Scratch, one column per action: eight rows of whole numbers and three of times. The first
        row of `times` is the start of every action of `order` in repetition 0 after the call.
    counters
        Best period, infinite where the order is a deadlock, and where the random numbers go on.
    halt
        One number, which another thread makes 1 to end the loop.
    """
    n = len(order)
    place, by_input, mark, stack = whole[0], whole[1], whole[2], whole[3]
    queue, queued, critical, block = whole[4], whole[5], whole[6], whole[7]
    start, trial, ratio = times[0], times[1], times[2]
    state = int(counters[1])
    for i in range(n):
        place[order[i]] = i
        by_input[i] = 0
        queued[i] = 0
        start[i] = 0.0
    period = 0.0
    shortest = inf
    count = 0
    changed = True
    cooling = (cold / hot) ** (1.0 / max(moves, 1))
    temperature = hot
    for move in range(moves + 1):
        if changed:
            changed = False
            period, root = _critical_cycle(
                tiny, offsets, rank_of, duration, pred, gap, order, ahead, place, by_input, mark,
                stack, start, ratio,
            )  # fmt: skip
            if period == inf:
                break
            _cut_at_zero(period, tiny, offsets, order, ahead, place, block, start)
            if period < shortest - tiny:
                shortest = period
                for i in range(n):
                    best[i] = order[i]
                    best_ahead[i] = ahead[i]
            count = 0
            x = root
            while True:
                if by_input[x] != 0:
                    x = pred[x]
                else:
                    critical[count] = x
                    count += 1
                    x = _previous(x, offsets, rank_of, order, place)
                if x == root:
                    break
        if move == moves or count == 0 or halt[0] != 0:
            break
        temperature *= cooling

        state = (state * MULTIPLIER + 11) & MASK
        draw = state >> 17
        state = (state * MULTIPLIER + 11) & MASK
        if draw % ANYWHERE == 0:
            x = ((state >> 17) * n) >> RANDOM_BITS
        else:
            x = critical[((state >> 17) * count) >> RANDOM_BITS]
        rank = rank_of[x]
        first = offsets[rank]
        length = offsets[rank + 1] - first
        # Actions begin … middle − 1 go behind actions middle … end − 1, one repetition later.
        state = (state * MULTIPLIER + 11) & MASK
        draw = state >> 17
        size = 1 + ((draw >> 1) * LONGEST_BLOCK >> (RANDOM_BITS - 1))
        state = (state * MULTIPLIER + 11) & MASK
        size = min(size, 1 + ((state >> 17) * LONGEST_BLOCK >> RANDOM_BITS))
        if size + 1 >= length:
            continue
        middle = place[x] - first + length
        begin = middle - 1
        end = middle + 1
        if draw & 1:
            begin = middle - size
        else:
            end = middle + size

        # Chains keep their order, and memory its limit.
        valid = True
        for i in range(begin, middle):
            y = order[first + i % length]
            for j in range(middle, end):
                z = order[first + j % length]
                if chain[y] == chain[z]:
                    valid = False
                if pred[z] == y and ahead[y] + i // length == ahead[z] + j // length:
                    valid = False
        if not valid:
            continue
        for i in range(begin, end):
            block[i - begin] = order[first + i % length]
        _exchange(begin, middle, end, first, length, block, order, place, ahead)
        held = 0.0
        for i in range(first, first + length):
            held += ahead[order[i]] * (taken[order[i]] - freed[order[i]])
        for i in range(first, first + length):
            held += taken[order[i]]
            if held > memory[rank]:
                valid = False
            held -= freed[order[i]]

        if valid:
            # Starts that can repeat every `period` can every `limit`, which is no less, as no
            # action waits for a later repetition. New neighbours on the rank delay some.
            state = (state * MULTIPLIER + 11) & MASK
            chance = ((state >> 17) + 1.0) / 2147483649.0
            limit = period + tiny - temperature * log(chance)
            for i in range(n):
                trial[i] = start[i]
            for i in range(begin, end):
                now = i + end - middle if i < middle else i - middle + begin
                trial[block[i - begin]] += limit * (i // length - now // length)
            for i in (begin, begin + end - middle, end):
                y = order[first + (i - 1) % length]
                # The joints behind this one are not there yet.
                valid = valid and _delay(
                    y, limit, tiny, offsets, rank_of, duration, gap, succ, other, order, ahead,
                    place, trial, queue, queued,
                    order[first + (begin + end - middle - 1) % length] if i == begin else -1,
                    order[first + (end - 1) % length] if i < end else -1,
                )  # fmt: skip
        if valid:
            changed = True
            for i in range(n):
                start[i] = trial[i]
        else:
            # Back: the blocks change places once more.
            for i in range(begin, end):
                block[i - begin] = order[first + i % length]
            back = begin + end - middle
            _exchange(begin, back, end, first, length, block, order, place, ahead)
    counters[0] = shortest
    counters[1] = state


@helper
def _exchange(
    begin: int, middle: int, end: int, first: int, length: int, block: Array, order: Array,
    place: Array, ahead: Array,
) -> None:  # fmt: skip
    """Put actions begin … middle − 1, and then the others, from `block` where they go."""
    for i in range(begin, end):
        x = block[i - begin]
        now = i + end - middle if i < middle else i - middle + begin
        order[first + now % length] = x
        place[x] = first + now % length
        ahead[x] += i // length - now // length


@helper
def _previous(x: int, offsets: Array, rank_of: Array, order: Array, place: Array) -> int:
    """The action before another one on its rank, which may be of the repetition before."""
    if place[x] > offsets[rank_of[x]]:
        return int(order[place[x] - 1])
    return int(order[offsets[rank_of[x] + 1] - 1])


@helper
def _critical_cycle(
    tiny: float, offsets: Array, rank_of: Array, duration: Array, pred: Array, gap: Array,
    order: Array, ahead: Array, place: Array, by_input: Array, mark: Array, stack: Array,
    start: Array, ratio: Array,
) -> tuple[float, int]:  # fmt: skip
    """The least period of an order, and an action on the cycle that takes it (Howard's algorithm).

    Of what every action waits for, its rank or its input, one is looked at, `by_input` or not. By
    that every action has a cycle behind it; as long as a choice leads to a slower cycle, or to a
    later start with the same one, it is taken. Starts are those of the slowest cycle in the end.
    """
    n = len(order)
    for _step in range(MOST_STEPS):
        for x in range(n):
            mark[x] = 0
        period = 0.0
        root = -1
        for s in range(n):
            x = s
            depth = 0
            while mark[x] == 0:
                mark[x] = -1 - s
                stack[depth] = x
                depth += 1
                x = pred[x] if by_input[x] != 0 else _previous(x, offsets, rank_of, order, place)
            if mark[x] == -1 - s:
                # A new cycle: its start stays as it is.
                y = x
                time = 0.0
                laps = 0
                while True:
                    if by_input[y] != 0:
                        z = pred[y]
                        time += gap[y]
                        laps += ahead[z] - ahead[y]
                    else:
                        z = _previous(y, offsets, rank_of, order, place)
                        time += duration[z]
                        laps += place[y] == offsets[rank_of[y]]
                    y = z
                    if y == x:
                        break
                if laps <= 0:
                    return inf, -1
                ratio[x] = time / laps
                mark[x] = 1
                if ratio[x] > period:
                    period = ratio[x]
                    root = x
            for k in range(depth - 1, -1, -1):
                y = stack[k]
                if mark[y] == 1:
                    continue
                mark[y] = 1
                if by_input[y] != 0:
                    z = pred[y]
                    ratio[y] = ratio[z]
                    start[y] = start[z] + gap[y] - ratio[z] * (ahead[z] - ahead[y])
                else:
                    z = _previous(y, offsets, rank_of, order, place)
                    ratio[y] = ratio[z]
                    start[y] = start[z] + duration[z]
                    if place[y] == offsets[rank_of[y]]:
                        start[y] -= ratio[z]
        slower = False
        for y in range(n):
            if pred[y] >= 0:
                z = pred[y]
                if by_input[y] != 0:
                    z = _previous(y, offsets, rank_of, order, place)
                if ratio[z] > ratio[y] + tiny:
                    by_input[y] = 1 - by_input[y]
                    slower = True
        if slower:
            continue
        for y in range(n):
            if by_input[y] != 0:
                z = _previous(y, offsets, rank_of, order, place)
                least = start[z] + duration[z]
                if place[y] == offsets[rank_of[y]]:
                    least -= period
            elif pred[y] >= 0:
                z = pred[y]
                least = start[z] + gap[y] - period * (ahead[z] - ahead[y])
            else:
                continue
            if least > start[y] + tiny:
                by_input[y] = 1 - by_input[y]
                slower = True
        if not slower:
            return period, root
    return inf, -1


@helper
def _cut_at_zero(
    period: float, tiny: float, offsets: Array, order: Array, ahead: Array, place: Array,
    block: Array, start: Array,
) -> None:  # fmt: skip
    """Count repetitions so that all starts are between 0 and the period."""
    for rank in range(len(offsets) - 1):
        first = offsets[rank]
        length = offsets[rank + 1] - first
        least = inf
        cut = 0
        for i in range(length):
            x = order[first + i]
            laps = floor((start[x] + tiny) / period)
            start[x] -= laps * period
            ahead[x] -= int(laps)
            if start[x] < least - tiny:
                least = start[x]
                cut = i
        for i in range(length):
            block[i] = order[first + (i + cut) % length]
        for i in range(length):
            order[first + i] = block[i]
            place[block[i]] = first + i


@helper
def _delay(
    source: int, period: float, tiny: float, offsets: Array, rank_of: Array, duration: Array,
    gap: Array, succ: Array, other: Array, order: Array, ahead: Array, place: Array, start: Array,
    queue: Array, queued: Array, loose: int, free: int,
) -> bool:  # fmt: skip
    """Delay all that follows from `source` through the next action of its rank.

    What stands behind the actions `loose` and `free` does not wait for them. False, with starts
    that mean nothing, where that would delay the source itself: then the period is too short.
    """
    n = len(start)
    head = 0
    waiting = 1
    queue[0] = source
    arrived = False
    while waiting > 0:
        x = queue[head]
        head = head + 1 if head + 1 < n else 0
        waiting -= 1
        queued[x] = 0
        for way in range(3):
            if way == 0:
                if x in (loose, free):
                    continue
                i = place[x] + 1
                reached = start[x] + duration[x]
                if i == offsets[rank_of[x] + 1]:
                    i = offsets[rank_of[x]]
                    reached -= period
                y = order[i]
            else:
                y = succ[x] if way == 1 else other[x]
                if y < 0:
                    continue
                reached = start[x] + gap[y] - period * (ahead[x] - ahead[y])
            if reached > start[y] + tiny:
                if y == source:
                    arrived = True
                    break
                start[y] = reached
                if queued[y] == 0:
                    queued[y] = 1
                    i = head + waiting
                    queue[i if i < n else i - n] = y
                    waiting += 1
        if arrived:
            break
    for i in range(waiting):
        k = head + i
        queued[queue[k if k < n else k - n]] = 0
    return not arrived
