"""Loops from one level of states to the next, for :mod:`.exact_rank`.

A state is a row of whole numbers. First how many actions of every chain have run, and R of every
class, negated; then, where less is never worse: W of every class, negated; when each rank is free;
the latest start, by which actions are sorted; and the earliest starts of what is under way to
chains that wait. All times are whole numbers.
"""

from __future__ import annotations

from typing import NamedTuple

from debubble.engine.jit import Array, helper, kernel


class Relaxation(NamedTuple):
    """The relaxation: chains c of F and I or B, in the order in which a microbatch passes them.

    Parameters
    ----------
    microbatches
        Number of microbatches.
    rank_of
        Rank of every chain, as a place among the kept ones; shape ``(chains,)`` as of all of these:
    times, delays
        Time of an action, and the time from the end of the chain before to its start.
    waits
        Column of a state in which the inputs under way begin; 0 where nothing is waited for.
    heads, tails
        Earliest start, and least time after the end; shape ``(chains, microbatches)``.
    taken, changes
        Memory that is taken at the start, and its remainder after the end.
    limits
        Memory of every exact rank.
    class_of, needs
        Class of its W, or of the R after a forward, and of the R before a backward; −1 for none.
        Those of R come first, one for every stage.
    class_rank, class_time, class_free
        Rank of every class, time, and memory that one of it frees, or takes where that is below 0.
    again
        Number of classes of R.
    width
        Columns of a state.
    """

    microbatches: int
    rank_of: Array
    times: Array
    delays: Array
    waits: Array
    heads: Array
    tails: Array
    taken: Array
    changes: Array
    limits: Array
    class_of: Array
    needs: Array
    class_rank: Array
    class_time: Array
    class_free: Array
    again: int
    width: int


class Counts(NamedTuple):
    """Numbers of W, or of R, of every class that run before an action of a chain."""

    ready: Array
    """All that can run."""
    least: Array
    most: Array
    """As the one before, the fewest and the most that may be of use."""
    now: Array
    """Those of the choice at hand."""


@kernel(allocates=False)
def next_states(
    states: Array, target: int, grid: int, kept: Relaxation, counts: Counts, found: Array,
    parents: Array,
) -> int:  # fmt: skip
    """Run one more action of a chain in every state, with any W and R before it that may be of use.

    States that cannot end before `target` are left out. Results under way arrive at multiples of
    `grid`, sooner than they do. `counts` is scratch space. Return the number of new states, of
    which those that do not fit into `found` are not written.
    """
    times, tails, waits = kept.times, kept.tails, kept.waits
    chains, classes = len(times), len(kept.class_time)
    now_at = chains + classes
    last_at = now_at + len(kept.limits)
    done = 0
    for i in range(len(states)):
        state = states[i]
        count_ready(state, kept, counts)
        for c in range(chains):
            b = state[c]
            if b >= kept.microbatches or (c > 0 and state[c - 1] <= b):
                continue
            now = state[now_at + kept.rank_of[c]]
            ready = max(kept.heads[c, b], state[last_at])
            if waits[c] > 0:
                ready = max(ready, state[waits[c]])
            short = shortage(state, c, kept)
            limit_counts(state, c, ready - now, short, kept, counts)
            # Every combination of counts, that of the first class the fastest.
            while True:
                ahead = time_ahead(ready - now, short, kept, counts)
                start = max(now + ahead, ready)
                if ahead >= 0 and start + times[c] + tails[c, b] < target:
                    if done >= len(found):
                        done += 1
                    else:
                        parents[done] = i
                        row = found[done]
                        write_state(row, state, c, start, target, grid, kept, counts)
                        if can_end(row, target, kept):
                            done += 1
                k = 0
                while k < classes and counts.now[k] == counts.most[k]:
                    counts.now[k] = counts.least[k]
                    k += 1
                if k == classes:
                    break
                counts.now[k] += 1
    return done


@helper
def count_ready(state: Array, kept: Relaxation, counts: Counts) -> None:
    """Count the W and R of every class that can run in a state."""
    chains = len(kept.times)
    for k in range(len(kept.class_time)):
        counts.ready[k] = state[chains + k]
    for c in range(chains):
        if kept.class_of[c] >= 0:
            counts.ready[kept.class_of[c]] += state[c]


@helper
def shortage(state: Array, c: int, kept: Relaxation) -> float:
    """Return the memory that an action of a chain takes beyond what its rank has left."""
    rank, chains = kept.rank_of[c], len(kept.times)
    short: float = kept.taken[c] - kept.limits[rank]
    for other in range(chains):
        if kept.rank_of[other] == rank:
            short += kept.changes[other] * state[other]
    for k in range(len(kept.class_time)):
        if kept.class_rank[k] == rank:
            short += kept.class_free[k] * state[chains + k]
    return short


@helper
def limit_counts(
    state: Array, c: int, wait: int, short: float, kept: Relaxation, counts: Counts
) -> None:
    """Compute the useful numbers of W and R before an action of a chain; begin with the fewest.

    More than fill the time `wait` or free the memory that is short are of none.
    """
    chains, class_free = len(kept.times), kept.class_free
    for k in range(len(kept.class_time)):
        counts.least[k] = 0
        if kept.needs[c] == k:
            counts.least[k] = max(0, state[c] + 1 + state[chains + k])
        counts.now[k] = counts.least[k]
        counts.most[k] = 0
        if kept.class_rank[k] == kept.rank_of[c]:
            if class_free[k] > 0 and short > 0:
                if class_free[k] * counts.ready[k] <= short:
                    counts.most[k] = counts.ready[k]
                else:
                    counts.most[k] = int(short / class_free[k]) + 1
            if wait > 0:
                gap = (wait + kept.class_time[k] - 1) // kept.class_time[k]
                counts.most[k] = max(counts.most[k], gap)
            counts.most[k] = max(counts.least[k], min(counts.most[k], counts.ready[k]))
            if class_free[k] < 0:
                # R comes first among classes, and may need memory that W frees.
                short -= counts.most[k] * class_free[k]


@helper
def time_ahead(wait: int, short: float, kept: Relaxation, counts: Counts) -> int:
    """Return the time of the W and R of the choice at hand, −1 where it is of no use."""
    ahead = 0
    for k in range(len(kept.class_time)):
        ahead += counts.now[k] * kept.class_time[k]
        short -= counts.now[k] * kept.class_free[k]
    if short > 0:
        return -1
    for k in range(len(kept.class_time)):
        idle = counts.now[k] > counts.least[k] and ahead - kept.class_time[k] >= wait
        # Nothing waits for the last one of this class but memory.
        if idle and short + kept.class_free[k] <= 0:
            return -1
    return ahead


@helper
def write_state(
    row: Array, state: Array, c: int, start: int, target: int, grid: int, kept: Relaxation,
    counts: Counts,
) -> None:  # fmt: skip
    """Write the state after an action of a chain, and the W and R of the choice before it."""
    chains, classes = len(kept.times), len(kept.class_time)
    now_at = chains + classes
    end = start + kept.times[c]
    for x in range(len(state)):
        row[x] = state[x]
    for k in range(classes):
        row[chains + k] -= counts.now[k]
    row[now_at + kept.rank_of[c]] = end
    row[now_at + len(kept.limits)] = start
    hand_on(row, c, end, grid, kept)
    round_up(row, target, kept)


@helper
def hand_on(row: Array, c: int, end: int, grid: int, kept: Relaxation) -> None:
    """Take the input of an action of chain `c` from those under way, and send its result on."""
    delays, waits = kept.delays, kept.waits
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
def round_up(row: Array, target: int, kept: Relaxation) -> None:
    """Round times up to the earliest possible starts, so that more states are alike.

    Nothing starts before its rank is free, nor before its head.
    """
    waits, chains = kept.waits, len(kept.times)
    now_at = chains + len(kept.class_time)
    last_at = now_at + len(kept.limits)
    earliest = target
    for c in range(chains):
        if row[c] < kept.microbatches:
            free = row[now_at + kept.rank_of[c]]
            earliest = min(earliest, free)
            if waits[c] > 0:
                for x in range(row[c - 1] - row[c]):
                    least = max(free, kept.heads[c, row[c] + x])
                    if row[waits[c] + x] < least:
                        row[waits[c] + x] = least
    if earliest < target and row[last_at] < earliest:
        row[last_at] = earliest


@helper
def can_end(row: Array, target: int, kept: Relaxation) -> bool:
    """Return whether the work left on every rank, and every chain, may end before the target."""
    for rank in range(len(kept.limits)):
        if not rank_can_end(row, rank, target, kept):
            return False
    chains, m, needs, waits = len(kept.times), kept.microbatches, kept.needs, kept.waits
    now_at = chains + len(kept.class_time)
    for c in range(chains):
        b = row[c]
        if b < m:
            free = row[now_at + kept.rank_of[c]]
            start = max(free, kept.heads[c, b])
            if waits[c] > 0 and row[c - 1] > b:
                start = max(start, row[waits[c]])
            if needs[c] >= 0 and row[chains + needs[c]] + b >= 0:
                start = max(start, free + kept.class_time[needs[c]])
            if start + kept.times[c] + kept.tails[c, b] >= target:
                return False
    return True


@helper
def rank_can_end(row: Array, rank: int, target: int, kept: Relaxation) -> bool:
    """Return whether the work that is left on a rank may end before the target."""
    chains, m, needs, class_time = len(kept.times), kept.microbatches, kept.needs, kept.class_time
    busy = row[chains + len(class_time) + rank]
    after = target
    for c in range(chains):
        if kept.rank_of[c] == rank and row[c] < m:
            busy += (m - row[c]) * kept.times[c]
            after = min(after, kept.tails[c, m - 1])
            if needs[c] >= 0:
                # All R that are left come before a backward that is.
                busy += (m + row[chains + needs[c]]) * class_time[needs[c]]
    if after < target and busy + after >= target:
        return False
    for k in range(len(class_time)):
        if kept.class_rank[k] == rank:
            left = row[chains + k]
            for c in range(chains):
                if kept.class_of[c] == k:
                    left += m
                if needs[c] == k:
                    left = 0
                    break
            busy += left * class_time[k]
    return bool(busy < target)


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
