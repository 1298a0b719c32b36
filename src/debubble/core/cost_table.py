"""Costs spelled out for one placement, one way to cut sequences and one to shard the vocabulary."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from debubble.core.boundaries import Boundaries, boundaries_of, largest_message
from debubble.core.embedding_and_head import PARTS, costs_of_parts
from debubble.core.frozen import BACKWARD, Freeze, freeze
from debubble.core.kinds import KINDS, TIMED_KINDS, VOCABULARY_KINDS, Kind, Time
from debubble.core.placement import Placement
from debubble.core.slicing import WHOLE, Slicing, attention_times, sliced_times
from debubble.core.stage_values import (
    PerPlace,
    StageValues,
    as_rows,
    frozen_stages,
    link_times,
    numbers_of,
    pair_values,
)

if TYPE_CHECKING:
    from debubble.core.costs import Costs

Halves: TypeAlias = tuple[NDArray[Any], NDArray[Any]]
"""Kinds and places of the one halves of some overlapped pairs."""

NO_KINDS = ("O", "FF", "launch", "p2p", "p2p_carry", "exchange", *PARTS)
"""Times that are not those of a kind: of pairs and transfers, and what comes on top of kinds."""

_BY_STAGE = [spec for spec in KINDS if spec.time is Time.STAGE and spec.cost not in NO_KINDS]
_NAMES = [spec.cost for spec in _BY_STAGE]
_ROWS = np.array([spec.kind for spec in _BY_STAGE])
"""Costs by stage, and the rows of the kinds that pay them."""


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

    @classmethod
    def of(
        cls, costs: Costs, placement: Placement, slicing: Slicing = WHOLE, vocabulary: int = 0
    ) -> CostTable:
        """Spell out `costs` for every slice and stage of `placement`."""
        spread = StageValues(placement, costs.basis)
        divisor, places = costs.divisor(placement), placement.copies * placement.stages
        # A cost that is the same everywhere stays one number until it is stored in a row.
        whole = _whole_times(costs, spread)
        parts = {name: getattr(costs, name) for name in PARTS}
        frozen = frozen_stages(costs.frozen, spread)
        part_duration, part_memory = costs_of_parts(parts, placement, vocabulary, frozen)
        sharded = costs.head if vocabulary and costs.head else {}
        pairs, overlap = pair_values(costs.O, spread, divisor)
        values = _rows(costs, spread, part_memory if any(parts.values()) else 0.0)
        values |= {"overlap": overlap, "forwards": spread(costs.FF, "FF", math.nan) / divisor}
        rows = dict(zip(values, as_rows(places, values.values()), strict=True))
        times = np.zeros((len(KINDS), places))
        times[_ROWS] = as_rows(places, whole)
        if frozen is not None:
            for name in ("activation", "kept", "checkpoint"):
                rows[name] *= frozen.needed
            rows["kept"] *= 1 - frozen.share
        causal = None
        if costs.microbatch is not None:
            causal = np.zeros_like(part_duration)
            for kind, time in attention_times(_by_kind(times), rows["attention"]).items():
                causal[kind] = time / divisor
            causal = np.hstack([share * causal for share in slicing.attention])
        shares = np.asarray(slicing.shares)
        message = largest_message(costs) / costs.bandwidth
        excess = message * (shares - 1 / len(shares))
        if slicing != WHOLE:
            exchange = spread(costs.exchange, "exchange", 0.0)
            sliced = sliced_times(_by_kind(times), rows["attention"], exchange, slicing)
            times = np.tile(times, len(shares))
            for kind, time in sliced.items():
                times[kind] = time
            for name in ("activation", "kept", "checkpoint", "kv"):
                rows[name] = np.outer(shares, rows[name]).ravel()
            rows["offload"] = np.tile(rows["offload"], len(shares))
            part_duration = np.hstack([share * part_duration for share in shares])
        duration = times / divisor + part_duration
        if frozen is not None:
            frozen = frozen.of_slices(len(shares))
            for times_of_kind in (duration, part_duration, *([] if causal is None else [causal])):
                freeze(times_of_kind, frozen)
        _add_launch(duration, costs.launch, frozen)
        return cls(
            duration, rows["activation"], rows["kept"], rows["offload"], rows["checkpoint"],
            rows["kv"], rows["attention"], spread.ranks(costs.OPT, "OPT"),
            spread.ranks(costs.static, "static"),
            link_times(costs, placement.ranks, message / len(shares)), excess, part_duration,
            sharded.get("activation", 0.0) / placement.ranks, costs, placement, slicing, pairs,
            rows["overlap"], rows["forwards"], causal, None,
            boundaries_of(costs, placement, len(shares), frozen), frozen,
        )  # fmt: skip

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


def _rows(costs: Costs, spread: StageValues, part_memory: PerPlace) -> dict[str, PerPlace]:
    """Return what every place holds and moves, of whole microbatches, by the column's name.

    `part_memory` is what embedding, head and multi-token prediction hold.
    """
    placement, divisor = spread.placement, costs.divisor(spread.placement)
    unit: PerPlace = placement.ranks / placement.stages
    if costs.activation is not None:
        unit = spread(costs.activation, "activation", 0.0) / divisor
    held = unit + part_memory
    return {
        "activation": held,
        "kept": held * spread(costs.kept_for_weight, "kept_for_weight", 1.0),
        "checkpoint": held * spread(costs.recompute_kept, "recompute_kept", 0.0),
        "kv": spread(costs.kv, "kv", 0.0) / divisor,
        "offload": spread(costs.offload_share, "offload_share", 1.0),
        "attention": spread(costs.attention, "attention", 0.0),
    }


def _whole_times(costs: Costs, spread: StageValues) -> list[PerPlace]:
    """Return the times of :data:`_NAMES` for whole microbatches, or steps; not divided."""
    one = costs.default_time(spread.placement)
    half = one if costs.B is None else spread(costs.B, "B", 0.0) / 2
    usual: dict[str, PerPlace] = {"F": one, "I": half, "W": half}
    found = {name: spread(getattr(costs, name), name, usual.get(name, 0.0)) for name in _NAMES}
    if costs.B is None:
        found["B"] = found["I"] + found["W"]
    if costs.R is None:
        found["R"] = found["F"]
    return list(found.values())


def _add_launch(times: NDArray[np.float64], launch: float, frozen: Freeze | None) -> None:
    """Add the time to start an action, but to those that frozen weights leave nothing to do."""
    if launch:
        times[[*TIMED_KINDS, *VOCABULARY_KINDS]] += launch
        if frozen is not None:
            times[list(BACKWARD)] *= frozen.needed
            times[Kind.W] *= frozen.share < 1


def _by_kind(times: NDArray[np.float64]) -> dict[Kind, NDArray[np.float64]]:
    """Return rows of the kinds of work."""
    return {kind: times[kind] for kind in TIMED_KINDS}


def static_memory(costs: Costs, ranks: int) -> NDArray[np.float64]:
    """Return the memory that each of `ranks` ranks holds all the time, shape ``(ranks,)``."""
    return StageValues(Placement.loop(ranks, 1), "rank").ranks(costs.static, "static")
