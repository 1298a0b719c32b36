"""Machine code for the kernels, made once for all workers of a test run that has none yet."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import debubble as db
from debubble.engine import jit
from debubble.lowering.transfers import add_transfers


def _swept(name: str, mode: Any, lower: Any = None, **options: Any) -> Callable[[], object]:
    """Compile the sweep for one sort of schedules, and what evaluates it."""

    def call() -> object:
        schedule = db.make(name, ranks=2, microbatches=4, **options)
        return db.simulate(lower(schedule) if lower else schedule, p2p_mode=mode).makespan

    return call


def _searched() -> None:
    """Compile what searches go through: lists, two bounds and annealing."""
    from debubble.optimize.anneal.annealer import Annealer
    from debubble.optimize.bounds.paths import lower_bound
    from debubble.optimize.bounds.strategies import strongest_rank_bound
    from debubble.optimize.programs.list_scheduling import list_programs
    from tests.optimize.problems import problem

    asked = problem(2, 4, 1.5, F=2, I=3, W=1)
    annealer = Annealer(asked, list_programs(asked, ()))
    annealer.run(1, 1.0, 0.1, 0.0, annealer.best.copy())
    low = lower_bound(asked)
    strongest_rank_bound(asked, low, 2 * low, states=100)


OFFLOADED: Any = {"offload": "full", "costs": db.Costs(host_bandwidth=1)}

CASES: dict[str, Callable[[], object]] = {
    "copies": _swept("1f1b", "channel", **OFFLOADED),
    "transfers": _swept("1f1b", "overlapped", add_transfers),
    "search": _searched,
    "copies and transfers": _swept("1f1b", "overlapped", add_transfers, **OFFLOADED),
    "groups and transfers": _swept("dualpipe", "overlapped", add_transfers),
    "groups": _swept("dualpipe", "overlapped"),
    "steps": _swept("1f1b", "overlapped", iterations=2),
    "work": _swept("zb-v", "overlapped"),
}
"""What takes seconds to compile, in an order in which two workers compile nothing twice."""

QUICK_CASES = ("groups", "work")
"""What is compiled by tests that are quick; of the rest they compute too little."""


@contextmanager
def run_by(*, compiled: bool) -> Iterator[None]:
    """Run all kernels as machine code, or as the Python that they are written in."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("INTERPRET_BELOW", "INTERPRET_WHEN_LOADED", "INTERPRET_UNCOMPILED"):
            patch.setattr(jit, name, 0 if compiled else 10**9)
        yield


def compile_once(folder: Path, names: Iterable[str]) -> None:
    """Compile cases; of workers that share a folder each compiles some, all wait for all."""
    folder.mkdir(exist_ok=True)
    with run_by(compiled=True):
        for wait in (fcntl.LOCK_NB, 0):
            for name in names:
                with (folder / name).open("a+") as file:
                    try:
                        fcntl.flock(file, fcntl.LOCK_EX | wait)
                    except BlockingIOError:
                        continue
                    if not file.tell():
                        CASES[name]()
                        file.write("compiled")
