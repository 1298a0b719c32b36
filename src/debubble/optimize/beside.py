"""Published schedules beside a found one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from debubble.core.actions import COPY_KINDS, Kind, kinds_of
from debubble.core.costs import Costs
from debubble.core.errors import DebubbleError, ParameterError
from debubble.core.schedule import Schedule
from debubble.engine.graph import P2PMode
from debubble.engine.timeline import Timeline, simulate
from debubble.lowering.recompute import add_recompute
from debubble.optimize.layers import cut_costs, even_cut
from debubble.optimize.sets import Recompute, same_for_all, ways_of
from debubble.schedules.registry import entries, make

if TYPE_CHECKING:
    from debubble.analysis.comparison import Comparison


def beside(
    found: Schedule | Timeline,
    costs: Costs,
    memory: Any,
    mode: P2PMode,
    recompute: Recompute = "none",
    copies: bool = False,
    layers: int | None = None,
) -> Comparison:
    """Published schedules of the same model on the same costs, with a found one among them.

    Those that train by another rule, cut sequences, or move activations elsewhere solve another
    problem and are left out, but for those that use the host where `copies` says so. The others
    recompute the same stages; where the choice is free, all of them or none, whichever fits and is
    faster. Where layers are cut, published schedules are on even cuts, and the found one is as it
    was simulated.
    """
    from debubble.analysis.compare import compare

    schedule = found if isinstance(found, Schedule) else found.schedule
    same_model = costs.basis == "rank" and costs.chunks is None
    limit = None if memory is None else np.asarray(memory, dtype=float).tolist()
    items: list[Schedule | Timeline] = [found]
    for entry in entries().values():
        chunks = entry.chunks or schedule.chunks
        if entry.weight_versions != 1 or not (same_model or chunks == schedule.chunks):
            continue
        try:
            its = costs
            if layers:
                place = entry.placement(schedule.ranks, chunks)
                its = cut_costs(costs, place, even_cut(layers, place.stages), layers)
            known = make(
                entry.name, ranks=schedule.ranks, microbatches=schedule.microbatches,
                chunks=None if entry.chunks else chunks, costs=its, memory=limit,
            )  # fmt: skip
        except DebubbleError:
            continue
        more = set(np.unique(kinds_of(known.actions)).tolist()) - {Kind.F, Kind.I, Kind.W, Kind.B}
        if copies and more == set(COPY_KINDS) and not known.offload_to:
            items.append(known)
        if known.slices > 1 or more:
            continue
        if layers:
            items.append(simulate(known, its, mode))
            continue
        try:
            sets = same_for_all(ways_of(recompute, "none", known.stages))
        except ParameterError:
            continue
        both = compare([add_recompute(known, np.flatnonzero(chosen).tolist()) for chosen in sets],
                       costs=costs, memory=limit, p2p_mode=mode)  # fmt: skip
        items += [row.schedule for row in both.rows[:1]]
    compared = compare(items, costs=costs, memory=limit, p2p_mode=mode)
    if layers:
        note = (
            f"{schedule.name} has its own cut of the {layers} layers; the others are cut evenly, "
            "into stages that differ by one layer at most"
        )
        compared = replace(compared, notes=(note, *compared.notes))
    return compared
