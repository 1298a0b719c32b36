"""Collection of a reader's rows into an :class:`~debubble.diagnosis.observed.Observed`.

Rules of all formats: incomplete steps are left out, duplicate rows count once, a trace with only
unit times is not a measurement, and both ends of a message are matched.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from debubble.core.actions import MAX_STAGES
from debubble.core.errors import FormatError
from debubble.core.kinds import Kind
from debubble.diagnosis.observed import (
    ClockSharing,
    Columns,
    Location,
    Observed,
    ObservedActions,
    Pauses,
)
from debubble.diagnosis.readers.messages import BLOCK, Receives, Sends, packed, paired
from debubble.diagnosis.readers.stream import LeftOut
from debubble.diagnosis.readers.whole_steps import whole_steps

T = TypeVar("T", bound=Columns)

NAN = math.nan

NANOSECONDS, MICROSECONDS, MILLISECONDS = 1e-9, 1e-6, 1e-3
"""Units of time, in seconds."""

MAX_ROWS = 1 << 24
"""Maximum number of actions, sends or receives of one trace."""

MAX_RANKS = 1 << 16
MAX_PLACES = 1 << 20
KEY = ("step", "copy", "rank", "kind", "stage", "microbatch", "slice")
"""Columns that identify the action of a row."""

LIMITS = {
    "step": 1 << 31, "copy": 1 << 14, "rank": MAX_RANKS, "kind": len(Kind), "stage": MAX_STAGES,
    "microbatch": 1 << 20, "slice": 1 << 10,
}  # fmt: skip
"""Exclusive limit of the numbers in each column."""

RowKind = Literal["actions", "sends", "receives", "pauses"]

ROWS: Mapping[RowKind, type[Columns]] = {
    "actions": ObservedActions, "sends": Sends, "receives": Receives, "pauses": Pauses,
}  # fmt: skip
"""Columns of the collected rows, by kind of row."""

BACKWARDS_IN_TIME = "actions whose end is before their start"
TWICE = "actions that occur twice with the same times"
NO_ACTION = "sends and receives of no action of the trace"


@dataclass(eq=False)
class Collected:
    """Collector of rows. Times are in seconds from any zero; unknown ones are NaN.

    `where` is the file or folder, for messages; `left_out` has numbers of unused things by reason.
    """

    where: str
    left_out: LeftOut = field(default_factory=Counter)
    _parts: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    _counts: Counter[str] = field(default_factory=Counter)
    _most: Counter[str] = field(default_factory=Counter)

    def many(self, name: RowKind, *columns: ArrayLike) -> None:
        """Add many rows, column by column in the order of :data:`ROWS`.

        A column may be one value for all. Steps have the numbers that the run gave them.
        """
        (count,) = np.broadcast_shapes(*map(np.shape, columns))
        if not count:
            return
        self._counts[name] += count
        if self._counts[name] > MAX_ROWS:
            raise FormatError(
                f"{self.where}: more than {MAX_ROWS:,} actions, the limit; give fewer steps"
            )
        rows = []
        for (key, dtype), column in zip(ROWS[name].types().items(), columns, strict=True):
            values = np.asarray(column)
            if name == "actions" and key in LIMITS:
                self._most[key] = max(self._most[key], int(values.max()))
            rows.append(np.broadcast_to(values.astype(dtype), count))
        self._parts[name].append(ROWS[name](*rows))

    def each(self, name: RowKind, rows: Sequence[Sequence[float]]) -> None:
        """Add rows, each with a value for every column."""
        if rows:
            self.many(name, *np.array(rows, np.float64).T)

    def _rows(self, name: RowKind, columns: type[T]) -> T:
        """Return all rows of a kind, and drop them here."""
        return columns.joined(self._parts.pop(name, []))

    def observed(
        self,
        format: str,
        taken_for: Mapping[str, str],
        *,
        ranks: int = 0,
        copies: int = 0,
        unit: float = NAN,
        locations: Mapping[tuple[int, int], Location] | None = None,
        clocks: ClockSharing = "one",
        **others: Any,
    ) -> Observed:
        """Return all rows as columns, with times from the earliest event on.

        `locations` are by copy and rank, with paths as files; `ranks` and `copies` are numbers of
        the format, 0 if it has none. If all actions take exactly one `unit` of seconds, nothing
        was measured. `others` are fields of :class:`Observed`. Raise FormatError when no step is
        complete, or nothing was measured.
        """
        actions = self._rows("actions", ObservedActions)
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
        pauses = self._rows("pauses", Pauses)
        zero = float(min(
            np.nanmin(column, initial=np.inf) for rows in (actions, messages, pauses)
            for column in times_of(rows).values()
        ))  # fmt: skip
        if ranks * copies > MAX_PLACES:
            raise FormatError(
                f"{self.where}: {copies:,} copies of {ranks:,} ranks; they are {MAX_PLACES:,} at "
                "most in all"
            )
        given = {place: self._seen_from_folder(one) for place, one in (locations or {}).items()}
        hosts = {one.host for one in given.values()}
        if clocks == "hosts" and len(hosts) == 1 and None not in hosts:
            clocks = "one"
        nowhere = Location()
        known = [given.get(divmod(at, ranks), nowhere) for at in range(copies * ranks)]
        present = np.bincount(actions.copy * ranks + actions.rank, minlength=copies * ranks)
        missing = [divmod(each, ranks) for each in np.flatnonzero(present == 0).tolist()]
        return Observed(
            format, ranks, copies, steps, since(zero, actions), since(zero, messages),
            since(zero, pauses), tuple(known) if given else (), clocks=clocks,
            missing=tuple(missing), taken_for=dict(taken_for), left_out=dict(self.left_out),
            **others,
        )  # fmt: skip

    def _seen_from_folder(self, one: Location) -> Location:
        """Return a location with its file's path from the folder, and without empty texts."""
        file = one.file
        if file is not None:
            path, folder = Path(file), Path(self.where)
            file = str(path.relative_to(folder)) if folder in path.parents else path.name
        return replace(one, host=one.host or None, file=file)

    def _check_numbers(self) -> None:
        """Raise FormatError if numbers of actions are outside of their limits."""
        for name, most in LIMITS.items():
            if (found := self._most[name]) >= most:
                raise FormatError(f"{self.where}: {name} {found:,}; they go to {most - 1:,}")

    def _count(self, reason: str, count: int) -> None:
        if count:
            self.left_out[reason] += count

    def _once(self, actions: ObservedActions) -> ObservedActions:
        """Return actions sorted by step, copy, rank and time, without duplicates."""
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


def _spans(actions: ObservedActions) -> Iterator[NDArray[np.float64]]:
    """Yield the durations of actions in blocks."""
    for at in range(0, len(actions), BLOCK):
        yield actions.end[at : at + BLOCK] - actions.start[at : at + BLOCK]


def _all_take(unit: float, actions: ObservedActions) -> bool:
    """Return True if all actions take one unit of time; in most traces the first does not."""
    return all(np.allclose(span, unit, rtol=1e-6, atol=0) for span in _spans(actions))


def _like_before(*columns: NDArray[Any]) -> NDArray[np.bool_]:
    """Return a mask of the rows equal to their predecessor."""
    same = np.ones(max(len(columns[0]) - 1, 0), bool)
    for column in columns:
        same &= column[1:] == column[:-1]
    return same


def times_of(rows: Columns) -> dict[str, NDArray[np.float64]]:
    """Return the columns that are points in time."""
    return {
        name: getattr(rows, name) for name, dtype in rows.types().items()
        if dtype == np.float64 and name != "busy"
    }  # fmt: skip


def since(zero: float, rows: T) -> T:
    """Return rows with times counted from `zero`, changed in place if writable."""
    columns = dict(vars(rows))
    for name, times in times_of(rows).items():
        columns[name] = np.subtract(times, zero, out=times if times.flags.writeable else None)
    return type(rows)(**{name: np.ascontiguousarray(each) for name, each in columns.items()})
