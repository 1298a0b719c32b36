"""Progress of all ranks of a run in one table, and messages about a rank that failed or hangs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from debubble.torch.ranks.watch import MEETS, SHOWN, WAITS, RankState, Watch

Row: TypeAlias = NDArray[np.int64]
Text: TypeAlias = Callable[[int, int, int], str]
"""Words for (job, rank, position) in messages."""


class ProgressTable:
    """A row per rank: its job, position in the program, state, count of moves, time of failure.

    Processes that open the same file share the table; without a file it is this process's own.
    """

    JOB, POSITION, STATE, MOVES, FAILED = range(5)

    def __init__(self, ranks: int, path: str = "") -> None:
        self._path = path
        shape = (ranks, 5)
        if path:
            mode: Any = "r+" if Path(path).exists() else "w+"
            self.rows: Row = np.asarray(np.memmap(path, np.int64, mode, shape=shape))
        else:
            self.rows = np.zeros(shape, np.int64)

    def __reduce__(self) -> Any:
        return ProgressTable, (len(self.rows), self._path)

    def report_progress(self, rank: int, position: int, state: RankState) -> None:
        """Note a rank's position and state."""
        row = self.rows[rank]
        row[self.POSITION], row[self.STATE] = position, state
        row[self.MOVES] += 1


class TableWatch(Watch):
    """Progress of this rank in a table; the run's supervisor reads it and ends all ranks."""

    def __init__(self, table: ProgressTable, rank: int) -> None:
        self._row = table.rows[rank]

    @property
    def position(self) -> int:
        """Position in the rank's program."""
        return int(self._row[ProgressTable.POSITION])

    @position.setter
    def position(self, value: int) -> None:
        self._row[ProgressTable.POSITION] = value
        self._row[ProgressTable.MOVES] += 1

    @property
    def state(self) -> RankState:
        """State of the rank at this position."""
        return RankState(int(self._row[ProgressTable.STATE]))

    @state.setter
    def state(self, value: RankState) -> None:
        self._row[ProgressTable.STATE] = value

    def enter(self, channel: Any, call: str) -> None:
        """Do nothing: the ranks of a run make the same calls."""

    def stop(self) -> None:
        """Do nothing: no thread runs."""

    @contextmanager
    def step(self) -> Iterator[None]:
        """Run a step; its errors go to the supervisor."""
        self.position, self.state = 0, RankState.RUNNING
        yield
        self.state = RankState.OUTSIDE


def describe_failure(rank: int, error: str, table: ProgressTable, text: Text) -> str:
    """Return a message with the rank that failed, its action, and the actions of the others."""
    died = error.startswith(("died", "left"))
    verb = f"{error} at" if died else f"failed: {error}; it was at"
    return f"rank {rank} {verb} {_place(table, rank, text)}\n{_others(table, text, rank)}"


def describe_stall(table: ProgressTable, text: Text, timeout: float) -> str:
    """Return a message with the rank that hangs, or with what every rank waits for."""
    head = f"nothing has moved for {timeout:g} s"
    stuck = np.flatnonzero(table.rows[:, ProgressTable.STATE] == RankState.RUNNING).tolist()
    hangs = f": rank {stuck[0]} hangs at {_place(table, stuck[0], text)}" if stuck else ""
    others = _others(table, text, stuck[0] if stuck else -1)
    return f"{head}{hangs}\n{others}; --timeout {2 * timeout:g} waits longer"


def _place(table: ProgressTable, rank: int, text: Text) -> str:
    job, position, state, _, _ = table.rows[rank].tolist()
    if state == RankState.OUTSIDE:
        return "the start"
    return MEETS if state == RankState.MEETING else text(job, rank, position)


def _others(table: ProgressTable, text: Text, without: int) -> str:
    parts = []
    for rank, state in enumerate(table.rows[:, ProgressTable.STATE].tolist()):
        if state == RankState.DONE:
            parts.append(f"rank {rank} is done")
        elif rank != without:
            verb = "waits" if state in WAITS else "is"
            parts.append(f"rank {rank} {verb} at {_place(table, rank, text)}")
    more = [f"{len(parts) - SHOWN} more"] if len(parts) > SHOWN else []
    return "; ".join(parts[:SHOWN] + more)
