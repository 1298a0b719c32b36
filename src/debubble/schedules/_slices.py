"""Common parts of schedules over sequence slices: order, cut, and equality of slices."""

from __future__ import annotations

from typing import Any

import numpy as np

from debubble.core.actions import Kind, Program
from debubble.core.costs import Costs
from debubble.core.placement import Placement
from debubble.core.sequence import interleaved_table
from debubble.core.slicing import even_cut
from debubble.schedules.interleaved import forwards_and_backwards
from debubble.schedules.registry import Constraint

CUTS = ("flops", "tokens")

CUT = Constraint(
    "cut", "a cut into slices of the same 'flops' or 'tokens'", lambda k: k.cut in CUTS
)


def microbatch_by_microbatch(
    ranks: int, microbatches: int, chunks: int, slices: int
) -> tuple[Program, Program]:
    """Return forwards and backwards of rank 0, each microbatch through all chunks in turn."""
    table = interleaved_table(microbatches, chunks, 1)
    return forwards_and_backwards(table, ranks, chunks, slices)


def cut_of(case: Any) -> tuple[float, ...]:
    """Return the share of the tokens in each slice; empty for equal slices.

    Slices of the same flops take the same time forwards, summed over all stages, by the case's
    costs: without attention they are equal.
    """
    if case.cut == "tokens" or case.slices == 1:
        return ()
    costs = case.costs or Costs()
    return even_cut(Placement.loop(case.ranks, case.chunks), case.slices, costs)


def alike(case: Any, *kinds: Kind) -> bool:
    """Return whether actions of these kinds take the same time for all slices."""
    times = case.table.duration[list(kinds)]
    return bool(np.allclose(times, times[:, :1], rtol=1e-9, atol=0))


def same_size(case: Any) -> bool:
    """Return whether all slices leave the same memory."""
    return bool(np.allclose(case.table.activation, case.unit, rtol=1e-9, atol=0))
