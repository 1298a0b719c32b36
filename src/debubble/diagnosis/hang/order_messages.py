"""Messages of a schedule: which action makes each, and which waits for it, by directed pair."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import SHARDING_KINDS, among, computes, group_bounds, kinds_of
from debubble.core.kinds import KINDS, TRANSFER_KINDS
from debubble.core.schedule import Schedule
from debubble.core.waits import waits_for
from debubble.engine.transfers import first_transfer, without
from debubble.lowering.transfers import TransferPolicy, add_transfers

Numbers = NDArray[np.int64]
Pair = tuple[int, int]
"""Sending and receiving rank of the schedule."""

_SENDS = tuple(spec.kind for spec in KINDS if spec.sends)
_RECEIVES = tuple(spec.kind for spec in KINDS if spec.receives)


class TaskMessage(NamedTuple):
    """A message that a task waits for, or makes."""

    task: int
    pair: Pair
    number: int
    """Its number among the messages of the pair in one step."""


class PairPositions(NamedTuple):
    """Positions of actions by the messages of a pair, in the order of their sends."""

    send: Numbers
    receive: Numbers
    maker: Numbers
    """Positions of the actions that make the messages."""
    user: Numbers
    """Positions of the actions that wait for them."""


@dataclass(frozen=True, eq=False)
class OrderMessages:
    """The messages of one step of a schedule.

    A *task* is a computation, or a group of overlapped ones: it begins when all its messages are
    there, and sends what it made at its end. Tasks are numbered on every rank from 0.
    """

    lowered: Schedule
    """The schedule with transfers; positions are those of its actions."""
    pairs: Mapping[Pair, PairPositions]
    """Positions of the messages of every pair that has some."""
    task: Numbers
    """Number of the task of every position; of the task before it for what does not compute."""

    @classmethod
    def of(cls, schedule: Schedule) -> OrderMessages:
        """Find the messages of a schedule, by the table of kinds; it can run."""
        aside = among(kinds_of(schedule.actions), SHARDING_KINDS)
        lowered = without(schedule, aside) if aside.any() else schedule
        if first_transfer(lowered) is None:
            lowered = add_transfers(lowered, policy="just-in-time")
        kinds, home = kinds_of(lowered.actions), lowered.ranks_of_actions
        waits = waits_for(lowered)
        consumer, producer = waits.consumer, waits.producer
        of_receive = among(kinds[consumer], _RECEIVES) & among(kinds[producer], _SENDS)
        receive, send = consumer[of_receive], producer[of_receive]
        maker, user = np.full((2, len(kinds)), -1, dtype=np.int64)
        made = among(kinds[consumer], _SENDS)
        maker[consumer[made]] = producer[made]
        used = among(kinds[producer], _RECEIVES)
        # The first use counts: a recompute takes the gradient before its backward does.
        maker_of_use, first = np.unique(producer[used], return_index=True)
        user[maker_of_use] = consumer[used][first]
        order = np.argsort(send, kind="stable")
        send, receive = send[order], receive[order]
        keys = home[send] * lowered.ranks + home[receive]
        columns = np.stack([send, receive, maker[send], user[receive]])
        pairs = {
            divmod(key, lowered.ranks): PairPositions(*columns[:, keys == key])
            for key in np.unique(keys).tolist()
        }
        return cls(lowered, pairs, _tasks(lowered))

    @cached_property
    def tasks(self) -> Numbers:
        """Number of tasks of every rank; shape ``(ranks,)``."""
        ends = self.lowered.offsets[1:]
        return self.task[ends - 1] + 1 if len(self.task) else np.zeros(len(ends), dtype=np.int64)

    @cached_property
    def first_of_task(self) -> list[Numbers]:
        """Position of the first action of every task, by rank."""
        begins = np.flatnonzero(_begins(self.lowered))
        return np.split(begins, np.searchsorted(begins, self.lowered.offsets[1:-1]))

    def count(self, pair: Pair) -> int:
        """Return the number of messages of a pair in one step."""
        return len(self.pairs[pair].send) if pair in self.pairs else 0

    def pairs_of(self, rank: int) -> list[Pair]:
        """Return the pairs that a rank is in, what it sends first."""
        return [pair for side in (0, 1) for pair in self.pairs if pair[side] == rank]

    @cached_property
    def takes(self) -> list[dict[int, list[TaskMessage]]]:
        """Messages that each task waits for, by rank and task."""
        return self._by_task("user", 1)

    @cached_property
    def gives(self) -> list[dict[int, list[TaskMessage]]]:
        """Messages that each task makes, by rank and task."""
        return self._by_task("maker", 0)

    def _by_task(self, end: str, side: int) -> list[dict[int, list[TaskMessage]]]:
        found: list[dict[int, list[TaskMessage]]] = [{} for _ in range(self.lowered.ranks)]
        for pair, positions in self.pairs.items():
            for number, task in enumerate(self.task[getattr(positions, end)].tolist()):
                found[pair[side]].setdefault(task, []).append(TaskMessage(task, pair, number))
        return found

    @cached_property
    def transfers(self) -> list[list[tuple[bool, Pair]]]:
        """Return (is a send, pair) of the transfers of every rank's program, in order."""
        found: dict[int, tuple[bool, Pair]] = {}
        for pair, positions in self.pairs.items():
            found |= dict.fromkeys(positions.send.tolist(), (True, pair))
            found |= dict.fromkeys(positions.receive.tolist(), (False, pair))
        rows: list[list[tuple[bool, Pair]]] = [[] for _ in range(self.lowered.ranks)]
        for position in sorted(found):
            rows[self.lowered.rank_of(position)].append(found[position])
        return rows

    @cached_property
    def groups(self) -> list[list[int]]:
        """Number of the task before each of `transfers`, by rank.

        Those of one number are posted at once.
        """
        ends = np.sort(np.concatenate([end for each in self.pairs.values() for end in each[:2]]))
        home = self.lowered.ranks_of_actions[ends]
        return [self.task[ends[home == rank]].tolist() for rank in range(self.lowered.ranks)]

    def under(self, policy: TransferPolicy) -> OrderMessages:
        """Return the messages where receives stand elsewhere."""
        if policy not in self._under:
            bare = without(self.lowered, among(kinds_of(self.lowered.actions), TRANSFER_KINDS))
            self._under[policy] = OrderMessages.of(add_transfers(bare, policy=policy))
        return self._under[policy]

    @cached_property
    def _under(self) -> dict[TransferPolicy, OrderMessages]:
        return {}

    def text(self, position: int) -> str:
        """Return the action at a position."""
        return self.lowered.text_at(position)


def _begins(schedule: Schedule) -> NDArray[np.bool_]:
    """Return whether each action is the first of a task."""
    here = np.arange(len(schedule))
    begin, _ = group_bounds(schedule.actions)
    found: NDArray[np.bool_] = computes(kinds_of(schedule.actions)) & (begin == here)
    return found


def _tasks(schedule: Schedule) -> Numbers:
    """Return the number of the task of every action on its rank."""
    begins = _begins(schedule)
    total = np.cumsum(begins)
    before = np.concatenate([[0], total])[schedule.offsets[:-1]]
    found: Numbers = total - 1 - np.repeat(before, np.diff(schedule.offsets))
    return found
