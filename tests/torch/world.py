"""Processes that are forked and joined in a gloo group, for tests."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import debubble.torch.pytorch.engine  # noqa: F401 - loaded once, and not in every process again

LIMIT = 300.0
"""Seconds after which processes are ended."""


def in_ranks(ranks: int, work: Callable[[int], Any], *, fails: bool = False) -> list[Any]:
    """Call `work` with its rank in every process; what they return.

    With `fails` an error is returned as text, and a process that is gone as its exit code.
    """
    context = multiprocessing.get_context("fork")
    results: list[Any] = [None] * ranks
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        sys.stdout.flush()
        with warnings.catch_warnings():
            # Python warns of threads that are not copied; the child uses none of them.
            warnings.simplefilter("ignore", DeprecationWarning)
            for rank in range(ranks):
                receiver, sender = context.Pipe(duplex=False)
                process = context.Process(
                    target=_child, args=(rank, ranks, work, f"{folder}/store", sender), daemon=True
                )
                process.start()
                sender.close()
                pipes.append(receiver)
                processes.append(process)
        end = time.monotonic() + LIMIT
        errors = []
        try:
            for rank, (pipe, process) in enumerate(zip(pipes, processes, strict=True)):
                try:
                    if not pipe.poll(max(0.0, end - time.monotonic())):
                        fine, value = False, "nothing came in time"
                    else:
                        fine, value = pickle.loads(pipe.recv_bytes())
                except EOFError:
                    process.join(5)
                    fine, value = False, process.exitcode
                results[rank] = value
                if not fine:
                    errors.append(f"rank {rank}: {value}")
                    end = min(end, time.monotonic() + 20)
        finally:
            for process in processes:
                process.join(5 if fails or not errors else 0.1)
                if process.is_alive():
                    process.kill()
                    process.join()
            for pipe in pipes:
                pipe.close()
    assert fails or not errors, "\n".join(errors)
    return results


def _child(rank: int, ranks: int, work: Callable[[int], Any], store: str, pipe: Any) -> None:
    from datetime import timedelta

    import torch
    from torch import distributed as dist

    torch.set_num_threads(1)
    # What came with the fork is no garbage here: looking for some would copy all of it.
    gc.freeze()
    warnings.simplefilter("default")
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    try:
        dist.init_process_group(
            "gloo", store=dist.FileStore(store, ranks), rank=rank, world_size=ranks,
            timeout=timedelta(seconds=LIMIT),
        )  # fmt: skip
        result = work(rank)
        dist.barrier()
        pipe.send_bytes(pickle.dumps((True, result)))
    except BaseException as error:
        notes = getattr(error, "__notes__", [])
        text = f"{type(error).__name__}: {error}" + "".join(f"\n{note}" for note in notes)
        if os.environ.get("DEBUBBLE_DEBUG"):
            traceback.print_exc()
        pipe.send_bytes(pickle.dumps((False, text)))
        pipe.close()
        os._exit(1)
    pipe.close()
    os._exit(0)
