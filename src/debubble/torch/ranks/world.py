"""Local processes of a run: start them, watch them, and end all of them when one is in trouble.

Ranks start from a clean process, Python's fork server: a fork of this one would copy locks that its
threads hold. Each rank notes its progress in a shared table. The parent ends all ranks when one
dies or raises, or when none has moved for a time, and says which rank was where.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import distributed as dist

from debubble.core.errors import DebubbleError
from debubble.core.signals import on_signal
from debubble.torch.errors import RunError
from debubble.torch.ranks.error_text import describe_error
from debubble.torch.ranks.progress_table import (
    ProgressTable,
    RankState,
    Text,
    describe_failure,
    describe_stall,
)

GRACE = 2.0
"""Seconds between SIGTERM and SIGKILL."""

POLL = 0.1
"""Seconds between two looks at the table."""

LOADED_ONCE = ("debubble.torch.run.run", "debubble.torch.pytorch.engine")
"""Modules that the fork server imports, so that no rank has to import PyTorch, which takes
seconds."""

START = 120.0
"""Seconds that ranks may take to start, however short the timeout of their steps is."""


@dataclass(frozen=True)
class World:
    """One rank's view of a run."""

    rank: int
    size: int
    device: str
    """Device of the rank, as torch names it."""
    table: ProgressTable

    def begin(self, job: int) -> None:
        """Start one of the programs."""
        self.table.rows[self.rank, ProgressTable.JOB] = job
        self.table.report_progress(self.rank, 0, RankState.OUTSIDE)


Work: TypeAlias = Callable[[World], Any]
"""A function that every rank calls; for local processes one that can be pickled."""


def devices(device: str, ranks: int) -> tuple[list[str], str, bool]:
    """Return the device of every local rank, the backend, and if transfers go through the host.

    NCCL needs a GPU for every rank; where there are fewer, ranks share them and use gloo.

    Raises RunError when CUDA is asked for and not there.
    """
    count = torch.cuda.device_count() if device != "cpu" else 0
    if device == "cuda" and not count:
        raise RunError("--device cuda: PyTorch finds no CUDA device; use --device cpu")
    if not count:
        return ["cpu"] * ranks, "gloo", False
    names = [f"cuda:{rank % count}" for rank in range(ranks)]
    return (names, "nccl", False) if count >= ranks else (names, "gloo", True)


def run_local(work: Work, ranks: int, text: Text, *, timeout: float, device: str) -> list[Any]:
    """Call `work` in a process per rank, each with a process group, and return their results.

    Raises RunError when a rank dies, raises, or no rank has moved for `timeout` seconds. No process
    is left.
    """
    names, backend, _ = devices(device, ranks)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", *LOADED_ONCE])
    with _ended_kindly(), tempfile.TemporaryDirectory(prefix="debubble-") as folder:
        Path(folder, "work").write_bytes(pickle.dumps(work))
        table = ProgressTable(ranks, f"{folder}/progress")
        pipes: list[Connection] = []
        processes: list[Any] = []
        try:
            for rank in range(ranks):
                receiver, sender = context.Pipe(duplex=False)
                world = World(rank, ranks, names[rank], table)
                process = context.Process(
                    target=_child, args=(world, backend, folder, timeout, sender),
                    name=f"debubble-rank-{rank}", daemon=True,
                )  # fmt: skip
                process.start()
                sender.close()
                processes.append(process)
                pipes.append(receiver)
            return _collect(processes, pipes, table, text, timeout)
        finally:
            end(processes)
            for pipe in pipes:
                pipe.close()


def _ended_kindly() -> AbstractContextManager[None]:
    """Raise SystemExit on SIGTERM, so that neither a process nor a file is left."""

    def leave(number: int, _: Any) -> None:
        raise SystemExit(128 + number)

    return on_signal(signal.SIGTERM, leave)


def end(processes: Sequence[Any]) -> None:
    """Terminate processes, kill those that stay, and wait until all are gone."""
    for process in processes:
        if process.is_alive():
            process.terminate()
    deadline = time.monotonic() + GRACE
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()


def _child(world: World, backend: str, folder: str, timeout: float, pipe: Connection) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # Ctrl-C goes to the whole group of processes; the parent ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    try:
        torch.set_num_threads(1)
        if backend == "gloo":
            os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
        if world.device != "cpu":
            torch.cuda.set_device(world.device)
        work: Work = pickle.loads(Path(folder, "work").read_bytes())
        dist.init_process_group(
            backend,
            store=dist.FileStore(f"{folder}/store", world.size),
            rank=world.rank,
            world_size=world.size,
            timeout=timedelta(seconds=timeout + 600),
        )
        pipe.send((True, work(world)))
        world.table.report_progress(world.rank, 0, RankState.DONE)
        dist.barrier()
        dist.destroy_process_group()
    except BaseException as error:
        world.table.rows[world.rank, ProgressTable.FAILED] = time.monotonic_ns()
        if os.environ.get("DEBUBBLE_DEBUG"):
            traceback.print_exc()
        # An input that does not fit is no failure of this rank: the error itself is passed on.
        refused = isinstance(error, DebubbleError) and not isinstance(error, RunError)
        pipe.send((False, error if refused else describe_error(error)))
        pipe.close()
        os._exit(1)


def _leave_with_parent() -> None:
    """End this process when its parent is gone, however that ended."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "ranks are started by a parent"
    parent.join()
    os._exit(1)


def _collect(
    processes: Sequence[Any],
    pipes: Sequence[Connection],
    table: ProgressTable,
    text: Text,
    timeout: float,
) -> list[Any]:
    """Return the results once every rank is done; raise when that will not happen."""
    results: dict[int, Any] = {}
    errors: dict[int, Any] = {}
    seen, moved = table.rows.copy(), time.monotonic()
    waiting = dict(enumerate(processes))
    while waiting:
        wait([*(pipes[rank] for rank in waiting), *(p.sentinel for p in waiting.values())], POLL)
        for rank, process in list(waiting.items()):
            # Asked first: what a process sent before it ended is in the pipe by then.
            code = process.exitcode
            for fine, value in _received(pipes[rank]):
                (results if fine else errors)[rank] = value
            if code is not None:
                del waiting[rank]
                if code or rank not in results:
                    errors.setdefault(rank, _death(code))
        for error in errors.values():
            if isinstance(error, DebubbleError):
                raise error
        if errors:
            raise RunError(_failure(processes, errors, table, text))
        limit = timeout if seen[:, ProgressTable.MOVES].all() else max(timeout, START)
        if not np.array_equal(seen, table.rows):
            seen, moved = table.rows.copy(), time.monotonic()
        elif time.monotonic() - moved > limit:
            raise RunError(describe_stall(table, text, limit))
    return [results[rank] for rank in range(len(processes))]


def _received(pipe: Connection) -> Iterator[tuple[bool, Any]]:
    try:
        while pipe.poll():
            yield pipe.recv()
    except EOFError:
        return


def _death(code: int) -> str:
    if code < 0:
        return f"died of {signal.Signals(-code).name}"
    return f"left with exit code {code}"


def _failure(
    processes: Sequence[Any], errors: dict[int, str], table: ProgressTable, text: Text
) -> str:
    # Ranks that lose their partner fail at once, maybe before its end is known.
    time.sleep(POLL)
    for rank, process in enumerate(processes):
        if process.exitcode is not None and process.exitcode < 0:
            errors.setdefault(rank, _death(process.exitcode))
    # A rank that died by a signal noted no time: it comes first.
    first = min(errors, key=lambda rank: int(table.rows[rank, ProgressTable.FAILED]))
    return describe_failure(first, errors[first], table, text)
