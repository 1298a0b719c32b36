"""A world of local processes: start them, watch them, and end all of them when one is in trouble.

Every rank notes on a board in shared memory where it is. The parent ends the world when a rank dies
or raises, or when for a time no rank gets any further, and says who waited for what.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import distributed

from debubble.core.errors import DebubbleError
from debubble.torch.errors import RunError
from debubble.torch.ranks.progress_table import Board, Text, describe, stall
from debubble.torch.ranks.watch import State, reason

GRACE = 2.0
"""Seconds between SIGTERM and SIGKILL."""

POLL = 0.1
"""Seconds between two looks at the board."""


@dataclass(frozen=True)
class World:
    """What a rank knows about its world."""

    rank: int
    """Which one it is."""
    size: int
    """How many there are."""
    device: str
    """Where it computes, as torch names it."""
    board: Board
    """Where it says what it does."""

    def begin(self, job: int) -> None:
        """Start with one of the programs."""
        self.board.rows[self.rank, Board.JOB] = job
        self.board.note(self.rank, 0, State.OUTSIDE)


Work: TypeAlias = Callable[[World], Any]


def devices(device: str, ranks: int) -> tuple[list[str], str, bool]:
    """Device of every local rank, backend, and whether transfers go through the host.

    NCCL needs a GPU for every rank; where there are fewer, ranks share them and talk by gloo.

    Raises RunError when CUDA is asked for and not there.
    """
    # NVML counts devices without a CUDA context, which could not be used after a fork.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    count = torch.cuda.device_count() if device != "cpu" else 0
    if device == "cuda" and not count:
        raise RunError("--device cuda: PyTorch finds no CUDA device; use --device cpu")
    if not count:
        return ["cpu"] * ranks, "gloo", False
    names = [f"cuda:{rank % count}" for rank in range(ranks)]
    return (names, "nccl", False) if count >= ranks else (names, "gloo", True)


def run_local(work: Work, ranks: int, text: Text, *, timeout: float, device: str) -> list[Any]:
    """Run `work` on forked processes of this machine and return what each rank returned.

    It gets the :class:`World` of its rank, with a process group that is ready; `text` says what is
    at a position of a program. The device is ``"auto"``, ``"cpu"`` or ``"cuda"``.

    Raises RunError when a rank dies, raises, or no rank has moved for `timeout` seconds. No process
    is left then.
    """
    names, backend, _ = devices(device, ranks)
    board = Board(ranks)
    context = multiprocessing.get_context("fork")
    with _ended_kindly(), tempfile.TemporaryDirectory(prefix="debubble-") as folder:
        pipes, processes = [], []
        # What is buffered here would be written once more by every child.
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            with _forking():
                for rank in range(ranks):
                    receiver, sender = context.Pipe(duplex=False)
                    world = World(rank, ranks, names[rank], board)
                    process = context.Process(
                        target=_child,
                        args=(
                            work,
                            world,
                            backend,
                            f"{folder}/store",
                            timeout,
                            sender,
                            os.getpid(),
                        ),
                        name=f"debubble-rank-{rank}",
                        daemon=True,
                    )
                    process.start()
                    sender.close()
                    processes.append(process)
                    pipes.append(receiver)
            return _watch(processes, pipes, board, text, timeout)
        finally:
            end(processes)
            for pipe in pipes:
                pipe.close()


@contextmanager
def _ended_kindly() -> Iterator[None]:
    """A context in which SIGTERM leaves neither a process nor a file."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, _: Any) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


@contextmanager
def _forking() -> Iterator[None]:
    """A context in which signals wait: what Python calls around a fork would swallow them."""
    pressed: list[int] = []
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for one in (signal.SIGINT, signal.SIGTERM):
            before[one] = signal.signal(one, lambda number, _: pressed.append(number))
    try:
        with warnings.catch_warnings():
            # Python warns of threads that are not copied; the child uses none of them.
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
        if pressed:
            signal.raise_signal(pressed[0])


def end(processes: Sequence[Any]) -> None:
    """End processes, first kindly, and wait until they are gone."""
    for process in processes:
        if process.is_alive():
            process.terminate()
    deadline = time.monotonic() + GRACE
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()


def _child(
    work: Work,
    world: World,
    backend: str,
    store: str,
    timeout: float,
    pipe: Connection,
    parent: int,
) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # Ctrl-C goes to the whole group of processes; the parent ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()
    try:
        torch.set_num_threads(1)
        if backend == "gloo":
            os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
        if world.device != "cpu":
            torch.cuda.set_device(world.device)
        from datetime import timedelta

        distributed.init_process_group(
            backend,
            store=distributed.FileStore(store, world.size),
            rank=world.rank,
            world_size=world.size,
            timeout=timedelta(seconds=timeout + 600),
        )
        pipe.send((True, work(world)))
        world.board.note(world.rank, 0, State.DONE)
        distributed.barrier()
        distributed.destroy_process_group()
    except BaseException as error:
        world.board.rows[world.rank, Board.FAILED] = time.monotonic_ns()
        if os.environ.get("DEBUBBLE_DEBUG"):
            traceback.print_exc()
        # What does not fit is no failure of this rank.
        refused = isinstance(error, DebubbleError) and not isinstance(error, RunError)
        pipe.send((False, error if refused else reason(error)))
        pipe.close()
        os._exit(1)


def _leave_with(parent: int) -> None:
    """End this process when its parent is gone, however that ended."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _watch(
    processes: Sequence[Any], pipes: Sequence[Connection], board: Board, text: Text, timeout: float
) -> list[Any]:
    """Collect results until every rank is done; raise when that will not happen."""
    results: dict[int, Any] = {}
    errors: dict[int, Any] = {}
    seen = board.rows.copy()
    moved = time.monotonic()
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
            raise RunError(_failure(processes, errors, board, text))
        if not np.array_equal(seen, board.rows):
            seen, moved = board.rows.copy(), time.monotonic()
        elif time.monotonic() - moved > timeout:
            raise RunError(stall(board, text, timeout))
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


def _failure(processes: Sequence[Any], errors: dict[int, str], board: Board, text: Text) -> str:
    # Ranks that lose their partner fail at once, maybe before its end is known.
    time.sleep(POLL)
    for rank, process in enumerate(processes):
        if process.exitcode is not None and process.exitcode < 0:
            errors.setdefault(rank, _death(process.exitcode))

    def when(rank: int) -> tuple[int, int]:
        failed = int(board.rows[rank, Board.FAILED])
        return (1, failed) if failed else (0, 0)

    first = min(errors, key=when)
    return describe(first, errors[first], board, text)
