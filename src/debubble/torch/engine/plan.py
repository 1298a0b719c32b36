"""Programs of all ranks with transfers, resolved as far as they can be before a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import (
    COPY_KINDS,
    TRANSFER_KINDS,
    WHOLE_STAGE_KINDS,
    Action,
    Kind,
    among,
    kinds_of,
    microbatches_of,
    pairs_of,
    stages_of,
)
from debubble.core.errors import ScheduleError
from debubble.core.kinds import KINDS
from debubble.core.schedule import Schedule
from debubble.engine.transfers import first_transfer
from debubble.lowering.transfers import ReceivePolicy, add_transfers


class ProgramStep(NamedTuple):
    """One action of a program.

    ``unit`` is its microbatch or slice of one; ``pair`` is 0 alone, 1 and 2 in an overlapped pair;
    ``peer`` is the rank at the other end of a transfer, or the rank that offloaded activations go
    to, −1 for none; ``slices`` is the number of slices of a microbatch; ``there`` is the stage at
    the other end of a transfer.
    """

    kind: Kind
    stage: int
    unit: int
    pair: int
    copy: int
    peer: int = -1
    slices: int = 1
    there: int = -1

    def __str__(self) -> str:
        return Action(self.stage, self.kind, self.unit).text(self.slices)

    @property
    def other_end(self) -> ProgramStep:
        """The other end of a transfer."""
        spec = KINDS[self.kind]
        assert spec.other_end is not None, "only transfers have another end"
        return self._replace(kind=spec.other_end, stage=self.there, there=self.stage)


@dataclass(frozen=True, eq=False)
class ExecutionPlan:
    """A schedule, ready to be executed."""

    schedule: Schedule
    """The schedule as given."""
    lowered: Schedule
    """The schedule with transfers."""
    seconds: NDArray[np.float64]
    """Shortest time of each of `schedule`'s actions; 0 for as long as it takes."""

    @classmethod
    def of(
        cls,
        schedule: Schedule,
        seconds: Sequence[float] | NDArray[np.float64] = (),
        policy: ReceivePolicy = "eager",
    ) -> ExecutionPlan:
        """Plan a schedule; one without transfers gets them. Without `seconds` all are 0."""
        lowered = schedule
        if first_transfer(schedule) is None:
            lowered = add_transfers(schedule, policy=policy)
        lasts = np.asarray(seconds, dtype=float) if len(seconds) else np.zeros(len(schedule))
        return cls(schedule, lowered, lasts)

    @cached_property
    def positions(self) -> NDArray[np.int64]:
        """Position of each action of `schedule` in `lowered`."""
        if len(self.schedule) == len(self.lowered):
            return np.arange(len(self.schedule))
        return np.flatnonzero(~among(kinds_of(self.lowered.actions), TRANSFER_KINDS))

    def pace_of(self, rank: int) -> list[float]:
        """Return the `seconds` of the actions of a rank's program."""
        pace = np.zeros(len(self.lowered))
        pace[self.positions] = self.seconds
        found: list[float] = pace[self.lowered.offsets[rank] :][: len(self.programs[rank])].tolist()
        return found

    @cached_property
    def programs(self) -> list[list[ProgramStep]]:
        """Programs by rank."""
        return [self._program(rank) for rank in range(self.lowered.ranks)]

    def _program(self, rank: int) -> list[ProgramStep]:
        program = self.lowered.program(rank)
        table = self.lowered.placement.table
        last, ends = self.lowered.stages - 1, self.lowered.away.tolist()
        slices, away = self.lowered.slices, self.lowered.copy_targets[rank]
        steps = []
        columns = (kinds_of(program), stages_of(program), microbatches_of(program),
                   pairs_of(program), self.lowered.copies_of(microbatches_of(program)))  # fmt: skip
        for kind, stage, unit, pair, copy in zip(*(c.tolist() for c in columns), strict=True):
            spec = KINDS[kind]
            if stage > last or (spec.kind not in WHOLE_STAGE_KINDS and unit >= self.lowered.units):
                text = Action(stage, spec.kind, unit).text(slices)
                raise ScheduleError(f"rank {rank}: {text} does not exist in this schedule")
            there = stage + ends[kind][stage]
            peer = table[copy][there] if there != stage and 0 <= there <= last else -1
            if kind in COPY_KINDS and away is not None:
                peer = away
            steps.append(ProgramStep(spec.kind, stage, unit, pair, copy, peer, slices, there))
        return steps

    def text(self, rank: int, index: int) -> str:
        """Return the words for an action in messages, with the rank that it needs."""
        program = self.programs[rank]
        if index < 0:
            return "the start of the step"
        if index >= len(program):
            return "the end"
        step = program[index]
        if KINDS[step.kind].receives:
            return f"action {index}: {step} from rank {step.peer}"
        return f"action {index}: {step}"
