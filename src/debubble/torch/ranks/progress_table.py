"""Where every rank of a run is: noted on a board in shared memory, and told in messages."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from debubble.torch.ranks.watch import MEETS, SHOWN, WAITS, State, Watch


class Board:
    """Where every rank is: shared by all processes that are forked after it was made.

    Columns: the job, the position in the rank's program, the state, how often the rank has moved,
    and when it failed.
    """

    JOB, POSITION, STATE, MOVES, FAILED = range(5)

    def __init__(self, ranks: int) -> None:
        self._memory = mmap.mmap(-1, ranks * 5 * 8)
        self.rows: NDArray[np.int64] = np.frombuffer(self._memory, dtype=np.int64).reshape(ranks, 5)

    def note(self, rank: int, position: int, state: State) -> None:
        """Say where a rank is."""
        row = self.rows[rank]
        row[1], row[2] = position, state
        row[3] += 1


Text: TypeAlias = Callable[[int, int, int], str]
"""What (job, rank, position) is, for messages."""


class BoardWatch(Watch):
    """Says on the board where this rank is; whoever looks there ends a world in trouble."""

    def __init__(self, board: Board, rank: int) -> None:
        self._row = board.rows[rank]

    @property
    def position(self) -> int:
        """Of the rank in its program."""
        return int(self._row[Board.POSITION])

    @position.setter
    def position(self, value: int) -> None:
        self._row[Board.POSITION] = value
        self._row[Board.MOVES] += 1

    @property
    def state(self) -> State:
        """What the rank does there."""
        return State(int(self._row[Board.STATE]))

    @state.setter
    def state(self, value: State) -> None:
        self._row[Board.STATE] = value

    def meet(self, link: Any, call: str) -> None:
        """Nothing: the ranks of a run do the same."""

    def stop(self) -> None:
        """Nothing runs that would have to stop."""

    @contextmanager
    def step(self) -> Iterator[None]:
        """A step; errors go to who watches."""
        self.position, self.state = 0, State.RUNNING
        yield
        self.state = State.OUTSIDE


def describe(rank: int, error: str, board: Board, text: Text) -> str:
    """Which rank failed at what, and where the others were."""
    where = _place(board.rows[rank], rank, text)
    return f"rank {rank} {_verb(error)} {where}\n{_others(board, text, {rank})}"


def _verb(error: str) -> str:
    return f"{error} at" if error.startswith(("died", "left")) else f"failed: {error}; it was at"


def _place(row: NDArray[np.int64], rank: int, text: Text) -> str:
    if row[Board.STATE] == State.OUTSIDE:
        return "the start"
    if row[Board.STATE] == State.MEETING:
        return MEETS
    return text(int(row[Board.JOB]), rank, int(row[Board.POSITION]))


def _others(board: Board, text: Text, without: set[int]) -> str:
    parts = []
    for rank, row in enumerate(board.rows):
        state = State(int(row[Board.STATE]))
        if state == State.DONE:
            parts.append(f"rank {rank} is done")
        elif rank not in without:
            verb = "waits" if state in WAITS else "is"
            parts.append(f"rank {rank} {verb} at {_place(row, rank, text)}")
    more = [f"{len(parts) - SHOWN} more"] if len(parts) > SHOWN else []
    return "; ".join(parts[:SHOWN] + more)


def stall(board: Board, text: Text, timeout: float) -> str:
    """Which rank hangs, or who waits for whom."""
    longer = f"--timeout {2 * timeout:g} waits longer"
    stuck = [r for r, row in enumerate(board.rows) if row[Board.STATE] == State.RUNNING]
    head = f"nothing has moved for {timeout:g} s"
    if stuck:
        rank = stuck[0]
        place = _place(board.rows[rank], rank, text)
        return f"{head}: rank {rank} hangs at {place}\n{_others(board, text, {rank})}; {longer}"
    return f"{head}\n{_others(board, text, set())}; {longer}"
