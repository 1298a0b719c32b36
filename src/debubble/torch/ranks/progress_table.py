"""Progress of all ranks in one table, and messages about a rank that failed or hangs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

SHOWN = 8
"""Most ranks in a message."""

MEETS = "the beginning or end of a call, where all ranks meet"
"""Place of a rank that is at none of its actions."""


class RankState(IntEnum):
    """State of a rank."""

    OUTSIDE = 0
    """It is in no step."""
    RUNNING = 1
    WAITING = 2
    DONE = 3
    """It has finished the run."""
    MEETING = 4
    """It waits until all ranks are there."""


WAITS = (RankState.WAITING, RankState.MEETING)
"""States of a rank that waits for another."""

Text: TypeAlias = Callable[[int, int, int], str]
"""Words for (job, rank, position) in messages."""

PlaceText: TypeAlias = Callable[[int, int], str]
"""Words for (rank, position) in messages."""


class ProgressTable:
    """A row per rank: its job, position in the program, state, count of moves, time of failure.

    Processes that open the same file share the table; without a file it is this process's own, and
    rows of other ranks come from a store.
    """

    JOB, POSITION, STATE, MOVES, FAILED = range(5)

    def __init__(self, ranks: int, path: str = "") -> None:
        self._path = path
        shape = (ranks, 5)
        if path:
            mode: Any = "r+" if Path(path).exists() else "w+"
            self.rows: NDArray[np.int64] = np.asarray(np.memmap(path, np.int64, mode, shape=shape))
        else:
            self.rows = np.zeros(shape, np.int64)
        self.names: Sequence[str] = [f"rank {rank}" for rank in range(ranks)]
        """Names of the ranks in messages."""

    def __reduce__(self) -> Any:
        return ProgressTable, (len(self.rows), self._path)

    def report_progress(self, rank: int, position: int, state: RankState) -> None:
        """Note a rank's position and state."""
        row = self.rows[rank]
        row[self.POSITION], row[self.STATE] = position, state
        row[self.MOVES] += 1

    def read_others(self, store: Any, rank: int) -> None:
        """Read the rows that other ranks wrote to a store by their numbers."""
        for other in range(len(self.rows)):
            if other != rank and store.check([str(other)]):
                row = bytes.fromhex(store.get(str(other)).decode())
                self.rows[other] = np.frombuffer(row, dtype=np.int64)

    def write_row(self, store: Any, rank: int) -> None:
        """Write a rank's row to a store."""
        store.set(str(rank), self.rows[rank].tobytes().hex())

    def place(self, rank: int, text: Text) -> str:
        """Return the place of a rank, for messages."""
        job, position, state, _, _ = self.rows[rank].tolist()
        if state == RankState.OUTSIDE:
            return "the start"
        return MEETS if state == RankState.MEETING else text(job, rank, position)

    def describe(self, text: Text, without: int = -1) -> str:
        """Return a line about the ranks whose progress is known, but one of them."""
        parts = []
        for rank, row in enumerate(self.rows.tolist()):
            state = row[self.STATE]
            if state == RankState.DONE:
                parts.append(f"{self.names[rank]} is done")
            elif rank != without and row[self.MOVES]:
                outside = state == RankState.OUTSIDE
                verb = "waits at" if state in WAITS else "is at"
                where = "is in no step" if outside else f"{verb} {self.place(rank, text)}"
                parts.append(f"{self.names[rank]} {where}")
        more = [f"{len(parts) - SHOWN} more"] if len(parts) > SHOWN else []
        return "; ".join(parts[:SHOWN] + more)


class Watch:
    """Progress of this rank in a table; a supervisor that reads it ends all ranks of a run.

    The engine sets `position` and `state` as it goes.
    """

    text: PlaceText
    """Words for a position of the program that runs now."""

    def __init__(self, table: ProgressTable, rank: int) -> None:
        # Items of a view of memory cost a third of those of an array.
        self._row = memoryview(table.rows[rank])

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

    def set_waiting(self) -> None:
        """Note that this rank waits for all others, before or after a step's actions."""
        self.state = RankState.MEETING

    numbers = 0
    """Length of the longest row that the ranks sum as they enter a call."""

    def enter(
        self,
        channel: Any,
        call: str,  # noqa: ARG002 - those of a run make the same calls
        numbers: Sequence[float] = (),
    ) -> list[float]:
        """Begin a call that all ranks make together; return the sums of their numbers."""
        if not numbers:
            return []
        self.set_waiting()
        sums: list[float] = channel.add(numbers)
        return sums

    @contextmanager
    def entering(self, channel: Any, call: str) -> Iterator[None]:  # noqa: ARG002 - see above
        """Run what comes before a call is entered, and enter it."""
        yield

    def keep_messages(self, dumps: Any) -> None:
        """Take the writer of dumps for a hang; a run's supervisor needs none."""

    def stop(self) -> None:
        """Stop watching."""

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
    return f"rank {rank} {verb} {table.place(rank, text)}\n{table.describe(text, rank)}"


def describe_stall(table: ProgressTable, text: Text, timeout: float) -> str:
    """Return a message with the rank that hangs, or with what every rank waits for."""
    head = f"nothing has moved for {timeout:g} s"
    stuck = np.flatnonzero(table.rows[:, ProgressTable.STATE] == RankState.RUNNING).tolist()
    hangs = f": rank {stuck[0]} hangs at {table.place(stuck[0], text)}" if stuck else ""
    others = table.describe(text, stuck[0] if stuck else -1)
    return f"{head}{hangs}\n{others}; --timeout {2 * timeout:g} waits longer"
