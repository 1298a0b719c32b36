"""Question: everything that a simulation depends on, in one object.

Commands, comparisons, sweeps and the playground all build a :class:`Question` from the options in
:data:`OPTIONS`, and its :meth:`Question.timeline` is the one way from there to a simulation. What
would be if something were different is the same question with one field replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from debubble.analysis.check import check
from debubble.core.costs import Costs
from debubble.core.errors import ParameterError, ScheduleError
from debubble.core.layers import Cut, Layers, stage_costs
from debubble.core.options import CORE_OPTIONS, OptionSpec
from debubble.core.schedule import Schedule
from debubble.engine.ensembles import Spread
from debubble.engine.graph import P2PMode, compile_graph
from debubble.engine.jitter import JITTER_OPTIONS, Jitter
from debubble.engine.memory import Limit
from debubble.engine.modes import P2P_OPTION
from debubble.engine.timeline import Timeline, evaluate_graph
from debubble.lowering.chain import LOWERINGS, lower
from debubble.schedules.registry import find, make

OPTIONS: tuple[OptionSpec, ...] = (
    *CORE_OPTIONS, P2P_OPTION, *LOWERINGS, *JITTER_OPTIONS,
)  # fmt: skip
"""Every option of a question."""


@dataclass(frozen=True, eq=False)
class Question:
    """A schedule and everything that its simulation depends on.

    Parameters
    ----------
    schedule
        The name of a registered schedule, which is made, or a schedule as it is.
    ranks, microbatches, chunks, iterations, sync, options
        Parameters to make a named schedule with, see :func:`debubble.make`.
    costs, memory
        Costs of actions, and the memory limit of every rank, or one for each.
    p2p_mode
        How transfers run, see :func:`debubble.simulate`.
    lowerings
        Values of :data:`debubble.lowering.chain.LOWERINGS` by name.
    late
        Whether forwards start as late as nothing else is delayed.
    jitter
        What varies from step to step; None for nothing.
    layers
        Layers of the model that are cut into the schedule's stages, whose costs then follow; None
        where `costs` are those of the stages. They are also where they have a number for each, and
        the layers have no cut of their own.
    """

    schedule: str | Schedule
    ranks: int | None = None
    microbatches: int | None = None
    chunks: int | None = None
    iterations: int | None = None
    sync: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    costs: Costs = field(default_factory=Costs)
    memory: Limit | None = None
    p2p_mode: P2PMode = "overlapped"
    lowerings: Mapping[str, Any] = field(default_factory=dict)
    late: bool = False
    jitter: Jitter | None = None
    layers: Layers | None = None

    @cached_property
    def _cut(self) -> tuple[Cut, Costs]:
        if self.layers is None or (self.ranks is None and isinstance(self.schedule, str)):
            return (), self.costs
        if isinstance(self.schedule, Schedule):
            place = self.schedule.placement
        else:
            entry = find(self.schedule)
            place = entry.placed(entry.case(ranks=self.ranks, chunks=self.chunks, **self.options))
        return stage_costs(self.costs, self.layers, place)

    @property
    def cut(self) -> Cut:
        """Layers of every stage; empty where there are no layers to cut."""
        return self._cut[0]

    @property
    def stage_costs(self) -> Costs:
        """Costs of the schedule's stages."""
        return self._cut[1]

    @cached_property
    def made(self) -> Schedule:
        """The schedule with all that is added to it; a ParameterError when it cannot be made."""
        setting: dict[str, Any] = {
            "costs": self.stage_costs, "memory": self.memory, "p2p_mode": self.p2p_mode,
        }  # fmt: skip
        if isinstance(self.schedule, Schedule):
            return lower(self.schedule, **self.lowerings, **setting)
        for name, value in (("ranks", self.ranks), ("microbatches", self.microbatches)):
            if value is None:
                raise ParameterError(f"'{self.schedule}' needs {name}; {HOW[name]}")
        assert self.ranks is not None
        assert self.microbatches is not None
        return make(
            self.schedule, ranks=self.ranks, microbatches=self.microbatches, chunks=self.chunks,
            iterations=self.iterations, sync=self.sync, **setting, **self.lowerings, **self.options,
        )  # fmt: skip

    @cached_property
    def timeline(self) -> Timeline:
        """Timeline of the schedule with these costs.

        Raises DebubbleError when it cannot be made, or cannot run. One that is given as it is may
        lack actions and would look fast: it is refused unless :func:`debubble.check` passes it.
        """
        if isinstance(self.schedule, Schedule):
            refuse_wrong(self.schedule, self.p2p_mode)
        timeline = evaluate_graph(compile_graph(self.made, self.p2p_mode), self.stage_costs)
        if not timeline.graph.complete:
            refuse_wrong(self.made, self.p2p_mode)
        return timeline.as_late_as_possible() if self.late else timeline

    @cached_property
    def spread(self) -> Spread | None:
        """Step times of many samples; None where nothing varies."""
        return None if self.jitter is None else self.timeline.jitter(self.jitter)


_NAMES = {spec.name for spec in fields(Question)} - {"memory"}

AS_READ = tuple(row.name for row in OPTIONS if row.name in _NAMES and not row.typed_only)
"""Options whose values are fields of a question as they are: all but costs, the limit, which has
their unit, lowerings and what varies."""

HOW = {"ranks": "give -p, such as -p 8", "microbatches": "give -m, such as -m 32"}
"""Advice for a size that is missing."""


class WrongOrderError(ScheduleError):
    """A schedule that is given as it is, and that :func:`debubble.check` finds fault with."""


def refuse_wrong(schedule: Schedule, mode: P2PMode) -> None:
    """Refuse a schedule whose times :func:`debubble.check` finds fault with."""
    found = check(schedule, p2p_mode=mode)
    if found.of_times:
        more = f" (and {found.count - 1:,} more)" if found.count > 1 else ""
        raise WrongOrderError(f"its order is wrong: {found.of_times[0]}{more}")
