"""What a reader finds, row by row, made into an :class:`~debubble.diagnosis.observed.Observed`.

What holds for every format is here: steps that are not whole are left out, rows that occur twice
count once, a drawing is no measurement, and both ends of a message find each other.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from debubble.core.actions import MAX_STAGES
from debubble.core.errors import FormatError
from debubble.core.kinds import FORWARD_KINDS, KINDS, Kind
from debubble.diagnosis.observed import ALONE, Actions, Clocks, Columns, Observed, Pauses
from debubble.diagnosis.readers.messages import BLOCK, Receives, Sends, packed, paired
from debubble.diagnosis.readers.stream import LeftOut
from debubble.diagnosis.readers.whole_steps import whole_steps

T = TypeVar("T", bound=Columns)

NAN = math.nan

MAX_ROWS = 1 << 24
"""Actions, sends or receives of one trace."""

GROWTH = 16
"""Times of the rows so far for which there is room; what is not written to takes no memory."""

MAX_RANKS = 1 << 16
MAX_PLACES = 1 << 20
KEY = ("step", "copy", "rank", "kind", "stage", "microbatch", "slice")
"""Columns that say which action a row is."""

LIMITS = {
    "step": 1 << 31, "copy": 1 << 14, "rank": MAX_RANKS, "kind": len(Kind), "stage": MAX_STAGES,
    "microbatch": 1 << 20, "slice": 1 << 10,
}  # fmt: skip
"""Least number of each column that is refused."""

ROWS: Mapping[str, type[Columns]] = {"actions": Actions, "sends": Sends, "receives": Receives}
"""What is collected, and its columns."""

BACKWARDS_IN_TIME = "actions whose end is before their start"
TWICE = "actions that occur twice with the same times"
NO_ACTION = "sends and receives of no action of the trace"


class _Grown:
    """Columns to which rows are added.

    They are written where they stay, with room for more behind them: to be given memory takes
    longer than to fill it. A column that has one value for all rows is that value.
    """

    def __init__(self) -> None:
        self.count = 0
        self._columns: dict[str, NDArray[Any]] = {}

    def add(
        self, count: int, rows: Mapping[str, NDArray[Any]], types: Mapping[str, np.dtype[Any]]
    ) -> None:
        """Add rows by their columns, each of which may be one value for all."""
        before, self.count = self.count, self.count + count
        for name, values in rows.items():
            kept = self._columns.get(name)
            if not values.ndim:
                values = values.astype(types[name])
                if kept is None or (not kept.ndim and kept.tobytes() == values.tobytes()):
                    self._columns[name] = values
                    continue
            if kept is None or not kept.ndim or len(kept) < self.count:
                room = max(self.count, min(GROWTH * before, MAX_ROWS))
                self._columns[name] = np.empty(room, types[name])
                if kept is not None:
                    self._columns[name][:before] = kept[:before] if kept.ndim else kept
            self._columns[name][before : self.count] = values

    def columns(self) -> dict[str, NDArray[Any]]:
        """All rows by their columns."""
        return {
            name: each[: self.count] if each.ndim else np.broadcast_to(each, self.count)
            for name, each in self._columns.items()
        }


@dataclass(eq=False)
class Collected:
    """Rows in the making. Times are in seconds from any zero; unknown ones are NaN.

    Parameters
    ----------
    where
        The file or folder, for messages.
    left_out
        What was not used, and why.
    """

    where: str
    left_out: LeftOut = field(default_factory=Counter)
    actions: array[float] = field(default_factory=lambda: array("d"))
    sends: array[float] = field(default_factory=lambda: array("d"))
    receives: array[float] = field(default_factory=lambda: array("d"))
    pauses: array[float] = field(default_factory=lambda: array("d"))
    _grown: dict[str, _Grown] = field(default_factory=lambda: defaultdict(_Grown))
    _most: Counter[str] = field(default_factory=Counter)

    def action(
        self, step: int, copy: int, rank: int, kind: int, stage: int, microbatch: int,
        start: float, end: float, *, slice: int = 0, pair: int = ALONE, issued: float = NAN,
        waited: float = NAN, busy: float = NAN,
    ) -> None:  # fmt: skip
        """Add an action; `step` is the number that the run gave it."""
        self._append(
            self.actions, step, copy, rank, kind, stage, microbatch, slice, pair, start, end,
            issued, waited, busy,
        )  # fmt: skip

    def transfer(
        self, step: int, copy: int, rank: int, kind: Kind, stage: int, microbatch: int,
        *, slice: int = 0, sent: float = NAN, posted: float = NAN, waited: float = NAN,
        arrived: float = NAN,
    ) -> None:  # fmt: skip
        """Add one end of a message as PyTorch names it: ``0SEND_F1``, or ``1RECV_F1``."""
        spec = KINDS[kind]
        forward = kind in FORWARD_KINDS
        if spec.sends:
            self._append(self.sends, step, copy, forward, stage, microbatch, slice, rank, sent)
            return
        assert spec.receives, "a message has two ends"
        self._append(
            self.receives, step, copy, forward, stage + spec.away, microbatch, slice, rank, posted,
            waited, arrived,
        )  # fmt: skip

    def many(self, name: Literal["actions", "sends", "receives"], *columns: ArrayLike) -> None:
        """Add many rows at once, column by column in the order in which one has its values.

        A column may be one value for all.
        """
        (count,) = np.broadcast_shapes(*map(np.shape, columns))
        if not count:
            return
        grown = self._grown[name]
        if grown.count + count > MAX_ROWS:
            self._full()
        rows: dict[str, NDArray[Any]] = {}
        for key, column in zip(ROWS[name].types(), columns, strict=True):
            rows[key] = np.asarray(column)
            if name == "actions" and key in LIMITS:
                self._most[key] = max(self._most[key], int(rows[key].max()))
        grown.add(count, rows, ROWS[name].types())

    def _rows(self, name: Literal["actions", "sends", "receives"], columns: type[T]) -> T:
        """All rows of a kind, which are kept no longer; those that came one by one come first."""
        ones = np.frombuffer(getattr(self, name), np.float64)
        setattr(self, name, array("d"))
        if len(ones):
            later = self._grown.pop(name, None)
            self.many(name, *ones.reshape(-1, len(columns.types())).T)
            if later:
                self.many(name, *later.columns().values())
        return columns(**self._grown.pop(name).columns()) if name in self._grown else columns.of()

    def _append(self, rows: array[float], *row: float) -> None:
        if len(rows) >= MAX_ROWS * len(row):
            self._full()
        rows.extend(row)

    def _full(self) -> NoReturn:
        raise FormatError(
            f"{self.where}: more than {MAX_ROWS:,} actions, the limit; give fewer steps"
        )

    def pause(self, copy: int, rank: int, cause: int, start: float, end: float) -> None:
        """Add a time in which the host stood still."""
        self._append(self.pauses, copy, rank, cause, start, end)

    def observed(
        self,
        format: str,
        taken_for: Mapping[str, str],
        *,
        ranks: int = 0,
        copies: int = 0,
        unit: float = NAN,
        hosts: Mapping[tuple[int, int], str] | None = None,
        clocks: Clocks = "one",
        **others: Any,
    ) -> Observed:
        """All of it as columns, from the earliest event on.

        Parameters
        ----------
        format, taken_for, clocks, others
            Fields of :class:`Observed`.
        hosts
            Host by copy and rank.
        ranks, copies
            How many there are, where the format says it.
        unit
            Seconds of the format's unit: where every action takes exactly one, it is a drawing.

        Raises
        ------
        FormatError
            When no step is complete, or nothing was measured.
        """
        actions = self._rows("actions", Actions)
        self._check_numbers()
        sound = [np.isfinite(span) & (span >= 0) for span in _spans(actions)]
        self._count(BACKWARDS_IN_TIME, sum(int(np.count_nonzero(~some)) for some in sound))
        actions = actions.take(np.concatenate(sound)) if sound else actions
        if not len(actions):
            raise FormatError(
                f"{self.where}: no action has a start and, behind it, an end; trace whole steps, "
                "and write times that go forward"
            )
        lasts = any(span.any() for span in _spans(actions))
        if len(actions) > 1 and (_all_take(unit, actions) or not lasts):
            raise FormatError(
                f"{self.where}: all {len(actions):,} actions take {1 if lasts else 0}, so it is "
                "a drawing of a schedule and no measurement; give the trace of a run"
            )
        actions = self._once(actions)
        ranks = max(ranks, int(actions.rank.max()) + 1)
        copies = max(copies, int(actions.copy.max()) + 1)
        actions, steps = whole_steps(self.where, actions, self._count)
        sends, receives = self._rows("sends", Sends), self._rows("receives", Receives)
        messages, stray = paired(actions, steps, sends, receives)
        self._count(NO_ACTION, stray)
        pauses = table(Pauses, self.pauses)
        zero = float(min(
            np.nanmin(column, initial=np.inf) for rows in (actions, messages, pauses)
            for column in times_of(rows).values()
        ))  # fmt: skip
        if ranks * copies > MAX_PLACES:
            raise FormatError(
                f"{self.where}: {copies:,} copies of {ranks:,} ranks; they are {MAX_PLACES:,} at "
                "most in all"
            )
        names = hosts or {}
        known = [names.get(divmod(at, ranks), "") for at in range(copies * ranks)]
        present = np.bincount(actions.copy * ranks + actions.rank, minlength=copies * ranks)
        missing = [divmod(each, ranks) for each in np.flatnonzero(present == 0).tolist()]
        return Observed(
            format, ranks, copies, steps, since(zero, actions), since(zero, messages),
            since(zero, pauses), tuple(known) if any(known) else (), clocks, missing=tuple(missing),
            taken_for=dict(taken_for), left_out=dict(self.left_out), **others,
        )  # fmt: skip

    def _check_numbers(self) -> None:
        """Refuse numbers of actions that no run has."""
        for name, most in LIMITS.items():
            if (found := self._most[name]) >= most:
                raise FormatError(f"{self.where}: {name} {found:,}; they go to {most - 1:,}")

    def _count(self, reason: str, count: int) -> None:
        if count:
            self.left_out[reason] += count

    def _once(self, actions: Actions) -> Actions:
        """Actions in order of step, copy, rank and time, without what was written twice."""
        place = packed([actions.step, actions.copy, actions.rank])
        later = actions.start[1:] > actions.start[:-1]
        if ((place[1:] > place[:-1]) | ((place[1:] == place[:-1]) & later)).all():
            return actions
        order = np.lexsort((actions.start, place))
        same = _like_before(place[order], actions.start[order])
        if same.any():
            order = np.lexsort((actions.end, actions.start, place))
            same = _like_before(place[order], actions.start[order], actions.end[order])
        if not same.any():
            return actions.take(order)
        rows = np.stack([getattr(actions, name) for name in (*KEY, "start", "end")])
        _, first = np.unique(rows, axis=1, return_index=True)
        self._count(TWICE, len(actions) - len(first))
        keep = np.zeros(len(actions), bool)
        keep[first] = True
        return actions.take(order[keep[order]])


def table(columns: type[T], rows: array[float]) -> T:
    """Columns of rows that have a value for each of them."""
    names = list(columns.types())
    values = np.asarray(rows, dtype=np.float64).reshape(-1, len(names))
    return columns.of(**dict(zip(names, values.T, strict=True)))


def _spans(actions: Actions) -> Iterator[NDArray[np.float64]]:
    """How long actions take, of some at a time."""
    for at in range(0, len(actions), BLOCK):
        yield actions.end[at : at + BLOCK] - actions.start[at : at + BLOCK]


def _all_take(unit: float, actions: Actions) -> bool:
    """Whether all actions take one unit of time; in most traces the first does not."""
    return all(np.allclose(span, unit, rtol=1e-6, atol=0) for span in _spans(actions))


def _like_before(*columns: NDArray[Any]) -> NDArray[np.bool_]:
    """Which rows are equal to the one before."""
    same = np.ones(max(len(columns[0]) - 1, 0), bool)
    for column in columns:
        same &= column[1:] == column[:-1]
    return same


def times_of(rows: Columns) -> dict[str, NDArray[np.float64]]:
    """The columns that are points in time."""
    return {
        name: getattr(rows, name) for name, dtype in rows.types().items()
        if dtype == np.float64 and name != "busy"
    }  # fmt: skip


def since(zero: float, rows: T) -> T:
    """Rows with their times counted from `zero`, which are written in place where they can be."""
    columns = dict(vars(rows))
    for name, times in times_of(rows).items():
        columns[name] = np.subtract(times, zero, out=times if times.flags.writeable else None)
    return type(rows)(**{name: np.ascontiguousarray(each) for name, each in columns.items()})
