"""A lower bound of the makespan for every cut of a model's layers into the stages of a placement.

Let layer l, with the layers numbered in forward order, take f(l) for its forward, t(l) for all its
work, and i(l) before the gradient goes on; ends and transfers are constants. A path that a
microbatch takes through the model and back runs through all layers, so it takes at least the sum of
all f + i and the constants, whatever the cut. Stages are consecutive: if q layers are before a
rank's first stage, they are the layers 0..q − 1. A rank begins when a forward has passed them,
works m times what its own layers take, and, where backwards are fused, all of it is followed by the
backward of those q. With the prefix sum w(q) of the f, or where backwards are fused of the f + i,

    makespan ≥ w(q) + m · Σ t(l) over the rank's layers + constants.                           (1)

**One stage on every rank.** Let T be the prefix sum of t. A rank whose layers are q..Q − 1 has, for
a makespan X and its constants c,

    m · T(Q) ≤ X − c + m · T(q) − w(q).                                                        (2)

The right side does not fall when q grows, since f(l) + i(l) ≤ t(l) ≤ m · t(l). So if no cut has
more than q layers before the rank, none has more than the largest Q that (2) allows for this q
before the next one. Giving every rank the longest run of layers that it can have, one rank after
the other, thus places at least as many as any cut with this makespan. If not all layers are placed,
X is below every cut's makespan.

**Several stages on a rank.** The least number of layers before a rank's first stage bounds w(q)
from below, and with X the work that each rank has time for by (1). For all ranks together that must
be at least m · T(L). And n layers take at least what the n smallest of the model do, so that (1)
limits the layers of a rank; together they must be L.

The smallest X that is not refused is the bound, found by bisection.

**Memory.** A microbatch's activation of layer l is held on its rank from the start of the stage's
forward to the end of its backward for the input, thus at least while it runs through the layers
l..L − 1 to the end and back, whatever the cut. The sum over all layers and microbatches of what is
held times that time fits under the sum over ranks of the limit times the time the rank has.

**Choices of stages.** Where stages may recompute, or may have their activations on the host, what a
layer holds until its backward is the least of any way; and R counts as work on those ranks only on
which every stage has to recompute. R needs no gradient, so that no path counts it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from debubble.core.boundaries import Boundaries
from debubble.core.cost_table import CostTable
from debubble.core.kind_relations import (
    FORWARD_KIND,
    FUSED_KIND,
    INPUT_KIND,
    RECOMPUTE_KIND,
    WEIGHT_KIND,
)
from debubble.core.runtimes import FIRST_IN_W, has_rule
from debubble.listing import TOLERANCE
from debubble.optimize.bounds.paths import transfer_times
from debubble.optimize.layer_split.cutting import Cutting, cut_problem
from debubble.optimize.problem import Problem
from debubble.optimize.programs.backward import relaxed
from debubble.optimize.stage_choices.choices import OFFLOAD, RECOMPUTE, Ways, choice_of

HALVINGS = 60
"""Steps of a bisection."""

ROUNDING = 1e-11
"""Part of a layer that rounding errors may cost."""


def bound_of_cuts(cutting: Cutting, ways: Ways | None = None) -> float:
    """Return a lower bound of the makespan under every cut, and every choice open to the stages.

    By default stages do what those of the cutting's root do.
    """
    ways = ways or [(way,) for way in choice_of(cutting.root)]
    return _Bound(cutting, ways).value()


class _Bound:
    """Layers, ends and ranks as the bound needs them."""

    def __init__(self, cutting: Cutting, ways: Ways) -> None:
        # Here every stage keeps its activations.
        root = replace(_with_quick_gradients(cutting.root), recompute=(), offload=())
        self.root, self.ends = root, cut_problem(root, [0] * root.stages)
        alone = cutting.alone
        self.forward, self.back, self.work = _times(root, alone)
        """f, i and t of every layer, shape ``(layers,)``."""
        self.again = alone.duration[RECOMPUTE_KIND]
        """R of every layer, shape ``(layers,)``."""
        self.must = np.ones(root.ranks, dtype=bool)
        """True if every stage of each rank has to recompute, shape ``(ranks,)``."""
        for home, some in zip(root.homes.tolist(), ways, strict=True):
            self.must[home] &= all(way & RECOMPUTE for way in some)
        anywhere = sorted({way for some in ways for way in some})
        most = float(max(alone.offload.max(), self.ends.table.offload[[0, -1]].max()))
        self.held = _held(alone, anywhere, most)
        """Least activation memory after the forward of every layer, shape ``(layers,)``."""
        self.held_ends = [_held(self.ends.table, ways[end], most)[end] for end in (0, -1)]
        """Least activation memory of the first and last stage without their layers."""
        self.before = np.append(0, np.cumsum(cutting.least)[:-1])
        """Fewest layers before every stage, shape ``(stages,)``."""
        self.filled = bool(cutting.least[-1])
        """True if the last stage has a layer under every cut."""

    def value(self) -> float:
        root = self.root
        ends, layers = relaxed(self.ends).times, len(self.forward)
        way, trip = _sums(self.forward), _sums(self.forward + self.back)
        first = np.full(root.ranks, root.stages)
        np.minimum.at(first, root.homes, np.arange(root.stages))
        before = _sums(ends[0]), _sums(ends[1])
        up, down = np.cumsum(root.forward_link), _sums(root.backward_link)
        busy = root.per_rank(ends.sum(axis=0))
        if self.must.any():
            again = root.per_rank(self.ends.table.duration[RECOMPUTE_KIND])
            busy += np.where(self.must, again, 0.0)
        if root.mode == "blocking":
            busy += root.per_rank(transfer_times(root).sum(axis=0))
        ranks = np.flatnonzero(first < root.stages)
        ranks = ranks[np.argsort(first[ranks])]
        at = first[ranks]
        begin = before[0][at] + up[at]
        fixed = begin + root.microbatches * busy[ranks]
        if root.fused:
            # A rank that is busy with its sends has the first transfer of the way back among them.
            fixed += before[1][at] + down[np.maximum(at - (root.mode == "blocking"), 0)]
        round_trip = float(ends[:2].sum() + up[-1] + down[-1]) + float(trip[layers])
        found = max(round_trip, self._busiest(fixed, trip if root.fused else way, ranks, at))
        if np.isfinite(root.limits[ranks]).all():
            begin = begin + way[self.before[at]]
            found = max(found, self._area(trip, ends, begin, ranks))
        return found

    def _busiest(
        self, fixed: NDArray[np.float64], way: NDArray[np.float64], ranks: NDArray[np.int64],
        first: NDArray[np.int64],
    ) -> float:  # fmt: skip
        """Return the least makespan of the busiest rank, by bisection."""
        works = [self.root.microbatches * (self.work + self.again * r) for r in self.must[ranks]]
        if min(float(work.max()) for work in works) == 0:
            return float(fixed.max())
        single = len(ranks) == self.root.stages
        if single:
            passed = self._in_turn(fixed, way, works)
        else:
            passed = self._together(fixed + way[self.before[first]], works)
        low, high = 0.0, float(fixed.max() + way[-1] + max(work.sum() for work in works))
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            low, high = (low, middle) if passed(middle) else (middle, high)
        return low

    def _in_turn(
        self, fixed: NDArray[np.float64], way: NDArray[np.float64], works: list[NDArray[np.float64]]
    ) -> Callable[[float], bool]:
        """Return whether one rank after the other can have all layers within a makespan."""
        layers = len(self.work)
        rows = list(zip(fixed.tolist(), (_sums(work).tolist() for work in works), strict=True))
        ways, slack = way.tolist(), ROUNDING * max(float(work.max()) for work in works)

        def passed(makespan: float) -> bool:
            q = 0
            for constant, whole in rows:
                q = bisect_right(whole, whole[q] + makespan - constant - ways[q] + slack) - 1
                if q < 0:
                    return False
            return q >= layers

        return passed

    def _together(
        self, start: NDArray[np.float64], works: list[NDArray[np.float64]]
    ) -> Callable[[float], bool]:
        """Return whether ranks can have all layers, in any order, within a makespan."""
        layers = len(self.work)
        smallest = [_sums(np.sort(work)) for work in works]
        least = np.min(works, axis=0)
        slack = ROUNDING * float(np.max(works))

        def passed(makespan: float) -> bool:
            room = makespan - start + slack
            if room.min() < 0 or room.max() < least.max() or room.sum() < least.sum():
                return False
            pairs = zip(smallest, room, strict=True)
            return sum(int(np.searchsorted(sums, r, "right")) - 1 for sums, r in pairs) >= layers

        return passed

    def _area(
        self, trip: NDArray[np.float64], ends: NDArray[np.float64], begin: NDArray[np.float64],
        ranks: NDArray[np.int64],
    ) -> float:  # fmt: skip
        """Return the least makespan by what all ranks' memory can hold over time."""
        root = self.root
        last = float(ends[:2, -1].sum())
        area = float((self.held * (trip[-1] - trip[:-1] + last)).sum())
        area += float(self.held_ends[0]) * (float(ends[:2, 0].sum()) + float(trip[-1]))
        if root.stages > 1:
            area += float(self.held_ends[1]) * (last + self.filled * float(trip[-1] - trip[-2]))
        roof = root.limits[ranks] * (1 + 2 * TOLERANCE)
        total = float(roof.sum())
        if total == 0:
            return 0.0
        return float(root.microbatches * area + (roof * begin).sum()) / total


def _sums(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return prefix sums, shape ``(layers + 1,)``."""
    return np.append(0.0, np.cumsum(values))


def _with_quick_gradients(root: Problem) -> Problem:
    """Return the problem without transfers of gradients where the first layers need none.

    Before layers are cut it is open which stages get gradients.
    """
    assert root.layers is not None
    frozen = root.layers.frozen
    if frozen is None or frozen.needed.all():
        return root
    time = np.zeros((2, root.stages))
    time[0, :-1] = root.forward_link[1:]
    none = np.zeros_like(time)
    table = replace(root.table, boundaries=Boundaries(time, none, none, time > 0))
    return replace(root, table=table)


def _times(
    root: Problem, alone: CostTable
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return f, i and t of every layer: no stage of any cut takes less for its layers."""
    F, I, W, B = alone.duration[[FORWARD_KIND, INPUT_KIND, WEIGHT_KIND, FUSED_KIND]]
    if root.fused:
        return F, B, F + B
    back = I + W
    if root.backward == "free":
        back, I = np.minimum(back, B), np.minimum(I, B)
    elif has_rule(root.table.costs, FIRST_IN_W):
        # The first stage's backward is one piece, unlike the last one's.
        back = np.minimum(back, B)
    return F, np.minimum(I, back), F + back


def _held(table: CostTable, ways: Sequence[int], most: float) -> NDArray[np.float64]:
    """Return the least memory after a forward; copies move a share of `most` at most."""
    found = []
    for way in ways:
        held = table.checkpoint if way & RECOMPUTE else table.activation
        if way & OFFLOAD:
            # Of stages that do both, shares are means over layers, and their product is no sum.
            held = held * (1 - (most if way & RECOMPUTE else table.offload))
        found.append(held)
    least: NDArray[np.float64] = np.min(found, axis=0)
    return least
