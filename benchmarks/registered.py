"""What the registered schedules reach on given costs, to lay the optimizer's results beside."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

import debubble as db
from debubble.core.actions import Kind, kinds_of
from debubble.core.errors import DebubbleError

COMPUTE = (Kind.F, Kind.I, Kind.W, Kind.B)
COPIES = (Kind.OFFLOAD, Kind.RELOAD)


def registered(
    p: int, m: int, v: int, costs: db.Costs, mode: str = "overlapped", copies: bool = False
) -> Iterator[tuple[float, float, str]]:
    """Peak, makespan and name of the schedules here, with orders for equal times and for these.

    Those that cut sequences or shard the head solve another problem, as do those that offload
    unless `copies` says so.
    """
    allowed = {*COMPUTE, *(COPIES if copies else ())}
    for entry, known in product(db.schedules(), (None, costs)):
        if entry.weight_versions != 1 or entry.chunks not in (None, v):
            continue
        try:
            own = None if entry.chunks else v
            schedule = db.make(entry.name, ranks=p, microbatches=m, chunks=own, costs=known)
            if schedule.placement.copies > 1:  # twice the weights: another problem
                continue
            if schedule.slices > 1 or set(np.unique(kinds_of(schedule.actions))) - allowed:
                continue
            if schedule.offload_to:
                continue
            timeline = db.simulate(schedule, costs, mode)
        except DebubbleError:
            continue
        yield round(float(timeline.peak_activation.max()), 6), timeline.makespan, entry.name
