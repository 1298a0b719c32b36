"""The result of a search."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from debubble.analysis.layout import PIPED
from debubble.analysis.metrics import ranges, recompute_text, units
from debubble.analysis.results import spread_lines
from debubble.core.actions import STAGE_SHIFT, among, kinds_of, stages_of
from debubble.core.costs import Costs
from debubble.core.errors import ParameterError
from debubble.core.kind_relations import RECOMPUTE_KINDS
from debubble.core.kinds import COPY_KINDS, OFFLOAD_KINDS
from debubble.core.schedule import Schedule, sizes
from debubble.core.units import percent, time
from debubble.engine.ensembles import Spread
from debubble.engine.recompute import recomputed_stages
from debubble.engine.timeline import Timeline

if TYPE_CHECKING:
    from debubble.analysis.comparison import Comparison

STATUSES = {
    "optimal": "proven optimal",
    "feasible": "best found",
    "interrupted": "best found before it was interrupted",
}


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """A schedule with its makespan and a lower bound.

    Parameters
    ----------
    schedule, timeline
        The schedule and the engine's simulation of it.
    makespan
        Makespan of the timeline.
    lower_bound
        Proven bound: no schedule within the memory limits is faster, over all open choices.
    status
        ``"optimal"`` when the makespan meets the bound, else ``"feasible"`` or ``"interrupted"``.
    seconds
        Seconds of the search; of a result from the cache, those of the original search.
    found_by
        The strategy that found it.
    cached
        True if it comes from the cache as it is, without a search.
    published
        Published schedules on the same costs with this one among them; None when not asked for.
        If layers were cut, they are on even cuts.
    layers, costs
        Layers of every stage, where they were cut, and the costs per stage that follow, with which
        :func:`debubble.simulate` gives the same timeline; else empty and None.
    why
        Reason in words that no schedule is faster than the bound.
    microbatches
        If microbatches differ, the order in which they enter stage 0, by the numbers that they
        have in the costs, in the schedule and in saved files.
    spread
        Step times under the jitter that the schedule was chosen for; None without jitter.
    """

    schedule: Schedule
    timeline: Timeline
    makespan: float
    lower_bound: float
    status: str
    seconds: float
    found_by: str
    cached: bool = False
    published: Comparison | None = field(default=None)
    layers: tuple[int, ...] = ()
    costs: Costs | None = None
    why: str = ""
    microbatches: tuple[int, ...] = ()
    spread: Spread | None = None

    @property
    def recompute(self) -> list[int]:
        """The stages that recompute their forwards."""
        return recomputed_stages(self.schedule)

    def _where(self) -> str:
        """Return the places of recomputes in words."""
        actions = self.schedule.actions
        actions = actions[~among(kinds_of(actions), OFFLOAD_KINDS)]
        spots = np.flatnonzero(among(kinds_of(actions), RECOMPUTE_KINDS))
        cells = actions >> STAGE_SHIFT
        ahead = int(np.count_nonzero(cells[spots + 1] != cells[spots]))
        if not ahead:
            return "right before the backward"
        return f"{ahead} of {len(spots)} further ahead than right before the backward"

    @property
    def offload(self) -> list[int]:
        """The stages of which some or all activations wait for their backwards on the host."""
        actions = self.schedule.actions
        found: list[int] = np.unique(
            stages_of(actions[among(kinds_of(actions), COPY_KINDS)])
        ).tolist()
        return found

    @property
    def layout(self) -> str | None:
        """The cut as Megatron-LM's layout string; None without a cut, or where it has none."""
        from debubble.interchange.layouts import megatron_layout

        try:
            return megatron_layout(self.schedule.placement, self.layers) if self.layers else None
        except ParameterError:
            return None

    @property
    def gap(self) -> float:
        """(makespan − lower bound) / lower bound."""
        return self.makespan / self.lower_bound - 1 if self.lower_bound else 0.0

    @property
    def headline(self) -> str:
        """The result in one sentence."""
        bound = f"no schedule is faster than {self._time(self.lower_bound)}"
        found = self._time(self.makespan)
        if self.status == "optimal":
            return f"{found}, proven optimal"
        return f"{found}, {STATUSES[self.status]}; {bound} (gap {percent(self.gap)})"

    def _time(self, value: float) -> str:
        return time(value, self.timeline.table.costs.time_unit)

    @property
    def _lengths(self) -> list[float] | None:
        """Length of every microbatch by its number; None where all are alike."""
        lengths = self.timeline.table.lengths
        return None if lengths is None else [float(length) for length in lengths]

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data, for JSON."""
        from debubble.interchange.cost_files import costs_data

        schedule = self.schedule
        return {
            "headline": self.headline,
            "units": units(self.timeline.table.costs),
            **{
                name: getattr(self, name)
                for name in (
                    "makespan",
                    "lower_bound",
                    "why",
                    "gap",
                    "status",
                    "seconds",
                    "found_by",
                    "cached",
                )
            },
            **sizes(schedule, "ranks", "chunks", "stages", "microbatches"),
            "placement": schedule.placement.name,
            "layers": list(self.layers) or None,
            "layout": self.layout,
            "costs": costs_data(self.costs) | sizes(schedule, "ranks", "microbatches", "chunks")
            if self.costs
            else None,
            "order_of_microbatches": list(self.microbatches) or None,
            "lengths": self._lengths,
            "jitter": None if self.spread is None else self.spread.to_dict(),
            "recompute": self.recompute,
            "offload": self.offload,
            "peak_activation": self.timeline.peak_activation.tolist(),
            "bubble_ratio": self.timeline.bubble_ratio,
            "overhead": self.timeline.overhead,
            "published": self.published.to_dict() if self.published else None,
        }

    def __str__(self) -> str:
        when = f"in {self.seconds:.1f} s"
        if self.cached:
            when += "; read from the cache, nothing was searched now"
        lines = [f"{self.headline}", f"found by {self.found_by} {when}"]
        if self.layers:
            lines.append(f"layers {' '.join(map(str, self.layers))}")
            placement = self.schedule.placement.name
            none = f"Megatron-LM has none for the placement '{placement}'"
            lines.append(f"layout {self.layout or none}")
        if self.spread is not None:
            unit = self.timeline.table.costs.time_unit
            lines += spread_lines(self.spread, unit, PIPED)
        if self.microbatches:
            lengths = self._lengths or [1.0] * len(self.microbatches)
            sequence = "/".join(f"{lengths[number]:g}" for number in self.microbatches)
            order = " ".join(map(str, self.microbatches))
            lines.append(f"microbatches enter in the order {order}, with lengths {sequence}")
        if self.recompute:
            lines.append(f"{recompute_text(self.schedule)}, {self._where()}")
        if self.offload:
            stages = f"stage{'s' if len(self.offload) > 1 else ''} {ranges(self.offload)}"
            lines.append(f"activations of {stages} wait for their backwards on the host")
        if self.why:
            lines.append(f"why not faster: {self.why}")
        if self.published is not None:
            lines += ["", str(self.published)]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<Result: {self.headline}>"
