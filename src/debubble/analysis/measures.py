"""The measures of a timeline: one entry of :data:`MEASURES` each.

Simulations, comparisons, tables in terminals and on pages, JSON and the words for what numbers mean
all follow from this list.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from debubble.analysis.bubbles import CAUSES, bubbles
from debubble.analysis.receive_buffers import receive_slots
from debubble.core.actions import Kind, kinds_of, microbatches_of
from debubble.core.boundaries import largest_message
from debubble.core.cost_table import CostTable
from debubble.core.frozen import Freeze
from debubble.core.kind_relations import boundary_offsets, needs_through
from debubble.core.kinds import KINDS, Of
from debubble.core.schedule import Schedule
from debubble.core.units import Scale, number, percent
from debubble.engine.timeline import Timeline
from debubble.engine.transfers import first_transfer

Unit = Literal["time", "memory", "share", "number"]


@dataclass(frozen=True)
class Measure:
    """A number about a timeline, or one for every rank."""

    key: str
    """Its name in JSON, and in a row of a comparison."""
    value: Callable[[Timeline], Any]
    """Value for a timeline: a number, a list with one for each rank, or a mapping of such."""
    words: str = ""
    """Definition; empty where the name is enough."""
    unit: Unit = "number"
    """Unit, which decides its format."""
    compared: bool = False
    """Whether comparisons have it, in the order of this list; of numbers by rank, the largest."""
    head: str = ""
    """Title of its column in tables, with ``|`` where terminals break it; empty for no column."""
    left_out: int = 0
    """Rank among columns that are dropped where a line has no room: the highest first, 0 never."""
    reported: bool = False
    """Whether a report of one simulation has a line for it."""

    @property
    def title(self) -> str:
        """Its name in words."""
        return self.key.replace("_", " ")

    def one(self, timeline: Timeline) -> Any:
        """Return one number for the whole timeline: the largest of numbers by rank."""
        return largest(self.value(timeline))

    def text(self, value: Any, scale: Scale) -> str:
        """Return a value as text, in the unit of a scale and without its name."""
        if self.unit == "share":
            return percent(value)
        return scale.text(value) if self.unit == "memory" else number(value)


def largest(value: Any) -> Any:
    """Return the largest of numbers by rank; one number as it is."""
    return max(value) if isinstance(value, list) else value


FULLEST = "of the fullest rank"
"""Aggregation of per-rank peaks where one number is shown."""


def boundary_transfers(schedule: Schedule, table: CostTable | None = None) -> int:
    """Return the number of activations and gradients that move between ranks.

    A forward hands its result to the next stage, and a backward (I or B) its result to the stage
    before; what is carried to other stages goes there and back. Stages on the same rank hand it
    over for free, and stages that need no gradient get none. Slices move one by one.
    """
    return int(_transfers_of_slices(schedule, table).sum())


def _transfers_of_slices(
    schedule: Schedule,
    table: CostTable | None,
    lengths: NDArray[np.float64] | None = None,
    *,
    sized: bool = False,
) -> NDArray[np.float64]:
    """Return the boundary transfers of every slice, times its microbatch's length.

    Where they are `sized`, each counts as often as the size of its boundary's message.
    """
    placement, stages = schedule.placement, schedule.stages
    home = placement.ranks_of_stages.reshape(placement.copies, stages)
    moves = home[:, 1:] != home[:, :-1]
    by_kind = np.zeros((len(Kind), placement.copies, stages), dtype=bool)
    for kind, offset in boundary_offsets().items():
        by_kind[kind, :, max(-offset, 0) : stages - max(offset, 0)] = moves
    crosses = by_kind.reshape(len(Kind), -1)
    sizes = np.ones(crosses.shape)
    boundaries, frozen = (table.boundaries, table.frozen) if table else (None, None)
    if boundaries is not None:
        for kind, offset in boundary_offsets().items():
            row = int(offset < 0)
            crosses[kind] &= boundaries.sends[row]
            if sized:
                sizes[kind] = boundaries.size[row]
    amounts = np.where(crosses, sizes, 0.0)
    if schedule.carries:
        amounts += _carried(schedule, frozen) * (sizes.max() if sized else 1.0)
    places = crosses.shape[1]
    total = np.zeros(schedule.slices)
    for rank in range(schedule.ranks):
        program = schedule.program(rank)
        part, place = np.divmod(schedule.places_of(program), places)
        weights = amounts[kinds_of(program), place]
        if lengths is not None:
            weights = weights * lengths[schedule.microbatch_of(microbatches_of(program))]
        total += np.bincount(part, weights, minlength=schedule.slices)
    return total


def _carried(schedule: Schedule, frozen: Freeze | None) -> NDArray[np.int64]:
    """Return 1 for kinds and places of a copy of which something is carried to another rank.

    No gradient goes back to stages that need none.
    """
    placement = schedule.placement
    home = placement.ranks_of_stages.reshape(placement.copies, schedule.stages)
    needed = np.ones(home.shape, dtype=bool)
    if frozen is not None:
        needed = frozen.needed[: home.size].reshape(home.shape)
    found = np.zeros((len(Kind), *home.shape), dtype=np.int64)
    for source, target in schedule.carries:
        moves = home[:, source] != home[:, target]
        for spec in KINDS:
            for need in needs_through(spec.kind, carried=True):
                back = need.of is Of.CARRIED_TO
                sent = moves & needed[:, source] if back else moves
                found[list(need.kinds), :, target if back else source] = sent
    return found.reshape(len(Kind), -1)


def parameter_copies(schedule: Schedule) -> float:
    """Return copies of the model's weights that all ranks together hold."""
    copies = schedule.placement.copies * sum(schedule.stored_versions) / schedule.ranks
    return int(copies) if copies.is_integer() else copies


def receive_buffers(timeline: Timeline) -> dict[str, list[int]] | None:
    """Return slots of receive buffers on every rank, where transfers are actions."""
    schedule = timeline.schedule
    if first_transfer(schedule) is None:
        return None
    return {pool: slots.sum(axis=1).tolist() for pool, slots in receive_slots(schedule).items()}


def p2p_volume(timeline: Timeline) -> float:
    """Return the boundary transfers between ranks, times the size of a message if costs have one.

    The transfer of a slice counts for its share of the tokens, that of a microbatch for its length.
    """
    table = timeline.table
    named, given = largest_message(table.costs) > 0, table.costs.message
    message = given if named and isinstance(given, float) else 1.0
    sized = named and not isinstance(given, float)
    counts = _transfers_of_slices(timeline.schedule, table, table.lengths, sized=sized)
    if len(counts) == 1:
        return float(counts[0] * message)
    return float(counts @ np.asarray(timeline.schedule.slicing.shares)) * message


MEASURES: list[Measure] = [
    Measure(
        "makespan", lambda timeline: timeline.makespan,
        "last end − first start over all ranks", "time",
        compared=True, head="makespan", reported=True,
    ),
    Measure(
        "ideal", lambda timeline: timeline.ideal,
        "work of the busiest rank, with no waiting", "time", reported=True,
    ),
    Measure(
        "bubble_time", lambda timeline: timeline.makespan - float(timeline.busy.min()),
        "longest idle time of a rank: makespan − least busy time", "time",
    ),
    Measure(
        "stage_time", lambda timeline: timeline.stage_time.tolist(),
        "per rank: last end − first start", "time",
    ),
    Measure("busy", lambda timeline: timeline.busy.tolist(), "per rank: time it computes", "time"),
    Measure(
        "bubble_ratio", lambda timeline: timeline.bubble_ratio,
        "idle share of rank-time: 1 − Σ busy / (ranks × makespan)", "share",
        compared=True, head="bubble|ratio", left_out=1, reported=True,
    ),
    Measure(
        "stage_bubble_rate", lambda timeline: timeline.stage_bubble_rate,
        "(largest stage time − ideal) / largest stage time", "share", compared=True, reported=True,
    ),
    Measure(
        "overhead", lambda timeline: timeline.overhead, "(makespan − ideal) / ideal", "share",
        compared=True, head="overhead", left_out=2, reported=True,
    ),
    Measure(
        "idle_by_cause",
        lambda timeline: dict(zip(CAUSES, bubbles(timeline).totals.T.tolist(), strict=True)),
        "per rank: idle time before its first action (fill), after its last (drain), and while it "
        "waits for data not computed yet (data), for data on its way (p2p), or only for memory",
        "time",
    ),
    Measure(
        "peak_activation", lambda timeline: timeline.peak_activation.tolist(),
        "per rank: largest activation memory held at one time", "memory",
        compared=True, head="peak|activation", reported=True,
    ),
    Measure(
        "p2p_transfers",
        lambda timeline: boundary_transfers(timeline.schedule, timeline.table),
    ),
    Measure(
        "parameter_copies", lambda timeline: parameter_copies(timeline.schedule),
        "copies of the model × versions of the weights kept (mean over ranks)",
        compared=True, head="parameter|copies", left_out=3, reported=True,
    ),
    Measure(
        "p2p_volume", p2p_volume,
        "activations and gradients sent between ranks",
        compared=True, head="p2p|volume", left_out=4, reported=True,
    ),
    Measure(
        "receive_buffers", receive_buffers,
        "per rank, where transfers are actions: receive buffers in use at once, each from its "
        "receive to the end of the backward, with a pool per stage and direction, one per "
        "direction, or a single one",
    ),
    Measure("weight_versions", lambda timeline: max(timeline.schedule.versions), compared=True),
]  # fmt: skip
"""Every measure, in the order of tables and files."""


def meanings() -> dict[str, str]:
    """Return definitions of the measures, by key."""
    return {measure.key: measure.words for measure in MEASURES if measure.words}


def compared() -> list[Measure]:
    """Return the measures that comparisons have."""
    return [measure for measure in MEASURES if measure.compared]
