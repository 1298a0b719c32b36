"""What actions cost: time, transfer time and memory, from one number to one per stage and kind."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import Kind
from debubble.core.ends import ENDS, Part, check_part, ends_of
from debubble.core.errors import CostError, did_you_mean
from debubble.core.placement import Placement
from debubble.core.slicing import WHOLE, Slicing

if TYPE_CHECKING:
    from debubble.core.schedule import Schedule

Value: TypeAlias = float | Sequence[float] | Mapping[int, float]
"""One number for all stages, one per stage (or rank), or a mapping that names every one."""

PairTimes: TypeAlias = float | Mapping[tuple[int, int], float]
"""Time of every overlapped pair, or of each (stage of the forward, stage of the backward)."""

BASES = ("action", "rank")
TIMED_KINDS = (Kind.F, Kind.I, Kind.W, Kind.B, Kind.R, Kind.OPT)
_BANDWIDTHS = ("bandwidth", "host_bandwidth")
_PLAIN = ("basis", "chunks")


@dataclass(frozen=True)
class Costs:
    """Costs of a schedule's actions, in any unit of time and of memory.

    Every value is per action (one stage, one microbatch) unless made by :meth:`per_rank`. A value
    is one number, a sequence with one number per stage, or a mapping from every stage to one.

    Where a schedule cuts microbatches into slices, each slice has its share of everything but
    `p2p`: its share of the tokens, for attention its share of the causal area. All slices together
    take the time and the memory of one whole microbatch.

    Parameters
    ----------
    F, I, W
        Forward, backward for the input, backward for the weights.
    B
        Full backward; the default is I + W. Given without I and W, each of them is half of it.
    O
        An overlapped pair; one number or ``{(forward stage, backward stage): time}``. The default
        is `overlap_factor` times the sum of its two parts. A number is for the stages themselves:
        what embedding, head and mtp add comes on top, times `overlap_factor`.
    overlap_factor
        Share of a pair's summed time that it takes when `O` does not say, 1 for no gain.
    R
        Recompute; the default is F.
    OPT
        Optimizer step of one rank. Always per rank.
    unshard
        Time in which the replicas of a stage gather its weights, for an ``UNSHARD``.
    reduce_grad
        Time in which they reduce its gradients, for a ``REDUCE_GRAD``.
    p2p
        Time between producer and consumer on different ranks: one number, or a matrix
        ``p2p[from][to]`` of shape ``(ranks, ranks)``. Never divided by the number of chunks.
    message, bandwidth
        Size of one boundary activation and size per unit of time; a transfer takes
        ``p2p + message / bandwidth``.
    activation
        Memory one microbatch leaves on a stage after its forward. The default counts in activation
        units: ranks / stages, so that one microbatch on one rank is 1.
    kept_for_weight
        Share of the activation that stays from the end of I to the end of W; 1 keeps everything.
    embedding, head, mtp
        What the first stage (embedding) or the last (head and loss; multi-token prediction) does in
        addition: a mapping with F, I, W, B, R and activation, each one number, for one microbatch.
        Never divided by the number of chunks. Where a schedule shards the vocabulary, the head is
        not on the last stage: every rank has its share of it.
    recompute_kept
        Share of the activation that a forward leaves when an R brings back the rest before the
        backward: the stage's input, over everything the stage stores. The default 0 takes it for
        nothing; one input per layer is 2/34 of a transformer (arXiv 2205.05198, without scores).
    attention
        Share of F, R and the full backward that is causal attention, which takes later slices of a
        sequence longer. Weights have no part in it: in a split backward all of it is in I, at most
        the whole of I. Matters for schedules with slices only.
    kv
        Memory of one microbatch's keys and values on a stage, beside `activation`. A slice's share
        is held from the start of its F to the end of its I or B, because later slices attend to
        it; their gradients, of the same size, from the start of the microbatch's first backward.
    exchange
        Time that one forward of a microbatch takes to exchange attention context with other ranks,
        in schedules that do; I and B take twice that, for what the forward sent and its gradients.
    offload_share
        Share of a stage's activation that an OFFLOAD moves out of its rank, and a RELOAD back.
    host_bandwidth
        Memory that one copy between a rank and its host moves per unit of time. A copy to another
        rank takes ``p2p`` and its size divided by `bandwidth`.
    host_link_shared_by
        2 when ranks 0 and 1, ranks 2 and 3, … share one link to the host, which then carries one
        copy at a time; else 1.
    basis
        ``"action"`` or ``"rank"``: whether values are per action, or per rank and divided by the
        number of chunks.
    chunks
        With the basis ``"rank"``, the divisor; the default is the schedule's own number of chunks.

    Raises
    ------
    CostError
        When a value is negative, not a finite number, or not there for every stage.
    """

    F: Value | None = None
    I: Value | None = None
    W: Value | None = None
    B: Value | None = None
    O: PairTimes | None = None
    overlap_factor: float = 1.0
    R: Value | None = None
    OPT: Value = 0.0
    unshard: Value = 0.0
    reduce_grad: Value = 0.0
    p2p: float | Sequence[Sequence[float]] = 0.0
    message: float = 0.0
    bandwidth: float = math.inf
    activation: Value | None = None
    kept_for_weight: Value = 1.0
    embedding: Part | None = None
    head: Part | None = None
    mtp: Part | None = None
    recompute_kept: Value = 0.0
    attention: Value = 0.0
    kv: Value = 0.0
    exchange: Value = 0.0
    offload_share: Value = 1.0
    host_bandwidth: float = math.inf
    host_link_shared_by: int = 1
    basis: str = "action"
    chunks: int | None = None

    def __post_init__(self) -> None:
        for spec in fields(self):
            value = getattr(self, spec.name)
            if spec.name in _PLAIN or value is None:
                continue
            if spec.name in ENDS:
                check_part(spec.name, value)
            allow_infinite = spec.name in _BANDWIDTHS
            object.__setattr__(self, spec.name, _checked(spec.name, value, allow_infinite))
        if self.basis not in BASES:
            raise CostError(f"basis is '{self.basis}'; use 'action' or 'rank'")
        if self.chunks is not None and self.chunks < 1:
            raise CostError(f"chunks is {self.chunks}; it is at least 1")
        for name in _BANDWIDTHS:
            if getattr(self, name) == 0:
                raise CostError(f"{name} is 0; give a positive number")
        for name in ("kept_for_weight", "recompute_kept", "attention", "offload_share"):
            share = getattr(self, name)
            if np.any(
                np.asarray(list(share.values()) if isinstance(share, Mapping) else share) > 1
            ):
                raise CostError(f"{name} is {share}; it is a share between 0 and 1")
        if self.host_link_shared_by not in (1, 2):
            raise CostError(
                f"host_link_shared_by is {self.host_link_shared_by}; a link serves 1 or 2 ranks"
            )
        object.__setattr__(self, "host_link_shared_by", int(self.host_link_shared_by))

    @classmethod
    def per_rank(cls, *, chunks: int | None = None, **values: Any) -> Costs:
        """Costs of a rank's whole share of the model, divided by the number of chunks.

        Sequences have one number per rank. `chunks` is the divisor; left out, each schedule's own
        number of chunks, so that schedules with different chunks are compared on the same model.
        """
        check_names(values)
        return cls(basis="rank", chunks=chunks, **values)

    @property
    def uniform(self) -> bool:
        """Whether every stage, rank and pair has the same costs, as closed forms assume."""
        values = (
            self.F, self.I, self.W, self.B, self.O, self.p2p, self.activation, self.attention,
            self.kv, self.exchange, self.offload_share, self.unshard, self.reduce_grad,
        )  # fmt: skip
        ends = any(getattr(self, name) is not None for name in ENDS)
        return not ends and all(value is None or isinstance(value, float) for value in values)

    @property
    def transfer(self) -> float:
        """Time of one transfer between ranks, when it is the same for all; else NaN."""
        if not isinstance(self.p2p, float):
            return math.nan
        return self.p2p + self.message / self.bandwidth

    def scaled(self, factor: float) -> Costs:
        """The same costs with every time multiplied by `factor`; memory stays."""
        timed = ("F", "I", "W", "B", "O", "R", "OPT", "p2p", "exchange", "unshard", "reduce_grad")
        changes = {name: _times(getattr(self, name), factor) for name in timed}
        for name in ENDS:
            part = getattr(self, name)
            if part is not None:
                memory = {key: part[key] for key in part if key == "activation"}
                changes[name] = _times(part, factor) | memory
        values = {spec.name: getattr(self, spec.name) for spec in fields(self)} | changes
        values |= {name: getattr(self, name) / factor for name in _BANDWIDTHS}
        return Costs(**values)

    def table(self, schedule: Schedule) -> CostTable:
        """Costs of every (kind, stage) of a schedule, for every slice of a microbatch."""
        return self.resolve(schedule.placement, schedule.slicing, schedule.vocabulary)

    def resolve(
        self, placement: Placement, slicing: Slicing = WHOLE, vocabulary: int = 0
    ) -> CostTable:
        """Costs of every (kind, stage) under a placement, for every slice of a microbatch.

        `vocabulary` says how the head is sharded, as in
        :class:`debubble.core.schedule.Schedule`.
        """
        return CostTable.of(self, placement, slicing, vocabulary)


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
    collective
        Time of an UNSHARD and of a REDUCE_GRAD; shape ``(2, copies * stages)``.
    link
        Transfer time from rank to rank of a slice of average length; shape ``(ranks, ranks)``,
        zero on the diagonal.
    excess
        What a slice's transfer takes longer than the average one's; shape ``(slices,)``.
    ends
        What of `duration` is the embedding's, the head's and so on.
    shard
        Memory of one microbatch in each shard of the head, from S to T; 0 where it is not sharded.
    costs, placement, slicing
        What the table was made from.
    """

    duration: NDArray[np.float64]
    activation: NDArray[np.float64]
    kept: NDArray[np.float64]
    offload: NDArray[np.float64]
    checkpoint: NDArray[np.float64]
    kv: NDArray[np.float64]
    attention: NDArray[np.float64]
    optimizer: NDArray[np.float64]
    collective: NDArray[np.float64]
    link: NDArray[np.float64]
    excess: NDArray[np.float64]
    ends: NDArray[np.float64]
    shard: float
    costs: Costs
    placement: Placement
    slicing: Slicing

    @classmethod
    def of(
        cls, costs: Costs, placement: Placement, slicing: Slicing = WHOLE, vocabulary: int = 0
    ) -> CostTable:
        """Spell out `costs` for every slice and stage of `placement`."""
        divisor = (costs.chunks or placement.chunks) if costs.basis == "rank" else 1
        spread = _Spread(placement, costs.basis)

        F = spread(costs.F, "F", 1.0)
        half = None if costs.B is None else spread(costs.B, "B", 0.0) / 2
        I = half if costs.I is None and half is not None else spread(costs.I, "I", 1.0)
        W = half if costs.W is None and half is not None else spread(costs.W, "W", 1.0)
        B = I + W if costs.B is None else spread(costs.B, "B", 0.0)
        R = F if costs.R is None else spread(costs.R, "R", 0.0)
        activation = (
            np.full(len(F), placement.ranks / placement.stages)
            if costs.activation is None
            else spread(costs.activation, "activation", 0.0) / divisor
        )
        kv = spread(costs.kv, "kv", 0.0) / divisor
        parts = {name: getattr(costs, name) for name in ENDS}
        ends, end_memory = ends_of(parts, placement, vocabulary)
        sharded = costs.head if vocabulary and costs.head else {}
        activation = activation + end_memory
        attention = spread(costs.attention, "attention", 0.0)
        kept = activation * spread(costs.kept_for_weight, "kept_for_weight", 1.0)
        checkpoint = activation * spread(costs.recompute_kept, "recompute_kept", 0.0)
        offload = spread(costs.offload_share, "offload_share", 1.0)
        message = costs.message / costs.bandwidth
        excess = np.zeros(1)
        times: Sequence[NDArray[np.float64]] | NDArray[np.float64] = (F, I, W, B, R)
        if slicing != WHOLE:
            shares = np.asarray(slicing.shares)
            exchange = spread(costs.exchange, "exchange", 0.0)
            times = _sliced(np.array(times), attention, exchange, slicing)
            activation, kept, checkpoint, kv = (
                np.outer(shares, memory).ravel() for memory in (activation, kept, checkpoint, kv)
            )
            offload = np.tile(offload, len(shares))
            ends = np.hstack([share * ends for share in shares])
            excess = message * (shares - 1 / len(shares))
            message /= len(shares)

        duration = ends.copy()
        for kind, values in zip(TIMED_KINDS[:5], times, strict=True):
            duration[kind] += values / divisor
        optimizer = _spread_ranks(costs.OPT, placement.ranks)
        collective = np.array(
            [spread(costs.unshard, "unshard", 0.0), spread(costs.reduce_grad, "reduce_grad", 0.0)]
        )
        collective /= divisor
        link = _links(costs, placement.ranks, message)
        return cls(
            duration, activation, kept, offload, checkpoint, kv, attention, optimizer, collective,
            link, excess, ends, sharded.get("activation", 0.0) / placement.ranks, costs, placement,
            slicing,
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

    def copy(self, kind: int, place: int, target: int | None, recomputed: bool = False) -> float:
        """Time to move what a place has offloaded to a rank, or to the host for None.

        A RELOAD comes back from there.
        """
        held = self.checkpoint if recomputed else self.activation
        size, costs = float(held[place] * self.offload[place]), self.costs
        if target is None:
            return size / costs.host_bandwidth
        homes = self.placement.ranks_of_stages
        ends = int(homes[place % len(homes)]), target
        source, sink = ends if kind == Kind.OFFLOAD else ends[::-1]
        latency = costs.p2p if isinstance(costs.p2p, float) else costs.p2p[source][sink]
        return latency + size / costs.bandwidth

    def pair(self, first: tuple[int, int], second: tuple[int, int]) -> float:
        """Time of an overlapped pair of two (kind, place) halves, the forward first."""
        stages = self.placement.stages
        O = self.costs.O
        divisor = 1
        if self.costs.basis == "rank":
            divisor = self.costs.chunks or self.placement.chunks
        factor = self.costs.overlap_factor
        ends = float(self.ends[first] + self.ends[second]) * factor
        if isinstance(O, float):
            return O / divisor * self._share_of_pair(first, second) + ends
        if O is not None:
            key = (first[1] % stages, second[1] % stages)
            if key in O:
                return O[key] / divisor * self._share_of_pair(first, second) + ends
        return float(self.duration[first] + self.duration[second]) * factor

    def _share_of_pair(self, first: tuple[int, int], second: tuple[int, int]) -> float:
        """What two slices take apart, as a share of what their whole microbatches take."""
        places = self.placement.stages * self.placement.copies
        if self.duration.shape[1] == places:
            return 1.0
        plain = self.duration - self.ends
        whole = sum(
            float(plain[kind, place % places :: places].sum()) for kind, place in (first, second)
        )
        return float(plain[first] + plain[second]) / whole if whole > 0 else 0.0


def _sliced(
    times: NDArray[np.float64],
    attention: NDArray[np.float64],
    exchange: NDArray[np.float64],
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
    """Turns a value into one number per (copy, stage)."""

    def __init__(self, placement: Placement, basis: str) -> None:
        self.placement = placement
        self.basis = basis

    def __call__(self, value: Value | None, name: str, default: float) -> NDArray[np.float64]:
        placement = self.placement
        stages, copies = placement.stages, placement.copies
        if value is None:
            return np.full(copies * stages, default)
        if isinstance(value, float):
            return np.full(copies * stages, value)
        owner, count = ("rank", placement.ranks) if self.basis == "rank" else ("stage", stages)
        if isinstance(value, Mapping):
            missing = [key for key in range(count) if key not in value]
            extra = [key for key in value if not 0 <= key < count]
            if missing:
                raise CostError(
                    f"{name} has no value for {owner} {missing[0]}; give 0..{count - 1}"
                )
            if extra:
                raise CostError(f"{name} names {owner} {extra[0]}; {owner}s go to {count - 1}")
            array = np.array([value[key] for key in range(count)], dtype=float)
        else:
            array = np.array(value, dtype=float)
            if len(array) != count:
                raise CostError(
                    f"{name} has {len(array)} values for {count} {owner}s; "
                    f"give one number, or one per {owner}"
                )
        if self.basis == "rank":
            return np.asarray(array[placement.ranks_of_stages], dtype=np.float64)
        return np.tile(array, copies)


def _spread_ranks(value: Value, ranks: int) -> NDArray[np.float64]:
    if isinstance(value, float):
        return np.full(ranks, value)
    numbers = [value[r] for r in sorted(value)] if isinstance(value, Mapping) else list(value)
    if len(numbers) != ranks:
        raise CostError(
            f"OPT has {len(numbers)} values for {ranks} ranks; give one number, or one per rank"
        )
    return np.array(numbers)


def _links(costs: Costs, ranks: int, message: float) -> NDArray[np.float64]:
    matrix = np.asarray(costs.p2p, dtype=float)
    if matrix.ndim == 2 and matrix.shape != (ranks, ranks):
        rows, columns = matrix.shape
        raise CostError(f"p2p is {rows} × {columns}; for {ranks} ranks give {ranks} × {ranks}")
    link = np.array(np.broadcast_to(matrix, (ranks, ranks))) + message
    np.fill_diagonal(link, 0.0)
    return link


def check_names(values: Mapping[str, Any]) -> None:
    """Refuse cost names that do not exist, with the nearest that does."""
    known = [spec.name for spec in fields(Costs)]
    for name in values:
        if name not in known:
            raise CostError(f"unknown cost '{name}'; {did_you_mean(str(name), known)}")


def _times(value: Any, factor: float) -> Any:
    if value is None:
        return None
    if isinstance(value, Mapping):
        return {key: number * factor for key, number in value.items()}
    if isinstance(value, tuple):
        return tuple(_times(item, factor) for item in value)
    return value * factor


def _checked(name: str, value: Any, allow_infinite: bool) -> Any:
    """The value with plain floats and tuples inside, or an error that names the bad number."""
    if isinstance(value, Mapping):
        return {
            key: _checked(f"{name}[{key}]", item, allow_infinite) for key, item in value.items()
        }
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, Sequence) and not isinstance(value, str):
        if not value:
            raise CostError(f"{name} is an empty list; give one number, or one per stage")
        return tuple(
            _checked(f"{name}[{index}]", item, allow_infinite) for index, item in enumerate(value)
        )
    try:
        number = float(value) if not isinstance(value, bool | str) else math.nan
    except (TypeError, ValueError):
        number = math.nan
    if math.isnan(number):
        raise CostError(f"{name} is {value!r}; give a number")
    if number < 0:
        raise CostError(f"{name} is {value!r}; costs are not negative")
    if math.isinf(number) and not allow_infinite:
        raise CostError(f"{name} is {value!r}; give a finite number")
    return number
