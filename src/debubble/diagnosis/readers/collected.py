"""What a reader finds, row by row, made into an :class:`~debubble.diagnosis.observed.Observed`.

What holds for every format is here: steps that are not whole are left out, rows that occur twice
count once, a drawing is no measurement, and both ends of a message find each other.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import MAX_STAGES
from debubble.core.errors import FormatError
from debubble.core.kinds import FORWARD_KINDS, GRADIENT_KINDS, KINDS, Kind
from debubble.core.units import counted
from debubble.diagnosis.observed import ALONE, Actions, Clocks, Columns, Messages, Observed, Pauses
from debubble.diagnosis.readers.stream import LeftOut

T = TypeVar("T", bound=Columns)

NAN = math.nan

MAX_ROWS = 1 << 24
"""Actions, sends or receives of one trace."""

MAX_RANKS = 1 << 16
MAX_PLACES = 1 << 20
KEY = ("step", "copy", "rank", "kind", "stage", "microbatch", "slice")
"""Columns that say which action a row is."""

LIMITS = {
    "step": 1 << 31, "copy": 1 << 14, "rank": MAX_RANKS, "kind": len(Kind), "stage": MAX_STAGES,
    "microbatch": 1 << 20, "slice": 1 << 10,
}  # fmt: skip
"""Least number of each column that is refused."""

NAMED = 3
"""Ranks, actions or microbatches that a message names."""

BACKWARDS_IN_TIME = "actions whose end is before their start"
TWICE = "actions that occur twice with the same times"
TWO_TIMES = "steps in which an action occurs twice with different times"
INCOMPLETE = "steps that are not complete on every rank"
PARTS = "ranks of which no step is complete (taken as missing): "
NO_ACTION = "sends and receives of no action of the trace"


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
    actions: list[tuple[float, ...]] = field(default_factory=list)
    sends: list[tuple[float, ...]] = field(default_factory=list)
    receives: list[tuple[float, ...]] = field(default_factory=list)
    pauses: list[tuple[float, ...]] = field(default_factory=list)

    def action(
        self, step: int, copy: int, rank: int, kind: int, stage: int, microbatch: int,
        start: float, end: float, *, slice: int = 0, pair: int = ALONE, issued: float = NAN,
        waited: float = NAN, busy: float = NAN,
    ) -> None:  # fmt: skip
        """Add an action; `step` is the number that the run gave it."""
        self._room(self.actions)
        self.actions.append(
            (step, copy, rank, kind, stage, microbatch, slice, pair, start, end, issued, waited,
             busy)
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
            key = (step, copy, forward, stage, microbatch, slice)
            self._room(self.sends)
            self.sends.append((*key, rank, sent))
            return
        assert spec.receives, "a message has two ends"
        key = (step, copy, forward, stage + spec.away, microbatch, slice)
        self._room(self.receives)
        self.receives.append((*key, rank, posted, waited, arrived))

    def _room(self, rows: list[tuple[float, ...]]) -> None:
        if len(rows) >= MAX_ROWS:
            raise FormatError(
                f"{self.where}: more than {MAX_ROWS:,} actions, the limit; give fewer steps"
            )

    def pause(self, copy: int, rank: int, cause: int, start: float, end: float) -> None:
        """Add a time in which the host stood still."""
        self._room(self.pauses)
        self.pauses.append((copy, rank, cause, start, end))

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
        self._check_numbers()
        actions = table(Actions, self.actions)
        span = actions.end - actions.start
        sound = np.isfinite(span) & (span >= 0)
        self._count(BACKWARDS_IN_TIME, len(actions) - int(sound.sum()))
        actions = actions.take(sound)
        if not len(actions):
            raise FormatError(f"{self.where}: no action has both a start and an end")
        span = span[sound]
        if len(span) > 1 and np.allclose(span, unit, rtol=1e-6, atol=0):
            raise FormatError(
                f"{self.where}: all {len(span):,} actions take 1, so it is a drawing of a schedule "
                "and no measurement; give the trace of a run"
            )
        actions = self._once(actions)
        ranks = max(ranks, int(actions.rank.max()) + 1)
        copies = max(copies, int(actions.copy.max()) + 1)
        actions, steps = self._whole_steps(actions)
        messages = self._messages(actions, steps)
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
        present = set((actions.copy.astype(np.int64) * ranks + actions.rank).tolist())
        missing = [divmod(each, ranks) for each in range(copies * ranks) if each not in present]
        return Observed(
            format, ranks, copies, steps, since(zero, actions), since(zero, messages),
            since(zero, pauses), tuple(known) if any(known) else (), clocks, missing=tuple(missing),
            taken_for=dict(taken_for), left_out=dict(self.left_out), **others,
        )  # fmt: skip

    def _check_numbers(self) -> None:
        """Refuse numbers of actions that no run has."""
        for place, name in enumerate(KEY):
            found, most = max((row[place] for row in self.actions), default=0), LIMITS[name]
            if found >= most:
                raise FormatError(f"{self.where}: {name} {found:,}; they go to {most - 1:,}")

    def _count(self, reason: str, count: int) -> None:
        if count:
            self.left_out[reason] += count

    def _once(self, actions: Actions) -> Actions:
        """Actions in order of step, copy, rank and time, without what was written twice."""
        order = np.lexsort((actions.end, actions.start, actions.rank, actions.copy, actions.step))
        rows = np.stack([getattr(actions, name) for name in (*KEY, "start", "end")])
        _, first = np.unique(rows, axis=1, return_index=True)
        self._count(TWICE, len(actions) - len(first))
        keep = np.zeros(len(actions), bool)
        keep[first] = True
        return actions.take(order[keep[order]])

    def _whole_steps(self, actions: Actions) -> tuple[Actions, tuple[int, ...]]:
        """The actions of complete steps, and the numbers of those steps."""
        sets: dict[tuple[int, int], dict[int, list[tuple[int, ...]]]] = defaultdict(
            lambda: defaultdict(list)
        )
        columns = [getattr(actions, name).tolist() for name in KEY]
        for step, copy, rank, *action in zip(*columns, strict=True):
            sets[copy, rank][step].append(tuple(action))
        steps = set(actions.step.tolist())
        twice: set[int] = set()
        wrong: dict[tuple[int, int], set[int]] = {}
        usual: dict[tuple[int, int], frozenset[tuple[int, ...]]] = {}
        for place, by_step in sets.items():
            found = {step: frozenset(done) for step, done in by_step.items()}
            twice |= {step for step, done in by_step.items() if len(done) > len(found[step])}
            counts = Counter(found.values())
            usual[place] = max(counts, key=lambda done: (counts[done], len(done)))
            wrong[place] = {step for step in steps if found.get(step) != usual[place]}
        parts = _parts(usual)
        if len(parts) == len(usual):
            raise FormatError(
                f"{self.where}: no rank has the forward and backward of every microbatch in any "
                f"step: {_lacks(usual, parts)}; begin the trace before a step and end it behind one"
            )
        if parts:
            self._count(PARTS + _lacks(usual, parts), len(parts))
        units = {action[2] for done in usual.values() for action in done}
        absent = sorted(set(range(max(units))) - units)
        if absent:
            raise FormatError(
                f"{self.where}: microbatch {', '.join(map(str, absent[:NAMED]))} is in no action, "
                f"and {max(units)} is; begin the trace before a step, or count microbatches from 0"
            )
        cut = {step for place, found in wrong.items() if place not in parts for step in found}
        cut -= twice
        self._count(TWO_TIMES, len(twice))
        self._count(INCOMPLETE, len(cut))
        kept = sorted(steps - twice - cut)
        if not kept:
            raise FormatError(
                f"{self.where}: none of {len(steps)} steps is complete on every rank with every "
                "action once; trace whole steps on all ranks"
            )
        keep = np.isin(actions.step, kept)
        for copy, rank in parts:
            keep &= (actions.copy != copy) | (actions.rank != rank)
        actions = actions.take(keep)
        index = np.searchsorted(kept, actions.step).astype(np.int32)
        return Actions(**{**vars(actions), "step": index}), tuple(kept)

    def _messages(self, actions: Actions, steps: tuple[int, ...]) -> Messages:
        """Sends and receives of the same message put together, with the ranks of both ends."""
        number = {step: index for index, step in enumerate(steps)}
        made: dict[tuple[float, ...], tuple[int, int]] = {}
        columns = [getattr(actions, name).tolist() for name in KEY]
        for step, copy, rank, kind, stage, microbatch, part in zip(*columns, strict=True):
            if kind in FORWARD_KINDS or kind in GRADIENT_KINDS:
                made[step, copy, kind in FORWARD_KINDS, stage, microbatch, part] = (kind, rank)
        ends: dict[tuple[float, ...], list[float]] = {}
        for index, rows in ((0, self.sends), (1, self.receives)):
            for step, *rest in rows:
                if step not in number:
                    continue
                key = (number[int(step)], *rest[:5])
                row = ends.setdefault(key, [NAN] * 6)
                row[index] = rest[5]
                row[2 + index : 2 + len(rest) - 6 + index] = rest[6:]
        found = []
        for (step, copy, forward, stage, *unit), row in ends.items():
            source, target = row[:2]
            kind, at = made.get((step, copy, forward, stage, *unit), (None, NAN))
            after = made.get((step, copy, forward, stage + (1 if forward else -1), *unit))
            source = at if math.isnan(source) else source
            target = after[1] if math.isnan(target) and after else target
            if math.isnan(source) or math.isnan(target):
                self._count(NO_ACTION, 1)
                continue
            if kind is None:
                kind = Kind.F if forward else after[0] if after else Kind.B
            found.append((step, copy, source, target, kind, stage, *unit, *row[2:]))
        found.sort(key=lambda row: row[:8])
        return table(Messages, found)


def _parts(
    usual: Mapping[tuple[int, int], frozenset[tuple[int, ...]]],
) -> set[tuple[int, int]]:
    """The copies and ranks that never have all microbatches, or not the backward of each."""
    forwards = {
        at: {one[1:] for one in done if one[0] in FORWARD_KINDS} for at, done in usual.items()
    }
    backwards = {
        at: {one[1:] for one in done if one[0] in GRADIENT_KINDS} for at, done in usual.items()
    }
    counts = {at: len({unit[1:] for unit in found}) for at, found in forwards.items()}
    most = max(counts.values())
    learns = any(backwards.values())
    return {
        at for at, found in forwards.items()
        if counts[at] < most or (learns and backwards[at] != found)
    }  # fmt: skip


def _lacks(
    usual: Mapping[tuple[int, int], frozenset[tuple[int, ...]]], parts: set[tuple[int, int]]
) -> str:
    """What these copies and ranks lack."""
    several = any(copy for copy, _ in usual)
    done = [{one[0] for one in actions} for actions in usual.values()]
    learns = any(kinds & set(GRADIENT_KINDS) for kinds in done)
    backward = "B" if any(Kind.B in kinds for kinds in done) else "I"
    units = [{one[2:] for one in actions} for actions in usual.values()]
    # Where each rank has half of the microbatches of a stage, only pairs tell what is not there.
    every = set.union(*units) if max(map(len, units)) == len(set.union(*units)) else set()
    found = []
    for copy, rank in sorted(parts):
        names = _absent(usual[copy, rank], every, backward if learns else "")
        what = ", ".join(names[:NAMED])
        what += f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        found.append(f"rank {rank}" + (f" of copy {copy}" if several else "") + f" lacks {what}")
    more = len(found) - NAMED
    return "; ".join(found[:NAMED]) + (f"; and {counted(more, 'more rank')}" if more > 0 else "")


def _absent(
    done: frozenset[tuple[int, ...]], units: set[tuple[int, ...]], backward: str
) -> list[str]:
    """Actions that a rank does not have: of these units, or to go with another of its actions."""
    forwards = {one[1:] for one in done if one[0] in FORWARD_KINDS}
    backwards = {one[1:] for one in done if one[0] in GRADIENT_KINDS}
    wanted = forwards | backwards | {(one[1], *unit) for one in done for unit in units}
    found = [(unit, stage, "F") for stage, unit, _ in wanted - forwards]
    if backward:
        found += [(unit, stage, backward) for stage, unit, _ in wanted - backwards]
    return [f"{stage}{kind}{unit}" for unit, stage, kind in sorted(found)]


def table(columns: type[T], rows: Sequence[Sequence[float]]) -> T:
    """Columns of rows that have a value for each of them."""
    names = list(columns.types())
    values: NDArray[np.float64] = np.array(rows, dtype=np.float64).reshape(-1, len(names))
    return columns.of(**dict(zip(names, values.T, strict=True)))


def times_of(rows: Columns) -> dict[str, NDArray[np.float64]]:
    """The columns that are points in time."""
    return {
        name: getattr(rows, name) for name, dtype in rows.types().items()
        if dtype == np.float64 and name != "busy"
    }  # fmt: skip


def since(zero: float, rows: T) -> T:
    """Rows with their times counted from `zero`."""
    return type(rows)(**{**vars(rows), **{k: v - zero for k, v in times_of(rows).items()}})
