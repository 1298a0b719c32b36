"""Common parts of schedules over sequence slices: order, cut, and equality of slices."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import Kind, Program
from debubble.core.costs import Costs
from debubble.core.placement import Placement
from debubble.core.sequence import alternate, backward, forward, interleaved_table, sequence
from debubble.core.slicing import even_work
from debubble.schedules.registry import Constraint

Table = tuple[NDArray[np.int64], NDArray[np.int64]]

CUTS = ("flops", "tokens")

CUT = Constraint(
    "cut", "a cut into slices of the same 'flops' or 'tokens'", lambda k: k.cut in CUTS
)


def over_slices(table: Table, ranks: int, chunks: int, slices: int) -> tuple[Program, Program]:
    """All forwards and all backwards of rank 0, slice by slice.

    Parameters
    ----------
    table
        Chunk and microbatch at every position, as :func:`debubble.core.sequence.interleaved_table`.
    ranks, chunks, slices
        Sizes.

    Returns
    -------
    forwards, backwards
        Every entry of the table for one slice after the other; backwards take chunks and slices in
        reverse.
    """
    chunk, number = table
    part = np.arange(slices)
    first = number[:, None] * slices
    return (
        forward(np.repeat(chunk, slices) * ranks, (first + part).ravel()),
        backward(np.repeat(chunks - 1 - chunk, slices) * ranks, (first + part[::-1]).ravel()),
    )


def microbatch_by_microbatch(
    ranks: int, microbatches: int, chunks: int, slices: int
) -> tuple[Program, Program]:
    """All forwards and all backwards of rank 0, a microbatch through all chunks before the next."""
    return over_slices(interleaved_table(microbatches, chunks, 1), ranks, chunks, slices)


def one_f_one_b(forwards: Program, backwards: Program, warm_up: int) -> Program:
    """`warm_up` forwards, then forward and backward in turn, then the backwards that are left."""
    paired = max(len(forwards) - warm_up, 0)
    return sequence(
        forwards[:warm_up],
        alternate(forwards[warm_up:], backwards[:paired]),
        backwards[paired:],
    )


def cut_of(case: Any) -> tuple[float, ...]:
    """Share of the tokens in each slice; empty for equal slices.

    Slices of the same flops take the same time forwards, summed over all stages, by the case's
    costs: without attention they are equal.
    """
    if case.cut == "tokens" or case.slices == 1:
        return ()
    costs = case.costs or Costs()
    share = costs.attention
    if not isinstance(share, float):
        table = costs.resolve(Placement.loop(case.ranks, case.chunks))
        F = table.duration[Kind.F]
        share = float(F @ table.attention / F.sum()) if F.any() else 0.0
    return even_work(case.slices, share) if share > 0 else ()


def alike(case: Any, *kinds: Kind) -> bool:
    """Whether actions of these kinds take the same time for all slices."""
    times = case.table.duration[list(kinds)]
    return bool(np.allclose(times, times[:, :1], rtol=1e-9, atol=0))


def same_size(case: Any) -> bool:
    """Whether all slices leave the same memory."""
    return bool(np.allclose(case.table.activation, case.unit, rtol=1e-9, atol=0))
