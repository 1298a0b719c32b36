"""Costs spelled out for one placement, one way to cut sequences and one to shard the vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from debubble.core.boundaries import Boundaries, largest_message
from debubble.core.frozen import Freeze
from debubble.core.kinds import Kind
from debubble.core.placement import Placement
from debubble.core.slicing import Slicing
from debubble.core.stage_values import PerPlace, numbers_of

if TYPE_CHECKING:
    from debubble.core.costs import Costs

Halves: TypeAlias = tuple[NDArray[Any], NDArray[Any]]
"""Kinds and places of the one halves of some overlapped pairs."""


@dataclass(frozen=True, eq=False)
class CostTable:
    """Costs spelled out for one placement and one way to cut sequences."""

    duration: NDArray[np.float64]
    """Time of an action of kind k on stage s of copy c for slice j: ``duration[k, place]`` with
    ``place = (j * copies + c) * stages + s``. Kinds of a whole stage take it for every slice."""
    activation: NDArray[np.float64]
    """Memory after the forward; shape ``(places,)``."""
    kept: NDArray[np.float64]
    """Part of the activation that stays until W ends; shape ``(places,)``."""
    offload: NDArray[np.float64]
    """Share of what a forward leaves that an OFFLOAD moves; shape ``(places,)``."""
    checkpoint: NDArray[np.float64]
    """The part of the activation that stays from the forward to a recompute; shape
    ``(places,)``."""
    kv: NDArray[np.float64]
    """Memory of keys and values; shape ``(places,)``."""
    attention: NDArray[np.float64]
    """Share of F that is attention, of whole microbatches; shape ``(copies * stages,)``."""
    optimizer: NDArray[np.float64]
    """Time of the optimizer step on each rank; shape ``(ranks,)``."""
    static: NDArray[np.float64]
    """Memory that each rank holds all the time; shape ``(ranks,)``."""
    link: NDArray[np.float64]
    """Transfer time from rank to rank of a slice of average length; shape ``(ranks, ranks)``, zero
    on the diagonal. Where messages differ by boundary it is of the largest."""
    excess: NDArray[np.float64]
    """Extra time of a slice's transfer over the average one's; shape ``(slices,)``."""
    part_duration: NDArray[np.float64]
    """Part of `duration` that belongs to embedding, head and multi-token prediction; same shape."""
    shard: float
    """Memory of one microbatch in each shard of the head, from S to T; 0 where it is not
    sharded."""
    costs: Costs
    """Costs that the table was made from."""
    placement: Placement
    """Placement that it was made for."""
    slicing: Slicing
    """Slices that it was made for."""
    pairs: Mapping[tuple[int, int], float]
    """Times of overlapped pairs by (stage of the forward, stage of the backward), where given."""
    overlap: NDArray[np.float64]
    """Time of every other pair by the place of its forward, NaN where its parts say it; shape
    ``(copies * stages,)``."""
    forwards: NDArray[np.float64]
    """Time of an overlapped pair of two forwards, by the place of the first."""
    causal: NDArray[np.float64] | None = None
    """Part of `duration` that is causal attention, of the same shape; None where the costs have no
    lengths of microbatches."""
    lengths: NDArray[np.float64] | None = None
    """Length of every microbatch, 1 for the average one; shape ``(microbatches,)``. None where all
    are alike."""
    boundaries: Boundaries | None = None
    """Transfers by the stage that sends, where they differ by more than their ranks; else None."""
    frozen: Freeze | None = None
    """Frozen weights of every place; None where nothing is frozen."""

    def for_microbatches(self, microbatches: int) -> CostTable:
        """Return the table with the length of every microbatch; a CostError where one lacks it."""
        if self.costs.microbatch is None:
            return self
        found = numbers_of(self.costs.microbatch, "microbatch", "microbatch", microbatches)
        return self if np.all(found == 1) else replace(self, lengths=found)

    def transfer(self, sender: int, receiver: int, part: int = 0) -> float:
        """Return the time in which a slice gets from one rank to another, 0 on the same rank."""
        if sender == receiver:
            return 0.0
        return max(0.0, float(self.link[sender, receiver] + self.excess[part]))

    def carried(self, source: int, target: int) -> float:
        """Return the time of what one place carries to another, or of its gradient going back.

        Places include the slice. Nothing goes back to stages without a backward.
        """
        homes, stages = self.placement.ranks_of_stages, self.placement.stages
        sender, receiver = (int(homes[place % len(homes)]) for place in (source, target))
        back = source % stages > target % stages
        if back and self.frozen is not None and not self.frozen.needed[target]:
            return 0.0
        if self.costs.p2p_carry is None or sender == receiver:
            return self.transfer(sender, receiver, source // len(homes))
        return self.costs.p2p_carry

    def carried_times(
        self, sources: NDArray[Any], targets: NDArray[Any], microbatches: NDArray[Any]
    ) -> NDArray[np.float64]:
        """Return times of :meth:`carried` for microbatches of an iteration."""
        pairs, pair = np.unique(np.stack([sources, targets], axis=1), axis=0, return_inverse=True)
        known = np.array([self.carried(*one) for one in pairs.tolist()], dtype=np.float64)
        times: NDArray[np.float64] = known[pair.ravel()]
        if self.lengths is None or self.costs.p2p_carry is not None:
            return times
        part = sources // len(self.placement.ranks_of_stages)
        return np.where(times > 0, self.by_length(times, part, self.lengths[microbatches]), 0.0)

    def by_length(
        self, times: NDArray[np.float64], parts: NDArray[Any], lengths: PerPlace
    ) -> NDArray[np.float64]:
        """Return transfer times of slices of these lengths, from those of average microbatches."""
        return np.asarray(np.maximum(times + self.message_times[parts] * (lengths - 1), 0.0))

    def sent(
        self, gradients: NDArray[np.bool_], places: NDArray[Any], lengths: PerPlace = 1.0
    ) -> NDArray[np.float64]:
        """Return transfer times of the activations or gradients that some places send.

        Microbatches have these lengths. Only where transfers differ by boundary.
        """
        assert self.boundaries is not None, "these transfers differ by rank alone"
        part, place = np.divmod(places, self.boundaries.time.shape[1])
        shares = np.asarray(self.slicing.shares)
        rows = gradients.astype(np.int64)
        return self.boundaries.times(rows, place, shares[part] * lengths, 1 / len(shares))

    def transfers(
        self,
        senders: NDArray[Any],
        receivers: NDArray[Any],
        microbatches: NDArray[Any],
        kinds: NDArray[Any],
        places: NDArray[Any],
    ) -> NDArray[np.float64]:
        """Return transfer times between ranks, of average slices of microbatches of an iteration.

        Kinds and places are those of the actions whose results are sent.
        """
        times: NDArray[np.float64] = self.link[senders, receivers]
        lengths: PerPlace = 1.0
        if self.lengths is not None:
            lengths = self.lengths[microbatches]
            more = self.message_times.mean() * (lengths - 1)
            times = np.where(senders != receivers, np.maximum(times + more, 0.0), 0.0)
        if self.boundaries is None:
            return times
        average = 1 / len(self.slicing.shares)
        stages = places % self.boundaries.time.shape[1]
        own = self.boundaries.times((kinds != Kind.F) * 1, stages, average * lengths, average)
        hands_on = np.isin(kinds, (Kind.F, Kind.I, Kind.B)) & (senders != receivers)
        return np.where(hands_on, own, times)

    @property
    def message_times(self) -> NDArray[np.float64]:
        """Part of a slice's transfer time that grows with its length, shape ``(slices,)``."""
        return largest_message(self.costs) / self.costs.bandwidth * np.asarray(self.slicing.shares)

    def times(
        self, kinds: NDArray[Any], places: NDArray[Any], lengths: PerPlace
    ) -> NDArray[np.float64]:
        """Return times of actions that run alone, for microbatches of these lengths.

        Kinds are those of work, and passes of the output layer's shards.
        """
        assert self.causal is not None, "these costs have no lengths of microbatches"
        started, square = self._started(kinds, places), self.causal[kinds, places]
        linear = self.duration[kinds, places] - square - started
        found: NDArray[np.float64] = linear * lengths + square * np.square(lengths) + started
        return found

    def _started(self, kinds: NDArray[Any], places: NDArray[Any]) -> PerPlace:
        """Return the time to start actions: none where frozen weights leave them nothing to do."""
        launch = self.costs.launch
        if not launch or self.frozen is None:
            return launch
        return np.where(self.frozen.idle(kinds, places), 0.0, launch)

    def moved(self, recomputed: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return the memory that an OFFLOAD moves on every place; the checkpoint if recomputed."""
        held: NDArray[np.float64] = np.where(recomputed, self.checkpoint, self.activation)
        return held * self.offload

    def footprint(
        self, recomputed: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return memory that a forward allocates, and what its backward and recompute add.

        Whole microbatches; keys and values, and their gradients, included.
        """
        stored = np.where(recomputed, self.checkpoint, self.activation)
        return stored + self.kv, self.activation - stored + self.kv

    def copy(
        self,
        kind: int,
        place: int,
        target: int | None,
        recomputed: bool = False,
        length: float = 1.0,
    ) -> float:
        """Return the time to move what a place has offloaded to a rank, or to the host for None.

        A RELOAD comes back from there. What is moved is of a microbatch of that length.
        """
        held = self.checkpoint if recomputed else self.activation
        size, costs = float(held[place] * self.offload[place]) * length, self.costs
        if target is None:
            return size / costs.host_bandwidth
        homes = self.placement.ranks_of_stages
        link = int(homes[place % len(homes)]), target
        source, sink = link if kind == Kind.OFFLOAD else link[::-1]
        latency = costs.p2p if isinstance(costs.p2p, float) else costs.p2p[source][sink]
        return latency + size / costs.bandwidth

    def pair(self, first: tuple[int, int], second: tuple[int, int]) -> float:
        """Return the time of an overlapped pair of two (kind, place) halves, a forward first."""
        kinds, places = (np.array(column)[:, None] for column in zip(first, second, strict=True))
        return float(self.pair_times((kinds[0], places[0]), (kinds[1], places[1]))[0])

    def pair_times(
        self, first: Halves, second: Halves, lengths: tuple[PerPlace, PerPlace] | None = None
    ) -> NDArray[np.float64]:
        """Return times of overlapped pairs, from arrays of kinds and of places, forwards first.

        The microbatches of the two halves have `lengths`, and are average ones without.
        """
        factor: PerPlace = self.costs.overlap_factor
        stages = self.placement.stages
        time = self.overlap[first[1] % len(self.overlap)]
        if self.pairs:
            keys = zip(*((half[1] % stages).tolist() for half in (first, second)), strict=True)
            time = np.array([self.pairs.get(key, time[at]) for at, key in enumerate(keys)])
        if np.any(second[0] == Kind.F):
            both = self.forwards[first[1] % len(self.forwards)]
            time = np.where(second[0] == Kind.F, both, time)
        if self.frozen is not None:
            # A forward with a backward that has nothing to do is no pair.
            idle = self.frozen.idle(*second)
            time, factor = np.where(idle, np.nan, time), np.where(idle, 1.0, factor)
        started = self._started(*first) + self._started(*second)
        if lengths is None:
            alone = (self.duration[first] + self.duration[second] - started) * factor
            parts = (self.part_duration[first] + self.part_duration[second]) * factor
        else:
            one, other = lengths
            alone = (self.times(*first, one) + self.times(*second, other) - started) * factor
            parts = (self.part_duration[first] * one + self.part_duration[second] * other) * factor
        said = time * self._shares(first, second, lengths) + parts
        return np.asarray(np.where(np.isnan(time), alone, said) + started)

    def _shares(
        self, first: Halves, second: Halves, lengths: tuple[PerPlace, PerPlace] | None
    ) -> NDArray[np.float64] | float:
        """Return the time of two slices run apart over that of whole average microbatches."""
        places = self.placement.stages * self.placement.copies
        cut = self.duration.shape[1] > places
        if not cut and lengths is None:
            return 1.0
        started = self.costs.launch
        plain = self.duration - self.part_duration - started

        def whole(kinds: NDArray[Any], starts: NDArray[Any]) -> NDArray[np.float64]:
            if not cut:
                return np.asarray(plain[kinds, starts])
            halves = zip(kinds, starts % places, strict=True)
            return np.array([plain[kind, start::places].sum() for kind, start in halves])

        apart: NDArray[np.float64] = plain[first] + plain[second]
        if lengths is not None:
            halves = zip((first, second), lengths, strict=True)
            own = [
                self.times(*half, length) - self.part_duration[half] * length - started
                for half, length in halves
            ]
            apart = own[0] + own[1]
        together = whole(*first) + whole(*second)
        return np.divide(apart, together, out=np.zeros(len(apart)), where=together > 0)


def static_memory(costs: Costs, ranks: int) -> NDArray[np.float64]:
    """Return the memory that each of `ranks` ranks holds all the time, shape ``(ranks,)``."""
    return numbers_of(costs.static, "static", "rank", ranks)
