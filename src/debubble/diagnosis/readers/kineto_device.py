"""Device times of the kernels launched in a range of the host.

The host runs ahead of the device, so its ranges are not durations of actions. A kernel belongs to
the range in which it was *launched*, by any thread of the process: autograd launches the kernels of
a backward. A kernel and its launch have one correlation number.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from debubble.diagnosis.observed import Indices
from debubble.diagnosis.readers.kineto_file import KinetoFile, Nanoseconds
from debubble.diagnosis.readers.stream import LeftOut

NO_LAUNCH = "kernels whose launch is not in the trace"

WORK, COLLECTIVE, P2P = range(3)


@dataclass(frozen=True, eq=False)
class Kernels:
    """Kernels launched in ranges, sorted by range and start; times in nanoseconds.

    `owner` is the range of each kernel, `sort` computation, or a collective or p2p of NCCL. Ranges
    in `torn` have a launch whose kernel is not in the trace.
    """

    owner: Indices
    launched: Nanoseconds
    start: Nanoseconds
    end: Nanoseconds
    sort: Indices
    torn: frozenset[int]

    def __len__(self) -> int:
        return len(self.owner)

    def of(self, owner: int) -> slice:
        """Return the rows of the kernels of a range."""
        first, last = np.searchsorted(self.owner, [owner, owner + 1])
        return slice(int(first), int(last))

    @cached_property
    def work(self) -> dict[int, tuple[int, int, int, int]]:
        """Start, end, busy time and first launch of the computation, by range; nanoseconds.

        Collectives between an action's first and last kernel count as part of it; p2p does not.
        Ranges without computation are absent.
        """
        computes = self.sort == WORK
        ranges, at = np.unique(self.owner[computes], return_index=True)
        if not len(ranges):
            return {}
        first = self.start[computes][at]
        last = np.maximum.reduceat(self.end[computes], at)
        launched = np.minimum.reduceat(self.launched[computes], at)
        counts = (self.sort != P2P) & np.isin(self.owner, ranges)
        place = np.searchsorted(ranges, self.owner[counts])
        # Ranges in sequence must not overlap.
        offset = np.cumsum((last - first).astype(float)) - (last - first)
        begin, end = (
            np.minimum(np.maximum(times[counts], first[place]), last[place]) - first[place]
            + offset[place]
            for times in (self.start, self.end)
        )  # fmt: skip
        covered = np.maximum.accumulate(end)
        begin[1:] = np.maximum(begin[1:], covered[:-1])
        spent = np.bincount(place, np.maximum(end - begin, 0)).astype(np.int64)
        rows = zip(*(each.tolist() for each in (first, last, spent, launched)), strict=True)
        return dict(zip(ranges.tolist(), rows, strict=True))


def launched_in(ranges: Nanoseconds, file: KinetoFile, left_out: LeftOut) -> Kernels:
    """Return the kernels of a file by the ranges of their launches.

    `ranges` has the starts and ends of ranges that do not overlap, sorted; shape ``(2 or more,
    n)``.
    """
    launches, kernels = file.launches.sorted(), file.kernels.sorted()
    known, at = _found(kernels[0], launches[0])
    if len(known) and not known.all():
        left_out[NO_LAUNCH] += int((~known).sum())
    time = launches[1][at[known]]
    _, start, end, _, sort = kernels[:, known]
    owner = _owners(ranges, time)
    columns = np.stack([owner, time, start, end, sort])[:, owner >= 0]
    ran, _ = _found(launches[0], kernels[0])
    lost = _owners(ranges, launches[1][~ran & (launches[2] > 0)])
    torn = frozenset(lost[lost >= 0].tolist()) if len(kernels[0]) else frozenset()
    order = np.lexsort((columns[2], columns[0]))
    owner, time, start, end, sort = columns[:, order]
    return Kernels(owner, time, start, end, sort, torn)


def _found(values: Indices, among: Indices) -> tuple[NDArray[np.bool_], Indices]:
    """Return a mask of the values found in a sorted array, and their positions in it."""
    at = np.searchsorted(among, values)
    known = at < len(among)
    known[known] = among[at[known]] == values[known]
    return known, at


def _owners(ranges: Nanoseconds, times: Nanoseconds) -> Indices:
    """Return the range that contains each time, or −1."""
    if not ranges.shape[1]:
        return np.full(len(times), -1)
    owner = np.searchsorted(ranges[0], times, side="right") - 1
    return np.where((owner >= 0) & (times <= ranges[1][np.maximum(owner, 0)]), owner, -1)


def transfer_spans(kernels: Kernels, owner: int) -> list[tuple[int, int]]:
    """Return starts and ends of the p2p kernels of a range, sorted by start."""
    here = kernels.of(owner)
    p2p = kernels.sort[here] == P2P
    return list(
        zip(kernels.start[here][p2p].tolist(), kernels.end[here][p2p].tolist(), strict=True)
    )
