"""Worlds of forked processes that talk over gloo."""

from __future__ import annotations

import datetime
import multiprocessing
import tempfile
import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed as dist

SECONDS = 60


def in_world(ranks: int, work: Callable[..., Any], *args: Any) -> list[Any]:
    """What ``work(rank, *args)`` returns on every rank of a world.

    An exception in one of them ends all and is raised here, with its text.
    """
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        ends = [context.Pipe(duplex=False) for _ in range(ranks)]
        processes = [
            context.Process(
                target=_main, args=(rank, ranks, f"{folder}/store", ends[rank][1], work, args)
            )
            for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        results: list[Any] = []
        failure = ""
        for rank, (receiver, sender) in enumerate(ends):
            sender.close()
            try:
                good, result = receiver.recv()
            except EOFError:
                good, result = False, "it died"
            results.append(result)
            if not good and not failure:
                failure = f"rank {rank}: {result}"
                for process in processes:
                    process.kill()
        for process in processes:
            process.join()
            process.close()
    assert not failure, failure
    return results


def _main(
    rank: int, ranks: int, store: str, sender: Any, work: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=ranks,
        timeout=datetime.timedelta(seconds=SECONDS),
    )  # fmt: skip
    try:
        sender.send((True, work(rank, *args)))
    except BaseException:
        sender.send((False, traceback.format_exc()))
        raise
    finally:
        dist.destroy_process_group()
