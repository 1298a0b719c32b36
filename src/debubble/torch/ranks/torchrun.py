"""Runs on processes that ``torchrun`` started, on one host or several, watched from inside.

No parent sees all ranks: every rank writes its progress to the store, reads that of the others, and
ends when one of them is in trouble.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed.rendezvous import rendezvous

from debubble.core.errors import DebubbleError
from debubble.torch.errors import RunError
from debubble.torch.ranks.error_text import describe_error
from debubble.torch.ranks.progress_table import (
    WAITS,
    ProgressTable,
    RankState,
    Text,
    describe_failure,
    describe_stall,
)
from debubble.torch.ranks.watch import FAILED, GRACE, PERIOD
from debubble.torch.ranks.world import Work, World, devices

LOST = 2
"""Exit code of ranks that end because of another one."""


def is_joined() -> bool:
    """Return if a launcher started this process as one of several ranks."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def local_size(ranks: int) -> int:
    """Return the number of ranks on this host."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", ranks)) if is_joined() else ranks


def check_world_size(ranks: int) -> None:
    """Refuse a number of processes that is not the schedule's number of ranks."""
    size = int(os.environ["WORLD_SIZE"])
    if size != ranks:
        raise RunError(
            f"torchrun started {size} processes, the schedule has {ranks} ranks; give -p {size}, "
            f"or start {ranks} processes"
        )


def run_joined(
    work: Work, ranks: int, text: Text, *, timeout: float, device: str
) -> list[Any] | None:
    """Call `work` in this process, one of as many as there are ranks; see ``run_local``.

    Returns the results of all ranks on rank 0, None on the others. Raises RunError when a rank
    raises, is lost or nothing moves; on the other ranks the process ends.
    """
    rank, size = int(os.environ["RANK"]), ranks
    local = int(os.environ.get("LOCAL_RANK", rank))
    names, backend, _ = devices(device, local_size(size))
    if names[local] != "cpu":
        torch.cuda.set_device(names[local])
    torch.set_num_threads(1)
    limit = timedelta(seconds=timeout + 600)
    table = ProgressTable(size)
    try:
        store = next(rendezvous("env://", rank, size, timeout=timedelta(seconds=timeout)))[0]
        guard = _Guard(rank, table, text, timeout)
    except dist.DistError as error:
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise RunError(f"rank {rank} cannot reach the store at {address}") from error
    guard.start()
    try:
        dist.init_process_group(
            backend, store=dist.PrefixStore("debubble", store), rank=rank, world_size=size,
            timeout=limit,
        )  # fmt: skip
        control = dist.new_group(backend="gloo", timeout=limit)
        world = World(rank, size, names[local], table)
        result = work(world)
        table.report_progress(rank, 0, RankState.DONE)
        results: list[Any] | None = [None] * size if rank == 0 else None
        dist.gather_object(result, results, dst=0, group=control)
        guard.stop()
    except KeyboardInterrupt:
        guard.stop()
        raise
    except BaseException as error:
        raise guard.report(error) from None
    dist.destroy_process_group()
    return results


class _Guard(threading.Thread):
    """Thread that watches all ranks while this one computes or waits."""

    def __init__(self, rank: int, table: ProgressTable, text: Text, timeout: float) -> None:
        super().__init__(daemon=True)
        self.rank, self.table, self.text, self.timeout = rank, table, text, timeout
        self.over = threading.Event()
        self._talk = ThreadPoolExecutor(1)
        # A connection of its own: the main thread may be waiting on the other one.
        store = dist.TCPStore(
            os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False,
            timeout=timedelta(seconds=30),
        )  # fmt: skip
        self.store = dist.PrefixStore("debubble-watch", store)

    def run(self) -> None:
        """Exchange progress until the run is over, or a rank is in trouble."""
        seen, moved = b"", time.monotonic()
        while not self.over.wait(PERIOD):
            if self._ask(self._exchange):
                self._leave("")
            now = self.table.rows.tobytes()
            if now != seen:
                seen, moved = now, time.monotonic()
            elif time.monotonic() - moved > self.timeout:
                words = describe_stall(self.table, self.text, self.timeout)
                self._leave(self._ask(lambda: self._claim(words)))  # noqa: B023 - asked at once

    def _ask(self, question: Callable[[], str]) -> str:
        """Return the store's answer; end the process when there is none."""
        try:
            # Over a link that is cut there is no answer, not even an error.
            return self._talk.submit(question).result(self.timeout)
        except TimeoutError:
            self._leave(f"rank {self.rank} lost the store: no answer for {self.timeout:g} s")
        except Exception as error:
            # The store may end with rank 0 when the run is over.
            if not self.over.is_set():
                self._leave(f"rank {self.rank} lost the store: {describe_error(error)}")
        return ""

    def stop(self) -> None:
        """Stop, and wait for the thread.

        A thread that is in a call of the store when its process ends would abort the process.
        """
        self.over.set()
        self.join(GRACE)

    def report(self, error: BaseException) -> RunError:
        """Return what to raise for an error; end the process when another rank reports one."""
        lost = not isinstance(error, RunError) and (
            self.table.rows[self.rank, ProgressTable.STATE] in WAITS
        )
        if lost:
            # It is the partner that is in trouble: its message comes first.
            time.sleep(4 * PERIOD)
        words = "lost the rank it waited for" if lost else describe_error(error)
        refused = isinstance(error, DebubbleError) and not isinstance(error, RunError)
        whole = words if refused else describe_failure(self.rank, words, self.table, self.text)
        message = self._claim(whole)
        if not message:
            self._leave("")
        self.stop()
        return RunError(message)

    def _claim(self, message: str) -> str:
        """Return the message when this rank is the first to write one, else nothing."""
        claimed = f"{self.rank} {message}"
        first = self.store.compare_set(FAILED, "", claimed).decode()
        return message if first == claimed else ""

    def _exchange(self) -> str:
        """Write this rank's progress, read that of the others; return a failure, empty for none."""
        self.table.write_row(self.store, self.rank)
        self.table.read_others(self.store, self.rank)
        return self.store.get(FAILED).decode() if self.store.check([FAILED]) else ""

    def _leave(self, message: str) -> None:
        # The main thread may wait for a message that never comes.
        if message:
            print(f"debubble: {message}", file=sys.stderr, flush=True)
        os._exit(LOST)
