"""Loops from one level of states to the next, for :mod:`.exact_rank`.

A state is a row of whole numbers. First how many actions of every chain have run, and R of every
class, negated; then, where less is never worse: W of every class, negated; when each rank is free;
the latest start, by which actions are sorted; and the earliest starts of what is under way to
chains that wait.
"""

from __future__ import annotations

from debubble.engine.jit import Array, helper, kernel


@kernel()
def next_states(
    states: Array,
    microbatches: int,
    target: int,
    grid: int,
    rank_of: Array,
    times: Array,
    delays: Array,
    waits: Array,
    heads: Array,
    tails: Array,
    taken: Array,
    changes: Array,
    limits: Array,
    class_of: Array,
    needs: Array,
    class_rank: Array,
    class_time: Array,
    class_free: Array,
    found: Array,
    parents: Array,
) -> int:
    """Run one more action of a chain in every state, with any W and R before it that may be of use.

    What cannot end before `target` is left out. Results under way arrive at multiples of `grid`,
    sooner than they do. The other parameters are those of
    :class:`debubble.optimize.bounds.exact_rank.Kept`.

    Returns
    -------
    int
        Number of new states. What does not fit into `found` is not written.
    """
    chains, classes, most = len(times), len(class_time), len(found)
    now_at = chains + classes
    last_at = now_at + len(limits)
    ready_w = [0] * (classes + 1)
    least_w = [0] * (classes + 1)
    most_w = [0] * (classes + 1)
    count_w = [0] * (classes + 1)
    done = 0
    for i in range(len(states)):
        state = states[i]
        for k in range(classes):
            ready_w[k] = state[chains + k]
        for c in range(chains):
            if class_of[c] >= 0:
                ready_w[class_of[c]] += state[c]
        for c in range(chains):
            b = state[c]
            if b >= microbatches or (c > 0 and state[c - 1] <= b):
                continue
            rank = rank_of[c]
            now = state[now_at + rank]
            ready = max(heads[c, b], state[last_at])
            if waits[c] > 0:
                ready = max(ready, state[waits[c]])
            short = taken[c] - limits[rank]
            for other in range(chains):
                if rank_of[other] == rank:
                    short += changes[other] * state[other]
            for k in range(classes):
                if class_rank[k] == rank:
                    short += class_free[k] * state[chains + k]
            most_short = short
            for k in range(classes):
                least_w[k] = 0
                if needs[c] == k:
                    least_w[k] = max(0, b + 1 + state[chains + k])
                count_w[k] = least_w[k]
                most_w[k] = 0
                if class_rank[k] == rank:
                    if class_free[k] > 0 and most_short > 0:
                        if class_free[k] * ready_w[k] <= most_short:
                            most_w[k] = ready_w[k]
                        else:
                            most_w[k] = int(most_short / class_free[k]) + 1
                    if ready > now:
                        gap = (ready - now + class_time[k] - 1) // class_time[k]
                        most_w[k] = max(most_w[k], gap)
                    most_w[k] = max(least_w[k], min(most_w[k], ready_w[k]))
                    if class_free[k] < 0:
                        # R comes first among classes, and may need memory that W frees.
                        most_short -= most_w[k] * class_free[k]
            while True:
                ahead = 0
                still = short
                for k in range(classes):
                    ahead += count_w[k] * class_time[k]
                    still -= count_w[k] * class_free[k]
                useful = still <= 0
                for k in range(classes):
                    if count_w[k] > least_w[k] and now + ahead - class_time[k] >= ready:
                        # Nothing waits for this W but memory.
                        useful = useful and still + class_free[k] > 0
                start = max(now + ahead, ready)
                if useful and start + times[c] + tails[c, b] < target:
                    if done >= most:
                        done += 1
                    else:
                        row = found[done]
                        for x in range(len(state)):
                            row[x] = state[x]
                        for k in range(classes):
                            row[chains + k] -= count_w[k]
                        row[now_at + rank] = start + times[c]
                        row[last_at] = start
                        _hand_on(row, c, start + times[c], grid, delays, waits)
                        _round_up(row, microbatches, target, now_at, last_at, rank_of, waits, heads)
                        parents[done] = i
                        if _can_end(
                            row, microbatches, target, now_at, len(limits), rank_of, times, waits,
                            heads, tails, class_of, needs, class_rank, class_time,
                        ):  # fmt: skip
                            done += 1
                k = 0
                while k < classes and count_w[k] == most_w[k]:
                    count_w[k] = least_w[k]
                    k += 1
                if k == classes:
                    break
                count_w[k] += 1
    return done


@helper
def _hand_on(row: Array, c: int, end: int, grid: int, delays: Array, waits: Array) -> None:
    """Take the action of chain `c` from what is under way to it, and send its result on."""
    b = row[c]
    if waits[c] > 0:
        under_way = row[c - 1] - b
        for x in range(waits[c], waits[c] + under_way - 1):
            row[x] = row[x + 1]
        row[waits[c] + under_way - 1] = 0
    if c + 1 < len(delays) and waits[c + 1] > 0:
        row[waits[c + 1] + b - row[c + 1]] = (end + delays[c + 1]) // grid * grid
    row[c] = b + 1


@helper
def _round_up(
    row: Array, m: int, target: int, now_at: int, last_at: int, rank_of: Array, waits: Array,
    heads: Array,
) -> None:  # fmt: skip
    """Nothing starts before its rank is free and its head: say so, so that states are alike."""
    earliest = target
    for c in range(len(rank_of)):
        if row[c] < m:
            free = row[now_at + rank_of[c]]
            earliest = min(earliest, free)
            if waits[c] > 0:
                for x in range(row[c - 1] - row[c]):
                    least = max(free, heads[c, row[c] + x])
                    if row[waits[c] + x] < least:
                        row[waits[c] + x] = least
    if earliest < target and row[last_at] < earliest:
        row[last_at] = earliest


@helper
def _can_end(
    row: Array, m: int, target: int, now_at: int, ranks: int, rank_of: Array, times: Array,
    waits: Array, heads: Array, tails: Array, class_of: Array, needs: Array, class_rank: Array,
    class_time: Array,
) -> bool:  # fmt: skip
    """Whether the work that is left on every rank, and every chain, may end before the target."""
    chains = len(times)
    for rank in range(ranks):
        busy = row[now_at + rank]
        after = target
        for c in range(chains):
            if rank_of[c] == rank and row[c] < m:
                busy += (m - row[c]) * times[c]
                after = min(after, tails[c, m - 1])
                if needs[c] >= 0:
                    # All R that are left come before a backward that is.
                    busy += (m + row[chains + needs[c]]) * class_time[needs[c]]
        if after < target and busy + after >= target:
            return False
        for k in range(len(class_time)):
            if class_rank[k] == rank:
                left = row[chains + k]
                for c in range(chains):
                    if class_of[c] == k:
                        left += m
                    if needs[c] == k:
                        left = 0
                        break
                busy += left * class_time[k]
        if busy >= target:
            return False
    for c in range(chains):
        b = row[c]
        if b < m:
            start = max(row[now_at + rank_of[c]], heads[c, b])
            if waits[c] > 0 and row[c - 1] > b:
                start = max(start, row[waits[c]])
            if needs[c] >= 0 and row[chains + needs[c]] + b >= 0:
                start = max(start, row[now_at + rank_of[c]] + class_time[needs[c]])
            if start + times[c] + tails[c, b] >= target:
                return False
    return True


@kernel(writes=("kept",))
def keep_best(states: Array, order: Array, keys: Array, alike: int, kept: Array) -> int:
    """Write to `kept` the states that are no worse than others everywhere; returns their number.

    `order` sorts states by `keys`, which are the same where the first `alike` columns are, and then
    by the sum of all else: a state can only be worse than earlier ones.
    """
    width = states.shape[1]
    done = 0
    begin = 0
    for i in range(len(order)):
        x = order[i]
        if i == 0 or keys[x] != keys[order[i - 1]]:
            begin = done
        worse = False
        for j in range(begin, done):
            y = kept[j]
            worse = True
            for column in range(width):
                more = states[y, column] - states[x, column]
                if more > 0 or (column < alike and more < 0):
                    worse = False
                    break
            if worse:
                break
        if not worse:
            kept[done] = x
            done += 1
    return done
