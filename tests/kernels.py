"""Machine code for the kernels, made once for all workers of a test run that has none yet."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import debubble as db
from debubble.engine import jit
from debubble.lowering.transfers import add_transfers


def _simulated(name: str, mode: Any, transfers: bool) -> Callable[[], object]:
    """Compile the sweep for one sort of schedules, and what a timeline computes from it."""

    def call() -> object:
        schedule = db.make(name, ranks=2, microbatches=4)
        timeline = db.simulate(add_transfers(schedule) if transfers else schedule, p2p_mode=mode)
        return timeline.peak_activation, timeline.slack, timeline.makespan

    return call


def _searched() -> None:
    """Compile what searches go through: lists, two bounds and annealing."""
    from debubble.optimize.bounding import strongest_rank_bound
    from debubble.optimize.bounds import lower_bound
    from debubble.optimize.refine import Annealer
    from debubble.optimize.strategies import listed
    from tests.optimize.problems import problem

    asked = problem(2, 4, 1.5, F=2, I=3, W=1)
    annealer = Annealer(asked, listed(asked, ()))
    annealer.run(1, 1.0, 0.1, 0.0, annealer.best.copy())
    low = lower_bound(asked)
    strongest_rank_bound(asked, low, 2 * low, states=100)


CASES: dict[str, Callable[[], object]] = {
    f"{name} {mode}{' with transfers' * transfers}": _simulated(name, mode, transfers)
    for name, mode, transfers in (
        ("vocab-1", "overlapped", False),
        ("1f1b-overlap", "overlapped", False),
        ("1f1b-overlap", "overlapped", True),
        ("vocab-1", "overlapped", True),
        ("1f1b", "blocking", False),
        ("1f1b-v", "overlapped", False),
        ("v-half", "overlapped", False),
    )
} | {"search": _searched}
"""What takes seconds to compile, in an order in which two workers compile nothing twice."""


@contextmanager
def run_by(*, compiled: bool) -> Iterator[None]:
    """Run all kernels as machine code, or as the Python that they are written in."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("INTERPRET_BELOW", "INTERPRET_WHEN_LOADED", "INTERPRET_UNCOMPILED"):
            patch.setattr(jit, name, 0 if compiled else 10**9)
        yield


def compile_once(folder: Path) -> None:
    """Compile all cases; of workers that share a folder each compiles some, all wait for all."""
    folder.mkdir(exist_ok=True)
    with run_by(compiled=True):
        for wait in (fcntl.LOCK_NB, 0):
            for name, case in CASES.items():
                with (folder / name).open("a+") as file:
                    try:
                        fcntl.flock(file, fcntl.LOCK_EX | wait)
                    except BlockingIOError:
                        continue
                    if not file.tell():
                        case()
                        file.write("compiled")
