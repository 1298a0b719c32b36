"""Jobs with all that makes a run uneven, and the runs that the laws of traces are about."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

import debubble as db
from debubble.core.errors import DebubbleError
from debubble.diagnosis.diagnose import Diagnosis, diagnose
from debubble.diagnosis.observed import Observed
from tests.diagnosis.planted import PLANTED
from tests.laws.executed import ACTION, Job, Piece, Result
from tests.strategies import ready

BASE = {"F": 10e-3, "B": 20e-3, "I": 12e-3, "W": 8e-3}


def uniform(*key: object) -> float:
    """A number from 0 to 1 that is always the same for the same key."""
    return zlib.crc32(repr(key).encode()) / (1 << 32)


def made(name: str, ranks: int = 3, microbatches: int = 9, **more: int) -> db.Schedule:
    return ready(name, ranks=ranks, microbatches=microbatches, **more)


def even(schedule: db.Schedule) -> Callable[[Piece, int, int], float]:
    """Every stage and microbatch alike; the same model whatever it is cut into."""
    return lambda piece, *_: BASE[piece.kind] / (schedule.chunks * schedule.slices)


def uneven(schedule: db.Schedule) -> Callable[[Piece, int, int], float]:
    """Stages and microbatches that differ, and actions that vary."""
    usual = even(schedule)

    def work(piece: Piece, step: int, copy: int) -> float:
        stage = 1 + 0.5 * uniform("stage", piece.stage)
        length = 1 + 0.4 * uniform("length", piece.microbatch)
        return usual(piece, step, copy) * stage * length * (1 + 0.2 * uniform(*piece, step, copy))

    return work


def noisy(source: int, target: int, result: Result, step: int, copy: int) -> float:
    """Messages of which some take many times what others do, over links that differ."""
    return (0.2e-3 + 0.5e-3 * source) * (1 + 20 * uniform(target, *result, step, copy) ** 8)


def steady(source: int, target: int, *_: object) -> float:
    """Messages that take what their link takes, over links that differ."""
    return 0.3e-3 + 1.5e-3 * uniform("link", source, target)


@cache
def runnable(quickly: bool = False) -> tuple[str, ...]:
    """Registered schedules that the executor can run, by name; or those made without a search."""
    found = []
    for entry in db.schedules():
        if quickly and entry.uses_costs:
            continue
        try:
            rows = made(entry.name).rows()
        except DebubbleError:
            continue
        if all(ACTION.search(cell) and not _more(cell) for row in rows for cell in row):
            found.append(entry.name)
    return tuple(found)


def _more(cell: str) -> bool:
    """Whether a cell has what is no piece of work."""
    inside = cell.partition(")")[0].strip("(").split(";")
    return any(ACTION.fullmatch(text) is None for text in inside)


def _job(name: str, **more: object) -> Job:
    schedule = made(name, **more.pop("sizes", {}))  # type: ignore[arg-type]
    fields: dict[str, object] = {"work": uneven(schedule), "wire": noisy}
    return Job(schedule, **fields | more)  # type: ignore[arg-type]


def _late(piece: Piece, step: int, copy: int) -> float:
    return 2e-3 * uniform("late", *piece, step, copy) * (piece.stage == 1)


JOBS: dict[str, Callable[[], Job]] = {
    "noisy transfers": lambda: _job("1f1b", steps=2),
    "uneven links": lambda: _job("interleaved-1f1b", wire=steady),
    "pairs": lambda: _job("dualpipe-v"),
    "pairs both ways": lambda: _job("dualpipe", sizes={"ranks": 4, "microbatches": 10}, steps=2),
    "copies": lambda: _job("1f1b", copies=2, steps=3),
    "slices": lambda: _job("seq1f1b", sizes={"slices": 2}),
    "split backwards": lambda: _job("zb-v"),
    "late hosts": lambda: _job("1f1b", late=_late, steps=2),
    "no messages in the trace": lambda: _job("zb-h1", told=False),
    "one rank": lambda: _job("gpipe", sizes={"ranks": 1}),
}
"""Jobs by what is uneven in them."""


def two_orders() -> Observed:
    """Two copies that ran one order and one that ran another, with the same actions."""
    usual, other = _job("1f1b", copies=2, steps=2).observed(), _job("eager-1f1b", steps=2)
    one = other.without(steps=2).observed()

    def joined(mine: Any, theirs: Any) -> Any:
        columns = {name: np.concatenate([getattr(mine, name), getattr(theirs, name)])
                   for name in mine.types()}  # fmt: skip
        columns["copy"][len(mine) :] = 2
        return type(mine)(**columns)

    return replace(usual, copies=3, actions=joined(usual.actions, one.actions),
                   messages=joined(usual.messages, one.messages))  # fmt: skip


FROM_ELSEWHERE = ("missing rank", "swapped order", "early receive", "slow stage, clocks off")
"""Planted faults that make a run hard to replay."""


@cache
def run_of(name: str) -> Diagnosis:
    """The diagnosis of a job, or of a run with a planted fault."""
    if name in JOBS:
        return diagnose(JOBS[name]().observed())
    if name == TWO_ORDERS:
        return diagnose(two_orders())
    return diagnose(PLANTED[name](0).made.observed())


TWO_ORDERS = "two orders"

RUNS = (*JOBS, TWO_ORDERS, *FROM_ELSEWHERE)
"""Names of all runs."""
