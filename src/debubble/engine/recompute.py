"""Recomputed microbatches of a schedule."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import COPY_KINDS, STAGE_SHIFT, Kind, Program, among, kinds_of, stages_of
from debubble.core.kind_relations import ACTIVATION_KINDS, RECOMPUTE_KINDS
from debubble.core.schedule import Schedule
from debubble.engine.validate import has

SHARE = "recompute_share"
"""Key under which a schedule remembers its shares."""


def recompute_share(schedule: Schedule) -> NDArray[np.float64]:
    """Share of its microbatches that every place recomputes, shape ``(places,)``."""
    if SHARE not in schedule.derived:
        found = np.zeros(schedule.slices * schedule.placement.copies * schedule.stages)
        if has(schedule, RECOMPUTE_KINDS):
            again, forwards = (
                _count(schedule, kinds, len(found)) for kinds in (RECOMPUTE_KINDS, ACTIVATION_KINDS)
            )
            np.divide(again, forwards, out=found, where=forwards > 0)
        schedule.derived[SHARE] = found
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


def copies_in_part(schedule: Schedule) -> NDArray[np.int64]:
    """Return positions of copies of what is a checkpoint for some microbatches of a place only."""
    share = recompute_share(schedule)
    mixed = (share > 0) & (share < 1)
    if not mixed.any():
        return np.empty(0, dtype=np.int64)
    copies = np.flatnonzero(among(kinds_of(schedule.actions), COPY_KINDS))
    return copies[mixed[schedule.places_of(schedule.actions[copies])]]


def _count(schedule: Schedule, kinds: tuple[Kind, ...], places: int) -> NDArray[np.int64]:
    """Count actions of some kinds on every (copy, stage)."""
    found: Program = schedule.actions[among(kinds_of(schedule.actions), kinds)]
    # A file may name stages that do not exist; checks report them.
    found = found[stages_of(found) < schedule.stages]
    return np.bincount(schedule.places_of(found), minlength=places)
