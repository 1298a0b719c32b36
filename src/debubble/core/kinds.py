"""The table of kinds: dependencies, cost, memory, stream and look of every kind of action.

A row is a :class:`KindSpec`. Everything that asks what an action waits for, where it runs, what it
costs, what it is called or what it does to memory reads this table, the kernels through
:mod:`debubble.engine.kind_columns`. A new kind of action is a member of :class:`Kind`, a row here,
the field of its cost in :class:`debubble.Costs` and, to run it for real, one handler of the
runtime.

:func:`debubble.core.waits.waits_for` applies the table to a schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import IntEnum

from debubble.core.kind_fields import STREAM_TITLES as STREAM_TITLES
from debubble.core.kind_fields import Condition, always, if_sync, if_vocabulary, late_recompute
from debubble.core.kind_fields import Of as Of
from debubble.core.kind_fields import Per as Per
from debubble.core.kind_fields import Stream as Stream
from debubble.core.kind_fields import Time as Time


class Kind(IntEnum):
    """The kind of an action."""

    F = 0
    """Forward."""
    I = 1
    """Backward for the input."""
    W = 2
    """Backward for the weights."""
    B = 3
    """Full backward: I, then W, fused."""
    R = 4
    """Recompute the forward of a stage before its backward."""
    OPT = 5
    """Optimizer step of one rank; its ``microbatch`` is the iteration it ends."""
    SEND_F = 6
    RECV_F = 7
    SEND_B = 8
    RECV_B = 9
    OFFLOAD = 10
    RELOAD = 11
    REDUCE_GRAD = 12
    UNSHARD = 13
    RESHARD = 14
    S = 15
    """First pass of a rank's shard of the output layer; it carries the rank's first stage."""
    T = 16
    """Second pass of the shard, with what the first passes of all shards add up to."""
    WAIT_OFFLOAD = 17
    """Wait until an OFFLOAD is over, so that what comes next has the memory it gives back."""
    SEND_C = 18
    """Send what a stage carries to a later one that is not its neighbor: a skip connection."""
    RECV_C = 19
    SEND_CB = 20
    """Send the gradient of what was carried here."""
    RECV_CB = 21


@dataclass(frozen=True)
class Need:
    """Something that actions of a kind wait for."""

    kinds: tuple[Kind, ...]
    """An action of one of these: a backward is either I or B."""
    of: Of = Of.STAGE
    """The producers among actions of `kinds`."""
    stage: int = 0
    """Offset in stages, for :attr:`Of.STAGE`. Where there is no such stage, there is nothing to
    wait for."""
    slice: int = 0
    """Offset in slices, likewise."""
    through: Kind | None = None
    """The receive it comes through where transfers are actions and it runs on another rank."""
    last_stage_only: bool = False
    """Whether only actions of the last stage wait for it."""
    optional: bool = False
    """Whether schedules may do without it: R, RELOAD, exchanges of data-parallel replicas."""
    when: Condition = always
    """The schedules in which this is needed."""


@dataclass(frozen=True)
class KindSpec:
    """A row of the table."""

    kind: Kind
    title: str
    """Its name in a legend."""
    stream: Stream
    """Stream that it occupies."""
    per: Per
    """The set of actions of this kind."""
    needs: tuple[Need, ...] = ()
    """Dependencies; the first is the result that it computes with."""
    time: Time = Time.STAGE
    """Source of its time."""
    cost: str = ""
    """Field of :class:`debubble.Costs` that it takes its time from, for :attr:`Time.STAGE` and
    :attr:`Time.RANK`."""
    letter: str = ""
    """Letter before the microbatch in narrow pictures; empty for kinds that none shows."""
    color: str = ""
    """Color of its bars, ``#rrggbb``, or the lightest, the middle and the darkest shade of its
    chunks. Empty for others, of which transfers have the color of what they move."""
    stripe: str = ""
    """Edge and color of a stripe on its bars, ``"top #rrggbb"``; empty for none."""
    takes: tuple[str, ...] = ()
    """Quantities of memory that its start takes, see :data:`debubble.engine.memory.AMOUNTS`."""
    frees: tuple[str, ...] = ()
    """Quantities that its end frees."""
    instead_of: tuple[Kind, ...] = ()
    """Kinds that a (stage, microbatch) cannot have together with this one."""
    other_end: Kind | None = None
    """For one end of a transfer, the other."""

    @property
    def sends(self) -> bool:
        """Return whether it is the sending end of a transfer."""
        return self.other_end is not None and self.other_end == self.kind + 1

    @property
    def receives(self) -> bool:
        """Return whether it is the receiving end of a transfer."""
        return self.other_end is not None and not self.sends

    @property
    def away(self) -> int:
        """Stage offset of the other end of a transfer to a neighbor; 0 for other kinds.

        Of what stages carry it differs by stage, see :func:`debubble.core.carries.offsets_of`.
        """
        if self.other_end is None:
            return 0
        return self.needs[0].stage if self.receives else -KINDS[self.other_end].needs[0].stage

    @property
    def undoes(self) -> Kind | None:
        """The copy that this one brings back; None for all but a reload."""
        made = self.needs[0].kinds[0] if self.stream is Stream.COPY else None
        return made if made is not None and KINDS[made].stream is Stream.COPY else None


F, I, W, B, R, OPT = Kind.F, Kind.I, Kind.W, Kind.B, Kind.R, Kind.OPT
GRADIENT_KINDS = (I, B)
"""Kinds that make the gradient of a stage's input."""

_GRADIENT = (
    Need(GRADIENT_KINDS, stage=+1, through=Kind.RECV_B),
    Need(GRADIENT_KINDS, Of.CARRIED_TO, through=Kind.RECV_CB),
    Need((Kind.T,), Of.EVERY_SHARD, last_stage_only=True, when=if_vocabulary(1)),
    Need((Kind.S,), Of.EVERY_SHARD, last_stage_only=True, when=if_vocabulary(2)),
)
"""The gradient of a stage's output, as far as it is not that of the loss itself."""

_BACKWARD_NEEDS = (
    *_GRADIENT,
    Need((F,)),
    Need((R,), optional=True),
    Need((Kind.RELOAD,), optional=True),
    Need(GRADIENT_KINDS, slice=+1),
    Need((Kind.UNSHARD,), Of.LATEST, optional=True),
)

_LATE_GRADIENT = tuple(
    replace(
        need,
        when=lambda schedule, when=need.when: late_recompute(schedule) and when(schedule),  # type: ignore[misc]
    )
    for need in _GRADIENT
)

_WORK = (F, I, W, B, R, Kind.S, Kind.T)

KINDS: tuple[KindSpec, ...] = (
    KindSpec(
        F, "forward", Stream.COMPUTE, Per.UNIT, cost="F", letter="F", takes=("stored", "kv"),
        color="#77c4ff #4bb8ff #1caafa",
        needs=(
            Need((F,), stage=-1, through=Kind.RECV_F),
            Need((F,), Of.CARRIED_FROM, through=Kind.RECV_C),
            Need((F,), slice=-1),
            Need((Kind.UNSHARD,), Of.LATEST, optional=True),
        ),
    ),
    KindSpec(
        I, "backward for input", Stream.COMPUTE, Per.UNIT, _BACKWARD_NEEDS, cost="I", letter="I",
        takes=("kv_gradients",), frees=("not_kept", "kv_with_gradients"), instead_of=(B,),
        color="#c87627 #b76b03 #a46003",
    ),
    KindSpec(
        W, "backward for weights", Stream.COMPUTE, Per.UNIT, cost="W", letter="W", frees=("kept",),
        instead_of=(B,), color="#ffea9d #f2de86 #e8d473", stripe="bottom #8a7420",
        needs=(Need((I,)), Need((Kind.UNSHARD,), Of.LATEST, optional=True)),
    ),
    KindSpec(
        B, "full backward", Stream.COMPUTE, Per.UNIT, _BACKWARD_NEEDS, cost="B", letter="B",
        takes=("kv_gradients",), frees=("activation", "kv_with_gradients"), instead_of=(I, W),
        color="#9b3428 #8e1c1b #7d0011",
    ),
    KindSpec(
        R, "recompute", Stream.COMPUTE, Per.UNIT, cost="R", letter="R", takes=("recomputed",),
        color="#bed0e4 #b8c9d9 #b4c3cf", stripe="top #3a6d97",
        needs=(
            *_LATE_GRADIENT,
            Need((F,)),
            Need((Kind.RELOAD,), optional=True),
            Need((Kind.UNSHARD,), Of.LATEST, optional=True),
        ),
    ),
    KindSpec(
        OPT, "optimizer step", Stream.COMPUTE, Per.RANK_STEP, time=Time.RANK, cost="OPT",
        letter="O", color="#3a1152 #2d0c41 #200631",
        needs=(
            Need(_WORK, Of.EVERY_RANK, when=if_sync("global")),
            Need(_WORK, Of.EARLIER_RANKS, when=if_sync("post-validation")),
            Need(_WORK, Of.OWN_RANK, when=if_sync("local")),
            Need((Kind.REDUCE_GRAD,), Of.OWN_RANK, optional=True),
        ),
    ),
    KindSpec(
        Kind.SEND_F, "transfer of an activation", Stream.TRANSFER, Per.UNIT, (Need((F,)),),
        Time.LINK, other_end=Kind.RECV_F,
    ),
    KindSpec(
        Kind.RECV_F, "receipt of an activation", Stream.TRANSFER, Per.UNIT,
        (Need((Kind.SEND_F,), stage=-1),), Time.LINK, other_end=Kind.SEND_F,
    ),
    KindSpec(
        Kind.SEND_B, "transfer of a gradient", Stream.TRANSFER, Per.UNIT, (Need(GRADIENT_KINDS),),
        Time.LINK, other_end=Kind.RECV_B,
    ),
    KindSpec(
        Kind.RECV_B, "receipt of a gradient", Stream.TRANSFER, Per.UNIT,
        (Need((Kind.SEND_B,), stage=+1),), Time.LINK, other_end=Kind.SEND_B,
    ),
    KindSpec(
        Kind.OFFLOAD, "offload", Stream.COPY, Per.UNIT, (Need((F,)),), Time.COPY, frees=("moved",),
    ),
    KindSpec(
        Kind.RELOAD, "reload", Stream.COPY, Per.UNIT,
        (Need((Kind.OFFLOAD,)), Need((Kind.WAIT_OFFLOAD,), optional=True)), Time.COPY,
        takes=("moved",),
    ),
    KindSpec(
        Kind.REDUCE_GRAD, "reduce gradients", Stream.COLLECTIVE, Per.STAGE_STEP,
        (Need((W, B), Of.ITERATION),), cost="reduce_grad",
    ),
    KindSpec(Kind.UNSHARD, "gather weights", Stream.COLLECTIVE, Per.STAGE, cost="unshard"),
    KindSpec(
        Kind.RESHARD, "drop gathered weights", Stream.COLLECTIVE, Per.STAGE, time=Time.NONE,
    ),
    KindSpec(
        Kind.S, "output layer, first pass", Stream.COMPUTE, Per.SHARD, cost="head", letter="S",
        takes=("shard",), needs=(Need((F,), Of.LAST_STAGE),),
        color="#2f7364 #007066 #076a68", stripe="top #b5d3cb",
    ),
    KindSpec(
        Kind.T, "output layer, second pass", Stream.COMPUTE, Per.SHARD, cost="head", letter="T",
        frees=("shard",), needs=(Need((Kind.S,), Of.EVERY_SHARD),),
        color="#122894 #142485 #142077", stripe="bottom #a9b4f0",
    ),
    KindSpec(
        Kind.WAIT_OFFLOAD, "wait for an offload", Stream.COMPUTE, Per.UNIT,
        (Need((Kind.OFFLOAD,)),), Time.NONE,
    ),
    KindSpec(
        Kind.SEND_C, "transfer of a carried activation", Stream.TRANSFER, Per.UNIT, (Need((F,)),),
        Time.LINK, other_end=Kind.RECV_C, color="#8e6ff7",
    ),
    KindSpec(
        Kind.RECV_C, "receipt of a carried activation", Stream.TRANSFER, Per.UNIT,
        (Need((Kind.SEND_C,), Of.CARRIED_FROM),), Time.LINK, other_end=Kind.SEND_C,
        color="#8e6ff7",
    ),
    KindSpec(
        Kind.SEND_CB, "transfer of a carried gradient", Stream.TRANSFER, Per.UNIT,
        (Need(GRADIENT_KINDS),), Time.LINK, other_end=Kind.RECV_CB, color="#e8629c",
    ),
    KindSpec(
        Kind.RECV_CB, "receipt of a carried gradient", Stream.TRANSFER, Per.UNIT,
        (Need((Kind.SEND_CB,), Of.CARRIED_TO),), Time.LINK, other_end=Kind.SEND_CB,
        color="#e8629c",
    ),
)  # fmt: skip
"""A row for every kind; ``KINDS[kind]`` is the row of `kind`."""

assert [spec.kind for spec in KINDS] == list(Kind)
for _spec in KINDS:
    _costs = _spec.time in (Time.STAGE, Time.RANK)
    assert bool(_spec.cost) == _costs, f"{_spec.kind.name}: a time needs a cost, and a cost a time"
    _bar = _spec.stream is Stream.COMPUTE and _spec.time is not Time.NONE
    assert bool(_spec.color) == _bar or _spec.stream is Stream.TRANSFER, (
        f"{_spec.kind.name}: of kinds that are no transfers those that compute have a color"
    )


def _members(belongs: Callable[[KindSpec], bool]) -> tuple[Kind, ...]:
    return tuple(spec.kind for spec in KINDS if belongs(spec))


COMPUTE_KINDS = _members(lambda spec: spec.stream is Stream.COMPUTE and spec.time is not Time.NONE)
"""Kinds in which a rank computes."""

WAIT_KINDS = _members(lambda spec: spec.stream is Stream.COMPUTE and spec.time is Time.NONE)
"""Kinds that take no time, but hold up what a rank computes until a copy is over."""

IN_TURN_KINDS = _members(lambda spec: spec.stream is Stream.COMPUTE)
"""Kinds that have a turn on a rank's compute stream: what computes, and what holds it up."""

TRANSFER_KINDS = _members(lambda spec: spec.stream is Stream.TRANSFER)
"""Kinds that move data between two ranks."""

SEND_KINDS = _members(lambda spec: spec.sends)
"""Kinds that give data to another rank."""

CARRY_KINDS = _members(lambda spec: spec.stream is Stream.TRANSFER and spec.away == 0)
"""Kinds that move what a stage carries to another that is not its neighbor."""

COPY_KINDS = _members(lambda spec: spec.stream is Stream.COPY)
"""Kinds that move an activation out of its rank's memory, and back."""

OFFLOAD_KINDS = (*COPY_KINDS, *WAIT_KINDS)
"""Kinds that only schedules have whose activations leave their ranks."""

SHARDING_KINDS = _members(lambda spec: spec.stream is Stream.COLLECTIVE)
"""Kinds in which data-parallel replicas of a stage exchange its weights or gradients.

The ``microbatch`` of a REDUCE_GRAD is the iteration it ends; the others carry 0."""

VOCABULARY_KINDS = _members(lambda spec: spec.per is Per.SHARD)
"""Passes of an output layer that is cut along the vocabulary, a shard for every rank."""

UNIT_KINDS = _members(lambda spec: spec.per is Per.UNIT)
"""Kinds that a stage has at most once for every microbatch, or slice of it."""

WORK_KINDS = tuple(kind for kind in UNIT_KINDS if kind in COMPUTE_KINDS)
"""Kinds that a stage computes for a microbatch."""

TIMED_KINDS = _members(lambda spec: spec.per is Per.UNIT and spec.time is Time.STAGE)
"""Kinds with a time for every place, in their order in cost vectors."""
assert TIMED_KINDS == WORK_KINDS

OF_RANK_KINDS = _members(lambda spec: spec.per.of_rank)
"""Kinds that belong to their rank: the stage they carry stands for it."""

STEP_KINDS = _members(lambda spec: spec.per is Per.RANK_STEP)
"""Kinds that a rank does once in every iteration."""

WEIGHT_KINDS = KINDS[Kind.REDUCE_GRAD].needs[0].kinds
"""Kinds that add to the gradients of their stage's weights."""

WHOLE_STAGE_KINDS = _members(lambda spec: spec.per not in (Per.UNIT, Per.SHARD))
"""Kinds that belong to a stage, and not to the microbatch they carry; they have no slice."""

FORWARD_KINDS = (F, *(
    kind for spec in KINDS if spec.sends and spec.needs[0].kinds == (F,)
    for kind in (spec.kind, spec.other_end) if kind is not None
))  # fmt: skip
"""Forwards, and the transfers of what they compute."""


def kind_bits(kinds: Iterable[Kind]) -> int:
    """Set of kinds as an integer: bit k for kind k."""
    return sum(1 << kind for kind in kinds)
