"""All that is known of a job that hangs, and words for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from debubble.core.schedule import Schedule
from debubble.diagnosis.hang.answer import SHOWN, listed
from debubble.diagnosis.hang.dumps import Call, Dump
from debubble.diagnosis.hang.order_messages import OrderMessages, Pair
from debubble.diagnosis.hang.pipelines import JobPlaces, place_ranks
from debubble.diagnosis.hang.progress import (
    PairMessages,
    Stand,
    StandKind,
    calls_waited_in,
    stands_of,
)
from debubble.diagnosis.hang.trails import Trail, align, tensors_of, trail_of
from debubble.engine.modes import P2PMode

FEW = 3
"""Maximum number of actions that are listed one by one."""


@dataclass(frozen=True, eq=False)
class HangJob:
    """All that is known of a job."""

    schedule: Schedule
    order: OrderMessages
    places: JobPlaces
    dumps: Mapping[int, Dump]
    trails: Sequence[Mapping[int, Trail]]
    """By copy and rank."""
    links: Sequence[Mapping[Pair, PairMessages]]
    stands: Mapping[int, Stand]
    """By global rank."""
    mode: P2PMode | None

    @cached_property
    def followers(self) -> dict[int, list[int]]:
        """Global ranks that wait for each, or may do so if their sends block."""
        found: dict[int, list[int]] = {}
        for rank, stand in self.stands.items():
            for other in stand.waits or stand.may_wait:
                found.setdefault(other, []).append(rank)
        return found

    @cached_property
    def roots(self) -> list[tuple[Stand, tuple[Stand, ...]]]:
        """Ranks that wait for none and are not done, with those that wait for them.

        Those whose own dump proves it come first, then those that most ranks wait for. A rank whose
        last send is not received may stand in that: it does where the ranks that it then waits for
        lead to one that waits for none.
        """
        free = [stand for stand in self.stands.values() if stand.is_free]
        found = []
        for stand in free:
            waiting = waiters(self, stand)
            waited_for = reached(self, stand, lambda one: one.waits or one.may_wait)
            if any(one.is_free and not one.may_wait for one in waited_for):
                continue
            if stand.kind is not StandKind.DONE or waiting or stand.dump is None:
                found.append((stand, waiting))
        return sorted(found, key=lambda root: (not root[0].is_proven, -len(root[1])))

    def message(self, pair: Pair, number: int, received: bool = False) -> str:
        """Return a message as the action that sends it, or receives it."""
        positions = self.order.pairs[pair]
        ends = positions.receive if received else positions.send
        return self.order.text(int(ends[number % len(ends)]))


def make_job(
    dumps: Sequence[Dump], schedule: Schedule, order: OrderMessages, mode: P2PMode | None
) -> HangJob:
    """Return what the dumps say of every rank."""
    places = place_ranks(dumps, order)
    by_rank = {dump.rank: dump for dump in dumps}
    calls = calls_waited_in(dumps)
    all_trails, all_links, stands = [], [], {}
    tensors = tensors_of(dumps)
    for copy, ranks in enumerate(places.ranks):
        found = [
            trail_of(by_rank[here], rank, ranks, order, tensors)
            for rank, here in enumerate(ranks) if here in by_rank
        ]  # fmt: skip
        trails = {trail.rank: trail for trail in align(found, order)}
        known, links = stands_of(trails, order, places, copy, by_rank)
        for stand in known:
            stands[stand.global_rank] = in_calls(stand, calls.get(stand.global_rank, []))
        all_trails.append(trails)
        all_links.append(links)
    return HangJob(schedule, order, places, by_rank, all_trails, all_links, stands, mode)


def in_calls(stand: Stand, calls: Sequence[tuple[Call, tuple[int, ...]]]) -> Stand:
    """Return where a rank stands, in view of the collectives that it waits in."""
    if not calls:
        return stand
    call, absent = next(((call, absent) for call, absent in calls if absent), calls[0])
    waits = tuple(dict.fromkeys((*stand.waits, *absent)))
    if stand.kind is StandKind.WAITING:
        return replace(stand, waits=waits)
    return replace(stand, kind=StandKind.CALLING, call=call, waits=waits)


def reached(
    job: HangJob, stand: Stand, following: Callable[[Stand], Iterable[int]]
) -> tuple[Stand, ...]:
    """Return the other ranks that steps from one to its following ones lead to, nearest first."""
    found, todo = {stand.global_rank}, [stand.global_rank]
    for here in todo:
        new = dict.fromkeys(rank for rank in following(job.stands[here]) if rank not in found)
        found |= new.keys()
        todo += new
    return tuple(job.stands[rank] for rank in todo[1:])


def waiters(job: HangJob, stand: Stand) -> tuple[Stand, ...]:
    """Return the ranks that wait for one, those that do directly first."""
    return reached(job, stand, lambda one: job.followers.get(one.global_rank, ()))


def name_of(job: HangJob, stand: Stand) -> str:
    """Return the name of a rank: with its global one where that is another."""
    copy = f" of copy {stand.copy}" if len(job.places.ranks) > 1 else ""
    other = f" (global {stand.global_rank})" if stand.global_rank != stand.rank else ""
    return f"rank {stand.rank}{copy}{other}"


def waiting_text(job: HangJob, waiting: Sequence[Stand]) -> str:
    """Return who waits, directly first."""
    if not waiting:
        whole = len(job.dumps) == len(job.places.where)
        return "no other rank waits for it yet" if whole else "no other dump is of one that waits"
    several = len(job.places.ranks) > 1
    numbers = [stand.global_rank if several else stand.rank for stand in waiting]
    one = len(numbers) == 1
    label = ("global " if several else "") + ("rank" if one else "ranks")
    return f"{label} {listed(numbers)} {'waits' if one else 'wait'} for it"


def where_text(job: HangJob, stand: Stand) -> str:
    """Return a line about where a rank stands, with its host and file."""
    parts = [stands_text(job, stand)]
    if stand.last:
        parts.append(f"it last sent the result of {stand.last}")
    dump = stand.dump
    if dump is not None and dump.action:
        parts.append(f"it {'computed' if dump.busy else 'was'} at {dump.action}")
    file = "no dump" if dump is None else ", ".join(filter(None, (dump.host, dump.file)))
    step = f" in step {stand.step + 1}" if stand.step else ""
    return f"{name_of(job, stand)}{step} {'; '.join(parts)} ({file})"


def evidence_of(job: HangJob, stands: Sequence[Stand]) -> tuple[str, ...]:
    """Return lines about where some ranks stand."""
    return tuple(where_text(job, stand) for stand in stands[:SHOWN])


def stands_text(job: HangJob, stand: Stand) -> str:
    """Return what a rank does, in a few words."""
    if stand.call is not None and stand.kind is StandKind.CALLING:
        before = f" before {stand.action}" if stand.action else ""
        return f"is in {stand.call.name} of ranks {listed(stand.call.group[1])}{before}"
    silent = ""
    if stand.maybe:
        verb = "sends" if len(stand.maybe) == 1 else "send"
        silent = f" (after {series(stand.maybe, 'and')}, which {verb} nothing)"
    if stand.message is None:
        if stand.kind is StandKind.COMPUTING:
            if stand.maybe:
                return f"sent no result of {stand.action}{silent}"
            return f"has the inputs of {stand.action} and sent no result"
        return f"has not begun {stand.action}{silent}"
    pair, number = stand.message
    posted = number < job.links[stand.copy][pair].sent
    if stand.kind is StandKind.WAITING:
        more = ", which is posted" if posted else ""
        return f"waits for {job.message(pair, number)} of rank {pair[0]}{more}, for {stand.action}"
    more = f", which rank {pair[0]} has sent" if posted else ""
    receive = job.message(pair, number, received=True)
    return f"has not posted {receive} for {stand.action}{silent}{more}"


def one_of(actions: Sequence[str]) -> str:
    """Return some actions as a choice: ``3F3 or 3B3``."""
    return ("one of " if len(actions) > FEW else "") + series(actions, "or")


def series(actions: Sequence[str], word: str) -> str:
    """Return some actions as text, joined by a word; of many the first and the last."""
    if len(actions) > FEW:
        return f"{actions[0]} to {actions[-1]}"
    *first, last = actions
    return f"{', '.join(first)} {word} {last}" if first else last


def nth(number: int) -> str:
    """Return an ordinal."""
    last = number % 10 if number % 100 not in (11, 12, 13) else 0
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(last, 'th') }"
