"""The rank that a job waits for: it waits for none itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from debubble.diagnosis.hang.answer import Hang, HangKind, listed
from debubble.diagnosis.hang.dumps import Call
from debubble.diagnosis.hang.job import (
    HangJob,
    evidence_of,
    name_of,
    one_of,
    reached,
    stands_text,
    waiters,
    waiting_text,
)
from debubble.diagnosis.hang.order_messages import Pair
from debubble.diagnosis.hang.progress import Stand, StandKind
from debubble.diagnosis.hang.reasons import orders
from debubble.diagnosis.hang.trails import POLICIES
from debubble.lowering.transfers import TransferPolicy


def _is_in_doubt(job: HangJob, stand: Stand) -> bool:
    """Return whether a rank without a dump may itself wait for another that does not go on."""

    def following(one: Stand) -> Sequence[int]:
        # In a batch a receive that is over stands with a send that is not.
        return _unseen_waits(job, stand) if one is stand else (*one.waits, *one.may_wait)

    return stand.dump is None and any(one.is_free for one in reached(job, stand, following))


def _unseen_waits(job: HangJob, stand: Stand) -> list[int]:
    """Return the ranks that one without a dump may wait for, by what the others recorded."""
    ranks, links = job.places.ranks[stand.copy], job.links[stand.copy]
    if stand.message is not None:
        pair, number = stand.message
        sender = ranks[pair[0]]
        came = links[pair].sent > number and job.stands[sender].dump is not None
        return [] if came else [sender]
    mine = {pair: link for pair, link in links.items() if stand.rank in pair}
    if stand.kind is StandKind.COMPUTING:
        # It may stand in the send of what it computed, if sends block.
        return [
            ranks[pair[1]] for pair, link in mine.items() if pair[0] == stand.rank
            and (link.received <= link.sent or job.stands[ranks[pair[1]]].may_wait)
        ]  # fmt: skip
    return [ranks[rank] for pair in mine for rank in pair if rank != stand.rank]


def blocked_sends(job: HangJob) -> Hang | None:
    """Find ranks that each send to the other, and neither receives: their sends block."""
    free = {stand.global_rank: stand for stand, _ in job.roots if stand.may_wait}
    for here, stand in free.items():
        for there in stand.may_wait:
            other = free.get(there)
            if other is None or here not in other.may_wait:
                continue
            sent = [_unreceived(job, one, far) for one, far in ((stand, other), (other, stand))]
            text = (
                f"{name_of(job, stand)} sends {sent[0]} to {name_of(job, other)}, which sends "
                f"{sent[1]} to it, and neither receives: their sends wait for each other."
            )
            waiting = tuple(one for one in waiters(job, stand) if one is not other)
            return Hang(
                HangKind.DEADLOCK, text, evidence_of(job, (stand, other)),
                "Post sends together with the receives of the next action (batch_isend_irecv), or "
                "let every second rank receive first.", stand, (other, *waiting), "blocking",
            )  # fmt: skip
    return None


def _unreceived(job: HangJob, stand: Stand, other: Stand) -> str:
    """Return the first message of a rank that another has not posted a receive for."""
    pair = (stand.rank, other.rank)
    return job.message(pair, job.links[stand.copy][pair].received)


def stuck_rank(job: HangJob) -> Hang | None:
    """Find a rank that does not go on."""
    if not job.roots:
        return None
    stand, waiting = job.roots[0]
    other = waits_early(job, stand)
    if other is not None:
        return other
    call = _not_joined(job, stand)
    text = f"{name_of(job, stand)} {_what(stand, call)}; {waiting_text(job, waiting)}."
    if _is_in_doubt(job, stand):
        text = (
            f"the job waits for {name_of(job, stand)}, or for one that it waits for: no dump of "
            f"it; {waiting_text(job, waiting)}."
        )
    evidence = [*evidence_of(job, (stand, *waiting))]
    ahead = _posted_ahead(job, stand)
    if ahead:
        evidence.insert(1, ahead)
    more = [f"{name_of(job, one)} waits for nothing either" for one, _ in job.roots[1:3]
            if one.kind is not StandKind.DONE and one.is_proven]  # fmt: skip
    host = f" on {stand.dump.host}" if stand.dump is not None and stand.dump.host else ""
    advice = (
        f"Look whether process {stand.global_rank} died: its log, and dmesg of its host."
        if stand.dump is None
        else f"Look at process {stand.global_rank}{host}: 'py-spy dump --pid PID' shows its stack."
    )
    if call is not None:
        stand = replace(stand, action="", step=max(stand.step - 1, 0))
    return Hang(HangKind.RANK, text, tuple(evidence + more), advice, stand, waiting)


def _what(stand: Stand, call: Call | None) -> str:
    """Return what a rank did not do."""
    if call is not None:
        before = f"stands in {one_of(stand.maybe)}, or " if stand.maybe else ""
        what = f"{before}did not join {call.name} of ranks {listed(call.group[1])}"
        return f"{what} after step {stand.step}" if stand.step else what
    if stand.dump is None:
        verb = "finished" if stand.kind is StandKind.COMPUTING else "began"
        return f"wrote no dump and never {verb} {stand.action}"
    if stand.kind is StandKind.COMPUTING:
        if stand.maybe:
            return f"stands in {one_of((*stand.maybe, stand.action))}"
        return f"never finished {stand.action}, whose inputs it has"
    if stand.maybe:
        return f"stands in {one_of(stand.maybe)}, or before {stand.action}"
    return f"never began {stand.action}"


def _not_joined(job: HangJob, stand: Stand) -> Call | None:
    """Return the collective in which others wait for a rank between two steps, if there is one."""
    direct = [job.stands[rank] for rank in job.followers.get(stand.global_rank, ())]
    calls = [one.call for one in direct if one.call and stand.global_rank in one.waits]
    idle = stand.kind is StandKind.DONE or (not stand.last and len(calls) == len(direct))
    return calls[0] if calls and idle and stand.dump is not None else None


def waits_early(job: HangJob, stand: Stand) -> Hang | None:
    """Find that a rank waits for a message which the schedule has later, and so runs another.

    It has posted that receive and not one for its next action, as no way to place receives does.
    """
    trail = job.trails[stand.copy].get(stand.rank)
    if trail is None or stand.message is None or stand.kind is not StandKind.ABSENT:
        return None
    links, ranks = job.links[stand.copy], job.places.ranks[stand.copy]
    pair, number = stand.message
    for sends, early, later in trail.incomplete():
        if sends or links[early].sent > later:
            continue
        if ranks[early[0]] not in {one.global_rank for one in waiters(job, stand)}:
            continue
        if any(_posts_first(job, policy, (early, later), (pair, number))
               for policy in POLICIES):  # fmt: skip
            continue
        wanted = job.message(early, later, received=True)
        text = f"{name_of(job, stand)} waits at {wanted}, which {job.schedule.name} has after "
        text += stand.action
        return orders(job, stand, text, evidence_of(job, (stand, *waiters(job, stand))))
    return None


def _posted_ahead(job: HangJob, stand: Stand) -> str:
    """Return a line about a receive that a rank which computes has posted for a later action."""
    trail = job.trails[stand.copy].get(stand.rank)
    if trail is None or stand.kind is not StandKind.COMPUTING:
        return ""
    for sends, pair, number in trail.incomplete():
        if not sends and job.order.count(pair) and job.links[stand.copy][pair].sent <= number:
            later = job.message(pair, number, received=True)
            return (
                f"it has posted {later}, too, which the schedule has later: if it waits there, it "
                "runs another schedule"
            )
    return ""


def _posts_first(
    job: HangJob, policy: TransferPolicy, early: tuple[Pair, int], late: tuple[Pair, int]
) -> bool:
    """Return whether a policy posts one receive before another."""
    order = job.order.under(policy)
    places = []
    for pair, number in (early, late):
        step, place = divmod(number, order.count(pair))
        places.append((step, int(order.pairs[pair].receive[place])))
    return places[0] < places[1]


def circle(job: HangJob) -> Hang | None:
    """Find ranks that wait for each other although the schedule does not."""
    first = next((stand for stand in job.stands.values() if stand.waits), None)
    if first is None:
        return None
    seen: list[int] = []
    here = first.global_rank
    while here not in seen:
        seen.append(here)
        here = job.stands[here].waits[0] if job.stands[here].waits else here
    ring = [job.stands[rank] for rank in seen[seen.index(here) :]]
    # A collective in the middle of a step is what the others do not have there.
    odd = next((one for one in ring if one.kind is StandKind.CALLING), ring[0])
    ranks = listed([one.global_rank for one in ring])
    text = (
        f"ranks {ranks} wait for each other, as they never do in {job.schedule.name}, and "
        f"{name_of(job, odd)} {stands_text(job, odd)}"
    )
    return orders(job, odd, text, evidence_of(job, ring))
