"""Messages of a rank as those of the schedule: the k-th of every pair, counted over all steps.

A buffer that was not overwritten begins with the first message of all. From another the number of
messages before it is known, and with it how far into a step it begins; earlier messages that
belong to no step, such as those by which shapes are found, make that number too large. So those
places are left at which a rank sends nothing before it received what that needs, and at which both
ends of every pair agree on how many messages arrived; of several, the one with the fewest earlier
messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from debubble.diagnosis.hang.dumps import OPAQUE, UNKNOWN, Dump, MessageState
from debubble.diagnosis.hang.order_messages import Numbers, OrderMessages, Pair
from debubble.lowering.transfers import TransferPolicy

POLICIES: tuple[TransferPolicy, ...] = get_args(TransferPolicy)
"""Ways to place receives."""

MOST_EXTRA = 1000
"""Maximum number of messages, before the first that is left, that were of no step."""

MOST_TENSORS = 8
"""Maximum number of tensors that one action sends."""


class Early(NamedTuple):
    """A message that a rank sent before it had posted a receive which the schedule has earlier."""

    place: int
    """Among the rank's messages."""
    pair: Pair
    number: int
    """Of the receive that is missing, counted over all steps."""


class Posted(NamedTuple):
    """Numbers of messages of a pair that one of its ends has posted, and that are over."""

    posted: int
    done: int


@dataclass(frozen=True, eq=False)
class Trail:
    """Messages of a rank, in the order of posting."""

    dump: Dump
    rank: int
    """Rank of the schedule."""
    sends: NDArray[np.bool_]
    pairs: tuple[Pair, ...]
    """Pairs in which the rank posted something."""
    pair: Numbers
    """Index in `pairs` of each message; shape ``(n,)``."""
    number: Numbers
    """Its number in its pair, counted from the first that is left; shape ``(n,)``."""
    state: NDArray[np.int8]
    form: Numbers
    missed: int
    """Messages before the first that is left."""
    base: Mapping[Pair, int]
    """Messages of each pair before the first that is left, counted over all steps."""
    certain: bool = True
    """Whether `base` is known; else there are several that fit."""

    @cached_property
    def counts(self) -> dict[Pair, Posted]:
        """Messages of every pair that are posted and over, counted over all steps."""
        found = {}
        for index, pair in enumerate(self.pairs):
            here = self.pair == index
            number, over = self.number[here], self.state[here] == MessageState.DONE
            # Messages of a pair are over one after the other.
            done = int(number[over].max()) + 1 if over.any() else 0
            first = self.base.get(pair, 0)
            found[pair] = Posted(first + int(number.max()) + 1, first + done)
        return found

    @property
    def stateless(self) -> bool:
        """Return whether no message has a state."""
        return bool(len(self.state)) and not self.state.any()

    def form_of(self, pair: Pair, number: int) -> str:
        """Return sizes and types of a message, empty where they are not there."""
        if pair not in self.pairs:
            return ""
        here = self.pair == self.pairs.index(pair)
        here &= self.number == number - self.base.get(pair, 0)
        return "; ".join(self.dump.forms[form] for form in self.form[here].tolist() if form >= 0)

    def incomplete(self) -> Iterator[tuple[bool, Pair, int]]:
        """Yield the messages that are not over, in the order of posting."""
        counts = self.counts
        for index in np.flatnonzero(self.state == MessageState.POSTED).tolist():
            pair = self.pairs[int(self.pair[index])]
            number = self.base.get(pair, 0) + int(self.number[index])
            if number >= counts[pair].done:
                yield bool(self.sends[index]), pair, number


def tensors_of(dumps: Sequence[Dump]) -> int:
    """Return the number of tensors of every message, by the longest row of any of the dumps."""
    longest = np.zeros(0, dtype=np.int64)
    for dump in dumps:
        key = 2 * dump.peer + dump.sends
        keys, counts = np.unique(key, return_counts=True)
        if counts.max(initial=0) > len(longest):
            longest = dump.form[key == keys[counts.argmax()]]
    return _tensors(longest)


def trail_of(
    dump: Dump, rank: int, ranks: Sequence[int], order: OrderMessages, tensors: int = 1
) -> Trail:
    """Return the messages of a rank, numbered from the first that is left.

    `ranks` are the global ranks of its pipeline, `tensors` how many each message has. Messages
    without a peer get that of the schedule's transfers at their place; messages to ranks of other
    pipelines are none.
    """
    local = {other: place for place, other in enumerate(ranks)}
    peers = [local.get(peer, UNKNOWN) for peer in dump.peer.tolist()]
    rows = list(zip(dump.sends.tolist(), peers, dump.state.tolist(), dump.form.tolist(),
                    strict=True))  # fmt: skip
    if UNKNOWN in peers:
        strangers = {peer for peer in dump.peer.tolist() if peer != UNKNOWN and peer not in local}
        foreign = [peer in strangers for peer in dump.peer.tolist()]
        rows = [row for row, other in zip(rows, foreign, strict=True) if not other]
        rows = _with_peers(rows, rank, order, dump.missed)
    pairs: dict[Pair, int] = {}
    index, number = np.zeros((2, len(rows)), dtype=np.int64)
    for place, (sends, peer, _, _) in enumerate(rows):
        pair = (rank, peer) if sends else (peer, rank)
        index[place] = pairs.setdefault(pair, len(pairs))
    form = np.array([row[3] for row in rows], dtype=np.int64)
    of_pair = [np.flatnonzero(index == pair) for pair in range(len(pairs))]
    torn = _torn(index, form) if tensors > 1 and dump.missed else 0
    for here in of_pair:
        each = tensors if _repeats(form[here], tensors) else 1
        number[here] = (np.arange(len(here)) - np.searchsorted(here, torn)) // each
    return Trail(
        dump, rank, np.array([row[0] for row in rows[torn:]], dtype=bool), tuple(pairs),
        index[torn:], number[torn:], np.array([row[2] for row in rows[torn:]], dtype=np.int8),
        form[torn:], (dump.missed + torn) // tensors, {},
    )  # fmt: skip


def _with_peers(
    rows: Sequence[tuple[bool, int, int, int]], rank: int, order: OrderMessages, missed: int
) -> list[tuple[bool, int, int, int]]:
    """Return the messages with the peers of the schedule's transfers where they have none.

    Sends follow their actions, so that the t-th send is that of the schedule; of receives, and of
    batches without any entry for a message, it is the t-th where all are posted just in time.
    """
    program, groups = order.transfers[rank], order.groups[rank]
    if not program:
        return [row for row in rows if row[1] != UNKNOWN]
    lists = {way: [pair for sends, pair in program if sends == way] for way in (True, False)}
    begin = program[: missed % len(program)]
    count = {way: sum(sends == way for sends, _ in begin) for way in (True, False)}
    found = []
    for sends, peer, state, form in rows:
        if form == OPAQUE:
            place = (count[True] + count[False]) % len(program)
            same = groups[place]
            for way, pair in program[place:]:
                if groups[place] != same:
                    break
                found.append((way, pair[way], state, form))
                count[way] += 1
                place = min(place + 1, len(program) - 1)
            continue
        among = lists[sends]
        if peer == UNKNOWN and among:
            peer = among[count[sends] % len(among)][sends]
        count[sends] += 1
        if peer != UNKNOWN:
            found.append((sends, peer, state, form))
    return found


def _tensors(forms: Numbers) -> int:
    """Return the number of tensors of each message of a pair: the period of their forms."""
    if len(forms) < 4 or (forms == forms[0]).all():
        return 1
    periods = range(2, min(MOST_TENSORS, len(forms) // 2) + 1)
    return next((period for period in periods if _repeats(forms, period)), 1)


def _torn(pair: Numbers, form: Numbers) -> int:
    """Return the number of tensors at the beginning whose message begins before it."""
    begins = form[1:][pair[1:] != pair[:-1]]
    if not len(begins):
        return 0
    first = np.bincount(begins).argmax()
    return int(np.argmax(form == first))


def _repeats(forms: Numbers, period: int) -> bool:
    return bool((forms[period:] == forms[:-period]).all())


def first_early(trail: Trail, order: OrderMessages) -> Early | None:
    """Return the first message that a rank sent before it received what the schedule has earlier.

    Every action runs after those before it on its rank, whose receives were posted before.
    """
    rank, tasks = trail.rank, int(order.tasks[trail.rank])
    step, task = _tasks_of_sends(trail, order)
    here = np.flatnonzero(step >= 0)
    worst: Early | None = None
    for pair, positions in order.pairs.items():
        if pair[1] != rank:
            continue
        users = np.sort(order.task[positions.user])
        per_task = np.searchsorted(users, np.arange(tasks), side="right")
        needed = step[here] * len(users) + per_task[task[here]]
        posted = np.full(len(here), trail.base.get(pair, 0))
        if pair in trail.pairs:
            mine = trail.pair == trail.pairs.index(pair)
            so_far = np.where(mine, trail.number + 1, 0)
            posted += np.maximum.accumulate(so_far)[here] if len(so_far) else 0
        short = np.flatnonzero(posted < needed)
        if len(short) and (worst is None or here[short[0]] < worst.place):
            worst = Early(int(here[short[0]]), pair, int(posted[short[0]]))
    return worst


def _tasks_of_sends(trail: Trail, order: OrderMessages) -> tuple[Numbers, Numbers]:
    """Return step and task of what made each message; −1 for receives."""
    step, task = np.full((2, len(trail.sends)), -1, dtype=np.int64)
    for index, pair in enumerate(trail.pairs):
        if pair[0] != trail.rank or not order.count(pair):
            continue
        here = trail.pair == index
        whole = trail.number[here] + trail.base.get(pair, 0)
        step[here], place = np.divmod(whole, order.count(pair))
        task[here] = order.task[order.pairs[pair].maker[place]]
    return step, task


def align(trails: Sequence[Trail], order: OrderMessages) -> list[Trail]:
    """Return the trails of one pipeline, counted from one first step."""
    if not any(trail.missed for trail in trails):
        return list(trails)
    # Nearly always all earlier messages were of steps; to search for others takes far longer.
    ways = {trail.rank: _candidates(trail, order, 1) for trail in trails}
    _agree(ways, order)
    if not all(ways.values()):
        ways = {trail.rank: _candidates(trail, order, MOST_EXTRA) for trail in trails}
        _agree(ways, order)
    found = {}
    for trail in trails:
        fitting = ways[trail.rank]
        # The first is certain, too, if all earlier messages were of steps.
        certain = len(fitting) == 1 or any(
            sum(way.base.values()) == way.missed for way in fitting[:1]
        )
        found[trail.rank] = replace(fitting[0] if fitting else trail, certain=certain)
    return list(_in_one_step(found, order).values())


def _candidates(trail: Trail, order: OrderMessages, most: int) -> list[Trail]:
    """Return a trail with every base that fits the schedule, most likely first.

    Less than `most` earlier messages were of no step.
    """
    if not trail.missed:
        return [trail]
    length = len(order.transfers[trail.rank])
    found = []
    for extra in range(min(most, length, trail.missed + 1)):
        step, begin = divmod(trail.missed - extra, length)
        for base in _bases(trail, order, begin):
            whole = {pair: step * order.count(pair) + count for pair, count in base.items()}
            way = replace(trail, base=whole)
            if first_early(way, order) is None:
                found.append(way)
                break
    return found


def _bases(trail: Trail, order: OrderMessages, begin: int) -> Iterator[dict[Pair, int]]:
    """Yield the numbers of messages by pair before a buffer that begins so far into a step."""
    rank = trail.rank
    mine = order.pairs_of(rank)
    length = len(order.transfers[rank])
    rest = (length - begin) % length
    heads = _heads(trail)
    if len(heads) >= rest:
        # The step that the buffer begins in ends in it: what is missing of that came before.
        seen = Counter(trail.pairs[index] for index in heads[:rest].tolist())
        base = {pair: order.count(pair) * (rest > 0) - seen[pair] for pair in mine}
        if min(base.values(), default=0) >= 0:
            yield base
        return
    seen = Counter(trail.pairs[index] for index in heads.tolist())
    for policy in POLICIES:
        first = Counter(pair for _, pair in order.under(policy).transfers[rank][:begin])
        if all(first[pair] + seen[pair] <= order.count(pair) for pair in mine):
            yield {pair: first[pair] for pair in mine}


def _heads(trail: Trail) -> Numbers:
    """Return the pair of every message, in order: of several tensors once."""
    first = np.ones(len(trail.pair), dtype=bool)
    for index in range(len(trail.pairs)):
        here = np.flatnonzero(trail.pair == index)
        first[here[1:]] = np.diff(trail.number[here]) > 0
    return trail.pair[first]


def _agree(ways: dict[int, list[Trail]], order: OrderMessages) -> None:
    """Leave the bases at which both ends of every pair have the same number of messages over."""
    changed = True
    while changed:
        changed = False
        for pair in order.pairs:
            ends = [ways.get(rank, []) for rank in pair]
            if not all(ends) or any(way.stateless for end in ends for way in end[:1]):
                continue
            length = order.count(pair)
            over = [{_over(way, pair) % length for way in end} for end in ends]
            if not all(pair in way.pairs for end in ends for way in end[:1]):
                continue
            both = over[0] & over[1]
            for rank in pair:
                left = [way for way in ways[rank] if _over(way, pair) % length in both]
                changed |= len(left) < len(ways[rank])
                ways[rank] = left


def _over(trail: Trail, pair: Pair) -> int:
    found = trail.counts.get(pair)
    return trail.base.get(pair, 0) if found is None else found.done


def _in_one_step(found: dict[int, Trail], order: OrderMessages) -> dict[int, Trail]:
    """Return the trails with steps counted so that both ends of every pair agree."""
    settled: set[int] = set()
    for first in found:
        todo = [first] if first not in settled else []
        settled |= set(todo)
        while todo:
            here = todo.pop()
            for pair in order.pairs_of(here):
                there = pair[0] if pair[1] == here else pair[1]
                if there in settled or there not in found:
                    continue
                if not all(pair in found[rank].pairs for rank in (here, there)):
                    continue
                ahead = _over(found[here], pair) - _over(found[there], pair)
                steps = round(ahead / order.count(pair))
                if steps:
                    base = {
                        other: count + steps * order.count(other)
                        for other, count in found[there].base.items()
                    }
                    found[there] = replace(found[there], base=base)
                settled.add(there)
                todo.append(there)
    return found
