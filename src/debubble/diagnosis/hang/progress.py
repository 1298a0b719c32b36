"""Progress of every rank in its program, and the messages it waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from debubble.diagnosis.hang.dumps import Call, Dump
from debubble.diagnosis.hang.order_messages import OrderMessages, Pair
from debubble.diagnosis.hang.pipelines import JobPlaces
from debubble.diagnosis.hang.trails import Trail


class PairMessages(NamedTuple):
    """Messages of a pair, counted over all steps."""

    sent: int
    """Posted by the sender."""
    received: int
    """Posted by the receiver."""
    done: int
    """Over, by what either end recorded."""


class StandKind(Enum):
    """State of a rank at the end of its dump."""

    WAITING = "waiting"
    """It has posted a receive, and nothing came."""
    COMPUTING = "computing"
    """It has all inputs of an action, and its result was not sent."""
    ABSENT = "absent"
    """It has not posted the receive of its next action, and nothing it posted holds it up."""
    DONE = "done"
    """It has run all actions of a step."""
    CALLING = "calling"
    """It waits in a collective."""


@dataclass(frozen=True)
class Stand:
    """Place of a rank in its program, and the ranks it waits for."""

    rank: int
    """Rank of the schedule."""
    copy: int
    global_rank: int
    dump: Dump | None
    """None where it wrote none."""
    kind: StandKind
    step: int
    """The step of `action`, from 0."""
    action: str
    """The first action that it has certainly not done: the first of the next step at the end of
    one."""
    maybe: tuple[str, ...] = ()
    """Actions before that one which leave no message, so that it may be in one of these."""
    message: tuple[Pair, int] | None = None
    """The message that `action` needs and has not got."""
    call: Call | None = None
    """The collective that it waits in."""
    last: str = ""
    """Its last send."""
    waits: tuple[int, ...] = ()
    """Global ranks it waits for."""
    may_wait: tuple[int, ...] = ()
    """Global ranks that have not posted the receives of what it sent: it waits for these if its
    sends block."""

    @property
    def is_free(self) -> bool:
        """True if it waits for nothing that it has posted a receive for, or a collective."""
        return not self.waits and self.kind not in (StandKind.WAITING, StandKind.CALLING)

    @property
    def is_proven(self) -> bool:
        """True if its own dump shows that it waits for none, whatever its sends do."""
        return self.dump is not None and not self.may_wait


def links_of(trails: Mapping[int, Trail], order: OrderMessages) -> dict[Pair, PairMessages]:
    """Return the messages of every pair of one pipeline.

    What a rank without a dump posted is what its peers got of it, and what it needed for that.
    Where neither end recorded when messages were over, those are that both have posted.
    """
    found: dict[Pair, PairMessages] = {}
    for pair in order.pairs:
        ends = [trails.get(rank) for rank in pair]
        counts = [
            None if trail is None else trail.counts.get(pair, (trail.base.get(pair, 0),) * 2)
            for trail in ends
        ]
        done = max((count[1] for count in counts if count is not None), default=0)
        posted = [done if count is None else count[0] for count in counts]
        if all(trail is None or trail.stateless for trail in ends) and None not in ends:
            done = max(done, min(posted))
        found[pair] = PairMessages(posted[0], posted[1], done)
    _add_needed(found, trails, order)
    return found


def _add_needed(
    links: dict[Pair, PairMessages], trails: Mapping[int, Trail], order: OrderMessages
) -> None:
    """Add what ranks without a dump received and sent up to the last result that a peer got."""
    todo = [rank for rank in range(order.lowered.ranks) if rank not in trails]
    for rank in todo:
        task = RankWalk(order, links, rank).frontier()
        if task < 0:
            continue
        step, here = divmod(task, int(order.tasks[rank]))
        for pair in order.pairs_of(rank):
            positions = order.pairs[pair]
            ends = positions.maker if pair[0] == rank else positions.user
            least = step * order.count(pair) + int((order.task[ends] <= here).sum())
            link = links[pair]
            if pair[0] == rank:
                links[pair] = link._replace(sent=max(link.sent, least))
            elif least > link.done:
                sent, received = max(link.sent, least), max(link.received, least)
                links[pair] = PairMessages(sent, received, least)
                todo += [pair[0]] if pair[0] not in trails else []


@dataclass(frozen=True, eq=False)
class RankWalk:
    """The walk of one rank through its program, over all steps."""

    order: OrderMessages
    links: Mapping[Pair, PairMessages]
    rank: int

    def frontier(self) -> int:
        """Return the last task, over all steps, whose result was sent; −1 for none."""
        tasks, last = int(self.order.tasks[self.rank]), -1
        for pair, link in self.links.items():
            if pair[0] == self.rank and link.sent:
                step, number = divmod(link.sent - 1, self.order.count(pair))
                task = int(self.order.task[self.order.pairs[pair].maker[number]])
                last = max(last, step * tasks + task)
        return last

    def stop(self) -> tuple[int, tuple[Pair, int] | None, bool, list[int]]:
        """Return the first task that is certainly not done, and why.

        The message it lacks, if any; whether its receive is posted; and the tasks between the last
        that sent something and it. At the end of a step the task is the first of the next one.
        """
        tasks = max(int(self.order.tasks[self.rank]), 1)
        takes, gives = self.order.takes[self.rank], self.order.gives[self.rank]
        task = max(self.frontier() + 1, self._received())
        between: list[int] = []
        while True:
            step, here = divmod(task, tasks)
            if not here and task:
                if not self._began(step):
                    return task, None, True, between
                between = []
            for need in takes.get(here, ()):
                number = step * self.order.count(need.pair) + need.number
                link = self.links[need.pair]
                if number >= link.done:
                    return task, (need.pair, number), number < link.received, between
            if here in gives:
                return task, None, False, between
            between.append(here)
            task += 1

    def _began(self, step: int) -> bool:
        """Return whether the rank posted anything of a step."""
        return any(
            (link.sent if pair[0] == self.rank else link.received) > step * self.order.count(pair)
            for pair, link in self.links.items() if self.rank in pair
        )  # fmt: skip

    def _received(self) -> int:
        """Return the first task of the last step in which the rank has posted a receive."""
        tasks, steps = int(self.order.tasks[self.rank]), 0
        for pair, link in self.links.items():
            if pair[1] == self.rank and link.received:
                steps = max(steps, (link.received - 1) // self.order.count(pair))
        return steps * tasks


def stands_of(
    trails: Mapping[int, Trail], order: OrderMessages, places: JobPlaces, copy: int,
    dumps: Mapping[int, Dump],
) -> tuple[list[Stand], dict[Pair, PairMessages]]:  # fmt: skip
    """Return where every rank of one pipeline stands, and the messages of its pairs."""
    links = links_of(trails, order)
    ranks = places.ranks[copy]
    found = []
    for rank, global_rank in enumerate(ranks):
        dump = dumps.get(global_rank)
        walk = RankWalk(order, links, rank)
        task, message, posted, between = walk.stop()
        step, here = divmod(task, max(int(order.tasks[rank]), 1))
        names = order.first_of_task[rank]
        action = _action(order, rank, here, message)
        if dump is not None and dump.busy and dump.action:
            # Our own runtime says what it computes; its receives are over when they are used.
            action, message, posted, between = dump.action, None, False, []
        kind = StandKind.ABSENT
        waits: tuple[int, ...] = ()
        if message is None:
            kind = StandKind.DONE if posted else StandKind.COMPUTING
        elif posted:
            kind = StandKind.WAITING
            pair, number = message
            if links[pair].sent <= number:
                waits = (ranks[pair[0]],)
        may_wait = tuple(
            ranks[pair[1]] for pair, link in links.items()
            if dump is not None and pair[0] == rank and link.sent > max(link.received, link.done)
        )  # fmt: skip
        frontier = walk.frontier()
        last = ""
        if frontier >= 0:
            last = order.text(int(names[frontier % int(order.tasks[rank])]))
        stand = Stand(
            rank, copy, global_rank, dump, kind, step, action,
            tuple(order.text(int(names[silent])) for silent in between), message,
            None, last, waits, may_wait,
        )  # fmt: skip
        found.append(stand)
    return found, links


def _action(
    order: OrderMessages, rank: int, task: int, message: tuple[Pair, int] | None
) -> str:  # fmt: skip
    """Return the action of a task: of a group the one that the message is for, or sends."""
    if message is not None:
        pair, number = message
        return order.text(int(order.pairs[pair].user[number % order.count(pair)]))
    for need in order.gives[rank].get(task, ()):
        return order.text(int(order.pairs[need.pair].maker[need.number]))
    return order.text(int(order.first_of_task[rank][task]))


def calls_waited_in(dumps: Sequence[Dump]) -> dict[int, list[tuple[Call, tuple[int, ...]]]]:
    """Return the collectives that ranks wait in, with the members that have not joined, by rank."""
    joined = {dump.rank: dump.joined for dump in dumps}
    found: dict[int, list[tuple[Call, tuple[int, ...]]]] = {}
    for dump in dumps:
        for call in dump.calls:
            absent = tuple(
                rank for rank in call.group[1]
                if joined.get(rank, {}).get(call.group, 0) < call.number
            )  # fmt: skip
            found.setdefault(dump.rank, []).append((call, absent))
    return found
