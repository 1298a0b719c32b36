"""A check that a schedule is one of those that a problem leaves open.

Every order that a search keeps, whatever found it, passes this: an option that one strategy does
not read cannot be skipped by it.
"""

from __future__ import annotations

import numpy as np

from debubble.core.actions import Kind, kinds_of, microbatches_of, pairs_of, stages_of
from debubble.core.kind_relations import ACTIVATION_KINDS, FUSED_KIND, RECOMPUTE_KINDS, SPLIT_KINDS
from debubble.core.kinds import COPY_KINDS, WAIT_KINDS
from debubble.core.schedule import Schedule
from debubble.optimize.problem import Problem


def outside(problem: Problem, schedule: Schedule) -> str:
    """Explain why a schedule does not belong to a problem; empty where it does.

    Memory, and whether the order can run, are left to the engine.
    """
    if schedule.placement.table != problem.placement.table:
        return "its stages are on other ranks"
    sizes = schedule.microbatches, schedule.iterations, schedule.slices
    if sizes != (problem.microbatches, 1, 1):
        return "it has other microbatches"
    if schedule.carries != problem.carries:
        return "it has other skip connections"
    actions = schedule.actions
    if np.any(pairs_of(actions)):
        return "it has overlapped pairs"
    kinds, stages = kinds_of(actions), stages_of(actions)
    ranks = np.repeat(np.arange(schedule.ranks), np.diff(schedule.offsets))
    if np.any(problem.homes[stages] != ranks):
        return "actions run on other ranks than their stages"
    shape = len(Kind), problem.stages, problem.microbatches
    cells = np.ravel_multi_index((kinds, stages, microbatches_of(actions)), shape)
    count = np.bincount(cells, minlength=np.prod(shape)).reshape(shape)
    fused, recomputed = count[FUSED_KIND], problem.recomputed[:, None]
    if np.any(fused > 1) or (problem.backward != "free" and np.any(fused != problem.fused)):
        return f"its backwards are not {problem.backward}"
    expected = {kind: np.ones(shape[1:], dtype=np.int64) for kind in ACTIVATION_KINDS}
    expected |= {FUSED_KIND: fused, **dict.fromkeys(SPLIT_KINDS, 1 - fused)}
    expected |= dict.fromkeys(RECOMPUTE_KINDS, np.broadcast_to(recomputed, shape[1:]).astype(int))
    away = count[COPY_KINDS[0]] == 1
    if np.any(away & ~np.array(problem.offload or (False,) * problem.stages)[:, None]):
        return "it offloads other stages"
    expected |= dict.fromkeys(COPY_KINDS, away.astype(np.int64))
    expected |= {kind: np.where(away, count[kind], 0) for kind in WAIT_KINDS}
    for kind in Kind:
        if np.any(count[kind] != expected.get(kind, 0)):
            what = "recomputes" if kind in RECOMPUTE_KINDS else f"{kind.name} actions"
            return f"it has more or fewer {what} than the problem"
    return ""
