"""List scheduling of a problem of the optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from debubble import listing
from debubble.core.actions import Program
from debubble.core.kind_relations import FUSED_KIND, SPLIT_KINDS
from debubble.optimize.problem import Problem
from debubble.optimize.programs.backward import separate


def listed(
    problem: Problem, candidates: Sequence[Sequence[Program]], effort: float = 1.0
) -> list[Program]:
    """The list scheduler's order."""
    table = problem.table
    if problem.fused:
        duration = table.duration.copy()
        first, second = SPLIT_KINDS
        duration[first], duration[second] = duration[FUSED_KIND], 0.0
        table = replace(table, duration=duration, kept=np.zeros_like(table.kept))
        candidates = ()
    most = 4.0 * problem.microbatches * problem.microbatch_memory.max() + 1.0
    limits = np.minimum(problem.limits, most)
    order = listing.schedule(
        problem.placement, table, problem.microbatches, limits,
        recompute=problem.recomputed if problem.recompute else None, published=candidates,
        effort=effort,
    )  # fmt: skip
    return separate(problem, order)
