"""Watch the ranks of a pipeline from inside: when one is in trouble, all end and say why.

No parent sees all ranks. Every rank tells the store where it is; one that waits in vain, loses the
rank it waits for, or raises an error writes into the store what is wrong, first come first served,
and the others raise the same. A thread looks there, too: its rank may hang, or wait for something
that never comes.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import distributed as dist

import debubble
from debubble.core.errors import DebubbleError
from debubble.torch.errors import RunError
from debubble.torch.team import Team

PERIOD = 0.5
"""Seconds between two looks at the store."""

GRACE = 3.0
"""Seconds that a rank has to end by itself when another one failed."""

PACKAGES = tuple(
    str(Path(module.__file__).parent) + os.sep for module in (torch, debubble) if module.__file__
)
"""Where code is that is not the user's."""

START = -1
"""The position before a program's first action."""

SHOWN = 8
"""Ranks in a message."""

FAILED = "failed"


class State(IntEnum):
    """What a rank is doing."""

    OUTSIDE = 0
    """It is in no step."""
    RUNNING = 1
    WAITING = 2
    DONE = 3
    """It has done all there is to do."""


Text: TypeAlias = Callable[[int, int], str]
"""What is at a position of a rank's program, for messages."""


class Watch:
    """Where this rank is, where the others are, and whether one has failed.

    Parameters
    ----------
    rank, size
        Which rank this is, of how many.
    store
        Where ranks write; nobody else uses its keys, and no other thread this connection.
    timeout
        Seconds that a rank waits for another.
    text
        What is at a position of a rank's program.

    Attributes
    ----------
    position, state
        Set by the engine as it goes.
    """

    def __init__(self, rank: int, size: int, store: Any, timeout: float, text: Text) -> None:
        self.rank, self.size, self.timeout, self.text = rank, size, timeout, text
        self.position, self.state = START, State.OUTSIDE
        self._store, self._lock = store, threading.Lock()
        self._told = ""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="debubble-watch", daemon=True)
        self._thread.start()

    @classmethod
    def of(cls, team: Team, text: Text) -> Watch:
        """One for the ranks of a pipeline."""
        store = dist.PrefixStore("watch", team.store)
        # A connection of its own: the main thread may be waiting on the other one.
        store = store.clone() if hasattr(store, "clone") else store
        return cls(team.rank, team.size, store, team.timeout.total_seconds(), text)

    def stop(self) -> None:
        """Watch no longer."""
        self._over.set()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Watch over a step: errors leave it told to all ranks.

        Raises
        ------
        RunError
            When another rank failed, or is not heard of.
        """
        self._raise_failure()
        self.position, self.state = START, State.RUNNING
        try:
            yield
        except BaseException as error:
            waited = self.state == State.WAITING
            if not waited:
                self.state = State.OUTSIDE
            try:
                self._fail(error, waited)
            finally:
                # Until it has spoken, others are to see that it waited.
                self.state = State.OUTSIDE
            raise
        self.state = State.OUTSIDE

    def waits(self) -> None:
        """All ranks meet, before or after a step's actions."""
        self.state = State.WAITING

    def _fail(self, error: BaseException, waited: bool) -> None:
        where = f"rank {self.rank}"
        if waited and isinstance(error, RuntimeError):
            # The rank that is waited for may be the one in trouble: it speaks first.
            time.sleep(3 * PERIOD)
            self._raise_failure()
            raise RunError(self._claim(self._stall(str(error)))) from None
        words = reason(error)
        place = self.text(self.rank, self.position)
        self._claim(f"{where} failed: {words}; it was at {place}")
        error.add_note(f"debubble: {where} was at {place}")

    def _raise_failure(self) -> None:
        message = self._failure()
        if message:
            raise RunError(message) from None

    def _stall(self, error: str) -> str:
        """Who waits for whom, as far as ranks have told."""
        places = self._places()
        me = places.pop(self.rank, None) or self.text(self.rank, self.position)
        timed_out = "timed out" in error.lower() or "timeout" in error.lower()
        hang = [rank for rank, (state, _) in self._rows().items()
                if state != State.WAITING and rank != self.rank]  # fmt: skip
        others = "; ".join(list(places.values())[:SHOWN])
        if not timed_out:
            head = f"rank {self.rank} lost the rank it waited for at {self._here()}"
            return f"{head}\n{others}"
        head = f"nothing has moved for {self.timeout:g} s: "
        if hang:
            row = self._rows()[hang[0]]
            where = (
                "is in no step" if row[0] == State.OUTSIDE
                else f"hangs at {self.text(hang[0], row[1])}"
            )  # fmt: skip
            return (
                f"{head}rank {hang[0]} {where}; rank {self.rank} waits at {self._here()}\n"
                f"{others}; timeout={2 * self.timeout:g} waits longer"
            )
        return f"{head}rank {self.rank} waits at {self._here()}\n{others or me}"

    def _here(self) -> str:
        return self.text(self.rank, self.position)

    def _rows(self) -> dict[int, tuple[State, int]]:
        rows = {}
        with self._lock, suppress(Exception):
            for rank in range(self.size):
                if self._store.check([str(rank)]):
                    state, position = self._store.get(str(rank)).decode().split()
                    rows[rank] = (State(int(state)), int(position))
        return rows

    def _places(self) -> dict[int, str]:
        words = {State.RUNNING: "is at", State.WAITING: "waits at"}
        return {
            rank: f"rank {rank} is in no step" if state == State.OUTSIDE
            else f"rank {rank} {words[state]} {self.text(rank, position)}"
            for rank, (state, position) in self._rows().items() if rank != self.rank
        }  # fmt: skip

    def _claim(self, message: str) -> str:
        """Tell all ranks; the message of the first that did."""
        with self._lock:
            try:
                return str(self._store.compare_set(FAILED, "", message).decode())
            except Exception:
                return message

    def _failure(self) -> str:
        """What another rank wrote, if one did."""
        with self._lock:
            try:
                found = self._store.check([FAILED])
                return self._store.get(FAILED).decode() if found else ""
            except Exception:
                return ""

    def _look(self) -> None:
        """Tell where this rank is; end it when another failed and it does not notice."""
        since = 0.0
        while not self._over.wait(PERIOD):
            try:
                row = f"{int(self.state)} {self.position}"
                with self._lock:
                    if row != self._told:
                        self._store.set(str(self.rank), row)
                        self._told = row
                    failed = self._store.check([FAILED])
            except Exception:
                # The store goes with rank 0's process: at the end of training, or before.
                failed = self.state != State.OUTSIDE
                if not failed:
                    return
            if not failed or self.state == State.OUTSIDE:
                since = 0.0
            elif not since:
                since = time.monotonic()
            elif time.monotonic() - since > GRACE:
                message = self._failure() or f"rank {self.rank} lost the store"
                print(f"debubble: {message}", file=sys.stderr, flush=True)
                # The main thread is in a call that does not come back.
                os._exit(2)


def reason(error: BaseException) -> str:
    """Class, message and place of an error, without what is around it."""
    if isinstance(error, DebubbleError):
        return str(error)
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(PACKAGES)
    ]  # fmt: skip
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    first = (str(error).strip() or "no message").splitlines()[0]
    return f"{type(error).__name__}: {first}{where}"
