"""Start and end of every action of one rank's program, recorded in each step."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.autograd.profiler import record_function

KEPT = 16
"""Number of steps whose times are kept."""


class Recorder:
    """Times of the actions of one rank's program.

    On a GPU they come from events, for which the host does not wait.
    """

    def __init__(self, count: int, device: torch.device) -> None:
        self.start = [0] * count
        self.end = [0] * count
        """Start and end in the current step, in nanoseconds of this host's monotonic clock. A send
        starts and ends when it is posted; a receive starts when the rank waits for it, and ends
        when its tensors are there."""
        self.posted = [0] * count
        """Times at which receives were posted, likewise."""
        self._kept = np.zeros((KEPT, 3, count), dtype=np.int64)
        self.steps = 0
        self._events = _GpuEvents(count) if device.type == "cuda" else None
        self.begin: Callable[[int], None] = self._begin
        self.finish: Callable[[int], None] = self._finish
        if self._events is not None:
            self.begin, self.finish = self._events.begin, self._events.finish
        self._unnamed: tuple[Callable[[int], None], Callable[[int], None]] | None = None
        """Both without names, in a step with names."""

    def _begin(self, index: int) -> None:
        self.start[index] = time.perf_counter_ns()

    def _finish(self, index: int) -> None:
        self.end[index] = time.perf_counter_ns()

    def name_ranges(self, names: Mapping[int, str]) -> None:
        """Show the named actions of this step in profiles of PyTorch."""
        self._unnamed = begin, finish = self._unnamed or (self.begin, self.finish)
        opened: dict[int, record_function] = {}

        def begin_range(index: int) -> None:
            if index in names:
                opened[index] = record_function(names[index])
                opened[index].__enter__()
            begin(index)

        def finish_range(index: int) -> None:
            finish(index)
            if index in opened:
                opened.pop(index).__exit__(None, None, None)

        self.begin, self.finish = begin_range, finish_range

    def close(self) -> None:
        """End a step, and keep its times."""
        if self._unnamed is not None:
            (self.begin, self.finish), self._unnamed = self._unnamed, None
        place = self._kept[self.steps % KEPT]
        place[0], place[1], place[2] = self.start, self.end, self.posted
        self.steps += 1
        if self._events is not None:
            self._events.close(place)

    @property
    def times(self) -> NDArray[np.int64]:
        """Start, end and post of the actions of the latest steps, shape ``(steps, 3, actions)``."""
        if self._events is not None:
            self._events.settle()
        count = min(self.steps, KEPT)
        order = (np.arange(count) + self.steps - count) % KEPT
        return self._kept[order]

    def on_clock(self, offset: int) -> NDArray[np.int64]:
        """Return :attr:`times` on another clock; 0 for what was not timed."""
        times = self.times
        return np.where(times > 0, times + offset, 0)


class _GpuEvents:
    """Start and end of actions by events of a GPU, two sets of them in turn."""

    def __init__(self, count: int) -> None:
        self._sets = [
            [[torch.cuda.Event(enable_timing=True) for _ in range(count)] for _ in range(2)]
            for _ in range(2)
        ]
        self._used: list[set[int]] = [set(), set()]
        self._turn = 0
        self._origin = torch.cuda.Event(enable_timing=True)
        self._zero = 0
        self._open: list[tuple[int, Any]] = []

    def begin(self, index: int) -> None:
        if not self._zero:
            self._zero = time.perf_counter_ns()
            self._origin.record()
        self._sets[self._turn][0][index].record()
        self._used[self._turn].add(index)

    def finish(self, index: int) -> None:
        self._sets[self._turn][1][index].record()

    def close(self, place: NDArray[np.int64]) -> None:
        """Read the set that the next step uses; its step is long over."""
        self._open.append((self._turn, place))
        self._turn = 1 - self._turn
        while len(self._open) > 1:
            self._read(*self._open.pop(0))

    def settle(self) -> None:
        """Read all events that are not read yet."""
        while self._open:
            self._read(*self._open.pop(0))

    def _read(self, turn: int, place: NDArray[np.int64]) -> None:
        for index in self._used[turn]:
            for row in range(2):
                event = self._sets[turn][row][index]
                event.synchronize()
                passed = self._origin.elapsed_time(event)
                place[row, index] = self._zero + round(passed * 1e6)
        self._used[turn].clear()
