"""What actions cost: time, transfer time and memory, from one number to one per stage and kind."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from debubble.core.cost_table import CostTable, Value
from debubble.core.ends import ENDS, Part, check_part
from debubble.core.errors import CostError, did_you_mean
from debubble.core.placement import Placement
from debubble.core.slicing import WHOLE, Slicing

if TYPE_CHECKING:
    from debubble.core.schedule import Schedule

PairTimes: TypeAlias = float | Mapping[tuple[int, int], float]
"""Time of every overlapped pair, or of each (stage of the forward, stage of the backward)."""

BASES = ("action", "rank")
_BANDWIDTHS = ("bandwidth", "host_bandwidth")
_UNITS = ("time_unit", "memory_unit")
_PLAIN = ("basis", "chunks", *_UNITS)
LONGEST_UNIT = 200


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
    time_unit, memory_unit
        Names of the units of times and of `activation`, for instance ``"ms"`` and ``"bytes"``; for
        display alone, costs that differ only here are equal.

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
    time_unit: str = field(default="", compare=False)
    memory_unit: str = field(default="", compare=False)

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
        for name in _UNITS:
            unit = getattr(self, name)
            if not isinstance(unit, str) or not unit.isprintable() or len(unit) > LONGEST_UNIT:
                raise CostError(f"{name} is {unit!r}; give the name of a unit, such as 'ms'")
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

    @property
    def activation_unit(self) -> str:
        """Name of the unit of activation memory, empty for activation units and without a name."""
        return "" if self.activation is None else self.memory_unit

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
