"""Costs of actions: time, transfer time and memory, from one number to one per stage and kind."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from debubble.core.cost_fields import CostField, check_value, cost, cost_fields, timed
from debubble.core.cost_table import CostTable
from debubble.core.embedding_and_head import COMPUTE_TIMES, Part
from debubble.core.errors import CostError, WrongValueError, check_type, deprecated, did_you_mean
from debubble.core.former_names import RENAMED, taking_former_names
from debubble.core.kinds import KINDS
from debubble.core.placement import Placement
from debubble.core.runtimes import RUNTIMES, as_run, recomputed_places
from debubble.core.slicing import WHOLE, Slicing
from debubble.core.spelled_out import NO_KINDS, spell_out
from debubble.core.stage_values import PairTimes, Value
from debubble.core.units import is_whole

if TYPE_CHECKING:
    from debubble.core.schedule import Schedule

BASES = ("action", "rank")
LONGEST_UNIT = 200


@dataclass(frozen=True)
class Costs:
    """Costs of a schedule's actions, in any unit of time and of memory.

    Every value is per action (one stage, one microbatch) unless made by :meth:`per_rank`. A value
    is one number, a sequence with one number per stage, or a mapping from stages to numbers, whose
    key ``"default"`` is for the stages that it does not name: ``F={"default": 1, 2: 1.5}``.

    Where a schedule cuts microbatches into slices, each slice has its share of everything but
    `p2p`: its share of the tokens, for attention its share of the causal area. All slices together
    take the time and the memory of one whole microbatch.

    Parameters
    ----------
    F, I, W
        Forward, backward for the input, backward for the weights. Where no time of computing is
        given at all (none of F, I, W, B, R, O, FF), each is one unit of time per rank, divided by
        the schedule's chunks: schedules with different chunks run the same model.
    B
        Full backward; the default is I + W. Given without I and W, each of them is half of it.
    O
        An overlapped pair; one number, one per stage of its forward, or a mapping with keys
        ``forward stage``, ``(forward stage, backward stage)`` and ``"default"``, of which the most
        specific counts. The default is `overlap_factor` times the sum of the two parts. A time is
        that of the stages themselves: what embedding, head and mtp add comes on top, times
        `overlap_factor`.
    FF
        An overlapped pair of two forwards; one number, or one per stage of its first. Otherwise
        like `O`.
    overlap_factor
        Share of a pair's summed time that it takes when `O` or `FF` does not say, 1 for no gain.
    R
        Recompute; the default is F.
    OPT
        Optimizer step of one rank. Always per rank.
    unshard
        Time in which the replicas of a stage gather its weights, for an ``UNSHARD``.
    reduce_grad
        Time in which they reduce its gradients, for a ``REDUCE_GRAD``.
    launch
        Time that starting an action takes on top of its work, as of F, I, W, B, R, S and T; both
        halves of an overlapped pair have it. Never divided by the number of chunks or slices.
    p2p
        Time between producer and consumer on different ranks: one number, or a matrix
        ``p2p[from][to]`` of shape ``(ranks, ranks)``. Never divided by the number of chunks.
    p2p_carry
        Time between ranks of what a stage carries to one that is not the next, and of its gradient
        (:class:`debubble.core.schedule.Schedule`, `carries`). The default is that of the largest
        message between these ranks. Never divided by the number of chunks or slices.
    message, bandwidth
        Size of one boundary activation, and of its gradient, and size per unit of time; a transfer
        takes ``p2p + message / bandwidth``. Messages are of one size, or of one for each of the
        boundaries 0..S − 2, where boundary s is between stages s and s + 1, for either basis.
    activation
        Memory one microbatch leaves on a stage after its forward. The default counts in activation
        units: ranks / stages, so that one microbatch on one rank is 1.
    kept_for_weight
        Share of the activation that stays from the end of I to the end of W; 1 keeps everything.
    embedding, head, mtp
        Costs of the first stage (embedding) or the last (head and loss; multi-token prediction) in
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
        the whole of I. Matters for schedules with slices, and where microbatches differ.
    frozen
        Share of a stage's weights that is not trained, 1 for all: W takes that much less, as do
        ``REDUCE_GRAD`` and what W keeps, and a full backward with all of them frozen is I. Stages
        before the first one that trains anything have no backward: theirs and their R take no time,
        not even `launch`, no gradient is sent to them, and their forwards leave no activation.
        Their actions stay in the order. Times of pairs given by `O` count as they are, unless
        nothing of the backward is left.
    microbatch
        Length of every microbatch, in lengths of the average one, whose times and memory the other
        costs are, the same in every iteration: a sequence with one number for each, a mapping as
        for stages, or one number for all. With length l and a share a of
        attention, an action takes (1 − a)·l + a·l² of the time. Embedding, head and mtp, messages,
        copies and memory grow with l; `launch`, `OPT`, `p2p` and what replicas exchange do not.
        Schedules that are computed from costs are computed for the average microbatch.
    kv
        Memory of one microbatch's keys and values on a stage, beyond `activation`. A slice's share
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
    static
        Memory that a rank holds all the time: weights, gradients, optimizer states, buffers. It
        counts in the rank's peak, and against its limit. Always per rank.
    basis
        ``"action"`` or ``"rank"``: whether values are per action, or per rank and divided by the
        number of chunks.
    chunks
        With the basis ``"rank"``, the divisor; the default is the schedule's own number of chunks.
    runtime
        Who runs it, a name in :data:`debubble.core.runtimes.RUNTIMES`, which has the rules of each:
        ``"torch"`` for PyTorch's, ``"debubble"`` for that of :mod:`debubble.torch`, ``"any"`` for
        one that does what the actions say.
    time_unit, memory_unit
        Names of the units of times and of `activation`, for instance ``"ms"`` and ``"bytes"``; for
        display alone, costs that differ only here are equal.

    Raises
    ------
    CostError
        When a value is negative, not a finite number, above 1e100, of another shape than said
        here, or not there for every stage.
    """

    F: Value | None = timed("1.0", "forward; default 1")
    I: Value | None = timed("1.0", "backward for the input; default half of B, or 1")
    W: Value | None = timed("1.0", "backward for the weights; default half of B, or 1")
    B: Value | None = timed("2.0", "full backward; default I + W")
    R: Value | None = timed("1.0", "recompute: the forward once more; default F", "read")
    O: PairTimes | None = timed(
        "2.5", "overlapped pair of a forward and a backward; default the sum of its parts",
        shape="pair",
    )  # fmt: skip
    FF: Value | None = timed("1.8", "overlapped pair of two forwards; default the sum of its parts")
    overlap_factor: float = cost(
        1.0, "number", "uniform", "0.9", "time of a pair without O or FF, over the sum of its"
        " parts; default 1",
    )  # fmt: skip
    OPT: Value = timed(
        "0", "optimizer step of a rank; not divided by chunks", "absent", "rank", 0.0
    )
    launch: float = timed(
        "0.01", "time to launch an action; not divided by chunks", shape="number", default=0.0
    )
    p2p: float | Sequence[Sequence[float]] = timed(
        "0.1", "transfer between two ranks; a matrix has one row per sender", shape="link",
        default=0.0,
    )  # fmt: skip
    p2p_carry: float | None = timed(
        "0.1", "what a stage carries to one that is not the next, from one rank to another; as"
        " its message to the next would take unless given", "no effect", "number",
    )  # fmt: skip
    message: Value = cost(
        0.0, "boundary", "uniform", "0",
        "size of the activation that a transfer carries, and of its gradient",
    )  # fmt: skip
    bandwidth: float = cost(
        math.inf, "rate", "uniform", "1.0", "size that a link carries per unit of time; a transfer"
        " takes p2p + message / bandwidth",
    )  # fmt: skip
    attention: Value = cost(
        0.0, "stage", "uniform", "0.3", "share of causal attention in F and in the full"
        " backward, for sliced sequences and sequences of different lengths", share=True,
    )  # fmt: skip
    frozen: Value = cost(
        0.0, "stage", "absent", "0", "share of a stage's weights that is frozen: W takes"
        " that much less, and stages before the first trained one have no backward",
        share=True,
    )  # fmt: skip
    microbatch: Value | None = cost(
        None, "microbatch", "absent", "{default: 1, 3: 1.4}", "length of every microbatch over"
        " the average; time, memory and messages grow with it, attention with its square",
    )  # fmt: skip
    exchange: Value = timed(
        "0", "exchange of attention context, in schedules with one", default=0.0
    )
    unshard: Value = timed("0", "gather a stage's weights from its replicas", "absent", default=0.0)
    reduce_grad: Value = timed(
        "0", "reduce a stage's gradients over its replicas", "absent", default=0.0
    )
    host_bandwidth: float = cost(
        math.inf, "rate", "read", "1.0", "size that a copy to or from the host moves per unit of"
        " time",
    )  # fmt: skip
    host_link_shared_by: int = cost(
        1, "sharing", "read", "1", "2 if ranks 0 and 1, 2 and 3, … share a link to the host"
    )
    embedding: Part | None = timed(
        "{F: 0.1, B: 0.2}", "extra work of the first stage", "absent", "part"
    )
    head: Part | None = timed("{F: 0.4, B: 0.8}", "extra work of the last stage", "absent", "part")
    mtp: Part | None = timed(
        "{F: 1.2, B: 2.4}", "multi-token prediction: extra work of the last stage", "absent", "part"
    )
    activation: Value | None = cost(
        None, "stage", "uniform", "1.0", "activation of one microbatch on a stage; default"
        " ranks / stages, so that a microbatch takes 1 on every rank",
        memory=True,
    )  # fmt: skip
    kept_for_weight: Value = cost(
        1.0, "stage", "read", "1.0", "share of the activation held from I to W; default 1",
        memory=True, share=True,
    )  # fmt: skip
    recompute_kept: Value = cost(
        0.0, "stage", "read", "0.06", "share of the activation held if a stage recomputes",
        memory=True, share=True,
    )  # fmt: skip
    offload_share: Value = cost(
        1.0, "stage", "uniform", "1.0", "share of the activation that is offloaded; default 1",
        memory=True, share=True,
    )  # fmt: skip
    kv: Value = cost(
        0.0, "stage", "absent", "0", "keys and values of one microbatch, for sliced sequences",
        memory=True,
    )  # fmt: skip
    static: Value = cost(
        0.0, "rank", "absent", "0", "static memory of a rank: weights, gradients, optimizer"
        " states, buffers; part of its peak", memory=True,
    )  # fmt: skip
    basis: str = "action"
    chunks: int | None = None
    runtime: str = "any"
    time_unit: str = field(default="", compare=False)
    memory_unit: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        for name in COST_FIELDS:
            value = getattr(self, name)
            if value is _DEFAULT[name]:
                continue
            try:
                object.__setattr__(self, name, check_cost(name, value))
            except WrongValueError as error:
                raise CostError(error.text()) from None
        for name, known in (("basis", BASES), ("runtime", RUNTIMES)):
            word = getattr(self, name)
            if not isinstance(word, str) or word not in known:
                usable = " or ".join(map(repr, known))
                raise CostError(f"{name} is {reprlib.repr(word)}; use {usable}")
        for name in ("time_unit", "memory_unit"):
            unit = getattr(self, name)
            if not isinstance(unit, str) or not unit.isprintable() or len(unit) > LONGEST_UNIT:
                shown = reprlib.repr(unit)
                raise CostError(f"{name} is {shown}; give the name of a unit, such as 'ms'")
        if self.chunks is not None:
            if not is_whole(self.chunks) or self.chunks < 1:
                shown = reprlib.repr(self.chunks)
                raise CostError(f"chunks is {shown}; give a whole number from 1 up")
            object.__setattr__(self, "chunks", int(self.chunks))

    @property
    def overhead(self) -> float:
        """Former name of `launch`."""
        deprecated("Costs.overhead", "Costs.launch", gone="0.3")
        return self.launch

    @classmethod
    def per_rank(cls, *, chunks: int | None = None, **values: Any) -> Costs:
        """Return costs of a rank's whole share of the model, divided by the number of chunks.

        Sequences have one number per rank. `chunks` is the divisor; left out, each schedule's own
        number of chunks, so that schedules with different chunks are compared on the same model.
        """
        for name in values:
            if name not in COST_NAMES and name not in RENAMED:
                raise CostError(f"unknown cost '{name}'; {did_you_mean(str(name), COST_NAMES)}")
        return cls(basis="rank", chunks=chunks, **values)

    @property
    def not_in_forms(self) -> tuple[CostField, ...]:
        """Costs that are there and that closed forms know nothing of."""
        return tuple(
            spec for name, spec in COST_FIELDS.items()
            if spec.in_forms == "absent" and spec.there(getattr(self, name))
        )  # fmt: skip

    @property
    def uniform(self) -> bool:
        """Return whether every stage, rank and pair has the same costs, as closed forms assume."""
        if self.runtime != "any" or any(len(spec.changes) > 1 for spec in self.not_in_forms):
            return False
        return all(
            spec.uniform(getattr(self, name))
            for name, spec in COST_FIELDS.items() if spec.in_forms == "uniform"
        )  # fmt: skip

    @property
    def has_times(self) -> bool:
        """Return whether a time of computing is given."""
        return any(getattr(self, name) != _DEFAULT[name] for name in COMPUTE_TIMES)

    @property
    def times_per_rank(self) -> bool:
        """Return whether times are per rank, and divided by the number of chunks."""
        return self.basis == "rank" or not self.has_times

    @property
    def same_model(self) -> bool:
        """Return whether schedules with any number of chunks run one model with these costs."""
        if self.chunks is not None:
            return False
        return self.basis == "rank" or not any(
            spec.shape in ("stage", "pair") and not spec.share
            and getattr(self, name) not in (None, 0.0)
            for name, spec in COST_FIELDS.items()
        )  # fmt: skip

    def divisor(self, placement: Placement) -> int:
        """Return the divisor of costs per stage: the chunks of costs per rank, else 1."""
        return (self.chunks or placement.chunks) if self.basis == "rank" else 1

    def default_time(self, placement: Placement) -> float:
        """Return the time of F, I and W that costs do not give, before it is divided."""
        return 1.0 if self.basis == "rank" or self.has_times else 1.0 / placement.chunks

    @property
    def transfer(self) -> float:
        """Time of one transfer between ranks, when it is the same for all; else NaN."""
        fields = [(COST_FIELDS[name], getattr(self, name)) for name in ("p2p", "message")]
        if not all(spec.uniform(value) for spec, value in fields):
            return math.nan
        latency, message = ((spec.numbers(value) or [0.0])[0] for spec, value in fields)
        return latency + message / self.bandwidth

    @property
    def activation_unit(self) -> str:
        """Name of the unit of activation memory, empty for activation units and without a name."""
        return "" if self.activation is None else self.memory_unit

    def scaled(self, factor: float) -> Costs:
        """Return the costs with every time multiplied by `factor`; memory stays."""
        scaled = {n: spec.scaled(getattr(self, n), factor) for n, spec in COST_FIELDS.items()}
        return replace(self, **scaled)

    def table(self, schedule: Schedule) -> CostTable:
        """Return costs by (kind, stage) and slice of a schedule; a CostError if they do not fit."""
        table = spell_out(self, schedule.placement, schedule.slicing, schedule.vocabulary)
        table = as_run(table, recomputed_places(schedule, self))
        return table.for_microbatches(schedule.microbatches)

    def resolve(
        self, placement: Placement, slicing: Slicing = WHOLE, vocabulary: int = 0
    ) -> CostTable:
        """Return costs by (kind, stage) for every slice of an average microbatch, as they run."""
        return as_run(spell_out(self, placement, slicing, vocabulary))


Costs.__init__ = taking_former_names(Costs.__init__)  # type: ignore[method-assign]

COST_FIELDS = cost_fields(Costs)
"""Every cost by name, in the order of the documentation."""

COST_NAMES = tuple(spec.name for spec in fields(Costs))
"""Names of all fields: costs, what they are for, and their units."""

_DEFAULT: dict[str, Any] = {spec.name: spec.default for spec in fields(Costs)}

assert {name for name, spec in COST_FIELDS.items() if spec.timed} == {
    *NO_KINDS, *(spec.cost for spec in KINDS if spec.cost),
}, "a time is that of a kind, or in NO_KINDS"  # fmt: skip


def check_cost(name: str, value: Any) -> Any:
    """Check the value of a cost, see :func:`debubble.core.cost_fields.check_value`."""
    return check_value(COST_FIELDS[name], value)


def check_costs(costs: object) -> None:
    """Refuse an argument that should be costs, or None for the default ones."""
    check_type("costs", costs, (Costs, type(None)), "give debubble.Costs(F=1, B=2)")
