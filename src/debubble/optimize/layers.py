"""Models as layers: what a cut into stages costs, cuts to begin with, and a bound for every cut.

A model of L equal layers is cut into S stages of at least one layer; embedding, head and further
predictions come on top of the first and last stage. Costs say what a stage of an even cut takes, so
a layer takes S/L of it. What no layer is part of, transfers and the ends, stays as it is.

**A bound for every cut.** Let a layer take f for its forward, w for all its work, and i before the
gradient goes on; ends and transfers are constants. A path that a microbatch takes through the model
and back runs through all layers, so it takes at least L · (f + i) and the constants, whatever the
cut. A rank with k layers, q before its first stage, begins when a forward has passed those q, works
m · k · w, and, where backwards are fused, all of it is followed by the backward of those q. So

    makespan ≥ q · f + m · k · w + [fused] q · i + constants,

and all ranks together have L layers. For a given makespan the left side says how many layers a rank
can have. Where ranks have one stage each, q is what the ranks before have; q plus what a rank can
then have does not fall when q grows, because a layer more before it takes away at most one
(f + i ≤ m · w). So giving the ranks as much as they can have, one after the other, places the
largest number of layers that any cut can. Where ranks have several stages, q is at least one for
every stage. The smallest makespan under which L layers are placed is a bound, found by bisection.

With memory limits M: a layer with d others before it holds its activation at least while its
microbatch runs through the L − d layers from it to the end and back, whatever the cut. The sum over
all layers and microbatches fits under the sum over ranks of M times the time the rank has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, pairwise
from math import comb
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from debubble.core.costs import Costs
from debubble.core.errors import ParameterError
from debubble.core.placement import Placement
from debubble.listing import TOLERANCE
from debubble.optimize.backward import relaxed
from debubble.optimize.bounds import transfer_times
from debubble.optimize.problem import Problem

Cut: TypeAlias = tuple[int, ...]
"""Layers of every stage."""

FEW = 500
"""Cuts up to which every one is looked at."""

MOST = 10_000
"""Layers at most."""

HALVINGS = 60
"""Steps of a bisection."""

ROUNDING = 1e-11
"""Part of a layer that rounding errors may cost."""

SCALED = ("F", "I", "W", "B", "R", "activation", "kv", "exchange", "unshard", "reduce_grad")
SHARES = ("kept_for_weight", "recompute_kept", "attention", "offload_share")


def check_layers(layers: int, costs: Costs) -> None:
    """Refuse numbers of layers and costs that say nothing about a layer."""
    if isinstance(layers, bool) or not isinstance(layers, int) or not 1 <= layers <= MOST:
        raise ParameterError(f"layers is {layers}; give a whole number from 1 to {MOST:,}")
    for name in (*SCALED, *SHARES, "O", "OPT"):
        value = getattr(costs, name)
        if isinstance(value, Sequence | Mapping):
            owner = {"O": "pair", "OPT": "rank"}.get(name, "stage")
            owner = "rank" if costs.basis == "rank" and owner == "stage" else owner
            raise ParameterError(
                f"{name} has {len(value)} values, but which layers a {owner} has is open; give one "
                "number for an even cut, and what only the first or last stage does as embedding, "
                "head or mtp"
            )


def even_cut(layers: int, stages: int) -> Cut:
    """As many layers on every stage; those that are left over on the first ones."""
    return tuple(layers // stages + (stage < layers % stages) for stage in range(stages))


def cut_costs(costs: Costs, placement: Placement, cut: Sequence[int], layers: int) -> Costs:
    """Costs per stage where `layers` are cut so; `costs` are those of an even cut."""
    divisor = (costs.chunks or placement.chunks) if costs.basis == "rank" else 1
    share = np.array(cut) * placement.stages / layers
    even = bool(np.all(share == 1))

    def spread(value: float) -> Any:
        same = even or value == 0
        return value / divisor if same else (value / divisor * share).tolist()

    defaults = {"F": 1.0}
    if costs.B is None:
        defaults |= {"I": 1.0, "W": 1.0}
    if not even:
        # The default of a stage is ranks / stages, and is not divided.
        defaults["activation"] = divisor * placement.ranks / placement.stages
    given = {name: getattr(costs, name) for name in SCALED}
    values = defaults | {name: value for name, value in given.items() if value is not None}
    changes = {name: spread(value) for name, value in values.items()}
    if costs.O is not None:
        assert isinstance(costs.O, float)
        changes["O"] = costs.O / divisor
        if not even:
            of_pair = costs.O / divisor * np.add.outer(share, share) / 2
            changes["O"] = dict(np.ndenumerate(of_pair))
    if costs.OPT and not even:
        homes, ranks = placement.ranks_of_stages, placement.ranks
        on_rank = np.bincount(homes, np.tile(share, placement.copies), ranks)
        changes["OPT"] = (on_rank * ranks / len(homes) * np.asarray(costs.OPT)).tolist()
    return replace(costs, basis="action", chunks=None, **changes)


def cut_problem(root: Problem, cut: Sequence[int]) -> Problem:
    """The problem whose stages have these layers."""
    costs = cut_costs(root.table.costs, root.placement, cut, root.layers)
    return replace(root, table=costs.resolve(root.placement), cut=tuple(cut))


@dataclass(frozen=True, eq=False)
class Cutting:
    """All cuts of a model over one placement.

    Parameters
    ----------
    root
        The problem with the costs of an even cut, and the number of layers.
    """

    root: Problem

    @cached_property
    def ends(self) -> Problem:
        """The stages without any layer: embedding and head alone."""
        return cut_problem(self.root, [0] * self.root.stages)

    @cached_property
    def layer(self) -> Problem:
        """Stages of one layer each, without embedding and head."""
        one, none = cut_problem(self.root, [1] * self.root.stages).table, self.ends.table
        alone = replace(
            one, duration=one.duration - none.duration, activation=one.activation - none.activation
        )
        return replace(self.root, table=alone)

    @cached_property
    def stages_of_ranks(self) -> NDArray[np.int64]:
        """Number of stages on every rank, the fewest layers it can have; shape ``(ranks,)``."""
        return np.bincount(self.root.homes, minlength=self.root.ranks)

    def most_layers(self, microbatches: float | NDArray[np.float64] = 1.0) -> NDArray[np.int64]:
        """Layers of every rank whose activations fit for some microbatches, shape ``(ranks,)``."""
        roof = self.root.limits / microbatches * (1 + TOLERANCE / 2)
        one = float(self.layer.table.activation[0])
        room = np.full(self.root.ranks, float(self.root.layers))
        if one > 0:
            room = np.minimum(room, (roof - self.ends.microbatch_memory) / one + TOLERANCE)
        whole: NDArray[np.int64] = np.maximum(np.floor(room), 0).astype(np.int64)
        return whole

    def fits(self, most: NDArray[np.int64]) -> bool:
        """Whether there is a cut with at most so many layers on every rank."""
        return bool(np.all(most >= self.stages_of_ranks)) and int(most.sum()) >= self.root.layers

    def fits_cut(self, cut: Sequence[int]) -> bool:
        """Whether one microbatch leaves no more than the limits under this cut."""
        return bool(np.all(self.root.per_rank(np.array(cut, dtype=float)) <= self.most_layers()))

    def check(self) -> None:
        """Refuse fewer layers than stages, and limits that no cut is within."""
        root = self.root
        if root.layers < root.stages:
            raise ParameterError(
                f"layers is {root.layers}, fewer than the {root.stages} stages; give a stage at "
                "least one layer, or fewer chunks"
            )
        if not self.fits(self.most_layers()):
            limits = "/".join(f"{limit:.12g}" for limit in np.unique(root.limits))
            least = f"{self.smallest_memory:.12g}"
            raise ParameterError(
                f"memory {limits} is too small for one microbatch, however the {root.layers} "
                f"layers are cut; give at least {least}, under which some cut works"
            )

    @property
    def smallest_memory(self) -> float:
        """The smallest limit, the same for every rank, that works under some cut."""
        one = float(self.layer.table.activation[0])
        counts = _shared_out(
            self.root.layers, self.stages_of_ranks, self.ends.microbatch_memory, one,
            np.full(self.root.ranks, self.root.layers),
        )  # fmt: skip
        return float((self.ends.microbatch_memory + one * counts)[self.stages_of_ranks > 0].max())

    def balanced(self, most: NDArray[np.int64], late: bool) -> Cut:
        """Work as equal on all ranks, then on all stages of each, as `most` layers allow.

        What is left over goes to late or early ranks and stages.
        """
        root = self.root
        work, one = self.ends.times.sum(axis=0), float(self.layer.times[:, 0].sum())
        counts = _shared_out(
            root.layers, self.stages_of_ranks, root.per_rank(work), one, most, late
        )
        cut = np.zeros(root.stages, dtype=np.int64)
        for rank in range(root.ranks):
            own = np.flatnonzero(root.homes == rank)
            least, free = np.ones(len(own), dtype=np.int64), np.full(len(own), root.layers)
            if len(own):
                cut[own] = _shared_out(int(counts[rank]), least, work[own], one, free, late)
        return tuple(cut.tolist())

    def seeds(self) -> list[Cut]:
        """Cuts to begin with: even, and balanced with room for different numbers of microbatches.

        Schedules hold from p/3 microbatches on a rank to p, 1F1B on rank r as many as p − r.
        """
        root, p = self.root, self.root.ranks
        same = [np.full(p, count) for count in (1.0, p / 3, p / 2, float(p))]
        rooms: list[NDArray[np.float64]] = [*same, np.arange(p, 0.0, -1.0)]
        cuts = [even_cut(root.layers, root.stages)]
        for room in rooms:
            most = np.minimum(self.most_layers(room), self.most_layers())
            if self.fits(most):
                cuts += [self.balanced(most, late) for late in (False, True)]
        return [cut for cut in dict.fromkeys(cuts) if self.fits_cut(cut)]

    def few(self) -> list[Cut] | None:
        """Every cut that fits, where they are few; else None."""
        layers, S = self.root.layers, self.root.stages
        if comb(layers - 1, S - 1) > FEW:
            return None
        borders = ((0, *inner, layers) for inner in combinations(range(1, layers), S - 1))
        cuts = [tuple(b - a for a, b in pairwise(border)) for border in borders]
        return [cut for cut in cuts if self.fits_cut(cut)]

    def bound(self) -> float:
        """A lower bound of the makespan under every cut."""
        root = self.root
        ends, layer = relaxed(self.ends).times, relaxed(self.layer).times
        # In PyTorch's runtime the first stage's backward is one piece, unlike the last one's.
        f, work = float(layer[0, 0]), float(layer.sum(axis=0).min())
        i = min(float(layer[1, -1]), work - f)
        first = np.full(root.ranks, root.stages)
        np.minimum.at(first, root.homes, np.arange(root.stages))
        before = [np.append(0.0, np.cumsum(column)) for column in (ends[0], ends[1])]
        up, down = np.cumsum(root.forward_link), np.append(0.0, np.cumsum(root.backward_link))
        busy = root.per_rank(ends.sum(axis=0))
        if root.mode == "blocking":
            busy += root.per_rank(transfer_times(root).sum(axis=0))
        ranks = np.flatnonzero(first < root.stages)
        ranks = ranks[np.argsort(first[ranks])]
        at = first[ranks]
        fixed = before[0][at] + up[at] + root.microbatches * busy[ranks]
        way = f
        if root.fused:
            # A rank that is busy with its sends has the first transfer of the way back among them.
            fixed += before[1][at] + down[np.maximum(at - (root.mode == "blocking"), 0)]
            way += i
        round_trip = float(ends[:2].sum() + up[-1] + down[-1]) + root.layers * (f + i)
        found = max(round_trip, self._busiest(fixed, at, way, root.microbatches * work))
        if np.isfinite(root.limits[ranks]).all():
            found = max(found, self._area(f + i, ends, before[0][at] + at * f + up[at], ranks))
        return found

    def _busiest(
        self, fixed: NDArray[np.float64], first: NDArray[np.int64], way: float, work: float
    ) -> float:
        """The least makespan of the busiest rank, by bisection."""
        layers = self.root.layers
        single = len(first) == self.root.stages
        if work == 0:
            return float(fixed.max())

        def enough(makespan: float) -> bool:
            passed = 0
            for constant, stage in zip(fixed.tolist(), first.tolist(), strict=True):
                q = passed if single else stage
                passed += int(np.floor((makespan - constant - q * way) / work + ROUNDING))
            return passed >= layers

        low, high = 0.0, float(fixed.max()) + layers * (way + work)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            low, high = (low, middle) if enough(middle) else (middle, high)
        return low

    def _area(
        self, trip: float, ends: NDArray[np.float64], begin: NDArray[np.float64],
        ranks: NDArray[np.int64],
    ) -> float:  # fmt: skip
        """The least makespan by what all ranks' memory can hold over time."""
        root = self.root
        last = float(ends[:2, -1].sum())
        held = self.ends.table.activation
        area = float(self.layer.table.activation[0]) * (
            trip * root.layers * (root.layers + 1) / 2 + root.layers * last
        )
        area += float(held[0]) * (float(ends[:2, 0].sum()) + root.layers * trip)
        if root.stages > 1:
            area += float(held[-1]) * (last + trip)
        roof = root.limits[ranks] * (1 + 2 * TOLERANCE)
        total = float(roof.sum())
        if total == 0:
            return 0.0
        return float(root.microbatches * area + (roof * begin).sum()) / total


def _shared_out(
    layers: int, least: NDArray[np.int64], base: NDArray[np.float64], one: float,
    most: NDArray[np.int64], late: bool = False,
) -> NDArray[np.int64]:  # fmt: skip
    """Layers for every owner, one by one to whoever then has the smallest load."""
    counts = least.copy()
    turn = np.arange(len(least))[:: -1 if late else 1]
    scale = float(base.max()) + one * layers or 1.0
    for _ in range(layers - int(counts.sum())):
        load = np.where((least > 0) & (counts < most), base + one * (counts + 1), np.inf)
        # Equal loads computed in different order differ in the last digits.
        counts[np.lexsort((turn, np.round(load / scale, 12)))[0]] += 1
    return counts
