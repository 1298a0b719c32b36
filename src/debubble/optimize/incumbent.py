"""The best order of one problem so far, and the bound it is measured against."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeAlias

from debubble.core.actions import Program
from debubble.core.schedule import Schedule
from debubble.listing import TOLERANCE
from debubble.optimize.bounds.paths import prove
from debubble.optimize.problem import Problem
from debubble.optimize.programs.backward import relaxed
from debubble.optimize.programs.membership import outside
from debubble.optimize.programs.offload import relax_copies, with_asked_copies, without_copies
from debubble.optimize.stop import Stop

Known: TypeAlias = dict[object, list[tuple[str, list[Program]]]]
"""Published orders by placement and cut, with their names; shared by several incumbents."""


class Incumbent:
    """The best order so far, offered from any thread.

    `stop` limits the strategies, and is asked to stop when the best meets the bound. `report` is
    called with the finder of every better order, and when the bound rises.
    """

    def __init__(
        self,
        problem: Problem,
        stop: Stop,
        report: Callable[[str], None] | None = None,
        known: Known | None = None,
    ) -> None:
        self.problem = problem
        self.model = relax_copies(problem)
        self.stop = stop
        self.bound, self.why = prove(relaxed(self.model))
        self.makespan = float("inf")
        self.programs: list[Program] = []
        self.schedule: Schedule | None = None
        self.found_by = ""
        self.start: list[Program] = []
        """The order with which strategies that run side by side begin."""
        self.known: Known = {} if known is None else known
        self._report = report
        self._lock = threading.Lock()

    def offer(self, programs: Sequence[Program], found_by: str) -> bool:
        """Keep an order if it fits, runs and is the fastest; return whether it was kept."""
        kept = False
        for schedule in with_asked_copies(self.problem, programs):
            makespan = self.problem.makespan(schedule)
            if not makespan < self.makespan or outside(self.problem, schedule):
                continue
            with self._lock:
                if not makespan < self.makespan * (1 - TOLERANCE):
                    continue
                self.makespan, self.found_by, self.schedule = makespan, found_by, schedule
                self.programs = without_copies(programs)
            kept = True
        if kept:
            self._tell()
        return kept

    def prove(self, bound: float, why: str) -> None:
        """Raise the lower bound, with the reason in words."""
        with self._lock:
            bound = min(bound, self.makespan)
            if bound <= self.bound:
                return
            self.bound, self.why = bound, why
        self._tell()

    @property
    def done(self) -> bool:
        """True if nothing can be better."""
        return self.makespan <= self.bound * (1 + TOLERANCE)

    def beats(self, makespan: float) -> bool:
        """Return whether there may be an order that is faster than this makespan."""
        return self.bound < makespan * (1 - TOLERANCE)

    def _tell(self) -> None:
        if self._report is not None:
            self._report(self.found_by)
        if self.done:
            self.stop.ask()
