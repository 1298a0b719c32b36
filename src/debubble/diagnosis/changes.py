"""Changes of a run's times of actions, gaps and messages, as given by ``--set``."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

from debubble.core.actions import kinds_of, pairs_of
from debubble.core.errors import ParameterError, did_you_mean
from debubble.core.kinds import WORK_KINDS, Kind
from debubble.core.schedule import Schedule
from debubble.core.units import read_number
from debubble.diagnosis.observed import Times
from debubble.diagnosis.replay import MILLISECONDS
from debubble.diagnosis.run import PAIR, Run

KINDS = (*(kind.name for kind in WORK_KINDS), "O")
"""Kinds of actions that a change can name; O is an overlapped group."""

FORM = (
    "write stage3.F*=0.9, rank2*=0.8, copy0.B=60, copy0.rank2*=0.8, F+=1 (ms), gaps=0, p2p=0 or "
    "p2p.0-1*=0.5"
)

OWNERS = ("stage", "rank", "copy")
"""Owners of actions in a change; a number follows, and optionally a kind."""

HOWS = ("*=", "+=", "=")
"""Operators of a change."""

_CHANGE = re.compile(
    r"(?:copy(?P<copy>\d{1,6})\.(?=stage|rank|gaps|p2p))?"
    rf"(?:(?P<of>{'|'.join(OWNERS)})(?P<number>\d{{1,6}})(?:\.(?P<kind>[A-Z]))?|(?P<bare>[A-Z])"
    r"|(?P<gaps>gaps)|(?P<p2p>p2p)(?:\.(?P<a>\d{1,6})-(?P<b>\d{1,6}))?)"
    rf"\s*(?P<how>{'|'.join(map(re.escape, HOWS))})\s*(?P<value>\S+)",
    re.ASCII,
)


@dataclass(frozen=True)
class Change:
    """Change of the times of some actions, gaps or messages, with its `text` as written.

    `what` is ``"stage"``, ``"rank"`` or ``"copy"`` with its `number`, ``"kind"``, ``"gaps"`` or
    ``"p2p"``. An empty `kind` or `link` (two ranks) stands for all. The operand `value` of the
    operator `how` is a factor, else milliseconds. A `copy` limits it to one copy.
    """

    text: str
    what: str
    number: int | None
    kind: str
    link: tuple[int, ...]
    how: str
    value: float
    copy: int | None = None

    @classmethod
    def parse(cls, text: str) -> Change:
        """Parse a change.

        Raises
        ------
        ParameterError
            When the text is not a change.
        """
        match = _CHANGE.fullmatch(text.strip())
        value = read_number(match["value"]) if match else float("nan")
        if match is None:
            raise ParameterError(f"--set '{text}' is no change; {FORM}")
        if not 0 <= value < float("inf"):
            raise ParameterError(
                f"--set '{text}': '{match['value']}' is no number from 0 on; {FORM}"
            )
        kind = match["kind"] or match["bare"] or ""
        if kind and kind not in KINDS:
            raise ParameterError(f"--set '{text}': no kind {kind}; {did_you_mean(kind, KINDS)}")
        link = (int(match["a"]), int(match["b"])) if match["a"] else ()
        what = match["of"] or match["gaps"] or match["p2p"] or "kind"
        number = int(match["number"]) if match["number"] else None
        copy = int(match["copy"]) if match["copy"] else None
        return cls(text.strip(), what, number, kind, link, match["how"], value, copy)

    def check(self, run: Run) -> None:
        """Raise ParameterError if the run does not have the numbers of the change."""
        limits = {"stage": run.schedule.stages, "rank": run.schedule.ranks, "copy": run.copies}
        for what, number in ((self.what, self.number), ("copy", self.copy)):
            if number is not None and number >= limits[what]:
                raise ParameterError(
                    f"--set '{self.text}': {what} {number}; the last is {limits[what] - 1}"
                )
        if self.kind and not self._columns(run).any():
            classes = {*run.kind.tolist(), *run.cls.tolist()}
            ran = ", ".join(sorted("O" if cls == PAIR else Kind(cls).name for cls in classes))
            raise ParameterError(
                f"--set '{self.text}': nothing of the run is {self.kind}"
                f"{' there' if self.number is not None else ''}; it has {ran}"
            )
        if self.link and not self._columns(run).any():
            raise ParameterError(
                f"--set '{self.text}': ranks {self.link[0]} and {self.link[1]} send nothing to "
                "each other"
            )

    def _columns(self, run: Run) -> np.ndarray:
        """Return the columns of changed actions, or of actions that receive changed messages."""
        if self.what == "p2p":
            found = run.source >= 0
            if self.link:
                ends = np.stack([run.rank[run.source], run.rank])
                low, high = sorted(self.link)
                found &= (ends.min(axis=0) == low) & (ends.max(axis=0) == high)
            return found
        found = np.ones(len(run.rank), dtype=bool)
        if self.kind == "O":
            found &= run.cls == PAIR
        elif self.kind:
            found &= run.kind == Kind[self.kind]
        if self.what in ("stage", "rank"):
            found &= getattr(run, self.what) == self.number
        return found

    def of_work(self, run: Run, times: Times, shares: Times) -> Times:
        """Return changed times of actions; changes of its members add up in an overlapped group.

        Members of a group have the time of the group, of which `shares` is the share of each.
        """
        more = self.of(run, times) - times
        if self.how != "+=":
            more = more * shares
        return np.asarray(times + run.in_groups(more, np.add))

    @property
    def stays(self) -> bool:
        """True if the change belongs to a rank, and so holds under another schedule.

        A rank that becomes faster was slow with its own layers, which may run on another rank.
        """
        least = {"*=": 1.0, "+=": 0.0}
        limit = least.get(self.how, math.inf)
        return self.what == "rank" and self.copy is None and self.value > limit

    def of_rank(self, schedule: Schedule, times: Times) -> Times:
        """Return times of actions alone under another schedule, changed on the rank."""
        mine = np.repeat(np.arange(schedule.ranks), np.diff(schedule.offsets)) == self.number
        if self.kind == "O":
            mine &= pairs_of(schedule.actions) > 0
        elif self.kind:
            mine &= kinds_of(schedule.actions) == Kind[self.kind]
        return np.where(mine, self._applied(times), times)

    def of(self, run: Run, values: Times) -> Times:
        """Return the times of actions after the change."""
        copy = self.number if self.what == "copy" else self.copy
        rows = np.ones(run.rows, dtype=bool) if copy is None else run.copy == copy
        cells = rows[:, None] & self._columns(run)[None, :]
        return np.where(cells, self._applied(values), values)

    def _applied(self, values: Times) -> Times:
        """Return times after the operator of the change."""
        if self.how == "*=":
            return values * self.value
        return (values if self.how == "+=" else np.zeros_like(values)) + self.value / MILLISECONDS
