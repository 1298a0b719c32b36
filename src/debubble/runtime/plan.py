"""What every rank executes: the programs with transfers, resolved as far as they can be."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import (
    TRANSFER_KINDS,
    Action,
    Kind,
    kinds_of,
    microbatches_of,
    pairs_of,
    stages_of,
)
from debubble.core.errors import ScheduleError
from debubble.core.schedule import Schedule
from debubble.engine.transfers import first_transfer
from debubble.lowering.transfers import ReceivePolicy, add_transfers


class Step(NamedTuple):
    """One action of a program, with where things are.

    ``pair`` is 0 alone, 1 and 2 in an overlapped pair; ``peer`` is the rank at the other end of a
    transfer, or the rank that offloaded activations go to, −1 for none; ``source`` the rank whose
    result the action needs, −1 when that is its own or none.
    """

    kind: Kind
    stage: int
    unit: int
    pair: int
    copy: int
    peer: int
    source: int

    def __str__(self) -> str:
        return str(Action(self.stage, self.kind, self.unit))


@dataclass(frozen=True, eq=False)
class Plan:
    """A schedule, ready to be executed.

    Parameters
    ----------
    schedule
        As given.
    lowered
        With transfers.
    seconds
        How long each of `schedule`'s actions is made to last at least; 0 for as long as it takes.
    """

    schedule: Schedule
    lowered: Schedule
    seconds: NDArray[np.float64]

    @classmethod
    def of(
        cls,
        schedule: Schedule,
        seconds: NDArray[np.float64] | None = None,
        policy: ReceivePolicy = "eager",
    ) -> Plan:
        """Plan a schedule; one without transfers gets them."""
        lowered = schedule
        if first_transfer(schedule) is None:
            lowered = add_transfers(schedule, policy=policy)
        if seconds is None:
            seconds = np.zeros(len(schedule))
        return cls(schedule, lowered, seconds)

    @cached_property
    def positions(self) -> NDArray[np.int64]:
        """Where each action of `schedule` is in `lowered`."""
        if len(self.schedule) == len(self.lowered):
            return np.arange(len(self.schedule))
        return np.flatnonzero(~np.isin(kinds_of(self.lowered.actions), TRANSFER_KINDS))

    @cached_property
    def pace(self) -> NDArray[np.float64]:
        """`seconds` of the actions of `lowered`."""
        pace = np.zeros(len(self.lowered))
        pace[self.positions] = self.seconds
        return pace

    @cached_property
    def programs(self) -> list[list[Step]]:
        """Every rank's program."""
        return [self._program(rank) for rank in range(self.lowered.ranks)]

    def _program(self, rank: int) -> list[Step]:
        program = self.lowered.program(rank)
        table = self.lowered.placement.table
        last = self.lowered.stages - 1
        away = (getattr(self.lowered, "offload_to", None) or [None] * self.lowered.ranks)[rank]
        steps = []
        columns = (kinds_of(program), stages_of(program), microbatches_of(program),
                   pairs_of(program), self.lowered.copies_of(microbatches_of(program)))  # fmt: skip
        for kind, stage, unit, pair, copy in zip(*(c.tolist() for c in columns), strict=True):
            if stage > last or (kind != Kind.OPT and unit >= self.lowered.units):
                action = Action(stage, Kind(kind), unit)
                raise ScheduleError(f"rank {rank}: {action} does not exist in this schedule")
            step = _NEXT.get(kind, 0)
            peer = table[copy][stage + step] if step and 0 <= stage + step <= last else -1
            if kind in (Kind.OFFLOAD, Kind.RELOAD):
                peer = -1 if away is None else away
            needs = stage + _NEEDS.get(kind, 0)
            source = table[copy][needs] if needs != stage and 0 <= needs <= last else -1
            steps.append(
                Step(Kind(kind), stage, unit, pair, copy, peer, -1 if source == rank else source)
            )
        return steps

    def text(self, rank: int, index: int) -> str:
        """An action for messages, with the rank that it needs."""
        program = self.programs[rank]
        if index >= len(program):
            return "the end"
        step = program[index]
        if step.kind in (Kind.RECV_F, Kind.RECV_B):
            return f"action {index}: {step} from rank {step.peer}"
        return f"action {index}: {step}"


_NEXT = {Kind.SEND_F: 1, Kind.RECV_F: -1, Kind.SEND_B: -1, Kind.RECV_B: 1}
_NEEDS = {Kind.F: -1, Kind.B: 1, Kind.I: 1}
