"""Stages that take longer than the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from debubble.core.kinds import Kind
from debubble.diagnosis.causes.unexplained import Fault, Unexplained, is_slow
from debubble.diagnosis.observed import Times


def slow_stages(left: Unexplained) -> Iterator[Fault]:
    """Yield stages that take longer than the others, or a rank if all its stages do."""
    run = left.run
    medians = left.medians()
    ideal = _of_others(left, medians)
    faults = []
    for stage in range(run.schedule.stages):
        mine = np.flatnonzero((run.stage == stage) & run.counted)
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = medians[:, mine].sum(axis=1) / ideal[:, mine].sum(axis=1)
        if not is_slow(ratio):
            continue
        all_mine = np.flatnonzero(run.stage == stage)
        share = 1 - ideal[:, all_mine] / np.maximum(medians[:, all_mine], 1e-30)
        excess = np.zeros_like(left.times)
        excess[:, all_mine] = left.times[:, all_mine] * share
        by_kind = {}
        for kind in np.unique(run.kind[mine]).tolist():
            at = mine[run.kind[mine] == kind]
            by_kind[Kind(kind).name] = float((medians[:, at] / ideal[:, at]).mean())
        where = {"stage": stage, "rank": int(run.rank[mine[0]])}
        fault = left.fault("slow-stage", excess, where, ratio.mean())
        faults.append(replace(fault, by_kind=by_kind))
    yield from _whole_ranks(left, faults)


def _of_others(left: Unexplained, medians: Times) -> Times:
    """Return the median over the other stages for each action's stage and class.

    An action of a class that no other stage has keeps its own.
    """
    run = left.run
    found = medians.copy()
    for cls in np.unique(run.cls).tolist():
        counted = (run.cls == cls) & run.counted
        stages = np.unique(run.stage[counted])
        each = np.stack(
            [medians[:, counted & (run.stage == stage)].mean(axis=1) for stage in stages.tolist()],
            axis=1,
        )
        for place, stage in enumerate(stages.tolist()):
            others = np.delete(each, place, axis=1)
            if others.size:
                mine = np.flatnonzero((run.cls == cls) & (run.stage == stage))
                found[:, mine] = np.median(others, axis=1)[:, None]
    return found


def _whole_ranks(left: Unexplained, faults: list[Fault]) -> list[Fault]:
    """Replace slow stages by one slow worker if they are all the stages of a rank with several."""
    run = left.run
    if int(run.copy.max()) or run.schedule.chunks < 2 or run.schedule.placement.copies > 1:
        return faults
    found = []
    for rank in range(run.schedule.ranks):
        mine = [fault for fault in faults if fault.where["rank"] == rank]
        if len(mine) == len(run.schedule.placement.stages_on(rank)) > 1:
            excess = np.sum([fault.excess for fault in mine], axis=0)
            size = float(np.mean([fault.size for fault in mine]))
            found.append(left.fault("slow-worker", excess, {"rank": rank, "copy": 0}, size))
        else:
            found += mine
    return found
