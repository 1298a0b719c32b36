"""Refuse actions that no rule could make sense of: twice, misplaced, or without what they need."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import (
    SHARDING_KINDS,
    TRANSFER_KINDS,
    VOCABULARY_KINDS,
    WHOLE_STAGE_KINDS,
    Action,
    Kind,
    group_bounds,
)
from debubble.core.embedding_and_head import first_stages
from debubble.core.errors import ScheduleError
from debubble.engine import stuck
from debubble.engine.collectives import copies_here
from debubble.engine.events import SLICES, Events, Ids, takers
from debubble.engine.kernels import sweep
from debubble.engine.modes import MEETING
from debubble.engine.recompute import recompute_share

ONCE = frozenset(Kind) - set(WHOLE_STAGE_KINDS)
"""Kinds that run once for every (stage, microbatch)."""

NEEDS = {
    Kind.I: (Kind.F,), Kind.B: (Kind.F,), Kind.R: (Kind.F,), Kind.W: (Kind.I,),
    Kind.SEND_F: (Kind.F,), Kind.SEND_B: (Kind.I, Kind.B),
    Kind.OFFLOAD: (Kind.F,), Kind.RELOAD: (Kind.OFFLOAD,),
}  # fmt: skip
"""What has to be there, on the same rank, for an action of a kind."""


def refuse_malformed(events: Events) -> None:
    """Raise the error for the first thing that is wrong with the actions, whatever their order.

    Raises
    ------
    ScheduleError
        What the sweeps say in the same case.
    """
    for sort in (_misplaced, _repeated, _bad_pairs, _missing, _transfers, _steps, _shards):
        for error in sort(events):
            raise error


def refuse_misplaced(events: Events) -> None:
    """Raise the error for the first action that is there twice or should not be where it is."""
    for sort in (_misplaced, _repeated, _bad_pairs):
        for error in sort(events):
            raise error


def _explain(events: Events, outcome: int, position: int) -> ScheduleError:
    unused = np.zeros(0, dtype=np.int64)
    stopped = stuck.Stopped(
        events.schedule, events.mode == "blocking", unused, unused.astype(np.int32)
    )
    return stuck.explain(stopped, outcome, position)


def _first(wrong: NDArray[np.bool_], positions: Ids | None = None) -> Iterator[int]:
    """The first position at which something is wrong, if any."""
    if wrong.any():
        index = int(wrong.argmax())
        yield index if positions is None else int(positions[index])


def _misplaced(events: Events) -> Iterator[ScheduleError]:
    schedule = events.schedule
    step = events.kind == Kind.OPT
    for position in _first(events.kind > Kind.T):
        yield _explain(events, sweep.OTHER_KIND, position)
    outside = (events.stage >= schedule.stages) | ((events.unit >= schedule.units) & ~step)
    for position in _first(outside):
        yield _explain(events, sweep.OUT_OF_RANGE, position)
    away = (schedule.homes[events.place] != events.rank) & ~step
    if events.present.intersection(SHARDING_KINDS):
        shared = np.isin(events.kind, SHARDING_KINDS)
        away = np.where(shared, copies_here(events) < 0, away)
    for position in _first(away):
        yield _explain(events, sweep.WRONG_RANK, position)


def _repeated(events: Events) -> Iterator[ScheduleError]:
    for kind in sorted(events.present.intersection(ONCE)):
        here = events.of(kind)
        for again in _first(events.where(kind)[events.cell[here]] != here, here):
            last = int(events.where(kind)[events.cell[again]])
            yield _explain(events, sweep.DUPLICATE, last)
    whole = events.of(Kind.B)
    for other in events.present.intersection((Kind.I, Kind.W)):
        beside = events.where(other)[events.cell[whole]]
        for position in _first(beside >= 0, np.maximum(beside, whole)):
            yield _explain(events, sweep.DUPLICATE, position)


def _bad_pairs(events: Events) -> Iterator[ScheduleError]:
    if not events.pair.any():
        return
    pair, kind = events.pair, events.kind
    same_rank = events.rank[1:] == events.rank[:-1]
    goes_on, led = np.zeros((2, len(pair)), dtype=bool)
    goes_on[:-1] = same_rank & (pair[1:] >= 2)
    led[1:] = same_rank & (pair[:-1] % 2 == 1)
    bad = ((pair % 2 == 1) & ~goes_on) | ((pair >= 2) & ~led) | ((pair > 0) & (kind > Kind.R))
    if not bad.any():
        begin, stop = group_bounds(events.schedule.actions)
        bad = stop - begin > sweep.MOST_MEMBERS
        members = np.flatnonzero(pair)
        order = members[np.lexsort((events.cell[members], begin[members]))]
        again = (begin[order][1:] == begin[order][:-1]) & (
            events.cell[order][1:] == events.cell[order][:-1]
        )
        bad[begin[order][1:][again]] = True
    for position in _first(bad):
        yield _explain(events, sweep.BAD_GROUP, position)


def _missing(events: Events) -> Iterator[ScheduleError]:
    """Actions that wait for one that no rank runs; and recomputes of what has been used."""
    for kind, wanted in NEEDS.items():
        if kind in events.present:
            here, found = events.needed((kind,), wanted)
            for position in _first(found < 0, here):
                yield _nobody(events, position, _at(events, position, 0, wanted[0]))
    for kinds, wanted, step in takers(events):
        here, found = events.needed(kinds, wanted, step)
        for position in _first(found < 0, here):
            yield _nobody(events, position, _at(events, position, step, wanted[0]))
    if events.schedule.slices > 1:
        for kinds, step in SLICES:
            here, found = events.of_slice(kinds, step)
            for position in _first(found < 0, here):
                action = _at(events, position, 0, kinds[0])
                other = action._replace(microbatch=action.microbatch + step)
                yield _nobody(events, position, other)
    if Kind.OFFLOAD in events.present:
        yield from _missing_copies(events)
    again = events.of(Kind.R)
    if len(again):
        used = events.where(Kind.I, Kind.B)[events.cell[again]]
        for position in _first((used >= 0) & (used < again), again):
            yield _explain(events, sweep.ORDER, position)


def _shards(events: Events) -> Iterator[ScheduleError]:
    """Passes of the output layer on other stages than the first of a rank, or not on every rank."""
    schedule = events.schedule
    here = events.of(*VOCABULARY_KINDS)
    if len(here) and not schedule.vocabulary:
        position = int(here[0])
        raise ScheduleError(
            f"{_where(events, position)} is a pass of a sharded output layer, and the schedule's "
            "vocabulary is 0; set it to 1 or 2",
            (events.text(position),),
        )
    if not schedule.vocabulary:
        return
    first = first_stages(schedule.placement)
    for position in _first(first[events.rank[here]] != events.stage[here], here):
        expected = int(first[events.rank[position]])
        yield ScheduleError(
            f"{_where(events, position)} is not on the rank's first stage, {expected}, which "
            f"stands for its shard of the output layer; write stage {expected}",
            (events.text(position),),
        )
    last, units = schedule.stages - 1, schedule.units
    tables = [events.where(kind).reshape(-1, units)[first] for kind in VOCABULARY_KINDS]
    made, used = (
        events.where(*kinds).reshape(-1, units)[last] for kinds in ((Kind.F,), (Kind.I, Kind.B))
    )
    positions = np.vstack([*tables, made, used])
    # What waits, or is waited for, stands for the microbatch in the message.
    known = positions.max(axis=0)
    for kind, table in zip(VOCABULARY_KINDS, tables, strict=True):
        for rank in range(schedule.ranks):
            for unit in _first((table[rank] < 0) & (known >= 0)):
                yield _nobody(events, int(known[unit]), Action(int(first[rank]), kind, unit))
    for unit in _first((made < 0) & (known >= 0)):
        yield _nobody(events, int(known[unit]), Action(last, Kind.F, unit))


def _where(events: Events, position: int) -> str:
    return f"{events.text(position)} (rank {int(events.rank[position])})"


def _missing_copies(events: Events) -> Iterator[ScheduleError]:
    """Offloads before their forward, and backwards of what is never reloaded."""
    out = events.of(Kind.OFFLOAD)
    for position in _first(events.where(Kind.F)[events.cell[out]] > out, out):
        # The rank does not wait at a copy, so that this would be no circle.
        chain = tuple(
            f"{action} (rank {events.rank[position]})"
            for action in (_at(events, position, 0, Kind.OFFLOAD), _at(events, position, 0, Kind.F))
        )
        yield ScheduleError(
            f"{chain[0]} copies what {chain[1]} makes after it; move the copy behind it", chain
        )
    share = recompute_share(events.schedule)[events.place[out]]
    for position in _first((share > 0) & (share < 1), out):
        stage = int(events.stage[position])
        raise ScheduleError(
            f"{events.text(position)} (rank {int(events.rank[position])}) copies what stage "
            f"{stage} recomputes for some microbatches and not for others; recompute all or none",
            (events.text(position),),
        )
    for kinds in ((Kind.I, Kind.B), (Kind.R,)):
        used = events.where(*kinds)[events.cell[out]]
        lost = (used >= 0) & (events.where(Kind.RELOAD)[events.cell[out]] < 0)
        for position in _first(lost, used):
            yield _nobody(events, position, _at(events, position, 0, Kind.RELOAD))


def _at(events: Events, position: int, step: int, kind: Kind) -> Action:
    return Action(int(events.stage[position]) + step, kind, int(events.unit[position]))


def _nobody(events: Events, position: int, missing: Action) -> ScheduleError:
    action, wanted = events.text(position), events.schedule.text(missing)
    return ScheduleError(
        f"{_where(events, position)} waits for {wanted}, which no rank runs; add {wanted}",
        (action, wanted),
    )


def _transfers(events: Events) -> Iterator[ScheduleError]:
    """Sends and receives without their other end, too late, or in another order than it."""
    if not events.present.intersection(TRANSFER_KINDS):
        return
    schedule, units = events.schedule, events.schedule.units
    for kind, (step, other) in stuck.PARTNERS.items():
        here = events.of(kind)
        end = events.stage[here] + step
        nowhere = (end < 0) | (end >= schedule.stages)
        for position in _first(nowhere, here):
            yield _explain(events, sweep.NO_TRANSFER, position)
        for position in _first(events.home(here, step) == events.rank[here], here):
            yield _explain(events, sweep.NO_TRANSFER, position)
        if len(here):
            found = events.where(other)[events.cell[here] + step * units]
            for position in _first(found < 0, here):
                yield _explain(events, sweep.UNMATCHED, position)
    for kinds, wanted, step in takers(events):
        receive = Kind.RECV_F if step < 0 else Kind.RECV_B
        here, made = events.needed(kinds, wanted, step)
        here = here[events.rank[here] != events.rank[made]]
        received = events.where(receive)[events.cell[here]]
        for position in _first((received < 0) | (received > here), here):
            yield _explain(events, sweep.ORDER, position)
    for kind in (Kind.SEND_F, Kind.SEND_B):
        here, made = events.needed((kind,), NEEDS[kind])
        for position in _first(made > here, here):
            yield _explain(events, sweep.ORDER, position)
    if events.mode in MEETING:
        yield from _crossed(events)


def _crossed(events: Events) -> Iterator[ScheduleError]:
    """Transfers of one directed pair of ranks that are not received in the order of the sends."""
    found = []
    for kind in (Kind.SEND_F, Kind.SEND_B):
        step, receive = stuck.PARTNERS[kind]
        here = events.of(kind)
        there = events.where(receive)[events.cell[here] + step * events.schedule.units]
        found.append((here, there))
    here, there = (np.concatenate(part) for part in zip(*found, strict=True))
    link = events.rank[here].astype(np.int64) * events.schedule.ranks + events.rank[there]
    order = np.lexsort((here, link))
    here, there, link = here[order], there[order], link[order]
    swapped = (link[1:] == link[:-1]) & (there[1:] < there[:-1])
    for position in _first(swapped, here[1:]):
        yield _explain(events, sweep.CROSSED, position)


def _steps(events: Events) -> Iterator[ScheduleError]:
    """Optimizer steps that another rank waits for and that are not there, or too many of them."""
    here = events.of(Kind.OPT)
    schedule = events.schedule
    if schedule.sync == "local" or not len(here):
        return
    rank = events.rank[here]
    number = np.arange(len(here)) - np.searchsorted(rank, rank)
    counts = np.bincount(rank, minlength=schedule.ranks)
    if schedule.sync == "global":
        for position in _first(events.unit[here] < number, here):
            yield _explain(events, sweep.BAD_STEP, position)
        needed = np.full(len(here), counts.argmin())
    else:
        for position in _first(number >= schedule.iterations, here):
            yield _explain(events, sweep.BAD_STEP, position)
        needed = np.maximum(rank - 1, 0)
    lacks = number >= counts[needed]
    for position in _first(lacks, here):
        lacking = int(needed[lacks.argmax()])
        stage = (*schedule.placement.stages_on(lacking), 0)[0]
        yield _nobody(events, position, Action(stage, Kind.OPT, int(events.unit[position])))
