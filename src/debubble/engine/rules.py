"""What waits for what: the rules of :mod:`debubble.engine.events`, one function each."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from debubble.core.actions import group_bounds
from debubble.core.embedding_and_head import first_stages
from debubble.core.kinds import COPY_KINDS, TRANSFER_KINDS, VOCABULARY_KINDS, Kind
from debubble.engine.collectives import collectives, reductions_before
from debubble.engine.event_graph import TIMED_KINDS
from debubble.engine.events import SLICES, Edges, Events, Ids, Rule, takers
from debubble.engine.kernels.events import follow
from debubble.engine.modes import QUEUES

BOUNDARIES = (((Kind.F,), 1), ((Kind.I, Kind.B), -1))
"""Kinds whose results go to a neighbouring stage, and the step to it."""

RECEIVED_BY = {Kind.SEND_F: Kind.RECV_F, Kind.SEND_B: Kind.RECV_B}


def durations(events: Events) -> Iterator[Edges]:
    """Compute actions take their time; the members of a group are one event."""
    alone = np.flatnonzero((events.kind < Kind.OPT) & (events.pair == 0))
    kind = events.kind[alone].astype(np.int64)
    events.own[alone] = 1 + kind * events.places + events.place[alone]
    steps = events.of(Kind.OPT)
    events.own[steps] = 1 + TIMED_KINDS * events.places + events.rank[steps]
    members = np.flatnonzero(events.pair)
    begin = group_bounds(events.schedule.actions)[0][members] if len(members) else members
    events.event[members] = begin
    # Times of groups matter to nobody who looks for a cycle, but those of pairs are as they are.
    events.own[begin] = 0
    second = members[(events.pair[members] == 2) & (members - begin == 1)]
    for half in (Kind.I, Kind.W, Kind.B):
        these = second[(events.kind[second] == half) & (events.kind[second - 1] == Kind.F)]
        if len(these):
            events.own[these - 1] = events.pair_time(
                half, events.place[these - 1], events.place[these]
            )
    yield from ()


def turns(events: Events) -> Iterator[Edges]:
    """A rank computes one thing after the other."""
    spots, turn = events.turns
    same = events.rank[spots[1:]] == events.rank[spots[:-1]]
    yield Edges(turn[1:][same], turn[:-1][same], turn=True)


def sends(events: Events) -> Iterator[Edges]:
    """Sends and receives that are actions: one event for both ends.

    A transfer starts when its sender reaches it. In blocking mode contiguous ones are a group,
    which occupies its rank: a transfer starts when both its ends have reached their groups, and the
    rank goes on when all transfers of its group are over.

    In the modes "pair" and "group" every send and receive is queued in the order of the program, as
    on a stream of NCCL: on one queue for each other rank, both directions together, or on one for
    all of them. A transfer starts when both ranks have reached it and it heads the queues of both.
    Computing goes on meanwhile.
    """
    both = events.of(*TRANSFER_KINDS)
    if not len(both):
        return
    source, target, producer = [], [], []
    for (kinds, step), (send, receive) in zip(BOUNDARIES, RECEIVED_BY.items(), strict=True):
        here = events.of(send)
        source.append(here)
        target.append(events.where(receive)[events.cell[here] + step * events.schedule.units])
        producer.append(events.where(*kinds)[events.cell[here]])
    order = np.argsort(np.concatenate(source), kind="stable")
    here, there, made = (np.concatenate(part)[order] for part in (source, target, producer))
    events.event[there] = here
    events.carrier[made] = here
    events.own[here] = events.link(events.rank[here], events.rank[there], events.unit[here])
    if events.mode in QUEUES:
        events.meets[here], events.meets[there] = there, here
        yield events.after_turn(here)._replace(turn=False)
        yield events.after_turn(there)._replace(turn=False)
        yield _queues(events, both)
        return
    if events.mode != "overlapped":
        yield _one_by_one(here, events.rank[here], events.rank[there], events.schedule.ranks)
    if events.mode != "blocking":
        yield events.after_turn(here)
        return
    # One event stands on two ranks: what it waits for on one is more than a turn for the other.
    yield events.after_turn(here)._replace(turn=False)
    yield events.after_turn(there)._replace(turn=False)
    spots, turn = events.turns
    behind = np.searchsorted(spots, both)
    begins = np.ones(len(both), dtype=bool)
    begins[1:] = (np.diff(behind) > 0) | (np.diff(events.rank[both]) > 0)
    group = np.cumsum(begins) - 1
    left = events.add(np.zeros(int(begins.sum()), dtype=np.int32))
    yield Edges(left[group], events.event[both], turn=True)
    ends = np.append(np.flatnonzero(begins)[1:], len(both)) - 1
    position = np.concatenate([spots, both[ends]])
    order = np.argsort(position)
    events.turns = position[order], np.concatenate([turn, left])[order]


def _queues(events: Events, both: Ids) -> Edges:
    """Every end of a transfer comes after the one before it on its queue."""
    queue = events.rank[both].astype(np.int64)
    if events.mode != "group":
        queue = queue * events.schedule.ranks + events.rank[events.meets[both]]
        if events.mode == "directed":
            queue = 2 * queue + np.isin(events.kind[both], (Kind.RECV_F, Kind.RECV_B))
        order = np.argsort(queue, kind="stable")
        both, queue = both[order], queue[order]
    same = queue[1:] == queue[:-1]
    return Edges(events.event[both[1:][same]], events.event[both[:-1][same]])


def channels(events: Events) -> Iterator[Edges]:
    """Transfers that are no actions, where each directed pair of ranks carries one at a time."""
    if events.mode != "channel" or events.present.intersection(TRANSFER_KINDS):
        return
    # By position, so that transfers of both directions come in the order of their producers.
    goes_to = np.full(len(events.kind), -1, dtype=np.int32)
    for kinds, step in BOUNDARIES:
        here = events.of(*kinds)
        end = events.stage[here] + step
        here = here[(end >= 0) & (end < events.schedule.stages)]
        goes_to[here] = events.home(here, step)
    here = np.flatnonzero((goes_to >= 0) & (goes_to != events.rank))
    there = goes_to[here]
    transfers = events.add(events.link(events.rank[here], there, events.unit[here]))
    events.carrier[here] = transfers
    yield Edges(transfers, events.event[here])
    yield _one_by_one(transfers, events.rank[here], there, events.schedule.ranks)


def _one_by_one(transfers: Ids, source: Ids, target: Ids, ranks: int) -> Edges:
    """Transfers of one directed pair of ranks in the order given."""
    before = np.empty(len(transfers), dtype=np.int32)
    last = np.full(ranks * ranks, -1, dtype=np.int32)
    follow.run(len(transfers), source * ranks + target, last, before)
    same = before >= 0
    return Edges(transfers[same], transfers[before[same]], turn=True)


def results(events: Events) -> Iterator[Edges]:
    """Stages wait for their neighbours' results, and backwards for what is on their own rank."""
    for kinds, wanted, step in takers(events):
        here, made = events.needed(kinds, wanted, step)
        local = events.rank[here] == events.rank[made]
        yield _unless_earlier(events, here[local], made[local])
        here, made = here[~local], made[~local]
        carrier = events.carrier[made]
        carried = carrier >= 0
        yield Edges(events.event[here[carried]], carrier[carried])
        here, made = here[~carried], made[~carried]
        if len(here):
            lag = events.link(events.rank[made], events.rank[here], events.unit[here])
            yield Edges(events.event[here], events.event[made], lag)
    for kind, needed in (
        (Kind.I, Kind.F), (Kind.B, Kind.F), (Kind.R, Kind.F), (Kind.W, Kind.I),
    ):  # fmt: skip
        if kind in events.present:
            yield _unless_earlier(events, *events.needed((kind,), (needed,)))
    if events.schedule.slices > 1:
        for kinds, step in SLICES:
            yield _unless_earlier(events, *events.of_slice(kinds, step))


def _unless_earlier(events: Events, here: Ids, needed: Ids) -> Edges:
    """Edges within ranks, without those that follow from the order of the program."""
    late = needed > here
    return Edges(events.event[here[late]], events.event[needed[late]])


def steps(events: Events) -> Iterator[Edges]:
    """What optimizer steps wait for, see :data:`debubble.core.schedule.SYNCS`."""
    here = events.of(Kind.OPT)
    if not len(here):
        return
    step, reduction = reductions_before(events, here)
    if events.schedule.sync == "local":
        yield Edges(here[step], reduction)
        return
    rank = events.rank[here]
    number = np.arange(len(here)) - np.searchsorted(rank, rank)
    if events.schedule.sync == "post-validation":
        # Step k of a rank and what is known of the norm of ranks up to it: the same on every rank.
        norm = events.add(np.zeros(len(here), dtype=np.int32))
        arrived = events.after_turn(here)
        yield Edges(norm[np.searchsorted(here, arrived.consumer)], arrived.producer)
        yield Edges(norm[step], reduction)
        later = rank > 0
        before = np.searchsorted(rank, rank[later] - 1) + number[later]
        yield Edges(norm[later], norm[before], events.link(rank[later] - 1, rank[later]))
        yield Edges(here, norm)
        return
    gathered = events.add(np.zeros(int(number.max()) + 1, dtype=np.int32))
    arrived = events.after_turn(here)
    which = np.searchsorted(here, arrived.consumer)
    yield Edges(gathered[number[which]], arrived.producer)
    yield Edges(gathered[number[step]], reduction)
    yield Edges(here, gathered[number])


def copies(events: Events) -> Iterator[Edges]:
    """Activations that leave their rank and come back, on a stream of their own."""
    both = events.of(*COPY_KINDS)
    if not len(both):
        return
    for kind in COPY_KINDS:
        here = events.of(kind)
        if len(here):
            events.own[here] = events.place_time(kind, events.place[here])
    yield events.after_turn(both)
    yield _on_streams(events, both)
    back = events.of(Kind.RELOAD)
    yield _unless_earlier(events, *events.needed((Kind.RELOAD,), (Kind.OFFLOAD,)))
    reload = events.where(Kind.RELOAD)
    for kinds in ((Kind.I, Kind.B), (Kind.R,)):
        user = events.where(*kinds)[events.cell[back]]
        used = user >= 0
        yield Edges(events.event[user[used]], reload[events.cell[back[used]]])


def _on_streams(events: Events, both: Ids) -> Edges:
    """One copy after the other, on every rank's own stream."""
    stream = events.rank[both]
    same = stream[1:] == stream[:-1]
    return Edges(both[1:][same], both[:-1][same], turn=True)


def vocabulary(events: Events) -> Iterator[Edges]:
    """Passes of the output layer's shards, see :class:`debubble.core.schedule.Schedule`.

    What ranks exchange for them is small or broadcast: it takes the latency of a link, and in no
    mode occupies anybody.
    """
    schedule = events.schedule
    if not schedule.vocabulary:
        return
    for kind in VOCABULARY_KINDS:
        here = events.of(kind)
        if len(here):
            events.own[here] = events.place_time(kind, events.place[here])
    ranks, units, last = schedule.ranks, schedule.units, schedule.stages - 1
    home = schedule.placement.table[0][last]
    first = first_stages(schedule.placement)
    S, T = (events.where(kind).reshape(-1, units)[first] for kind in VOCABULARY_KINDS)
    made = events.where(Kind.F).reshape(-1, units)[last]
    begun = np.flatnonzero(made >= 0)
    S, T, made = S[:, begun], T[:, begun], made[begun]
    gathered = events.add(np.zeros(len(begun), dtype=np.int32))
    late = ((Kind.R,),) if schedule.recompute_after == "gradient" else ()
    users = [
        events.where(*kinds).reshape(-1, units)[last, begun] for kinds in ((Kind.I, Kind.B), *late)
    ]
    given = T if schedule.vocabulary == 1 else S
    for rank in range(ranks):
        there, back = ((a, b) for a, b in ((home, rank), (rank, home)))
        yield _over(events, events.event[S[rank]], events.event[made], *there)
        yield Edges(gathered, events.event[S[rank]])
        yield _over(events, events.event[T[rank]], gathered, *there)
        for user in users:
            used = user >= 0
            yield _over(events, events.event[user[used]], events.event[given[rank][used]], *back)


def _over(events: Events, consumer: Ids, producer: Ids, source: int, target: int) -> Edges:
    """Edges from one rank to another, or within it."""
    if source == target or not len(consumer):
        return Edges(consumer, producer)
    lag = events.link(np.array([source]), np.array([target]))
    return Edges(consumer, producer, np.broadcast_to(lag, len(consumer)))


RULES: tuple[Rule, ...] = (
    durations, sends, turns, channels, results, steps, copies, collectives, vocabulary,
)  # fmt: skip
"""Every rule, in the order in which they run; a later one may use what earlier ones filled in."""
