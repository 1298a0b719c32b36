"""Processes that are joined in a gloo group, for tests.

They start from a clean process that has loaded PyTorch: a fork of pytest's would copy the locks of
its threads. What they do is sent by value, so it may be a function within a test.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.forkserver import forked
from tests.patience import patience

LIMIT = 300.0
"""Seconds after which processes that report nothing are ended, on a quiet machine."""

PROGRESS = None
"""Sent in place of whether all went well, while a process is still at work."""

_reports: list[Any] = []
"""The pipe of this process, where it is one of the ranks."""


def report_progress() -> None:
    """Give this rank its whole limit again, for the next part of its work."""
    for pipe in _reports:
        pipe.send_bytes(pickle.dumps((PROGRESS, None)))


LOST = "Gloo connectFullMesh failed"
"""Words of the error when a connection is lost before any work: seen on loaded machines."""


class ByValue:
    """A function that is pickled with all that it uses, wherever it was written."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.__code__ = getattr(function, "__code__", None)
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __reduce__(self) -> Any:
        import cloudpickle

        return pickle.loads, (cloudpickle.dumps(self._function),)


def _in_folder(work: Callable[[int], Any], folder: str) -> Callable[[int], Any]:
    """The same work, in a folder."""

    def run(rank: int) -> Any:
        os.chdir(folder)
        return work(rank)

    return run


def in_ranks(
    ranks: int,
    work: Callable[[int], Any],
    *,
    fails: bool = False,
    load: Callable[[], Any] | None = None,
) -> list[Any]:
    """Call `work` with its rank in every process; what they return.

    Ranks whose work has many parts call :func:`report_progress` after each: the limit is for one.

    With `fails` an error is returned as text, and a process that is gone as its exit code; what
    ranks that hang write goes away. What `load` does is done once, in a process that ranks are
    copies of: what takes long to import.

    Gloo now and then loses a connection while it makes them (:data:`LOST`); ranks then start anew.
    """
    try:
        return _run_once(ranks, work, fails, load)
    except AssertionError as error:
        if LOST not in str(error):
            raise
    return _run_once(ranks, work, fails, load)


def _run_once(
    ranks: int, work: Callable[[int], Any], fails: bool, load: Callable[[], Any] | None
) -> list[Any]:
    results: list[Any] = [None] * ranks
    limit = patience(LIMIT)
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        there = _in_folder(work, folder) if fails else work
        ends = [forked.Pipe(duplex=False) for _ in range(ranks)]
        if load is not None:
            senders = [sender for _, sender in ends]
            given = ranks, ByValue(load), ByValue(there), folder, limit, senders
            processes = [forked.Process(target=_parent, args=given, daemon=True)] * ranks
            processes[0].start()
        for rank, (receiver, sender) in enumerate(ends):
            if load is None:
                process = forked.Process(
                    target=_child,
                    args=(rank, ranks, ByValue(there), folder, limit, sender),
                    daemon=True,
                )
                process.start()
                processes.append(process)
            sender.close()
            pipes.append(receiver)
        end = time.monotonic() + limit
        errors = []
        try:
            for rank, (pipe, process) in enumerate(zip(pipes, processes, strict=True)):
                try:
                    fine, value = PROGRESS, None
                    while fine is PROGRESS:
                        if not pipe.poll(max(0.0, end - time.monotonic())):
                            fine, value = False, "nothing came in time"
                        else:
                            fine, value = pickle.loads(pipe.recv_bytes())
                        if fine is PROGRESS and not errors:
                            end = time.monotonic() + patience(LIMIT)
                except EOFError:
                    process.join(patience(5))
                    fine, value = False, process.exitcode
                results[rank] = value
                if not fine:
                    errors.append(f"rank {rank}: {value}")
                    end = min(end, time.monotonic() + patience(20))
        finally:
            for process in processes:
                process.join(patience(5) if fails or not errors else 0.1)
                if process.is_alive():
                    if load is not None:
                        process.terminate()
                        process.join(patience(5))
                    process.kill()
                    process.join()
            for pipe in pipes:
                pipe.close()
            for log in sorted(Path(folder).glob("*.err")):
                os.write(2, log.read_bytes())
    assert fails or not errors, "\n".join(errors)
    return results


def _parent(
    ranks: int,
    load: Callable[[], Any],
    work: Callable[[int], Any],
    folder: str,
    limit: float,
    pipes: list[Any],
) -> None:
    load()
    children: list[int] = []
    for rank, pipe in enumerate(pipes):
        child = os.fork()
        if child == 0:
            _child(rank, ranks, work, folder, limit, pipe)
        children.append(child)

    def end(*_: Any) -> None:
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)

    signal.signal(signal.SIGTERM, end)
    for pipe in pipes:
        pipe.close()
    for child in children:
        os.waitpid(child, 0)


def _child(
    rank: int, ranks: int, work: Callable[[int], Any], folder: str, limit: float, pipe: Any
) -> None:
    if hasattr(os, "sched_setaffinity"):
        # Gloo's thread looks for work again and again while another holds the lock of a connection,
        # which takes long where that one was interrupted. On one processor it seldom does.
        processors = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {processors[rank % len(processors)]})
    # The server's stream is not that of the test, which may capture it.
    os.dup2(os.open(f"{folder}/{rank}.err", os.O_WRONLY | os.O_CREAT), 2)
    from datetime import timedelta

    import torch
    from torch import distributed as dist

    torch.set_num_threads(1)
    # What came with the fork is no garbage here: looking for some would copy all of it.
    gc.freeze()
    gc.collect()  # counts what is left: the more there is, the later all of it is looked at
    warnings.simplefilter("default")
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    _reports.append(pipe)
    try:
        dist.init_process_group(
            "gloo", store=dist.FileStore(f"{folder}/store", ranks), rank=rank, world_size=ranks,
            timeout=timedelta(seconds=limit),
        )  # fmt: skip
        result = work(rank)
        dist.barrier()
        pipe.send_bytes(pickle.dumps((True, result)))
    except BaseException as error:
        notes = getattr(error, "__notes__", [])
        text = f"{type(error).__name__}: {error}" + "".join(f"\n{note}" for note in notes)
        if isinstance(error, AssertionError):
            text += traceback.format_tb(error.__traceback__)[-1]
        if os.environ.get("DEBUBBLE_DEBUG"):
            traceback.print_exc()
        pipe.send_bytes(pickle.dumps((False, text)))
        _end(pipe, 1)
    _end(pipe, 0)


def _end(pipe: Any, code: int) -> None:
    """End this process and those that it began, such as managers, which would outlive it."""
    pipe.close()
    for process in multiprocessing.active_children():
        process.kill()
    os._exit(code)
