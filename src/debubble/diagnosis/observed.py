"""Content of a trace of any format: actions, messages and pauses of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from debubble.core.costs import Costs

ClockSharing: TypeAlias = Literal["one", "hosts", "ranks"]
"""Sharing of clocks: one for all ranks, one for each host, or a separate zero for each rank."""

Device: TypeAlias = Literal["", "cpu", "gpu"]
"""Device of the computing; empty if unknown."""

Times: TypeAlias = NDArray[np.float64]
"""Array of times, in seconds unless its field says another unit."""

Indices: TypeAlias = NDArray[np.int64]
"""Array of indices."""

Whole: TypeAlias = NDArray[np.integer[Any]]
"""Array of whole numbers of any width."""

T = TypeVar("T", bound="Columns")


UNKNOWN = {np.dtype(np.float64): np.nan, np.dtype(np.int32): 0}
"""Value of unknown columns by type of number."""

ALONE = -1
"""Pair number of an action alone."""


@dataclass(frozen=True, eq=False)
class Columns:
    """Rows as arrays of one length; see :meth:`of` for how to make them."""

    @classmethod
    def of(cls: type[T], **columns: Sequence[Any] | NDArray[Any]) -> T:
        """Return rows from the known columns of a format; the others are unknown."""
        count = len(next(iter(columns.values()))) if columns else 0
        made = {}
        for name, dtype in cls.types().items():
            unknown = ALONE if name == "pair" else UNKNOWN[dtype]
            values = columns.pop(name, None)
            made[name] = (
                np.full(count, unknown, dtype) if values is None else np.asarray(values, dtype)
            )
            assert len(made[name]) == count, f"{name} has another length"
        assert not columns, f"there is no column {', '.join(columns)}"
        return cls(**made)

    @classmethod
    def joined(cls: type[T], parts: Sequence[T]) -> T:
        """Return the rows of several parts. A column of one value for all stays one."""
        if not parts:
            return cls.of()
        columns = zip(*(vars(part).values() for part in parts), strict=True)
        return cls(*map(_joined, columns))

    @classmethod
    def types(cls) -> dict[str, np.dtype[Any]]:
        """Return every column and the type of its numbers: times are floats, all else is whole."""
        whole = np.dtype(np.int32)
        times = np.dtype(np.float64)
        return {item.name: times if "float" in str(item.type) else whole for item in fields(cls)}

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))

    def take(self: T, rows: NDArray[Any]) -> T:
        """Return some rows by a mask or positions. A column of one value for all stays one."""
        if rows.dtype == bool and rows.all():
            return self
        count = int(np.count_nonzero(rows)) if rows.dtype == bool else len(rows)
        return type(self)(**{
            name: np.broadcast_to(column[:1], count) if column.strides == (0,) else column[rows]
            for name, column in vars(self).items()
        })  # fmt: skip


def _joined(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return the values of several parts of a column."""
    value = parts[0][:1]
    if all(part.strides == (0,) and part[:1].tobytes() == value.tobytes() for part in parts):
        return np.broadcast_to(value, sum(map(len, parts)))
    return np.concatenate(parts)


@dataclass(frozen=True, eq=False)
class ObservedActions(Columns):
    """Computed actions, one row for each in the trace.

    Times are in seconds, on the rank's own clock if clocks differ. The interval of a row excludes
    the wait for input if the format has it (`waited`).

    Parameters
    ----------
    step, copy, rank
        Optimizer step (index of :attr:`Observed.steps`), data-parallel copy, pipeline rank.
    kind, stage, microbatch, slice
        The action; kinds are those of :class:`debubble.core.kinds.Kind`.
    pair
        Shared number of both halves of an overlapped pair, −1 for an action alone.
    start, end
        Start and end of its computation. Halves of a pair have those of the pair; or their own, if
        one ran after the other, and the second may have waited for its input.
    issued
        Start on the host: that of its range, or of its first launch.
    waited
        Time at which its input was complete, as the rank's runtime measured it.
    busy
        Busy time of the device between `start` and `end`.
    """

    step: NDArray[np.int32]
    copy: NDArray[np.int32]
    rank: NDArray[np.int32]
    kind: NDArray[np.int32]
    stage: NDArray[np.int32]
    microbatch: NDArray[np.int32]
    slice: NDArray[np.int32]
    pair: NDArray[np.int32]
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    issued: NDArray[np.float64]
    waited: NDArray[np.float64]
    busy: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Messages(Columns):
    """Messages between ranks, one row for each with a known end.

    Parameters
    ----------
    step, copy, source, target
        Optimizer step, copy, and the ranks; times are on the clock of the rank they belong to.
    kind, stage, microbatch, slice
        Action that produced it: an F for activations, an I or B for gradients.
    sent
        Time at which the source posted the send. The end of the transfer is unknown on the source:
        the end of a wait for the send is no measure of it.
    posted, waited, arrived
        Times at which the target posted the receive, began to wait for it, and received it.
    """

    step: NDArray[np.int32]
    copy: NDArray[np.int32]
    source: NDArray[np.int32]
    target: NDArray[np.int32]
    kind: NDArray[np.int32]
    stage: NDArray[np.int32]
    microbatch: NDArray[np.int32]
    slice: NDArray[np.int32]
    sent: NDArray[np.float64]
    posted: NDArray[np.float64]
    waited: NDArray[np.float64]
    arrived: NDArray[np.float64]


PAUSES = ("garbage-collection", "memory")
"""Reasons of a host's pauses: Python's garbage collector, or an allocation."""


@dataclass(frozen=True, eq=False)
class Pauses(Columns):
    """Pauses of hosts, with their reasons as indices of :data:`PAUSES`; times in seconds."""

    copy: NDArray[np.int32]
    rank: NDArray[np.int32]
    cause: NDArray[np.int32]
    start: NDArray[np.float64]
    end: NDArray[np.float64]


@dataclass(frozen=True)
class Location:
    """Location of a rank of one copy in the job; None for what the trace does not have.

    Parameters
    ----------
    global_rank
        Rank in the whole job, as ``torch.distributed`` numbers it.
    host
        Name of its host.
    file
        Its file, by the path from the opened folder; the first one if it has several.
    """

    global_rank: int | None = None
    host: str | None = None
    file: str | None = None


@dataclass(frozen=True, eq=False)
class Observed:
    """Content of the trace of a run.

    Parameters
    ----------
    format
        Name of the format, for instance ``"kineto"``.
    ranks, copies
        Pipeline ranks, and data-parallel copies of the pipeline.
    steps
        Numbers of the optimizer steps, as the run counted them.
    actions, messages, pauses
        Rows of the trace.
    locations
        Location of every rank of every copy, ``locations[copy * ranks + rank]``; empty if unknown.
    backend
        Communication backend, for instance ``"gloo"`` or ``"nccl"``; empty if unknown.
    device
        Device of the computing: ``"cpu"``, ``"gpu"``, or empty if unknown.
    clocks
        Sharing of clocks between ranks.
    waits_inside
        True if intervals of actions contain a wait for input of unknown length.
    order_assumed
        Name of the assumed schedule if the trace has no sequence of actions; else empty.
    missing
        Ranks without a file, as ``(copy, rank)``.
    taken_for
        Sources of rank, stage, step and clock, in words.
    left_out
        Numbers of unused events, files or steps, by reason.
    costs
        Costs from sums of times, for a format without actions.
    carries
        Skip connections, pairs (from stage, to stage). What is carried is a part of the message
        that its target gets of its neighbor: that is there when both are.
    """

    format: str
    ranks: int
    copies: int
    steps: tuple[int, ...]
    actions: ObservedActions
    messages: Messages = field(default_factory=Messages.of)
    pauses: Pauses = field(default_factory=Pauses.of)
    locations: tuple[Location, ...] = ()
    backend: str = ""
    device: Device = ""
    clocks: ClockSharing = "one"
    waits_inside: bool = False
    order_assumed: str = ""
    missing: tuple[tuple[int, int], ...] = ()
    taken_for: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)
    costs: Costs | None = None
    carries: tuple[tuple[int, int], ...] = ()

    @property
    def hosts(self) -> tuple[str, ...]:
        """Host of every rank of every copy, empty where unknown; empty if no host is known."""
        names = tuple(each.host or "" for each in self.locations)
        return names if any(names) else ()

    @property
    def stages(self) -> int:
        """Number of stages."""
        return int(self.actions.stage.max(initial=-1)) + 1

    @property
    def microbatches(self) -> int:
        """Number of microbatches of a step."""
        return int(self.actions.microbatch.max(initial=-1)) + 1
