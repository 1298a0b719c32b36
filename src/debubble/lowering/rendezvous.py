"""Check explicit sends and receives: every one has its other end, and no rendezvous deadlocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import (
    TRANSFER_KINDS,
    Action,
    kinds_of,
    microbatches_of,
    stages_of,
    unpack,
)
from debubble.core.errors import ScheduleError
from debubble.core.kinds import KINDS
from debubble.core.schedule import Schedule
from debubble.engine.graph import compile_graph
from debubble.engine.stuck import partner

Positions = NDArray[np.int64]

_SENDS = np.array([spec.sends for spec in KINDS])
_AWAY = np.array([spec.away for spec in KINDS])


def matched(schedule: Schedule, *, limit: int = 100) -> list[ScheduleError]:
    """What is wrong with the pairs of sends and receives.

    Every transfer is sent once, by the rank of its producer, and received once, by the rank of its
    consumer, which is another one; and every rank receives from another rank in the order in which
    that one sends. Transfers have no tags: where the order differs, data ends up in the wrong
    buffers and nothing reports it.

    Parameters
    ----------
    schedule
        Any schedule; one without transfers has no problems here.
    limit
        How many problems of each sort are listed.

    Returns
    -------
    list of ScheduleError
        One per problem, with the actions concerned in ``chain``; empty when all is well. Ends on
        the wrong rank come first, then repeated and missing ones, then wrong orders.
    """
    ends = _Ends.of(schedule)
    problems: list[ScheduleError] = []
    for sort in (ends.misplaced, ends.repeated, ends.alone, ends.crossed):
        for problem, _ in zip(sort(), range(limit), strict=False):
            problems.append(problem)
    return problems


def check_rendezvous(schedule: Schedule) -> None:
    """Raise when the fused groups of a schedule deadlock under rendezvous.

    Contiguous sends and receives between two compute actions of a rank are one group, as in one
    ``batch_isend_irecv``. Every rank runs its groups in order, posts all of a group when it
    reaches it, and leaves when every member has met its other end in a group that the other rank
    has reached.

    Raises
    ------
    ScheduleError
        When that cannot finish. The message and ``chain`` show the shortest circle of ranks: where
        each of them stands, what it waits for there, and behind what that comes. Also when a
        transfer has no other end, or an action comes before its receive.
    """
    compile_graph(schedule, "blocking")


@dataclass(frozen=True, eq=False)
class _Ends:
    """All sends and receives of a schedule, one entry each, in the schedule's order.

    ``rank`` is where an end stands, ``home`` where it belongs and ``other`` where its other end
    does, −1 when nowhere. ``key`` is the same for both ends of a transfer, −1 for misplaced ends.
    """

    schedule: Schedule
    position: Positions
    sends: NDArray[np.bool_]
    rank: Positions
    home: Positions
    other: Positions
    key: Positions

    @classmethod
    def of(cls, schedule: Schedule) -> _Ends:
        kinds = kinds_of(schedule.actions)
        position = np.flatnonzero(np.isin(kinds, TRANSFER_KINDS))
        kind, codes = kinds[position], schedule.actions[position]
        stage, unit = stages_of(codes), microbatches_of(codes)
        sends, step = _SENDS[kind], _AWAY[kind]
        forward = (step > 0) == sends
        rank = np.searchsorted(schedule.offsets, position, side="right") - 1

        stages = schedule.stages
        base = schedule.copies_of(unit) * stages
        homes = schedule.placement.ranks_of_stages
        real = (stage < stages) & (unit < schedule.units)
        ended = real & (stage + step >= 0) & (stage + step < stages)
        home = np.where(real, homes[base + np.where(real, stage, 0)], -1)
        other = np.where(ended, homes[base + np.where(ended, stage + step, 0)], -1)
        source = np.where(sends, stage, stage + step)
        # One number per (microbatch, source stage, direction).
        key = (unit * stages + source) * 2 + forward
        key[(home != rank) | (other == rank) | ~ended] = -1
        return cls(schedule, position, sends, rank, home, other, key)

    def action(self, index: int) -> Action:
        return unpack(int(self.schedule.actions[self.position[index]]))

    def where(self, index: int) -> str:
        rank = int(self.rank[index])
        inner = int(self.position[index] - self.schedule.offsets[rank])
        return f"rank {rank}, action {inner}: {self.text(index)}"

    def text(self, index: int) -> str:
        return self.schedule.text(self.action(index))

    def misplaced(self) -> Iterator[ScheduleError]:
        """Ends on a wrong rank, out of range, or of a transfer that is none."""
        for index in np.flatnonzero(self.key < 0).tolist():
            action = self.action(index)
            stage, _, microbatch = action
            stages, units = self.schedule.stages, self.schedule.units
            if stage >= stages or microbatch >= units:
                last = units // self.schedule.slices - 1
                reason = f"is out of range; stages go to {stages - 1}, microbatches to {last}"
            elif not 0 <= partner(action).stage < stages:
                end = "first" if stage == 0 else "last"
                reason = f"has no other end: stage {stage} is the {end}; remove it"
            elif self.home[index] != self.rank[index]:
                reason = f"is on the wrong rank; it belongs on rank {self.home[index]}"
            else:
                near = partner(action).stage
                reason = f"has no other end: stage {near} lives on the same rank; remove it"
            yield ScheduleError(f"{self.where(index)} {reason}", (self.text(index),))

    def _sorted(self, sends: bool) -> Positions:
        """Indices of the well-placed sends or receives, by key, then position."""
        indices = np.flatnonzero((self.key >= 0) & (self.sends == sends))
        return indices[np.argsort(self.key[indices], kind="stable")]

    def repeated(self) -> Iterator[ScheduleError]:
        """Ends that stand in the schedule more than once."""
        for sends in (True, False):
            indices = self._sorted(sends)
            again = indices[1:][self.key[indices[1:]] == self.key[indices[:-1]]]
            for index in again.tolist():
                yield ScheduleError(
                    f"{self.where(index)} runs twice; remove one", (self.text(index),)
                )

    def alone(self) -> Iterator[ScheduleError]:
        """Sends without receive and receives without send."""
        for sends in (True, False):
            indices, others = self._sorted(sends), self._sorted(not sends)
            missing = indices[~np.isin(self.key[indices], self.key[others])]
            for index in np.sort(missing).tolist():
                wanted = self.schedule.text(partner(self.action(index)))
                yield ScheduleError(
                    f"{self.where(index)} has no other end; "
                    f"add {wanted} on rank {int(self.other[index])}",
                    (self.text(index), wanted),
                )

    def crossed(self) -> Iterator[ScheduleError]:
        """Neighbouring sends of a directed pair of ranks that are received the other way round."""
        sends, receives = self._sorted(True), self._sorted(False)
        keys, first = np.unique(self.key[sends], return_index=True)
        _, from_send, from_receive = np.intersect1d(keys, self.key[receives], return_indices=True)
        sends, receives = sends[first][from_send], receives[from_receive]
        link = self.rank[sends] * self.schedule.ranks + self.other[sends]
        order = np.lexsort((sends, link))
        sends, receives, link = sends[order], receives[order], link[order]
        swapped = (link[1:] == link[:-1]) & (receives[1:] < receives[:-1])
        for index in np.flatnonzero(swapped).tolist():
            chain = tuple(
                self.text(int(end))
                for end in (sends[index], sends[index + 1], receives[index + 1], receives[index])
            )
            yield ScheduleError(
                f"rank {self.rank[sends[index]]} sends {chain[0]} before {chain[1]}, "
                f"rank {self.rank[receives[index]]} receives {chain[2]} before {chain[3]}: "
                "the contents are swapped; receive in the order of the sends",
                chain,
            )
