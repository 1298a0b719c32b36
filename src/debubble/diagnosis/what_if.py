"""What a run would take if something were different: other times, or another schedule."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from debubble.core.costs import Costs
from debubble.core.errors import DebubbleError, ParameterError, did_you_mean
from debubble.core.kinds import WORK_KINDS
from debubble.core.schedule import Schedule
from debubble.core.units import read_number
from debubble.diagnosis.replay import Replay
from debubble.diagnosis.run import PAIR, Run, Times
from debubble.diagnosis.times import MILLISECONDS, costs_of
from debubble.engine.timeline import Timeline, simulate
from debubble.schedules.registry import find, make

KINDS = (*(kind.name for kind in WORK_KINDS), "O")
"""Kinds of actions that can be set; O is an overlapped group."""

KIND_OF = {int(kind): kind.name for kind in WORK_KINDS}

FORM = "write stage3.F*=0.9, rank2*=0.8, copy0.B=60, F+=1 (ms), gaps=0, p2p=0 or p2p.0-1*=0.5"

_CHANGE = re.compile(
    r"(?:(?P<of>stage|rank|copy)(?P<number>\d{1,6})(?:\.(?P<kind>[A-Z]))?|(?P<bare>[A-Z])"
    r"|(?P<gaps>gaps)|(?P<p2p>p2p)(?:\.(?P<a>\d{1,6})-(?P<b>\d{1,6}))?)"
    r"\s*(?P<how>\*=|\+=|=)\s*(?P<value>\S+)",
    re.ASCII,
)


@dataclass(frozen=True)
class Change:
    """Other times of some actions, gaps or messages.

    Parameters
    ----------
    text
        As it was written.
    what
        ``"stage"``, ``"rank"``, ``"copy"``, ``"kind"``, ``"gaps"`` or ``"p2p"``.
    number
        The stage, rank or copy; None for all.
    kind
        Name of a kind; empty for all.
    link
        Two ranks; empty for all.
    how, value
        ``"="``, ``"*="`` or ``"+="``, and by what; milliseconds unless it multiplies.
    """

    text: str
    what: str
    number: int | None
    kind: str
    link: tuple[int, ...]
    how: str
    value: float

    @classmethod
    def parse(cls, text: str) -> Change:
        """Read a change.

        Raises
        ------
        ParameterError
            When it is none.
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
        return cls(text.strip(), what, number, kind, link, match["how"], value)

    def check(self, run: Run) -> None:
        """Refuse numbers that the run does not have."""
        limits = {"stage": run.schedule.stages, "rank": run.schedule.ranks,
                  "copy": int(run.copy.max()) + 1}  # fmt: skip
        if self.number is not None and self.number >= limits[self.what]:
            raise ParameterError(
                f"--set '{self.text}': {self.what} {self.number}; the last is "
                f"{limits[self.what] - 1}"
            )
        if self.kind and not self._columns(run).any():
            ran = ", ".join(sorted({KIND_OF.get(cls, "O") for cls in run.cls.tolist()}))
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
        """The actions, or those that receive the messages, that are changed."""
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
            names = {kind.name: int(kind) for kind in WORK_KINDS}
            found &= run.cls == names[self.kind]
        if self.what in ("stage", "rank"):
            found &= getattr(run, self.what) == self.number
        return found

    def of(self, run: Run, values: Times) -> Times:
        """Changed times."""
        rows = run.copy == self.number if self.what == "copy" else np.ones(run.rows, dtype=bool)
        cells = rows[:, None] & self._columns(run)[None, :]
        value = self.value if self.how == "*=" else self.value / MILLISECONDS
        other = {"=": np.full_like(values, value), "*=": values * value, "+=": values + value}
        return np.where(cells, other[self.how], values)


@dataclass(frozen=True, eq=False)
class WhatIf:
    """What a mean step would take.

    Parameters
    ----------
    text
        What is different.
    before, after
        Seconds of a mean step as it was, and with it.
    timeline
        The simulation of another schedule; None where only times differ.
    """

    text: str
    before: float
    after: float
    timeline: Timeline | None = None

    @property
    def gain(self) -> float:
        """Share of the step that goes."""
        return 1 - self.after / self.before

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"change": self.text, "before": self.before, "after": self.after,
                "gain": self.gain}  # fmt: skip


def with_changes(replay: Replay, changes: Sequence[Change]) -> WhatIf:
    """Replay a run with other times."""
    times, gaps, delays = _changed(replay, changes)
    before = float(replay.replayed.mean())
    after = float(replay.steps(times + gaps, delays).mean())
    # The replay may be off by a little: what counts is what changes.
    measured = float(replay.run.step_times.mean())
    return WhatIf(", ".join(one.text for one in changes), measured, measured * after / before)


def _changed(replay: Replay, changes: Iterable[Change]) -> tuple[Times, Times, Times]:
    run = replay.run
    times, gaps, delays = replay.times, replay.gaps, replay.transfers.delay
    for change in changes:
        change.check(run)
        if change.what == "p2p":
            delays = change.of(run, delays)
        elif change.what == "gaps":
            gaps = change.of(run, gaps)
        else:
            times = change.of(run, times)
    return times, gaps, delays


def with_schedule(
    replay: Replay, name: str, changes: Sequence[Change] = (), chunks: int | None = None
) -> WhatIf:
    """Simulate another schedule with the median times of a run, and with some of them changed.

    Where it has another number of stages the same model is cut at equal distances: a stage that is
    half as long takes half the time.

    Raises
    ------
    ParameterError
        When there is no such schedule for this number of ranks and microbatches.
    """
    run = replay.run
    costs = costs_of(_with(replay, changes))
    entry = find(name)
    sizes: dict[str, Any] = {"ranks": run.schedule.ranks, "microbatches": run.schedule.microbatches}
    if chunks is not None or entry.chunks is None:
        sizes["chunks"] = chunks or (run.schedule.chunks if run.schedule.chunks > 1 else None)
    plain = make(entry.name, **sizes)
    other = recut(costs, run.schedule, plain)
    made = make(entry.name, **sizes, costs=other) if entry.uses_costs else plain
    now = simulate(run.schedule, costs_of(replay)).makespan
    then = simulate(made, other)
    measured = float(run.step_times.mean())
    text = ", ".join([entry.name, *(one.text for one in changes)])
    return WhatIf(text, measured, measured * then.makespan / now, then)


def _with(replay: Replay, changes: Sequence[Change]) -> Replay:
    """The run as if it had been observed with changes, for its median times."""
    if not changes:
        return replay
    run = replay.run
    times, _, delays = _changed(replay, changes)
    typical = replay.transfers.typical.copy()
    for link in np.unique(run.link[run.link >= 0]).tolist():
        typical[link] = np.median(delays[:, run.link == link])
    other = replace(run, end=run.start + times)
    return Replay(other, replace(replay.transfers, delay=delays, typical=typical))


def recut(costs: Costs, schedule: Schedule, other: Schedule) -> Costs:
    """Costs of the same model under a schedule with another number of stages."""
    values: dict[str, Any] = {"time_unit": costs.time_unit}
    for kind in ("F", "B", "I", "W", "R"):
        value = getattr(costs, kind)
        if value is not None:
            stages = np.broadcast_to(np.asarray(value, dtype=np.float64), schedule.stages)
            done = np.concatenate([[0.0], np.cumsum(stages)])
            cuts = np.linspace(0, schedule.stages, other.stages + 1)
            values[kind] = np.diff(np.interp(cuts, np.arange(schedule.stages + 1), done)).tolist()
    link = np.asarray(costs.p2p, dtype=np.float64)
    values["p2p"] = float(np.median(link[link > 0])) if (link > 0).any() else 0.0
    return Costs(**values)


SUGGESTED = ("1f1b", "interleaved-1f1b", "zb-h1", "zb-v", "dualpipe-v")
"""Schedules that are tried where nobody names one."""


def faster(replay: Replay) -> list[WhatIf]:
    """Schedules that would be faster at the run's median times, the fastest first."""
    found = []
    for name in SUGGESTED:
        if name == replay.run.schedule.name or replay.run.schedule.slices > 1:
            continue
        try:
            found.append(with_schedule(replay, name))
        except DebubbleError:
            continue
    found = [one for one in found if one.gain > 0.01]
    return sorted(found, key=lambda one: -one.gain)
