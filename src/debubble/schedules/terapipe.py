"""TeraPipe: all forwards, then all backwards, over sequence slices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import Kind, Program
from debubble.core.sequence import as_kind, moved, sequence
from debubble.schedules._slices import CUT, cut_of, microbatch_by_microbatch
from debubble.schedules.registry import makespan_is, peak_is, register


def _of_slices(k: Any, kind: Kind) -> NDArray[np.float64]:
    times: NDArray[np.float64] = k.table.duration[kind].reshape(k.s, k.p)[:, 0]
    return times


def _flow(k: Any) -> float:
    passes = (_of_slices(k, Kind.F), _of_slices(k, Kind.B))
    return float(sum(k.m * times.sum() + (k.p - 1) * times.max() for times in passes))


@register(
    "terapipe",
    title="All forwards, then all backwards, over slices of every sequence",
    year=2021,
    source="@li2021terapipe",
    chunks=1,
    cut=cut_of,
    constraints=(CUT,),
    forms=(
        makespan_is(
            "m(F + B) + (p − 1)(max F + max B), each the longest slice's",
            _flow,
            condition="no latency",
        ),
        peak_is("m", lambda k: k.m * k.table.activation[:: k.p].sum()),
    ),
)
def terapipe(
    *,
    ranks: int,
    microbatches: int,
    slices: int = 4,
    cut: str = "flops",  # noqa: ARG001 - where to cut changes no order; cut_of reads it
) -> Iterator[Program]:
    """Every rank runs the forwards of all slices, then all backwards in reverse.

    As GPipe with s times as many units: fill and drain shrink by s, memory stays at all
    microbatches. Both passes are flow shops whose stages are alike, which take Σt + (p − 1) max t
    over all units.

    TeraPipe searches the lengths of the slices for the least Σt + (p − 1) max t with a dynamic
    program. Here a slice takes time in proportion to its work, so that Σt is the same for every
    cut and the best of s slices is the one with the smallest max t: ``cut="flops"``, where all
    take the same time. ``cut="tokens"`` makes all slices equally long.

    When to use it: long sequences in so few microbatches that memory holds them all. seq1f1b has as
    small a bubble in the memory of little more than one microbatch; with slow links terapipe is
    faster, as it pays latency once each way.

    p = 2, m = 2, s = 2, B twice as long as F::

        r0 | F0.0 F0.1 F1.0 F1.1 .    .    .    B1.1----- B1.0----- B0.1----- B0.0-----
        r1 | .    F0.0 F0.1 F1.0 F1.1 B1.1----- B1.0----- B0.1----- B0.0----- .    .
    """
    forwards, _ = microbatch_by_microbatch(ranks, microbatches, 1, slices)
    both = sequence(forwards, as_kind(forwards[::-1], Kind.B))
    for rank in range(ranks):
        yield moved(both, rank)
