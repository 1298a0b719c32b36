"""Times in which the device worked on the launches of a range of the host.

The host runs ahead of the device, so its ranges are no durations. It blocks within one action,
though: a kernel belongs to the range in which it was *launched*, by whatever thread of the process
(the launches of a backward are autograd's). What belongs together has the same correlation.
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
    """Kernels that were launched in ranges, sorted by range and start.

    Parameters
    ----------
    owner
        The range of each.
    launched, start, end
        When, in nanoseconds.
    sort
        Whether it computes, or is a collective or a p2p of NCCL.
    torn
        Ranges that launched a kernel of which the trace has nothing.
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
        """By range start, end and busy time of what it computed, and its first launch.

        Collectives count as the action's where they run between its first and last kernel; p2p does
        not. Ranges that launched nothing that computes have none.
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
        # One range behind the other, so that none reaches into the next.
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
    """Return the kernels of a file by the ranges in which they were launched.

    Parameters
    ----------
    ranges
        Start and end of ranges that do not overlap, sorted; shape ``(2 or more, n)``.
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
    """Return a mask of the values that are among some sorted ones, and their places."""
    at = np.searchsorted(among, values)
    known = at < len(among)
    known[known] = among[at[known]] == values[known]
    return known, at


def _owners(ranges: Nanoseconds, times: Nanoseconds) -> Indices:
    """Return the range that each time lies in, or −1."""
    if not ranges.shape[1]:
        return np.full(len(times), -1)
    owner = np.searchsorted(ranges[0], times, side="right") - 1
    return np.where((owner >= 0) & (times <= ranges[1][np.maximum(owner, 0)]), owner, -1)


def transfer_spans(kernels: Kernels, owner: int) -> list[tuple[int, int]]:
    """Return starts and ends of the p2p kernels that a range launched, in order."""
    here = kernels.of(owner)
    p2p = kernels.sort[here] == P2P
    return list(
        zip(kernels.start[here][p2p].tolist(), kernels.end[here][p2p].tolist(), strict=True)
    )
