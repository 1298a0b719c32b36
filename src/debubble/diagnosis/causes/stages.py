"""Stages that take longer than the others."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from debubble.core.kinds import Kind
from debubble.diagnosis.causes.unexplained import Fault, Unexplained, is_slow, medians_of
from debubble.diagnosis.observed import Indices, Times
from debubble.diagnosis.run import PAIR, Run


def slow_stages(left: Unexplained) -> Iterator[Fault]:
    """Yield stages that take longer than the others, or a rank if all its stages do."""
    run = left.run
    # A member of an overlapped group counts for itself, and is of another class than alone.
    times = left.times * left.shares
    cls = run.kind + np.where(run.cls == PAIR, PAIR + 1, 0)
    medians = medians_of(run, times, cls)
    ideal = _of_others(run, medians, cls)
    faults = []
    for stage in range(run.schedule.stages):
        mine = np.flatnonzero(run.stage == stage)
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = medians[:, mine].sum(axis=1) / ideal[:, mine].sum(axis=1)
        if not is_slow(ratio):
            continue
        share = 1 - ideal[:, mine] / np.maximum(medians[:, mine], 1e-30)
        excess = np.zeros_like(left.times)
        excess[:, mine] = times[:, mine] * share
        # Members of a group have the time of the group.
        excess = run.in_groups(excess, np.add)
        by_kind = {}
        for kind in np.unique(run.kind[mine]).tolist():
            at = mine[run.kind[mine] == kind]
            if ideal[:, at].all():  # elsewhere the kind takes some time
                by_kind[Kind(kind).name] = float((medians[:, at] / ideal[:, at]).mean())
        where = {"stage": stage, "rank": int(run.rank[mine[0]])}
        faults.append(Fault("slow-stage", excess, where, float(ratio.mean()), by_kind=by_kind))
    yield from _whole_ranks(run, faults)


def _of_others(run: Run, medians: Times, cls: Indices) -> Times:
    """Return the median over the other stages for each action's stage and class.

    An action of a class that no other stage has keeps its own.
    """
    found = medians.copy()
    for one in np.unique(cls).tolist():
        alike = cls == one
        stages = np.unique(run.stage[alike])
        each = np.stack(
            [medians[:, alike & (run.stage == stage)].mean(axis=1) for stage in stages.tolist()],
            axis=1,
        )
        for place, stage in enumerate(stages.tolist()):
            others = np.delete(each, place, axis=1)
            if others.size:
                mine = np.flatnonzero(alike & (run.stage == stage))
                found[:, mine] = np.median(others, axis=1)[:, None]
    return found


def _whole_ranks(run: Run, faults: list[Fault]) -> list[Fault]:
    """Replace slow stages by one slow worker if they are all the stages of a rank with several."""
    if run.copies > 1 or run.schedule.chunks < 2 or run.schedule.placement.copies > 1:
        return faults
    found = []
    for rank in range(run.schedule.ranks):
        mine = [fault for fault in faults if fault.where["rank"] == rank]
        if len(mine) == len(run.schedule.placement.stages_on(rank)) > 1:
            excess = np.sum([fault.excess for fault in mine], axis=0)
            size = float(np.mean([fault.size for fault in mine]))
            found.append(Fault("slow-worker", excess, {"rank": rank, "copy": 0}, size))
        else:
            found += mine
    return found
