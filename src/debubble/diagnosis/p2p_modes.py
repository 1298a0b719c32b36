"""P2p modes that a run may have: when a message begins, and who waits until it is over.

In every mode a message begins when it is made and its receive is posted. The modes differ in the
action after which the receive is posted, in the actions that wait until the message is over, and in
the messages that have to be over before. Modes of the simulator have the sends and receives that
it would insert; the others are those of runtimes:

* ``"rendezvous"``: a receive is posted when its rank is free for the action that needs it. Nothing
  else waits (gloo, and NCCL with a communicator for each message).
* ``"joined"`` and ``"sends"``: a rank goes on when its send is over, if it posts a receive from the
  target together with it, or always. It posts any other receive after that.
* ``"turns"``: forwards and backwards take turns of their own. The receive of a forward is posted
  after the previous forward of its rank, and the next forward of the sender waits until the message
  is over; likewise for backwards (interleaved 1F1B of Megatron-LM with overlapped p2p).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from debubble.core.actions import group_bounds, kinds_of, microbatches_of, stages_of
from debubble.core.errors import ScheduleError
from debubble.core.kinds import FORWARD_KINDS, GRADIENT_KINDS, SEND_KINDS, TRANSFER_KINDS
from debubble.core.schedule import Schedule
from debubble.diagnosis.observed import Indices
from debubble.diagnosis.run import links_of, sources_of
from debubble.engine.modes import MODE, ModeSpec, P2PMode
from debubble.engine.transfers import insert_transfers


@dataclass(frozen=True, eq=False)
class MessageRules:
    """Constraints on the messages of a schedule, by the action that receives each.

    All are indices of actions of the schedule, −1 for none, shape ``(actions,)``.
    """

    source: Indices
    """Action that makes the message."""
    posted: Indices
    """Action of the receiver after which the receive is posted; none if it always is."""
    held: Indices
    """Action of the sender that waits until the message is over."""
    taken: Indices
    """Action of the receiver, before the one that needs it, that waits until it is over."""
    ahead: tuple[Indices, ...] = ()
    """Receivers of the messages that are before it in the queues of its two ranks."""

    def placed(self, column: Indices) -> MessageRules:
        """Return the rules with action `i` at ``column[i]``."""

        def moved(values: Indices) -> Indices:
            found = np.full_like(values, -1)
            found[column] = np.where(values >= 0, column[values], -1)
            return found

        return MessageRules(
            moved(self.source), moved(self.posted), moved(self.held), moved(self.taken),
            tuple(map(moved, self.ahead)),
        )  # fmt: skip


@dataclass(frozen=True)
class FittedMode:
    """A row of the table of modes."""

    name: str
    title: str
    rules: Callable[[Schedule], MessageRules]
    """Function that returns the rules of a schedule's messages; it raises a ScheduleError if
    the schedule cannot run in the mode."""
    buffered: frozenset[int] = frozenset()
    """Links, source · ranks + target, on which receives are always posted."""
    queued: bool = False
    """True if messages wait for others in queues."""
    holds_up: bool = False
    """True if a rank waits for messages that it does not need yet."""

    @property
    def key(self) -> tuple[object, ...]:
        """Key of all that depends on the mode."""
        return self.name, self.buffered


def _free(schedule: Schedule) -> MessageRules:
    source = sources_of(schedule)
    none = np.full_like(source, -1)
    return MessageRules(source, none, none, none)


def _previous(schedule: Schedule) -> Indices:
    """Return the action before each action's group on its rank, −1 if there is none."""
    first, _ = group_bounds(schedule.actions)
    opening = np.isin(first, schedule.offsets[:-1])
    return np.where(opening, -1, first - 1)


def rendezvous(buffered: frozenset[int] = frozenset()) -> FittedMode:
    """Return the mode in which a message needs its receiver, except on some links."""

    def rules(schedule: Schedule) -> MessageRules:
        free = _free(schedule)
        meets = (free.source >= 0) & ~np.isin(links_of(schedule), list(buffered))
        posted = np.where(meets, _previous(schedule), -1)
        return MessageRules(free.source, posted, free.held, free.taken)

    title = "a transfer begins when its receiver is free to take it"
    return FittedMode("rendezvous", title, rules, buffered)


def _standing(always: bool) -> Callable[[Schedule], MessageRules]:
    """Return the rules of sends that a rank waits for before it goes on.

    A receive from the rank that a send goes to is posted together with it. Unless `always`, only
    such sends hold up their rank.
    """

    def rules(schedule: Schedule) -> MessageRules:
        meeting = rendezvous().rules(schedule)
        source, rank = meeting.source, schedule.ranks_of_actions
        far = source >= 0
        _, behind = group_bounds(schedule.actions)
        following = behind[source]
        ends = schedule.offsets[rank[source] + 1]
        after = np.where(far & (following < ends), following, -1)
        giver = np.where(far, rank[source], -1)
        first, last = after, behind[after] - 1
        joined = (after >= 0) & ((giver[first] == rank) | (giver[last] == rank))
        held = np.where(joined | always, after, -1)
        taker = np.full(len(schedule), -1)
        taker[source[far]] = np.flatnonzero(far)
        # What the rank sent before it posts the receive has to be over, too.
        sent = np.where(meeting.posted >= 0, taker[meeting.posted], -1)
        apart = (sent >= 0) & (rank[sent] != giver)
        ahead = (np.where(apart, sent, -1),) if always else ()
        return MessageRules(source, meeting.posted, held, meeting.taken, ahead)

    return rules


def _turns(schedule: Schedule) -> MessageRules:
    source = sources_of(schedule)
    kinds = kinds_of(schedule.actions)
    rank = schedule.ranks_of_actions
    before, after = np.full((2, len(schedule)), -1)
    for sort in (FORWARD_KINDS, GRADIENT_KINDS):
        mine = np.flatnonzero(np.isin(kinds, sort))
        same = rank[mine[1:]] == rank[mine[:-1]]
        before[mine[1:][same]] = mine[:-1][same]
        after[mine[:-1][same]] = mine[1:][same]
    far = source >= 0
    held = np.where(far, after[source], -1)
    return MessageRules(source, np.where(far, before, -1), held, np.full_like(source, -1))


def _inserted(spec: ModeSpec) -> Callable[[Schedule], MessageRules]:
    """Return the rules of a mode with sends and receives as the simulator inserts them."""

    def rules(schedule: Schedule) -> MessageRules:
        assert spec.receives is not None
        lowered = insert_transfers(replace(schedule, carries=()), spec.receives, explain=False)
        kinds = kinds_of(lowered.actions)
        transfers = np.flatnonzero(np.isin(kinds, TRANSFER_KINDS))
        given = ~np.isin(kinds, TRANSFER_KINDS)
        before = np.cumsum(given)[transfers] - 1  # the given action before, of any rank
        rank = np.searchsorted(lowered.offsets, transfers, side="right") - 1
        sends = np.isin(kinds[transfers], SEND_KINDS)
        forward = np.isin(kinds[transfers], FORWARD_KINDS)
        at = _found(schedule, forward, lowered.actions[transfers])
        source, taker = sources_of(schedule), np.full(len(schedule), -1)
        taker[source[source >= 0]] = np.flatnonzero(source >= 0)
        message = np.where(sends, taker[at], at)
        none = np.full(len(schedule), -1)
        posted, held, taken = none.copy(), none.copy(), none.copy()
        lowest = schedule.offsets[rank]
        posted[message[~sends]] = np.where(before >= lowest, before, -1)[~sends]
        if spec.blocks:
            behind = before + 1
            behind = np.where(behind < schedule.offsets[rank + 1], behind, -1)
            held[message[sends]], taken[message[~sends]] = behind[sends], behind[~sends]
            first, _ = group_bounds(schedule.actions)
            taken[first[taken] == first] = -1  # it needs the message itself
            # Messages of one link go one by one if both their ends are posted together.
            before_it = none.copy()
            sent, link = message[sends], links_of(schedule)[message[sends]]
            for each in np.unique(link).tolist():
                mine = sent[link == each]
                together = (held[mine[1:]] == held[mine[:-1]]) & (
                    posted[mine[1:]] == posted[mine[:-1]]
                )
                together &= taken[mine[1:]] == taken[mine[:-1]]
                before_it[mine[1:][together]] = mine[:-1][together]
            return MessageRules(source, posted, held, taken, (before_it,))
        peer = np.where(
            sends, schedule.ranks_of_actions[message], schedule.ranks_of_actions[source[message]]
        )
        queue = rank * (schedule.ranks * 2)
        queue = queue + peer * 2 * spec.by_peer + sends * spec.by_direction
        ahead = none.copy(), none.copy()
        for each in np.unique(queue).tolist():
            mine = np.flatnonzero(queue == each)
            for one, other in zip(mine[:-1].tolist(), mine[1:].tolist(), strict=True):
                ahead[int(sends[other])][message[other]] = message[one]
        return MessageRules(source, posted, held, taken, ahead)

    return rules


def _found(schedule: Schedule, forward: np.ndarray, transfers: np.ndarray) -> Indices:
    """Return the action of the schedule that each of some transfers is of."""
    units = schedule.units

    def keys(forward: np.ndarray, actions: np.ndarray) -> Indices:
        cell = stages_of(actions) * units + microbatches_of(actions)
        return np.asarray(2 * cell + forward)

    kinds = kinds_of(schedule.actions)
    gives = np.flatnonzero(np.isin(kinds, (*FORWARD_KINDS, *GRADIENT_KINDS)))
    mine = keys(np.isin(kinds[gives], FORWARD_KINDS), schedule.actions[gives])
    sort = np.argsort(mine)
    spot = np.searchsorted(mine, keys(forward, transfers), sorter=sort)
    return np.asarray(gives[sort[spot]])


def _of_simulator(name: P2PMode) -> FittedMode:
    spec = MODE[name]
    return FittedMode(name, spec.title, _inserted(spec), queued=spec.queued,
                      holds_up=spec.blocks or spec.queued)  # fmt: skip


FITTED_MODES = (
    FittedMode("overlapped", MODE["overlapped"].title, _free),
    _of_simulator("blocking"),
    _of_simulator("pair"),
    _of_simulator("group"),
    _of_simulator("directed"),
    FittedMode(
        "joined", "a send that is posted together with a receive from its target holds up its rank "
        "until it is over, as in PyTorch's 1F1B", _standing(always=False), holds_up=True,
    ),
    FittedMode(
        "sends", "a rank goes on when its send is over, as in Megatron-LM without overlapped p2p",
        _standing(always=True), holds_up=True,
    ),
    FittedMode(
        "turns",
        "a send holds up the next action of its direction until the receiver is done with the one "
        "before, as in Megatron-LM's interleaved 1F1B with overlapped p2p", _turns, holds_up=True,
    ),
)  # fmt: skip
"""Modes in the sequence in which they are tried, rendezvous after the first; a later one has to fit
clearly better."""

OVERLAPPED = FITTED_MODES[0]


def rules_of(mode: FittedMode, schedule: Schedule) -> MessageRules | None:
    """Return the rules of a schedule's messages in a mode; None if it cannot run in the mode."""
    key = (MessageRules, *mode.key)
    if key not in schedule.derived:
        try:
            schedule.derived[key] = mode.rules(schedule)
        except ScheduleError:
            schedule.derived[key] = None
    found: MessageRules | None = schedule.derived[key]
    return found
