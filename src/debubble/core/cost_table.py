"""Costs spelled out for one placement, one way to cut sequences and one to shard the vocabulary."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import VOCABULARY_KINDS, Kind
from debubble.core.cost_fields import DEFAULT
from debubble.core.embedding_and_head import PARTS, costs_of_parts
from debubble.core.errors import CostError
from debubble.core.placement import Placement
from debubble.core.slicing import WHOLE, Slicing

if TYPE_CHECKING:
    from debubble.core.costs import Costs, PairTimes

Value: TypeAlias = float | Sequence[float] | Mapping[Any, float]
"""One number, one per stage (or rank), or a mapping from stages and ``"default"`` to numbers."""

Spread: TypeAlias = float | NDArray[np.float64]
"""A cost of every (copy, stage): an array, or one number where all have the same."""

Halves: TypeAlias = tuple[NDArray[Any], NDArray[Any]]
"""Kinds and places of the one halves of some overlapped pairs."""

_LISTED_STAGES = 64
"""Most stages whose values a message spells out."""

TIMED_KINDS = (Kind.F, Kind.I, Kind.W, Kind.B, Kind.R)
"""Kinds with a time for every stage: the first of all kinds."""


@dataclass(frozen=True, eq=False)
class CostTable:
    """Costs spelled out for one placement and one way to cut sequences.

    Parameters
    ----------
    duration
        Time of an action of kind k on stage s of copy c for slice j: ``duration[k, place]`` with
        ``place = (j * copies + c) * stages + s``.
    activation, kept
        Memory after the forward, and the part of it that stays until W ends; shape ``(places,)``.
    offload
        Share of what a forward leaves that an OFFLOAD moves; shape ``(places,)``.
    checkpoint
        The part of the activation that stays from the forward to a recompute; shape ``(places,)``.
    kv
        Memory of keys and values; shape ``(places,)``.
    attention
        Share of F that is attention, of whole microbatches; shape ``(copies * stages,)``.
    optimizer
        Time of the optimizer step on each rank; shape ``(ranks,)``.
    static
        Memory that each rank holds all the time; shape ``(ranks,)``.
    collective
        Time of an UNSHARD and of a REDUCE_GRAD; shape ``(2, copies * stages)``.
    link
        Transfer time from rank to rank of a slice of average length; shape ``(ranks, ranks)``,
        zero on the diagonal.
    excess
        Extra time of a slice's transfer over the average one's; shape ``(slices,)``.
    part_duration
        Part of `duration` that belongs to embedding, head and multi-token prediction; same shape.
    shard
        Memory of one microbatch in each shard of the head, from S to T; 0 where it is not sharded.
    costs, placement, slicing
        Costs that the table was made from.
    pairs
        Times of overlapped pairs by (stage of the forward, stage of the backward), where said.
    overlap
        Time of every other pair by the place of its forward, NaN where its parts say it; shape
        ``(copies * stages,)``.
    """

    duration: NDArray[np.float64]
    activation: NDArray[np.float64]
    kept: NDArray[np.float64]
    offload: NDArray[np.float64]
    checkpoint: NDArray[np.float64]
    kv: NDArray[np.float64]
    attention: NDArray[np.float64]
    optimizer: NDArray[np.float64]
    static: NDArray[np.float64]
    collective: NDArray[np.float64]
    link: NDArray[np.float64]
    excess: NDArray[np.float64]
    part_duration: NDArray[np.float64]
    shard: float
    costs: Costs
    placement: Placement
    slicing: Slicing
    pairs: Mapping[tuple[int, int], float]
    overlap: NDArray[np.float64]

    @classmethod
    def of(
        cls, costs: Costs, placement: Placement, slicing: Slicing = WHOLE, vocabulary: int = 0
    ) -> CostTable:
        """Spell out `costs` for every slice and stage of `placement`."""
        divisor = (costs.chunks or placement.chunks) if costs.basis == "rank" else 1
        spread = _Spread(placement, costs.basis)
        places = placement.copies * placement.stages

        # A cost that is the same everywhere stays one number until it is stored in a row.
        F = spread(costs.F, "F", 1.0)
        half = None if costs.B is None else spread(costs.B, "B", 0.0) / 2
        I = half if costs.I is None and half is not None else spread(costs.I, "I", 1.0)
        W = half if costs.W is None and half is not None else spread(costs.W, "W", 1.0)
        B = I + W if costs.B is None else spread(costs.B, "B", 0.0)
        R = F if costs.R is None else spread(costs.R, "R", 0.0)
        unit = (
            placement.ranks / placement.stages
            if costs.activation is None
            else spread(costs.activation, "activation", 0.0) / divisor
        )
        parts = {name: getattr(costs, name) for name in PARTS}
        part_duration, part_memory = costs_of_parts(parts, placement, vocabulary)
        sharded = costs.head if vocabulary and costs.head else {}
        held = unit + part_memory if any(parts.values()) else unit
        pairs, overlap = _pair_times(costs.O, spread, divisor)
        rows = _rows(
            places,
            *(F, I, W, B, R),
            held,
            held * spread(costs.kept_for_weight, "kept_for_weight", 1.0),
            held * spread(costs.recompute_kept, "recompute_kept", 0.0),
            spread(costs.kv, "kv", 0.0) / divisor,
            spread(costs.offload_share, "offload_share", 1.0),
            spread(costs.attention, "attention", 0.0),
            overlap,
            spread(costs.unshard, "unshard", 0.0) / divisor,
            spread(costs.reduce_grad, "reduce_grad", 0.0) / divisor,
        )
        times, collective = rows[:5], rows[12:]
        activation, kept, checkpoint, kv, offload, attention, overlaps = rows[5:12]
        message = costs.message / costs.bandwidth
        excess = np.zeros(1)
        if slicing != WHOLE:
            shares = np.asarray(slicing.shares)
            exchange = spread(costs.exchange, "exchange", 0.0)
            times = _sliced(times, attention, exchange, slicing)
            activation, kept, checkpoint, kv = (
                np.outer(shares, memory).ravel() for memory in (activation, kept, checkpoint, kv)
            )
            offload = np.tile(offload, len(shares))
            part_duration = np.hstack([share * part_duration for share in shares])
            excess = message * (shares - 1 / len(shares))
            message /= len(shares)

        duration = part_duration.copy()
        timed = duration[: len(TIMED_KINDS)]
        timed += times / divisor
        if costs.runtime == "torch":
            first = slice(None, None, placement.stages)
            for times_of_kind in (duration, part_duration):
                times_of_kind[Kind.I, first] = 0.0
                times_of_kind[Kind.W, first] = times_of_kind[Kind.B, first]
            kept[first] = activation[first]
        if costs.overhead:
            duration[[*TIMED_KINDS, *VOCABULARY_KINDS]] += costs.overhead
        return cls(
            duration, activation, kept, offload, checkpoint, kv, attention,
            spread.ranks(costs.OPT, "OPT"), spread.ranks(costs.static, "static"), collective,
            _links(costs, placement.ranks, message), excess, part_duration,
            sharded.get("activation", 0.0) / placement.ranks, costs,
            placement, slicing, pairs, overlaps,
        )  # fmt: skip

    def transfer(self, sender: int, receiver: int, part: int = 0) -> float:
        """Time in which a slice gets from one rank to another, 0 on the same rank."""
        if sender == receiver:
            return 0.0
        return max(0.0, float(self.link[sender, receiver] + self.excess[part]))

    def moved(self, recomputed: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Memory that an OFFLOAD moves on every place: of the checkpoint where it is recomputed."""
        held: NDArray[np.float64] = np.where(recomputed, self.checkpoint, self.activation)
        return held * self.offload

    def footprint(
        self, recomputed: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Memory that a forward allocates, and more that its backward, with its recompute, does.

        Whole microbatches; keys and values, and their gradients, included.
        """
        stored = np.where(recomputed, self.checkpoint, self.activation)
        return stored + self.kv, self.activation - stored + self.kv

    def copy(self, kind: int, place: int, target: int | None, recomputed: bool = False) -> float:
        """Time to move what a place has offloaded to a rank, or to the host for None.

        A RELOAD comes back from there.
        """
        held = self.checkpoint if recomputed else self.activation
        size, costs = float(held[place] * self.offload[place]), self.costs
        if target is None:
            return size / costs.host_bandwidth
        homes = self.placement.ranks_of_stages
        link = int(homes[place % len(homes)]), target
        source, sink = link if kind == Kind.OFFLOAD else link[::-1]
        latency = costs.p2p if isinstance(costs.p2p, float) else costs.p2p[source][sink]
        return latency + size / costs.bandwidth

    def pair(self, first: tuple[int, int], second: tuple[int, int]) -> float:
        """Time of an overlapped pair of two (kind, place) halves, the forward first."""
        kinds, places = (np.array(column)[:, None] for column in zip(first, second, strict=True))
        return float(self.pair_times((kinds[0], places[0]), (kinds[1], places[1]))[0])

    def pair_times(self, first: Halves, second: Halves) -> NDArray[np.float64]:
        """Times of many overlapped pairs, from arrays of kinds and of places."""
        factor, stages = self.costs.overlap_factor, self.placement.stages
        time = self.overlap[first[1] % len(self.overlap)]
        if self.pairs:
            keys = zip(*((half[1] % stages).tolist() for half in (first, second)), strict=True)
            time = np.array([self.pairs.get(key, time[at]) for at, key in enumerate(keys)])
        started = 2 * self.costs.overhead
        alone = (self.duration[first] + self.duration[second] - started) * factor
        parts = (self.part_duration[first] + self.part_duration[second]) * factor
        said = time * self._shares(first, second) + parts
        return np.asarray(np.where(np.isnan(time), alone, said) + started)

    def _shares(self, first: Halves, second: Halves) -> NDArray[np.float64] | float:
        """Time of two slices run apart, as a share of that of their whole microbatches."""
        places = self.placement.stages * self.placement.copies
        if self.duration.shape[1] == places:
            return 1.0
        plain = self.duration - self.part_duration - self.costs.overhead

        def whole(kinds: NDArray[Any], starts: NDArray[Any]) -> NDArray[np.float64]:
            halves = zip(kinds, starts % places, strict=True)
            return np.array([plain[kind, start::places].sum() for kind, start in halves])

        apart: NDArray[np.float64] = plain[first] + plain[second]
        together = whole(*first) + whole(*second)
        return np.divide(apart, together, out=np.zeros(len(apart)), where=together > 0)


def static_memory(costs: Costs, ranks: int) -> NDArray[np.float64]:
    """Memory that each of `ranks` ranks holds all the time, shape ``(ranks,)``."""
    return _Spread(Placement.loop(ranks, 1), "rank").ranks(costs.static, "static")


def _rows(count: int, *values: Spread) -> NDArray[np.float64]:
    """Numbers, and arrays of `count` numbers, as the rows of an array."""
    rows = np.empty((len(values), count))
    # All numbers at once take the time of two rows.
    rows.T[:] = [value if isinstance(value, float) else 0.0 for value in values]
    for row, value in enumerate(values):
        if not isinstance(value, float):
            rows[row] = value
    return rows


def _sliced(
    times: NDArray[np.float64],
    attention: NDArray[np.float64],
    exchange: Spread,
    slicing: Slicing,
) -> NDArray[np.float64]:
    """Times of F, I, W, B and R for every slice and stage, from those of whole microbatches."""
    F, I, W, B, R = times
    # Attention of the backward is I's: (share of I) · I = (share of the backward) · (I + W).
    of_grad = np.minimum(attention * (I + W), I)
    of_full = np.divide(of_grad * B, I + W, out=attention * B, where=(I + W) > 0)
    causal = np.array([attention * F, of_grad, 0 * W, of_full, attention * R])
    tokens, area = np.asarray(slicing.shares), slicing.attention
    pieces = tokens[:, None] * (times - causal)[:, None, :] + area[:, None] * causal[:, None, :]
    if slicing.exchange:
        sent = np.array([1, 2, 0, 2, 1])[:, None, None] * exchange
        pieces = pieces + tokens[:, None] * sent
    sliced: NDArray[np.float64] = pieces.reshape(len(times), -1)
    return sliced


class _Spread:
    """Turns a value into one number per (copy, stage), or into one where all have the same."""

    def __init__(self, placement: Placement, basis: str) -> None:
        self.placement = placement
        self.basis = basis

    def __call__(self, value: Value | None, name: str, default: float) -> Spread:
        if value is None:
            return default
        if isinstance(value, float):
            return value
        placement = self.placement
        stages, copies = placement.stages, placement.copies
        owner, count = ("rank", placement.ranks) if self.basis == "rank" else ("stage", stages)
        array = self._numbers(value, name, owner, count)
        if self.basis == "rank":
            return np.asarray(array[placement.ranks_of_stages], dtype=np.float64)
        return np.concatenate((array,) * copies) if copies > 1 else array

    def ranks(self, value: Value, name: str) -> NDArray[np.float64]:
        """One number per rank, whatever the basis."""
        if isinstance(value, float):
            return np.full(self.placement.ranks, value)
        return self._numbers(value, name, "rank", self.placement.ranks)

    def _numbers(
        self, value: Sequence[float] | Mapping[Any, float], name: str, owner: str, count: int
    ) -> NDArray[np.float64]:
        """One number for each of `count` stages or ranks."""
        if isinstance(value, Mapping):
            keys = [key for key in value if key != DEFAULT]
            if keys and max(keys) >= count:
                raise CostError(f"{name} names {owner} {max(keys)}; {owner}s go to {count - 1}")
            if DEFAULT not in value and len(keys) < count:
                raise CostError(
                    f"{name} has no value for {owner} {len(keys)}; give 0..{count - 1}, or one for "
                    f"all others: {{{DEFAULT}: 1, 2: 1.5}}"
                )
            other = value.get(DEFAULT, 0.0)
            return np.array([value.get(key, other) for key in range(count)], dtype=float)
        if len(value) != count:
            raise CostError(
                f"{name} has {len(value)} values for {count} {owner}s; "
                f"{self._instead(value) or f'give one number, or one per {owner}'}"
            )
        return np.array(value, dtype=float)

    def _instead(self, value: Sequence[float]) -> str:
        """Advice for a list with one value per rank where one per stage was expected."""
        placement = self.placement
        if self.basis == "rank" or len(value) != placement.ranks or placement.copies > 1:
            return ""
        if placement.stages > _LISTED_STAGES:
            return f"give one per stage, or rank costs, {placement.chunks} times as large"
        numbers = "/".join(f"{value[rank]:g}" for rank in placement.table[0])
        return f"for one per rank write {numbers}"


def _pair_times(
    O: PairTimes | None, spread: _Spread, divisor: int
) -> tuple[dict[tuple[int, int], float], Spread]:
    """Times of the pairs of stages that `O` names, and of all others by the place of the forward.

    NaN stands for pairs that take what their parts take.
    """
    last, pairs = spread.placement.stages - 1, {}
    if isinstance(O, Mapping):
        for key, time in O.items():
            if not isinstance(key, tuple):
                continue
            if max(key) > last:
                raise CostError(f"O names the pair {key[0]},{key[1]}; stages go to {last}")
            pairs[key] = time / divisor
        stages = {key: time for key, time in O.items() if not isinstance(key, tuple)}
        return pairs, spread({DEFAULT: math.nan} | stages, "O", math.nan) / divisor
    return pairs, spread(O, "O", math.nan) / divisor


def _links(costs: Costs, ranks: int, message: float) -> NDArray[np.float64]:
    link = np.empty((ranks, ranks))
    if isinstance(costs.p2p, float):
        link.fill(costs.p2p + message)
    else:
        matrix = np.asarray(costs.p2p, dtype=float)
        if matrix.shape != (ranks, ranks):
            rows, columns = matrix.shape
            raise CostError(f"p2p is {rows} × {columns}; for {ranks} ranks give {ranks} × {ranks}")
        np.add(matrix, message, out=link)
    link.ravel()[:: ranks + 1] = 0.0
    return link
