"""The schedule of a job: given with its sizes, or made from its name for the job's own."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from debubble.core.errors import ParameterError
from debubble.core.placement import Placement
from debubble.core.schedule import Schedule
from debubble.core.sequence import backward, forward, sequence
from debubble.interchange.files import is_file_name, is_foreign
from debubble.megatron.refused import refuse
from debubble.schedules import registry
from debubble.torch.setup import find_schedule


class ScheduleSource:
    """A schedule, file, name, result of a search, or plan, as the user gave it."""

    def __init__(self, given: Any) -> None:
        self._given = given
        self.name = os.fspath(given) if isinstance(given, str | os.PathLike) else ""
        """Name of which a schedule is made for every number of microbatches; empty for none."""
        if self.name and is_file_name(self.name):
            self.name = ""
        if self.name and not is_foreign(self.name):
            registry.find(self.name)  # refuses a misspelt one now, and not in the first step

    def schedule(self, ranks: int, chunks: int, microbatches: int | None = None) -> Schedule:
        """Return the schedule for these sizes, any number of microbatches without that one.

        Raises
        ------
        ParameterError
            When it has other ranks, chunks or microbatches; or is refused with any.
        ScheduleError
            When it cannot run.
        """
        sizes = {}
        if self.name:
            sizes = {"microbatches": 2 * ranks if microbatches is None else microbatches}
            if is_foreign(self.name) or registry.find(self.name).chunks is None:
                sizes["chunks"] = chunks
        found = find_schedule(self._given, ranks, sizes, steps=False)
        held = {len(found.placement.stages_on(rank, 0)) for rank in range(ranks)}
        if held != {chunks} or found.placement.copies > 1:
            refuse(None, found)  # other chunks would not help
            stages = " or ".join(map(str, sorted(held)))
            raise ParameterError(
                f"'{found.name}' has {stages} of the model's stages on a rank, and a rank of the "
                f"model has {chunks}; {_layers(max(held))}, or take a schedule with {chunks}"
            )
        if microbatches not in (found.microbatches, None):
            raise ParameterError(
                f"'{found.name}' has {found.microbatches} microbatches and this step "
                f"{microbatches}; change the global batch size, make the schedule for "
                f"{microbatches}, or give a name such as '{_like(found)}', which fits any number"
            )
        return found


def forwards(placement: Placement, microbatches: int) -> Schedule:
    """Return a schedule whose forwards run in groups that fill the pipeline.

    It is for evaluation, with any number of microbatches. The backwards after them never run.
    """
    size = 2 * placement.ranks
    groups = [range(at, min(at + size, microbatches)) for at in range(0, microbatches, size)]
    programs = []
    for rank in range(placement.ranks):
        stages = placement.stages_on(rank)
        ahead = [forward(stage, np.array(group)) for group in groups for stage in stages]
        back = [backward(stage, np.arange(microbatches)) for stage in reversed(stages)]
        programs.append(sequence(*ahead, *back))
    return Schedule.from_programs("forwards", placement, microbatches, programs)


def _layers(chunks: int) -> str:
    if chunks == 1:
        return "leave out virtual pipeline stages"
    return f"set virtual_pipeline_model_parallel_size={chunks}"


def _like(schedule: Schedule) -> str:
    """Return a registered name for schedules of this placement."""
    if schedule.name in {entry.name for entry in registry.schedules()}:
        return schedule.name
    loop = schedule.placement.table == Placement.loop(schedule.ranks, schedule.chunks).table
    return ("1f1b" if schedule.chunks == 1 else "interleaved-1f1b") if loop else "zb-v"
