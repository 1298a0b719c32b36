"""Reasons of hangs that show in messages: what each end posted, and what the schedule has there."""

from __future__ import annotations

from collections.abc import Sequence

from debubble.analysis.check import check
from debubble.core.units import counted
from debubble.diagnosis.hang.answer import SHOWN, Hang, HangKind, listed
from debubble.diagnosis.hang.job import HangJob, evidence_of, name_of, nth, waiters
from debubble.diagnosis.hang.order_messages import Pair
from debubble.diagnosis.hang.progress import Stand, StandKind
from debubble.diagnosis.hang.trails import first_early
from debubble.engine.modes import MODE, P2PMode

MODES_TRIED: tuple[P2PMode, ...] = ("overlapped", "directed", "pair", "blocking", "group")
"""Modes in which deadlocks are looked for, those that wait least first."""


def foreign(job: HangJob) -> Hang | None:
    """Find messages between ranks that exchange none in the schedule."""
    found = []
    for copy, trails in enumerate(job.trails):
        for trail in trails.values():
            for pair in trail.pairs:
                if not job.order.count(pair):
                    found.append((job.stands[job.places.ranks[copy][trail.rank]], pair))
                    break
    if not found:
        return None
    stand, (source, target) = found[0]
    way = f"sends to rank {target}" if source == stand.rank else f"receives from rank {source}"
    text = f"{name_of(job, stand)} {way}, which it never does in {job.schedule.name}"
    return _not_run(job, [one for one, _ in found], text)


def other_order(job: HangJob) -> Hang | None:
    """Find ranks that sent something before they received what the schedule has earlier."""
    found = []
    for copy, trails in enumerate(job.trails):
        for trail in trails.values():
            early = first_early(trail, job.order) if trail.certain else None
            if early is not None:
                found.append((copy, trail, early))
    if not found:
        return None
    copy, trail, early = found[0]
    stand = job.stands[job.places.ranks[copy][trail.rank]]
    pair = trail.pairs[int(trail.pair[early.place])]
    number = trail.base.get(pair, 0) + int(trail.number[early.place])
    text = (
        f"{name_of(job, stand)} sent {job.message(pair, number)}, its {nth(number + 1)} message to "
        f"rank {pair[1]}, before it had posted "
        f"{job.message(early.pair, early.number, received=True)}, which {job.schedule.name} has "
        "earlier"
    )
    all_found = [job.stands[job.places.ranks[other][one.rank]] for other, one, _ in found]
    return _not_run(job, all_found, text)


def _not_run(job: HangJob, found: Sequence[Stand], text: str) -> Hang:
    """Return the answer that one rank of the schedule, or several, do not follow it."""
    if len({one.rank for one in found}) == 1:
        return orders(job, found[0], text)
    return Hang(
        HangKind.ORDERS, f"the job does not run {job.schedule.name}: {text}.",
        tuple(f"{name_of(job, one)} does not follow it, either" for one in found[1:SHOWN]),
        "Give the schedule that ran, with its sizes and options.",
    )  # fmt: skip


def orders(job: HangJob, stand: Stand, text: str, evidence: tuple[str, ...] = ()) -> Hang:
    """Return the answer that a rank runs another schedule."""
    return Hang(
        HangKind.ORDERS, f"{text}: it runs another schedule.", evidence,
        f"Compare the arguments of process {stand.global_rank} with those of the others, or give "
        "the schedule that ran.", stand, waiters(job, stand),
    )  # fmt: skip


def shapes(job: HangJob) -> Hang | None:
    """Find a message that is not over and whose ends have different sizes or types."""
    for copy, (trails, links) in enumerate(zip(job.trails, job.links, strict=True)):
        for pair, link in links.items():
            ends = [trails.get(rank) for rank in pair]
            if ends[0] is None or ends[1] is None:
                continue
            for number in range(link.done, min(link.sent, link.received)):
                sent, received = (end.form_of(pair, number) for end in ends if end is not None)
                if sent and received and sent != received:
                    ranks = job.places.ranks[copy]
                    stand, other = job.stands[ranks[pair[0]]], job.stands[ranks[pair[1]]]
                    text = (
                        f"{name_of(job, stand)} sends {sent} as {job.message(pair, number)}, and "
                        f"{name_of(job, other)} receives {received}."
                    )
                    return Hang(
                        HangKind.SHAPES, text, (),
                        "Give both stages the same shape and type. Common differences are sequence "
                        "length, microbatch size and precision.",
                        stand, waiters(job, stand) or (other,),
                    )  # fmt: skip
    return None


def short_buffer(job: HangJob) -> Hang | None:
    """Find ranks whose buffers leave open where in the step they stand."""
    short = [
        trail for trails in job.trails for trail in trails.values() if not trail.certain
    ]  # fmt: skip
    if not short:
        return None
    trail = max(short, key=lambda one: one.dump.first)
    stand = next(
        one for one in job.stands.values() if one.dump is not None and one.dump is trail.dump
    )
    needed = len(job.order.transfers[trail.rank])
    per_message = trail.dump.entries / max(len(trail.pair), 1)
    size = _round_up(2 * needed * max(per_message, 1))
    text = (
        f"the buffer of {name_of(job, stand)} begins at record {trail.dump.first:,} and has "
        f"{counted(len(trail.pair), 'message')} left, of {needed:,} that a step has: it does not "
        "say where in the step the rank is."
    )
    evidence = evidence_of(job, [*job.stands.values()])
    return Hang(
        HangKind.BUFFER, text, evidence,
        f"Run again with TORCH_FR_BUFFER_SIZE={size} (TORCH_NCCL_TRACE_BUFFER_SIZE before "
        "PyTorch 2.9), which keeps two steps.", stand,
    )  # fmt: skip


def deadlock_of(job: HangJob) -> Hang | None:
    """Find a deadlock of the schedule that the ranks stand in."""
    standing = {
        text for stand in job.stands.values() for text in _standing(job, stand)
    }  # fmt: skip
    if not standing:
        return None
    if job.roots and not any(stand.may_wait for stand, _ in job.roots):
        return None
    modes = MODES_TRIED if job.mode is None else (job.mode,)
    for mode in modes:
        report = check(job.schedule, p2p_mode=mode)
        for problem in report.problems:
            if problem.code != "deadlock" or not standing & set(problem.actions):
                continue
            stands = [stand for stand in job.stands.values() if not stand.copy]
            ranks = [stand for stand in stands if _standing(job, stand) & set(problem.actions)]
            meeting = MODE[mode].meeting or "in every p2p mode"
            return Hang(
                HangKind.DEADLOCK,
                f"{job.schedule.name} deadlocks {meeting} ({mode}): "
                f"{problem.message.removeprefix('a deadlock: ')}.",
                evidence_of(job, ranks),
                problem.fix[:1].upper() + problem.fix[1:] + "." if problem.fix else "",
                ranks[0] if ranks else None, tuple(ranks[1:]), mode,
            )  # fmt: skip
    return None


def _standing(job: HangJob, stand: Stand) -> set[str]:
    """Return the actions that a rank may stand at."""
    found = {stand.action} if stand.action else set()
    if stand.message is not None:
        found |= {job.message(*stand.message), job.message(*stand.message, received=True)}
    trail = job.trails[stand.copy].get(stand.rank)
    if trail is not None:
        for sends, pair, number in trail.incomplete():
            if job.order.count(pair):
                found.add(job.message(pair, number, received=not sends))
    return found


def crossed_queues(job: HangJob) -> Hang | None:
    """Find two ranks whose queues with each other begin with different messages.

    Both messages are posted at both ends. On a queue for both directions, as NCCL has for each two
    ranks, each is behind the other.
    """
    for copy, trails in enumerate(job.trails):
        heads: dict[Pair, tuple[Pair, int]] = {}
        for trail in trails.values():
            for _, pair, number in trail.incomplete():
                there = pair[0] if pair[1] == trail.rank else pair[1]
                heads.setdefault((trail.rank, there), (pair, number))
        for (here, there), mine in heads.items():
            theirs = heads.get((there, here), mine)
            links = [(job.links[copy].get(pair), number) for pair, number in (mine, theirs)]
            if mine == theirs or any(
                link is None or number >= min(link.sent, link.received) for link, number in links
            ):
                continue
            ranks = job.places.ranks[copy]
            stand, other = job.stands[ranks[here]], job.stands[ranks[there]]
            text = (
                f"{job.message(*mine)} and {job.message(*theirs)} wait for each other: "
                f"{name_of(job, stand)} posted them in this order and {name_of(job, other)} in the "
                "other, on one queue for both directions (pair), as NCCL has."
            )
            return Hang(
                HangKind.DEADLOCK, text, evidence_of(job, (stand, other)),
                "Post both in one batch (batch_isend_irecv), or receive where 'debubble export "
                "--to torch-csv-comms --p2p-mode pair' does.",
                stand, (other, *(one for one in waiters(job, stand) if one != other)),
                "pair",
            )  # fmt: skip
    return None


def in_flight(job: HangJob) -> Hang | None:
    """Find a message that both ends have posted and that is not over."""
    for stand in job.stands.values():
        if stand.message is None or stand.waits:
            continue
        pair, number = stand.message
        link = job.links[stand.copy][pair]
        if number < link.sent and number < link.received:
            other = job.stands[job.places.ranks[stand.copy][pair[0]]]
            names = f"from {name_of(job, other)} to {name_of(job, stand)}"
            text = f"{job.message(pair, number)} {names} is posted at both ends and does not end."
            return Hang(
                HangKind.LINK, text, evidence_of(job, (stand, other)),
                "Look at the route between their hosts: NCCL_DEBUG=INFO names the interface, and "
                "ibstat or dmesg show its state. An earlier transfer in its queue may hold it up.",
                stand, waiters(job, stand),
            )  # fmt: skip
    return None


def joined_call(job: HangJob) -> Hang | None:
    """Find a collective that all its ranks have joined and that is not over."""
    for stand in job.stands.values():
        if stand.kind is StandKind.CALLING and not stand.waits and stand.call is not None:
            call = stand.call
            ranks = listed(call.group[1])
            text = f"{call.name} {call.number} of ranks {ranks} does not end, and all joined it."
            return Hang(
                HangKind.COLLECTIVE, text, evidence_of(job, (stand,)),
                "torchfrtrace compares what each rank passed to it.", stand,
                waiters(job, stand),
            )  # fmt: skip
    return None


def nothing(job: HangJob) -> Hang:
    """Return the answer that all is over."""
    messages = sum(len(dump.sends) for dump in job.dumps.values())
    text = (
        f"nothing waits: all {messages:,} messages and all collectives of "
        f"{counted(len(job.dumps), 'rank')} are over."
    )
    return Hang(HangKind.NONE, text, (), "If the job hangs, the cause is outside of its messages: "
                "look at input data, checkpoints and the hosts' processes.")  # fmt: skip


def _round_up(size: float) -> int:
    """Return the next power of two of a size, at least PyTorch's own 2,000 entries."""
    return max(2000, 1 << (int(size) - 1).bit_length())
