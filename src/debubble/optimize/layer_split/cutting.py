"""All cuts of a model's layers into the stages of one placement: memory, and where to begin.

With equal layers of which stages keep everything, the number that fits on a rank is a division, and
the least memory for some cut is known exactly. Else a cut is improved, one layer after the other,
until no neighbor is better; where there are few cuts all of them are looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, islice, pairwise
from math import comb

import numpy as np
from numpy.typing import NDArray

from debubble.core.cost_table import CostTable
from debubble.core.errors import ParameterError
from debubble.core.kind_relations import RECOMPUTE_KIND
from debubble.core.layers import Cut, even_cut
from debubble.listing import TOLERANCE
from debubble.lowering.offload import eased as ease_costs
from debubble.optimize.layer_split.steps import neighbors, shared_out
from debubble.optimize.problem import Problem
from debubble.optimize.programs.offload import relax_copies

FEW = 500
"""Cuts up to which every one is looked at."""

STEPS = 200
"""Layers that are moved one after the other to improve a cut, at most."""


def cut_problem(root: Problem, cut: Sequence[int]) -> Problem:
    """Return the problem whose stages have so many layers.

    Its limits are without what these layers hold all the time.
    """
    assert root.layers is not None
    costs = replace(root.layers.cut(root.placement, cut), static=0.0)
    table = costs.resolve(root.placement).for_microbatches(root.microbatches)
    limits = root.limits - root.layers.held_on_ranks(root.placement, cut)
    return replace(root, table=table, cut=tuple(cut), limits=limits)


def smallest_limit(problem: Problem) -> float:
    """Return the smallest memory limit for all ranks that works, under some cut."""
    if problem.layers is not None:
        return Cutting(problem).smallest_memory
    return float(relax_copies(problem).smallest_limits.max())


@dataclass(frozen=True, eq=False)
class Cutting:
    """All cuts of a model over one placement, whose stages do what those of `root` do."""

    root: Problem
    """The problem with its layers, and with the costs of an even cut."""

    @property
    def count(self) -> int:
        """Number of layers."""
        assert self.root.layers is not None
        return self.root.layers.count

    @cached_property
    def ends(self) -> Problem:
        """The stages without any layer: embedding and head alone."""
        return cut_problem(self.root, [0] * self.root.stages)

    @cached_property
    def alone(self) -> CostTable:
        """Costs of the layers, each a stage of its own."""
        assert self.root.layers is not None
        return self.root.layers.table(self.root.placement)

    @cached_property
    def least(self) -> NDArray[np.int64]:
        """The fewest layers of every stage, shape ``(stages,)``.

        The first stage can do without where it has an embedding, the last where it has a head.
        """
        least = np.ones(self.root.stages, dtype=np.int64)
        beside = self.ends.table.part_duration.sum(axis=0)
        for stage in {0, self.root.stages - 1}:
            least[stage] = beside[stage] == 0
        return least

    @cached_property
    def stages_of_ranks(self) -> NDArray[np.int64]:
        """Number of stages on every rank, shape ``(ranks,)``."""
        return np.bincount(self.root.homes, minlength=self.root.ranks)

    @cached_property
    def least_of_ranks(self) -> NDArray[np.int64]:
        """The fewest layers of every rank, shape ``(ranks,)``."""
        return self.root.per_rank(self.least.astype(float)).astype(np.int64)

    @property
    def plain(self) -> bool:
        """True if layers are equal, and every stage keeps what its forwards leave."""
        root = self.root
        return not (root.layers and root.layers.each) and not (root.recompute or root.offload)

    @cached_property
    def _mean(self) -> tuple[float, float]:
        """Work and activation of a layer on average, one number where layers are equal."""
        work, held = self._work[0], self.alone.activation
        if self.plain:
            return float(work[0]), float(held[0])
        return float(work.mean()), float(held.mean())

    @cached_property
    def _work(self) -> NDArray[np.float64]:
        """Time of every layer for one microbatch, without R and with it; shape ``(2, count)``."""
        times = self.alone.duration
        work = times[list(self.root.kinds)].sum(axis=0)
        return np.array([work, work + times[RECOMPUTE_KIND]])

    def most_layers(self, microbatches: float | NDArray[np.float64] = 1.0) -> NDArray[np.int64]:
        """Return the number of layers that fit on every rank, shape ``(ranks,)``."""
        roof = self.root.limits / microbatches * (1 + TOLERANCE / 2)
        one = self._mean[1]
        room = np.full(self.root.ranks, float(self.count))
        if one > 0:
            room = np.minimum(room, (roof - self.ends.microbatch_memory) / one + TOLERANCE)
        whole: NDArray[np.int64] = np.maximum(np.floor(room), 0).astype(np.int64)
        return whole

    def fits(self, most: NDArray[np.int64]) -> bool:
        """Return whether there is a cut with at most so many layers on every rank."""
        return bool(np.all(most >= self.least_of_ranks)) and int(most.sum()) >= self.count

    def fits_cut(self, cut: Sequence[int]) -> bool:
        """Return whether one microbatch leaves no more than the limits under this cut."""
        if self.plain:
            return bool(np.all(self.root.per_rank(np.array(cut, float)) <= self.most_layers()))
        needed = self.memory(np.array([cut]))[0]
        return bool(np.all(needed * (1 - TOLERANCE / 2) <= self.root.limits))

    def check(self) -> None:
        """Refuse fewer layers than stages, and limits that no cut is within."""
        root, needed = self.root, int(self.least.sum())
        if self.count < needed:
            those = "" if needed == root.stages else " that need one"
            raise ParameterError(
                f"layers is {self.count}, fewer than the {needed} stages{those}; give a stage at "
                "least one layer, or fewer chunks"
            )
        some = self.fits(self.most_layers()) if self.plain else any(self._fitting())
        if not some:
            limits = "/".join(f"{limit:.12g}" for limit in np.unique(root.limits))
            which = f"however the {self.count} layers are cut"
            if not (self.plain or self.all() is not None or self._too_much):
                which = (
                    f"under every cut of the {self.count} layers that was looked at, which proves "
                    "nothing for the others"
                )
            raise ParameterError(
                f"memory {limits} is too small for one microbatch, {which}; give at least "
                f"{self.smallest_memory:.12g}, under which some cut works"
            )

    @property
    def _too_much(self) -> bool:
        """True if one layer is too large for every rank, or all of them for all ranks together."""
        limits = self.root.limits * (1 + TOLERANCE)
        each = np.min([self._footprint(*way)[0] for way in self._ways], axis=0)
        whole = each.sum() + self._own[0].sum()
        return bool(each.max() > limits.max() or whole > limits.sum())

    @cached_property
    def smallest_memory(self) -> float:
        """The smallest limit, the same for every rank, that works under some cut; else infinite."""
        if self.count < int(self.least.sum()):
            return np.inf
        used = self.stages_of_ranks > 0
        if self.plain:
            one = self._mean[1]
            counts = shared_out(
                self.count, self.least_of_ranks, used, self.ends.microbatch_memory, one,
                np.full(self.root.ranks, self.count),
            )  # fmt: skip
            return float((self.ends.microbatch_memory + one * counts)[used].max())
        cuts = self.all() or [
            self._improved(cut, np.zeros(self.root.ranks), np.ones(self.root.ranks))
            for cut in self._starts()
        ]
        return float(self.memory(np.array(cuts)).max(axis=1).min())

    def memory(
        self, cuts: NDArray[np.int64], microbatches: NDArray[np.float64] | float = 1.0
    ) -> NDArray[np.float64]:
        """Return the memory that microbatches need on every rank, shape ``(cuts, ranks)``.

        All of them are in their forwards but one, which is in one of its backwards. Copies to the
        host take no time here. What layers hold all the time counts, too.
        """
        root, away = self.root, self._away
        border = np.cumsum(np.pad(cuts, ((0, 0), (1, 0))), axis=1)
        stored, more = np.zeros(cuts.shape), np.zeros(cuts.shape)
        for recompute, offload in self._ways:
            here = (root.recomputed == recompute) & (away == offload)
            sums = np.pad(np.cumsum(self._footprint(recompute, offload), axis=1), ((0, 0), (1, 0)))
            for into, values in ((stored, sums[0]), (more, sums[1])):
                into[:, here] = (values[border[:, 1:]] - values[border[:, :-1]])[:, here]
        stored, more = stored + self._own[0], more + self._own[1]
        needed = np.zeros((len(cuts), root.ranks))
        for rank in range(root.ranks):
            there = root.homes == rank
            held = np.cumsum(stored[:, there], axis=1)
            if held.size:
                needed[:, rank] = (held + more[:, there]).max(axis=1)
        others = np.maximum(np.asarray(microbatches) - 1, 0)
        whole: NDArray[np.float64] = needed + others * (stored @ self._on_ranks)
        assert root.layers is not None
        if root.layers.held:
            sums = np.append(0.0, np.cumsum(root.layers.held))
            whole += (sums[border[:, 1:]] - sums[border[:, :-1]]) @ self._on_ranks
            whole += root.layers.held_on_ranks(root.placement, [0] * root.stages)
        return whole

    @cached_property
    def _ways(self) -> list[tuple[bool, bool]]:
        """Pairs of flags in use: stages recompute, and their activations go to the host."""
        both = np.unique([self.root.recomputed, self._away], axis=1)
        return [(bool(recompute), bool(away)) for recompute, away in both.T]

    @cached_property
    def _away(self) -> NDArray[np.bool_]:
        """True if a stage's activations go to the host; shape ``(stages,)``."""
        return np.array(self.root.offload or (False,) * self.root.stages)

    @cached_property
    def _own(self) -> NDArray[np.float64]:
        """Footprint of the stages without layers, shape ``(2, stages)``."""
        return np.array(relax_copies(self.ends).footprint)

    @cached_property
    def _on_ranks(self) -> NDArray[np.float64]:
        """One where a stage is on a rank, else 0; shape ``(stages, ranks)``."""
        return np.eye(self.root.ranks)[self.root.homes]

    def _footprint(self, recompute: bool, offload: bool) -> NDArray[np.float64]:
        """Return layers' memory after forward and during backward, shape ``(2, count)``."""
        recomputed, away = np.full(self.count, recompute), np.full(self.count, offload)
        table = ease_costs(self.alone, recomputed, away) if offload else self.alone
        return np.array(table.footprint(recomputed | away))

    def work(self, cuts: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the time of every stage for one microbatch, shape ``(cuts, stages)``."""
        border = np.cumsum(np.pad(cuts, ((0, 0), (1, 0))), axis=1)
        sums = np.pad(np.cumsum(self._work, axis=1), ((0, 0), (1, 0)))
        way = self.root.recomputed.astype(int)
        layers = sums[way, border[:, 1:]] - sums[way, border[:, :-1]]
        return np.asarray(layers + self.ends.times.sum(axis=0))

    def balanced(self, most: NDArray[np.int64], late: bool) -> Cut:
        """Return a cut with work as equal as `most` layers allow, first on ranks, then on stages.

        The remainder goes to late or early ranks and stages. Layers count as the average.
        """
        root = self.root
        work, one = self.ends.times.sum(axis=0), self._mean[0]
        counts = shared_out(
            self.count, self.least_of_ranks, self.stages_of_ranks > 0, root.per_rank(work), one,
            most, late,
        )  # fmt: skip
        cut = np.zeros(root.stages, dtype=np.int64)
        for rank in range(root.ranks):
            own = np.flatnonzero(root.homes == rank)
            free, some = np.full(len(own), self.count), np.full(len(own), True)
            if len(own):
                cut[own] = shared_out(
                    int(counts[rank]), self.least[own], some, work[own], one, free, late
                )
        return tuple(cut.tolist())

    def seeds(self) -> list[Cut]:
        """Return cuts to begin with: even, published schedules', and with room for microbatches.

        Schedules hold from p/3 microbatches on a rank to p, 1F1B on rank r as many as p − r.
        """
        p = self.root.ranks
        same = [np.full(p, count) for count in (1.0, p / 3, p / 2, float(p))]
        rooms: list[NDArray[np.float64]] = [*same, np.arange(p, 0.0, -1.0)]
        if np.isinf(self.root.limits).all():
            rooms = rooms[:1]
        layers = self.root.layers
        assert layers is not None
        known, cuts = layers.known, [self._even, layers.balanced(self.root.placement)]
        if known and known.mtp_stage is None and known.is_on(self.root.placement):
            cuts.append(known.cut)
        if self.plain:
            for room in rooms:
                most = np.minimum(self.most_layers(room), self.most_layers())
                if self.fits(most):
                    cuts += [self.balanced(most, late) for late in (False, True)]
        else:
            cuts += [
                self._improved(cut, self.root.limits, room)
                for room in rooms for cut in self._starts()
            ]  # fmt: skip
        found = [cut for cut in dict.fromkeys(cuts) if self.fits_cut(cut)]
        return found or list(islice(self._fitting(), 1))

    def _fitting(self) -> Iterator[Cut]:
        """Yield cuts that fit, those that are found sooner first."""
        one = np.ones(self.root.ranks)
        yield from filter(self.fits_cut, [self._even, *self._starts()])
        found = (self._improved(cut, self.root.limits, one) for cut in self._starts())
        yield from filter(self.fits_cut, found)
        yield from self.few() or []

    @property
    def _even(self) -> Cut:
        """An even cut; where there are fewer layers than stages, one that leaves out an end."""
        even = even_cut(self.count, self.root.stages)
        if min(even) > 0:
            return even
        spare = 1 - self.least
        more = even_cut(self.count + int(spare.sum()), self.root.stages)
        return tuple((np.array(more) - spare).tolist())

    def _starts(self) -> list[Cut]:
        """Return cuts to improve: with equal work as if memory were unlimited."""
        most = np.full(self.root.ranks, self.count)
        return [self.balanced(most, late) for late in (False, True)]

    def _improved(
        self, cut: Cut, limits: NDArray[np.float64], microbatches: NDArray[np.float64]
    ) -> Cut:
        """Return a cut that no neighbor improves.

        Cuts compare by memory above the limits, then by the busiest rank's time, then by the
        balance of all stages.
        """

        def values(cuts: NDArray[np.int64]) -> NDArray[np.float64]:
            work = self.work(cuts)
            over = np.maximum(self.memory(cuts, microbatches) - limits, 0.0).max(axis=1)
            busy = (work @ self._on_ranks).max(axis=1)
            found: NDArray[np.float64] = np.stack([over, busy, (work**2).sum(axis=1)], axis=1)
            return found

        best = values(np.array([cut]))[0]
        scale = np.where(best > 0, best, 1.0)
        for _ in range(STEPS):
            cuts = list(neighbors(cut, self.least))
            if not cuts:
                break
            rated = np.round(values(np.array(cuts)) / scale, 9)
            first = int(np.lexsort(rated.T[::-1])[0])
            if tuple(rated[first]) >= tuple(np.round(best / scale, 9)):
                break
            cut, best = cuts[first], rated[first] * scale
        return cut

    def few(self) -> list[Cut] | None:
        """Return every cut that fits, where they are few; else None."""
        cuts = self.all()
        return None if cuts is None else [cut for cut in cuts if self.fits_cut(cut)]

    def all(self) -> list[Cut] | None:
        """Return every cut, where they are few; else None."""
        spare = (1 - self.least).tolist()
        layers, S = self.count + sum(spare), self.root.stages
        if comb(layers - 1, S - 1) > FEW:
            return None
        borders = ((0, *inner, layers) for inner in combinations(range(1, layers), S - 1))
        return [
            tuple(b - a - less for (a, b), less in zip(pairwise(border), spare, strict=True))
            for border in borders
        ]
