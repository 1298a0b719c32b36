"""Answers about hangs: what they say, as text and as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from debubble.analysis.layout import wrap
from debubble.core.schedule import Schedule
from debubble.diagnosis.hang.progress import Stand


class HangKind(StrEnum):
    """Reasons of hangs."""

    DEADLOCK = "deadlock"
    """Actions of the schedule wait for each other."""
    RANK = "rank"
    """A rank does not go on: its computation does not end, or its process is dead."""
    SHAPES = "shapes"
    """The two ends of a message have different sizes or types."""
    ORDERS = "orders"
    """Ranks run different schedules, or another than the given one."""
    COLLECTIVE = "collective"
    """A collective that all its ranks have joined is not over."""
    LINK = "link"
    """A message that both ends have posted is not over."""
    BUFFER = "buffer"
    """The buffers do not reach back to the beginning of the step."""
    NONE = "none"
    """Nothing waits."""


@dataclass(frozen=True)
class Hang:
    """Answer: why a job hangs."""

    kind: HangKind
    text: str
    """One sentence."""
    evidence: tuple[str, ...] = ()
    advice: str = ""
    stand: Stand | None = None
    """The rank that the others wait for, if it is one."""
    waiting: tuple[Stand, ...] = ()
    """Ranks that wait for it, directly first."""
    mode: str = ""
    """The p2p mode in which the schedule deadlocks."""


@dataclass(frozen=True, eq=False)
class HangReport:
    """The answer, and where every rank stands."""

    schedule: Schedule
    hang: Hang
    stands: tuple[Stand, ...]
    missing: tuple[int, ...]
    """Global ranks without a dump."""
    empty: tuple[str, ...] = ()
    """Names of empty files next to the dumps: dumps that cannot be read."""

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain data."""
        hang, stand = self.hang, self.hang.stand
        return {
            "hang": {
                "kind": str(hang.kind),
                "rank": None if stand is None else stand.rank,
                "action": (None if stand is None else stand.action) or None,
                "maybe": [] if stand is None else list(stand.maybe),
                "waiting": [
                    one.rank for one in hang.waiting if stand is None or one.copy == stand.copy
                ],
                "text": hang.text,
                "copy": None if stand is None else stand.copy,
                "step": None if stand is None else stand.step + 1,
                **_place(stand),
                "waiting_global_ranks": [one.global_rank for one in hang.waiting],
                "p2p_mode": hang.mode or None,
                "evidence": list(hang.evidence),
                "advice": hang.advice,
            },
            "schedule": self.schedule.name,
            "ranks": [_row(one) for one in self.stands],
            "missing_global_ranks": list(self.missing),
            "empty_files": list(self.empty),
        }

    def text(self, width: int) -> str:
        """Return the answer for a terminal: the sentence, what shows it, and what to do."""
        first = self.hang.text[:1].upper() + self.hang.text[1:]
        lines = [*wrap(first, width, 0)]
        for line in self.hang.evidence:
            lines += wrap(f"  {line}", width, 4)
        if self.missing:
            ranks = "rank" if len(self.missing) == 1 else "ranks"
            lines += wrap(f"  no dump of global {ranks} {listed(self.missing)}", width, 4)
        if self.empty:
            lines += wrap(f"  unreadable, as it is empty: {listed(self.empty)}", width, 4)
        if self.hang.advice:
            lines += ["", *wrap(self.hang.advice, width, 0)]
        return "\n".join(lines)


SHOWN = 8
"""Maximum number of ranks in a sentence, and of lines of evidence."""


def listed(some: Sequence[object]) -> str:
    """Return some ranks or names as text: ``0, 1, 3``."""
    more = f" and {len(some) - SHOWN} more" if len(some) > SHOWN else ""
    return ", ".join(map(str, some[:SHOWN])) + more


def _place(stand: Stand | None) -> dict[str, Any]:
    dump = None if stand is None else stand.dump
    return {
        "global_rank": None if stand is None else stand.global_rank,
        "host": None if dump is None else dump.host,
        "file": None if dump is None else dump.file,
    }


def _row(stand: Stand) -> dict[str, Any]:
    """Return where a rank stands as plain data."""
    return {
        "rank": stand.rank, "copy": stand.copy, **_place(stand), "state": stand.kind.value,
        "step": stand.step + 1, "action": stand.action or None, "last_sent": stand.last or None,
        "waits_for_global_ranks": list(stand.waits),
    }  # fmt: skip
