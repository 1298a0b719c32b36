"""Runs that nobody ran: a FIFO executor of its own, with faults planted in it.

Nothing of debubble's engine is in here. Ranks go through the cells of their programs, messages go
from rank to rank in the order in which they are sent, and what comes out is what a reader would
give: rows of actions and messages, on clocks that may be wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from debubble.core.kinds import Kind
from debubble.diagnosis.observed import Location, Messages, Observed, ObservedActions, Pauses

CELL = re.compile(r"(\d+)([FBIW])(\d+)")
AHEAD = 2
"""Actions ahead of which a rank posts receives that it posts early."""

Programs = Sequence[Sequence[str]]


class At(NamedTuple):
    """An action of a made run."""

    step: int
    copy: int
    rank: int
    kind: str
    stage: int
    microbatch: int


Planting = Callable[[np.random.Generator, At], float]
"""What a fault does to an action."""

Key = tuple[str, int, int]
"""Kind, stage and microbatch of an action; both backwards that hand on a gradient are ``"B"``."""


def one_f_one_b(ranks: int, microbatches: int) -> list[list[str]]:
    """The order of 1F1B, from its definition."""
    programs = []
    for rank in range(ranks):
        warmup = min(ranks - rank - 1, microbatches)
        cells = [f"{rank}F{i}" for i in range(warmup)]
        for i in range(microbatches - warmup):
            cells += [f"{rank}F{warmup + i}", f"{rank}B{i}"]
        cells += [f"{rank}B{i}" for i in range(microbatches - warmup, microbatches)]
        programs.append(cells)
    return programs


@dataclass(frozen=True)
class Made:
    """What is run, and what is wrong with it; times in seconds.

    Parameters
    ----------
    programs
        Cells of every rank; one for all copies.
    base
        Time of a kind.
    noise
        Coefficient of variation of every action.
    time
        Factor of an action's time.
    pause
        Time that an action stands still.
    gap
        Time that the host is late with an action.
    latency
        Time of a message from rank to rank, of (source, target).
    late
        A copy, and the time that each of its messages takes in addition.
    early
        Ranks that post the receive of the input after next before they send a result, on one queue.
    offset, drift
        Clock of a rank against the true one.
    dropped
        Rows that the first step of rank 0 loses at its beginning.
    missing
        (copy, rank) without a file.
    pauses_known
        Whether the trace says when the host stood still.
    arrivals
        Whether the trace has messages.
    """

    programs: Programs
    copies: int = 2
    steps: int = 6
    seed: int = 0
    base: Mapping[str, float] = field(
        default_factory=lambda: {"F": 10e-3, "B": 20e-3, "I": 10e-3, "W": 10e-3}
    )
    noise: float = 0.02
    time: Planting = lambda *_: 1.0
    pause: Planting = lambda *_: 0.0
    gap: Planting = lambda *_: 0.0
    latency: Callable[[int, int], float] = lambda *_: 0.2e-3
    late: tuple[int, float] = (-1, 0.0)
    early: tuple[int, ...] = ()
    offset: Sequence[float] = ()
    drift: Sequence[float] = ()
    dropped: int = 0
    missing: tuple[tuple[int, int], ...] = ()
    pauses_known: bool = False
    arrivals: bool = True

    def observed(self) -> Observed:
        """Run it and write down what a trace would say."""
        rng = np.random.default_rng(self.seed)
        actions: list[tuple[float, ...]] = []
        messages: list[tuple[float, ...]] = []
        pauses: list[tuple[float, ...]] = []
        begin = 0.0
        for step in range(self.steps):
            ends = []
            for copy in range(self.copies):
                one = _Step(self, rng, step, copy, begin)
                one.run()
                actions += one.actions
                messages += one.messages
                pauses += one.pauses
                ends.append(max(row[7] for row in one.actions))
            begin = max(ends) + 5e-3
        ranks = len(self.programs)
        names = ("step", "copy", "rank", "kind", "stage", "microbatch", "start", "end", "issued")
        rows = ObservedActions.of(**dict(zip(names, np.array(actions).T, strict=True)))
        rows = replace(rows, start=self._clock(rows.rank, rows.start),
                       end=self._clock(rows.rank, rows.end),
                       issued=self._clock(rows.rank, rows.issued))  # fmt: skip
        keep = np.ones(len(rows), dtype=bool)
        for copy, rank in self.missing:
            keep &= ~((rows.copy == copy) & (rows.rank == rank))
        if self.dropped:
            first = np.flatnonzero((rows.step == 0) & (rows.rank == 0) & (rows.copy == 0))
            keep[first[np.argsort(rows.start[first])][: self.dropped]] = False
        sent = self._messages(messages) if self.arrivals else Messages.of()
        for copy, rank in self.missing:
            at = (sent.copy == copy) & ((sent.source == rank) | (sent.target == rank))
            sent = sent.take(~at)
        stood = Pauses.of()
        if self.pauses_known and pauses:
            names = ("copy", "rank", "cause", "start", "end")
            stood = Pauses.of(**dict(zip(names, np.array(pauses).T, strict=True)))
        own = bool(len(self.offset) or len(self.drift))
        places = tuple(Location(host=f"host{rank}") for rank in range(ranks)) * self.copies
        return Observed(
            "made", ranks, self.copies, tuple(range(10, 10 + self.steps)), rows.take(keep), sent,
            stood, places if own else (), clocks="hosts" if own else "one", missing=self.missing,
            taken_for={"rank": "made", "stage": "made", "step": "made", "clock": "made"},
        )  # fmt: skip

    def _clock(self, rank: np.ndarray, time: np.ndarray) -> np.ndarray:
        """A true time as a rank's clock shows it."""
        ranks = len(self.programs)
        offset = np.array(self.offset or [0.0] * ranks)
        drift = np.array(self.drift or [0.0] * ranks)
        return time * (1 + drift[rank]) + offset[rank]

    def _messages(self, rows: list[tuple[float, ...]]) -> Messages:
        names = ("step", "copy", "source", "target", "kind", "stage", "microbatch", "sent",
                 "posted", "waited", "arrived")  # fmt: skip
        made = Messages.of(**dict(zip(names, np.array(rows).T, strict=True)))
        return replace(
            made, sent=self._clock(made.source, made.sent),
            posted=self._clock(made.target, made.posted),
            waited=self._clock(made.target, made.waited),
            arrived=self._clock(made.target, made.arrived),
        )  # fmt: skip


class _Step:
    """One step of one copy."""

    def __init__(
        self, made: Made, rng: np.random.Generator, step: int, copy: int, begin: float
    ) -> None:
        self.made, self.rng, self.step, self.copy, self.begin = made, rng, step, copy, begin
        self.cells = [[_read(cell) for cell in cells] for cells in made.programs]
        self.home = {stage: r for r, cells in enumerate(self.cells) for _, stage, _ in cells}
        self.last = max(self.home)
        self.free = [begin] * len(self.cells)
        self.at = [0] * len(self.cells)
        self.ends: list[list[float]] = [[] for _ in self.cells]
        self.done: dict[Key, float] = {}
        self.there: dict[Key, float] = {}
        self.link_free: dict[tuple[int, int], float] = {}
        self.actions: list[tuple[float, ...]] = []
        self.messages: list[tuple[float, ...]] = []
        self.pauses: list[tuple[float, ...]] = []
        self.made_by: dict[Key, str] = {}
        self.waiting: list[tuple[Key, int, int, float]] = []
        self.behind: dict[Key, Key] = {}

    def run(self) -> None:
        """Go round the ranks until nobody can go on."""
        while any(self.at[r] < len(cells) for r, cells in enumerate(self.cells)):
            before = sum(self.at), len(self.waiting)
            for rank in range(len(self.cells)):
                while self.at[rank] < len(self.cells[rank]) and self._next(rank):
                    pass
            self._release()
            assert (sum(self.at), len(self.waiting)) != before, "a deadlock in a made run"

    def _input(self, kind: str, stage: int, microbatch: int) -> Key | None:
        if kind == "F":
            return ("F", stage - 1, microbatch) if stage else None
        if kind == "W":
            return None
        return ("B", stage + 1, microbatch) if stage < self.last else None

    def _next(self, rank: int) -> bool:
        """Run a rank's next action if its input is there."""
        kind, stage, microbatch = cell = self.cells[rank][self.at[rank]]
        needs = self._input(*cell)
        there = self.begin
        if needs is not None:
            far = self.home[needs[1]] != rank
            where = self.there if far else self.done
            if needs not in where:
                return False
            there = where[needs]
            if far:
                self._received(rank, needs, there)
        what = self.rng, At(self.step, self.copy, rank, *cell)
        ready = max(self.free[rank], there)
        gap = self.made.gap(*what)
        start = ready + gap
        length = self.made.base[kind] * self.made.time(*what)
        length *= max(0.1, 1 + self.made.noise * self.rng.standard_normal())
        pause = self.made.pause(*what)
        if pause:
            self.pauses.append(
                (self.copy, rank, 0, start + 0.1 * length, start + 0.1 * length + pause)
            )
        end = start + length + pause
        issued = start if gap else self.free[rank] - 1e-3
        self.actions.append((self.step, self.copy, rank, Kind[kind], stage, microbatch, start, end,
                             issued))  # fmt: skip
        self.free[rank] = end
        self.ends[rank].append(end)
        self.at[rank] += 1
        gives = ("F" if kind == "F" else "B", stage, microbatch)
        if kind != "W":
            self.done[gives] = end
            to = stage + (1 if kind == "F" else -1)
            self.made_by[gives] = kind
            if 0 <= to <= self.last and self.home[to] != rank:
                self._send(rank, self.home[to], gives, end)
        return True

    def _send(self, rank: int, target: int, gives: Key, end: float) -> None:
        """Send a result; where a receive was posted first, that has to be over."""
        at = self.at[rank]
        behind = None
        if rank in self.made.early:
            inputs = [self._input(*cell) for cell in self.cells[rank][at : at + AHEAD]]
            # Waiting for the other direction would be a deadlock of two neighbours.
            if len(inputs) == AHEAD and all(one and one[0] == gives[0] for one in inputs):
                behind = inputs[-1]
        self.waiting.append((gives, rank, target, end))
        if behind is not None and self.home[behind[1]] != rank:
            self.behind[gives] = behind
        self._release()

    def _release(self) -> None:
        """Let go what stands behind no receive that is not over, link by link in order."""
        left: list[tuple[Key, int, int, float]] = []
        for gives, rank, target, end in self.waiting:
            behind = self.behind.get(gives)
            stuck = any(item[1:3] == (rank, target) for item in left)
            if stuck or (behind is not None and behind not in self.there):
                left.append((gives, rank, target, end))
            else:
                self._go(
                    gives, rank, target, end if behind is None else max(end, self.there[behind])
                )
        self.waiting = left

    def _go(self, gives: Key, rank: int, target: int, leaves: float) -> None:
        leaves = max(leaves, self.link_free.get((rank, target), 0.0))
        copy, more = self.made.late
        self.there[gives] = leaves + self.made.latency(rank, target) + more * (copy == self.copy)
        self.link_free[rank, target] = self.there[gives]

    def _received(self, rank: int, gives: Key, there: float) -> None:
        _, stage, microbatch = gives
        waited = self.free[rank]
        # A receive is posted when the action before it is over; an early one as much earlier, and
        # right before the send that stands behind it.
        posted = waited
        if rank in self.made.early and self.at[rank] >= AHEAD:
            posted = self.ends[rank][self.at[rank] - AHEAD] - 1e-6
        self.messages.append((
            self.step, self.copy, self.home[stage], rank, Kind[self.made_by[gives]], stage,
            microbatch, self.done[gives], posted, waited, max(there, waited),
        ))  # fmt: skip


def _read(cell: str) -> Key:
    match = CELL.fullmatch(cell)
    assert match is not None, cell
    return match[2], int(match[1]), int(match[3])
