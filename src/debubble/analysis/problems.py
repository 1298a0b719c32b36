"""Problems of a schedule, each with code, position and fix, and the report that lists them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from debubble.core.costs import Costs
from debubble.core.schedule import Schedule, sizes
from debubble.core.units import amount, counted
from debubble.engine.graph import P2PMode
from debubble.engine.timeline import memory_use
from debubble.engine.validate import scan

_NUMBER = re.compile("[0-9]+")

LISTED = 20
"""Problems of one code that are spelled out; the others are counted."""

CODES = {
    "missing": "an action that no rank runs",
    "duplicate": "an action that runs more than once",
    "out-of-range": "a stage, microbatch or kind that does not exist",
    "wrong-rank": "an action on a rank where its stage does not live",
    "order": "an action before one of the same microbatch it needs, on the same rank",
    "bad-pair": "an overlapped group that lacks a member, or whose members exclude each other",
    "mixed-backward": "a full backward beside a backward for input or for weight",
    "optimizer": "an optimizer step that is missing, repeated or in the wrong place",
    "vocabulary": "a pass of the output layer's shard that is not sharded, or on another stage",
    "weight-versions": "a forward with weights that are thrown away before its backward",
    "reduce-grad": "gradients of a stage that are not reduced, or not once when they are complete",
    "unshard": "weights that are used where a rank has none, gathered twice, or dropped too early",
    "deadlock": "actions that wait for each other",
    "transfer": "a send or receive without its other end, or out of turn",
    "memory": "a rank whose activations do not fit",
    "makespan": "a step that takes longer than its limit",
}
"""Every code a problem can have, and what it means."""

NOT_OF_TIMES = frozenset({"reduce-grad"})
"""Problems of gradients that leave times as they are: listings of PyTorch before REDUCE_GRAD."""

ALIKE = 3
"""Problems in the same words that a report spells out; of more, one and their number."""

WARNINGS = {
    "head-of-line": "transfers that wait for others in front of them on a queue",
    "loss-order": "forwards of the last stage in another order than PyTorch's runtime takes",
    "ddp-split": "split backwards of stages whose gradients PyTorch's runtime does not reduce",
}
"""Every code a warning can have, and what it means."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a schedule.

    Parameters
    ----------
    code
        A key of :data:`CODES`, or of :data:`WARNINGS`.
    message
        The defect and its position, as text.
    rank
        The rank to look at; None when the problem spans ranks.
    position
        Index of the action in that rank's program, the halves of a pair counted one by one; None
        when there is no such action.
    actions
        The actions involved, as text.
    fix
        A change that removes the problem.
    """

    code: str
    message: str
    rank: int | None
    position: int | None
    actions: tuple[str, ...]
    fix: str

    def __str__(self) -> str:
        return f"{self.message}; {self.fix}"

    def to_dict(self) -> dict[str, Any]:
        """Return the problem as plain data."""
        return vars(self) | {"actions": list(self.actions)}


@dataclass(frozen=True, eq=False, repr=False)
class Report:
    """The result of :func:`debubble.check`; true when nothing is wrong.

    Parameters
    ----------
    schedule
        The checked schedule.
    problems
        Problems found, at most :data:`LISTED` of each code.
    more
        Numbers of further problems that are not listed, by code.
    costs
        The costs that memory was counted with.
    p2p_mode
        The p2p mode.
    warnings
        Warnings: valid, but slower than necessary.
    """

    schedule: Schedule
    problems: tuple[Problem, ...] = ()
    more: Mapping[str, int] = field(default_factory=dict)
    costs: Costs = field(default_factory=Costs)
    p2p_mode: P2PMode = "overlapped"
    warnings: tuple[Problem, ...] = ()

    @property
    def ok(self) -> bool:
        """Return whether nothing is wrong."""
        return not self.problems

    @property
    def of_times(self) -> tuple[Problem, ...]:
        """The problems without those that leave times as they are."""
        return tuple(each for each in self.problems if each.code not in NOT_OF_TIMES)

    @property
    def count(self) -> int:
        """Number of problems, listed or not."""
        return len(self.problems) + sum(self.more.values())

    def __bool__(self) -> bool:
        return self.ok

    @cached_property
    def peak_activation(self) -> NDArray[np.float64] | None:
        """Largest activation memory of every rank; None when some action does not exist."""
        if scan(self.schedule).strays.outside is not None:
            return None
        return memory_use(self.schedule, self.costs, self.p2p_mode).peak

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data, for JSON."""
        peak = self.peak_activation
        return {
            "schedule": self.schedule.name,
            "ok": self.ok,
            "actions": len(self.schedule),
            **sizes(self.schedule, "ranks", "stages", "microbatches", "iterations"),
            "peak_activation": None if peak is None else peak.tolist(),
            "problems": [problem.to_dict() for problem in self.problems],
            "more": dict(self.more),
            "warnings": [warning.to_dict() for warning in self.warnings],
        }

    def __str__(self) -> str:
        if self.ok:
            peak = self.peak_activation
            assert peak is not None, "without problems every action exists"
            good = (
                f"ok: {counted(len(self.schedule), 'action')} on "
                f"{counted(self.schedule.ranks, 'rank')}, complete, ordered, executable, "
                f"peak activation {amount(float(peak.max()), self.costs.activation_unit)}"
            )
            return "\n".join([good, *(f"warning: {warning}" for warning in self.warnings)])
        width = max(len(problem.code) for problem in self.problems)
        lines = [f"{counted(self.count, 'problem')} in {self.schedule.name}:"]
        for code in CODES:
            alike: dict[str, list[str]] = {}
            for problem in self.problems:
                if problem.code == code:
                    alike.setdefault(_NUMBER.sub("0", str(problem)), []).append(str(problem))
            for texts in alike.values():
                if len(texts) > ALIKE:
                    texts = [f"{texts[0]} (and {len(texts) - 1} more in these words)"]
                lines += [f"  {code:<{width}}  {text}" for text in texts]
            if code in self.more:
                lines.append(f"  {code:<{width}}  and {self.more[code]:,} more")
        return "\n".join(lines)

    def __repr__(self) -> str:
        found = "ok" if self.ok else counted(self.count, "problem")
        return f"<Report {self.schedule.name}: {found}>"


class Findings:
    """Collects problems while a schedule is inspected, without listing thousands alike."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.more: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self.problems)

    def add(
        self,
        code: str,
        where: NDArray[np.integer[Any]] | list[int],
        describe: Callable[[int], Problem],
    ) -> None:
        """Describe the first few of `where` that are still listed, and count the rest."""
        room = LISTED - sum(problem.code == code for problem in self.problems)
        self.problems += [describe(int(item)) for item in where[:room]]
        self.omit(code, len(where) - max(room, 0))

    def say(
        self, code: str, schedule: Schedule, where: NDArray[np.int64], what: str, fix: str
    ) -> None:
        """Add the same problem of the actions at some positions."""
        self.add(code, where, lambda position: spot(schedule, position).problem(code, what, fix))

    def add_gaps(
        self, code: str, present: NDArray[np.int64], count: int, describe: Callable[[int], Problem]
    ) -> None:
        """Describe the first few numbers of 0..count-1 that are not there, and count the rest."""
        gaps, absent = first_gaps(present, count)
        self.add(code, gaps, describe)
        self.omit(code, absent - len(gaps))

    def omit(self, code: str, count: int) -> None:
        """Count problems that are not listed."""
        if count > 0:
            self.more[code] = self.more.get(code, 0) + count


def first_gaps(present: NDArray[np.int64], count: int) -> tuple[NDArray[np.int64], int]:
    """Return the first few numbers of 0..count-1 that are not there, and how many are not.

    `present` is sorted, without repeats; `count` may be larger than anything that fits in memory.

    Examples
    --------
    >>> gaps, absent = first_gaps(np.array([1, 2, 5]), 7)
    >>> gaps.tolist(), absent
    ([0, 3, 4, 6], 4)
    """
    absent = count - len(present)
    # The j-th number that is not there is j plus the present ones that stand before it.
    wanted = np.arange(min(absent, LISTED))
    before = present - np.arange(len(present))
    return wanted + np.searchsorted(before, wanted, side="right"), absent


class Spot(NamedTuple):
    """An action's rank, its place in that rank's program, and its text."""

    rank: int
    place: int
    text: str

    def __str__(self) -> str:
        return f"rank {self.rank}, action {self.place}: {self.text}"

    def problem(self, code: str, what: str, fix: str, *others: str) -> Problem:
        """Return the problem that this action does `what`; `others` are involved, too."""
        return Problem(code, f"{self} {what}", self.rank, self.place, (self.text, *others), fix)


def spot(schedule: Schedule, position: int | np.integer[Any]) -> Spot:
    """Describe the action at a position of a schedule."""
    rank = schedule.rank_of(int(position))
    place = int(position) - int(schedule.offsets[rank])
    return Spot(rank, place, schedule.text_at(int(position)))


def late_need(here: Spot, wanted: Spot) -> Problem:
    """Return the problem that an action stands before one of its rank that it needs."""
    what = f"needs {wanted.text}, which comes later, as action {wanted.place}"
    return here.problem("order", what, f"move {wanted.text} before {here.text}", wanted.text)
