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

from debubble.core.errors import DebubbleError
from debubble.torch.errors import RunError
from debubble.torch.ranks.process_group import Channel, Ranks

PERIOD = 0.5
"""Seconds between two looks at the store."""

GRACE = 3.0
"""Seconds that a rank has to end by itself when another one failed."""

PACKAGES = tuple(
    str(folder) + os.sep for folder in (Path(torch.__file__).parent, Path(__file__).parents[1])
)
"""Where code is that is not the user's."""

CONNECTING = (str(Path(dist.__file__).parent) + os.sep, PACKAGES[1])
"""Where code is that calls other ranks."""

START = -1
"""The position before a program's first action."""

SHOWN = 8
"""Ranks in a message."""

FAILED = "failed"

MEETS = "the beginning or end of a call, where all ranks meet"
"""Where a rank is that is at none of its actions."""


class RankState(IntEnum):
    """What a rank is doing."""

    OUTSIDE = 0
    """It is in no step."""
    RUNNING = 1
    WAITING = 2
    DONE = 3
    """It has done all there is to do."""
    MEETING = 4
    """It waits until all ranks are there."""


WAITS = (RankState.WAITING, RankState.MEETING)
"""States of a rank that waits for another."""


Text: TypeAlias = Callable[[int, int], str]
"""What is at a position of a rank's program, for messages."""


class Watch:
    """Where this rank is, where the others are, and whether one has failed.

    Ranks write into the `store`; nobody else uses its keys, and no other thread this connection.
    A rank waits `timeout` seconds for another; the engine sets `position` and `state` as it goes.
    """

    def __init__(self, rank: int, size: int, store: Any, timeout: float, text: Text) -> None:
        self.rank, self.size, self.timeout, self.text = rank, size, timeout, text
        self.position, self.state = START, RankState.OUTSIDE
        self._store, self._lock = store, threading.Lock()
        self._told = ""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="debubble-watch", daemon=True)
        self._thread.start()

    @classmethod
    def of(cls, ranks: Ranks, text: Text) -> Watch:
        """One for the ranks of a pipeline."""
        store = dist.PrefixStore("watch", ranks.store)
        # A connection of its own: the main thread may be waiting on the other one.
        store = store.clone() if hasattr(store, "clone") else store
        return cls(ranks.rank, ranks.size, store, ranks.timeout.total_seconds(), text)

    def stop(self) -> None:
        """Watch no longer.

        A thread that is in a call of the store when its process ends would take the process with
        it, so it is waited for.
        """
        self._over.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(GRACE)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Watch over a step: errors leave it told to all ranks.

        Raises RunError when another rank failed, or is not heard of.
        """
        self._raise_failure()
        self.position, self.state = START, RankState.RUNNING
        try:
            yield
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            self.state = RankState.OUTSIDE

    def set_waiting(self) -> None:
        """All ranks meet, before or after a step's actions."""
        self.state = RankState.MEETING

    def enter(self, channel: Channel, call: str) -> None:
        """Have all ranks call the same: a RunError tells of a rank that calls something else."""
        self.set_waiting()
        calls = channel.words(call)
        self.state = RankState.RUNNING
        for rank, other in enumerate(calls):
            if other != calls[0]:
                raise RunError(
                    f"rank {rank} calls {other}() and rank 0 {calls[0]}(); all ranks call the "
                    "methods of a pipeline together"
                )

    def _fail(self, error: BaseException) -> None:
        where = f"rank {self.rank}"
        if self.state in WAITS and _of_connection(error):
            self._raise_failure()
            if not _timed_out(str(error)):
                # A launcher may end this process before it can tell more.
                print(f"debubble: {self._lost()}", file=sys.stderr, flush=True)
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
        rows = self._rows()
        hang = [rank for rank, (state, _) in rows.items()
                if state in (RankState.OUTSIDE, RankState.RUNNING)]  # fmt: skip
        places = [f"rank {rank} {self._doing(rank, *row)}" for rank, row in rows.items()]
        others = "; ".join(places[:SHOWN])
        if not _timed_out(error):
            return f"{self._lost()}\n{others}".strip()
        here = self._here()
        head = f"nothing has moved for {self.timeout:g} s: "
        if hang:
            state, position = rows[hang[0]]
            outside = state == RankState.OUTSIDE
            where = "is in no step" if outside else f"hangs at {self.text(hang[0], position)}"
            return (
                f"{head}rank {hang[0]} {where}; rank {self.rank} waits at {here}\n"
                f"{others}; timeout={2 * self.timeout:g} waits longer"
            )
        return f"{head}rank {self.rank} waits at {here}\n{others}".strip()

    def _here(self) -> str:
        return MEETS if self.state == RankState.MEETING else self.text(self.rank, self.position)

    def _lost(self) -> str:
        return f"rank {self.rank} lost the rank it waited for at {self._here()}"

    def _rows(self) -> dict[int, tuple[RankState, int]]:
        rows = {}
        with self._lock, suppress(Exception):
            for rank in range(self.size):
                if rank != self.rank and self._store.check([str(rank)]):
                    state, position = self._store.get(str(rank)).decode().split()
                    rows[rank] = (RankState(int(state)), int(position))
        return rows

    def _doing(self, rank: int, state: RankState, position: int) -> str:
        if state == RankState.OUTSIDE:
            return "is in no step"
        if state == RankState.MEETING:
            return f"waits at {MEETS}"
        verb = "waits" if state == RankState.WAITING else "is"
        return f"{verb} at {self.text(rank, position)}"

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
                failed = self.state != RankState.OUTSIDE
                if not failed:
                    return
            if not failed or self.state == RankState.OUTSIDE:
                since = 0.0
            elif not since:
                since = time.monotonic()
            elif time.monotonic() - since > GRACE:
                message = self._failure() or f"rank {self.rank} lost the store"
                print(f"debubble: {message}", file=sys.stderr, flush=True)
                # The main thread is in a call that does not come back.
                os._exit(2)


def _of_connection(error: BaseException) -> bool:
    """Whether a call to other ranks raised it, and not a module or a loss between such calls."""
    if type(error) is not RuntimeError and not isinstance(error, dist.DistError):
        return False
    frames = traceback.extract_tb(error.__traceback__)
    return frames[-1].filename.startswith(CONNECTING)


def _timed_out(error: str) -> bool:
    return "timed out" in error.lower() or "timeout" in error.lower()


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
