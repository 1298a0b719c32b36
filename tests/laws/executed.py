"""Jobs run by an executor of events that shares no code with the engine, and what they leave.

Ranks begin their next cell as soon as all its input is there, and messages arrive some time after
they were made. Nothing else is known here: no graph, no topological order, no table of kinds.
"""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

import debubble as db
from debubble.diagnosis.observed import Messages, Observed, ObservedActions

ACTION = re.compile(r"(\d+)([FBIW])(\d+)(?:\.(\d+))?")


class Piece(NamedTuple):
    """One action: its kind, stage, microbatch and slice."""

    kind: str
    stage: int
    microbatch: int
    part: int


Result = tuple[str, int, int, int]
"""What an action leaves for another stage: ``"F"``, or ``"B"`` for a gradient; stage, microbatch,
slice."""


@dataclass(frozen=True)
class Job:
    """A schedule to be executed, and how long everything takes; seconds.

    Parameters
    ----------
    schedule
        Its programs and where its stages are.
    work
        Time of a piece, in a step of a copy.
    wire
        Time of a message: source, target, and what is sent, in a step of a copy.
    overlap
        Share of the sum of its pieces that an overlapped group takes.
    steps, copies
        How often, and how many at once; a step begins when all copies are done with the last.
    late
        Time by which the host is late with a piece, after its rank is free and its input there.
    told
        Whether the trace tells of messages.
    rendezvous
        Whether a message is under way only from when its receiver is free to take it.
    buffered
        Links, of (source, target), on which it is under way in any case.
    """

    schedule: db.Schedule
    work: Callable[[Piece, int, int], float]
    wire: Callable[[int, int, Result, int, int], float] = lambda *_: 1e-3
    overlap: float = 0.85
    steps: int = 1
    copies: int = 1
    late: Callable[[Piece, int, int], float] = lambda *_: 0.0
    told: bool = True
    rendezvous: bool = False
    buffered: frozenset[tuple[int, int]] = frozenset()
    _runs: dict[tuple[int, int], _Run] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def step(self) -> float:
        """Seconds of a mean step."""
        ends = [self._run(step, copy).length for step in range(self.steps)
                for copy in range(self.copies)]  # fmt: skip
        return float(np.mean(np.max(np.reshape(ends, (self.steps, self.copies)), axis=1)))

    def observed(self) -> Observed:
        """What a trace would say of it."""
        actions: list[tuple[float, ...]] = []
        messages: list[tuple[float, ...]] = []
        begin = 0.0
        for step in range(self.steps):
            runs = [self._run(step, copy) for copy in range(self.copies)]
            for copy, run in enumerate(runs):
                head = (step, copy)
                actions += [(*head, *row[:-2], *(begin + t for t in row[-2:]))
                            for row in run.actions]  # fmt: skip
                messages += [(*head, *row[:-4], *(begin + t for t in row[-4:]))
                             for row in run.messages]  # fmt: skip
            begin += max(run.length for run in runs) + 1e-2
        names = ("step", "copy", "rank", "kind", "stage", "microbatch", "slice", "pair", "start",
                 "end")  # fmt: skip
        sent = Messages.of()
        if self.told and messages:
            columns = ("step", "copy", "source", "target", "kind", "stage", "microbatch", "slice",
                       "sent", "posted", "waited", "arrived")  # fmt: skip
            sent = Messages.of(**dict(zip(columns, np.array(messages).T, strict=True)))
        rows = ObservedActions.of(**dict(zip(names, np.array(actions).T, strict=True)))
        return Observed("made", self.schedule.ranks, self.copies, tuple(range(self.steps)), rows,
                        sent)  # fmt: skip

    def without(self, **changes: object) -> Job:
        """The same job with something else."""
        return replace(self, **changes)  # type: ignore[arg-type]

    def _run(self, step: int, copy: int) -> _Run:
        run = self._runs.get((step, copy))
        if run is None:
            run = self._runs[step, copy] = _Run(self, step, copy)
            run.go()
        return run


@dataclass(eq=False)
class _Run:
    """One copy in one step."""

    job: Job
    step: int
    copy: int
    actions: list[tuple[float, ...]] = field(default_factory=list)
    messages: list[tuple[float, ...]] = field(default_factory=list)
    length: float = 0.0
    opened: float = math.inf

    def go(self) -> None:
        """Handle what happens in order of time until nothing is left to do."""
        self.programs, self.makers, self.takers, self.last = _read(self.job.schedule)
        ranks = len(self.programs)
        self.at, self.free, self.busy = [0] * ranks, [0.0] * ranks, [False] * ranks
        self.there: dict[tuple[int, Result], float] = {}
        self.made: dict[Result, float] = {}
        self.ready: set[Result] = set()
        self.sent: set[Result] = set()
        self.events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.count = 0
        for rank in range(ranks):
            self._begin(0.0, rank)
        while self.events:
            now, _, happens, about = heapq.heappop(self.events)
            happens(now, *about)
        assert self.at == [len(program) for program in self.programs], "a deadlock"

    def _later(self, time: float, happens: Callable[..., None], *about: Any) -> None:
        self.count += 1
        heapq.heappush(self.events, (time, self.count, happens, about))

    def _needs(self, piece: Piece) -> list[Result]:
        return _needs(piece, self.last)

    def _begin(self, now: float, rank: int) -> None:
        """Begin the next cell of a rank if nothing is missing."""
        if self.busy[rank] or self.at[rank] == len(self.programs[rank]):
            return
        cell = self.programs[rank][self.at[rank]]
        for need in (need for piece in cell for need in self._needs(piece)):
            if need in self.ready and need not in self.sent:
                self._send(now, rank, need)
        if all((rank, need) in self.there for piece in cell for need in self._needs(piece)):
            self.busy[rank] = True
            late = max(self.job.late(piece, self.step, self.copy) for piece in cell)
            self._later(now + late, self._start, rank, cell)

    def _start(self, now: float, rank: int, cell: list[Piece]) -> None:
        length = sum(self.job.work(piece, self.step, self.copy) for piece in cell)
        length *= self.job.overlap if len(cell) > 1 else 1.0
        self.opened = min(self.opened, now)
        pair = rank << 20 | self.at[rank] if len(cell) > 1 else -1
        for piece in cell:
            kind = db.Kind[piece.kind]
            self.actions.append((rank, kind, *piece[1:], pair, now, now + length))
            for need in self._needs(piece):
                source, made_by = self.makers[need]
                if source != rank:
                    free = self.free[rank]
                    there = max(self.there[rank, need], free)
                    self.messages.append((
                        source, rank, db.Kind[made_by], *need[1:], self.made[need], free, free,
                        there,
                    ))  # fmt: skip
        self._later(now + length, self._end, rank, cell)

    def _end(self, now: float, rank: int, cell: list[Piece]) -> None:
        self.free[rank], self.busy[rank] = now, False
        self.at[rank] += 1
        self.length = max(self.length, now - self.opened)
        for piece in cell:
            for result in _gives(piece):
                self.made[result] = now
                target = self.takers.get(result, rank)
                if target == rank:
                    self.there[rank, result] = now
                elif self.job.rendezvous and (rank, target) not in self.job.buffered:
                    self.ready.add(result)
                    self._begin(now, target)
                else:
                    self._send(now, target, result)
        self._begin(now, rank)

    def _send(self, now: float, rank: int, result: Result) -> None:
        self.sent.add(result)
        source, _ = self.makers[result]
        wire = self.job.wire(source, rank, result, self.step, self.copy)
        self._later(now + wire, self._arrive, rank, result)

    def _arrive(self, now: float, rank: int, result: Result) -> None:
        self.there[rank, result] = now
        self._begin(now, rank)


class _Read(NamedTuple):
    """Pieces of every cell of every rank; where results are made and taken; the last stage."""

    programs: list[list[list[Piece]]]
    makers: dict[Result, tuple[int, str]]
    takers: dict[Result, int]
    last: int


@lru_cache(maxsize=64)
def _read(schedule: db.Schedule) -> _Read:
    programs = [[pieces(cell) for cell in row] for row in schedule.rows()]
    makers = {
        result: (rank, piece.kind)
        for rank, program in enumerate(programs)
        for cell in program for piece in cell for result in _gives(piece)
    }  # fmt: skip
    last = max(stage for _, stage, *_ in makers)
    takers = {
        need: rank
        for rank, program in enumerate(programs)
        for cell in program for piece in cell for need in _needs(piece, last)
    }  # fmt: skip
    return _Read(programs, makers, takers, last)


def _needs(piece: Piece, last: int) -> list[Result]:
    """What a piece is computed from, as far as its own rank may not have it."""
    kind, stage, *which = piece
    if kind == "F":
        return [("F", stage - 1, *which)] if stage else []
    if kind == "W":
        return []
    return [("B", stage + 1, *which)] if stage < last else []


def pieces(cell: str) -> list[Piece]:
    """The pieces of a cell: one, or those of an overlapped group."""
    return [Piece(kind, int(stage), int(microbatch), int(part or 0))
            for stage, kind, microbatch, part in ACTION.findall(cell)]  # fmt: skip


def _gives(piece: Piece) -> list[Result]:
    kind, *which = piece
    return [] if kind == "W" else [("F" if kind == "F" else "B", *which)]  # type: ignore[list-item]
