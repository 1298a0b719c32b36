"""Recomputed microbatches of a schedule."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import STAGE_SHIFT, Kind, Program, among, kinds_of, stages_of
from debubble.core.kind_relations import ACTIVATION_KINDS, RECOMPUTE_KINDS
from debubble.core.schedule import Schedule
from debubble.engine.validate import has

SHARE = "recompute_share"
"""Key under which a schedule remembers its shares."""


def recompute_share(schedule: Schedule) -> NDArray[np.float64]:
    """Share of its microbatches that every place recomputes, shape ``(places,)``."""
    if SHARE not in schedule.derived:
        schedule.derived[SHARE] = _share(schedule)
    share: NDArray[np.float64] = schedule.derived[SHARE]
    return share


def recomputed_stages(schedule: Schedule) -> list[int]:
    """Return the stages that recompute some of their microbatches."""
    share = recompute_share(schedule).reshape(-1, schedule.stages)
    found: list[int] = np.flatnonzero(share.any(axis=0)).tolist()
    return found


def recomputed_forwards(schedule: Schedule) -> NDArray[np.bool_]:
    """Mask of forwards whose microbatch is recomputed, shape ``(n,)``."""
    kinds = kinds_of(schedule.actions)
    cells = schedule.actions >> STAGE_SHIFT
    again = among(kinds, RECOMPUTE_KINDS)
    found: NDArray[np.bool_] = among(kinds, ACTIVATION_KINDS) & np.isin(cells, cells[again])
    return found


def _share(schedule: Schedule) -> NDArray[np.float64]:
    places = schedule.slices * schedule.placement.copies * schedule.stages
    if not has(schedule, RECOMPUTE_KINDS):
        return np.zeros(places)
    recomputes = _count(schedule, RECOMPUTE_KINDS, places)
    forwards = _count(schedule, ACTIVATION_KINDS, places)
    return np.divide(recomputes, forwards, out=np.zeros(places), where=forwards > 0)


def _count(schedule: Schedule, kinds: tuple[Kind, ...], places: int) -> NDArray[np.float64]:
    """Count actions of some kinds on every (copy, stage)."""
    counts = np.zeros(places)
    # Block by block, so that a schedule without such actions takes no memory.
    for begin in range(0, len(schedule), 65536):
        block = schedule.actions[begin : begin + 65536]
        found: Program = block[among(kinds_of(block), kinds)]
        # A file may name stages that do not exist; checks report them.
        found = found[stages_of(found) < schedule.stages]
        if len(found):
            counts += np.bincount(schedule.places_of(found), minlength=places)
    return counts
