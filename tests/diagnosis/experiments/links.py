"""A link that is slow: its messages go through a process that keeps each of them for a while.

Both ends send and receive as they always do, so that their traces look like those of any run, and
neither of their hosts is held up.
"""

from __future__ import annotations

import queue
import threading
import time

import torch
from torch import distributed as dist

PLACES = 1024
"""Messages that a relay takes before their receiver does."""


def relay(ends: tuple[int, int], shape: tuple[int, ...], delay: float) -> None:
    """Pass messages between two ranks of the world on, `delay` seconds after they came.

    Returns at once; the threads that do it end with the process.
    """
    for source, target in (ends, ends[::-1]):
        passing: queue.Queue[tuple[float, torch.Tensor]] = queue.Queue(PLACES)
        for work in (_take, _give):
            peer = source if work is _take else target
            threading.Thread(target=work, args=(passing, peer, shape, delay), daemon=True).start()


def _take(
    passing: queue.Queue[tuple[float, torch.Tensor]], source: int, shape: tuple[int, ...],
    delay: float,
) -> None:  # fmt: skip
    while True:
        row = torch.empty(shape)
        try:
            dist.recv(row, source)
        except RuntimeError:  # the ranks have ended
            return
        passing.put((time.perf_counter() + delay, row))


def _give(
    passing: queue.Queue[tuple[float, torch.Tensor]], target: int, _: tuple[int, ...], __: float
) -> None:
    while True:
        due, row = passing.get()
        time.sleep(max(0.0, due - time.perf_counter()))
        try:
            dist.send(row, target)
        except RuntimeError:
            return
