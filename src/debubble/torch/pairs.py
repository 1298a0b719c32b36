"""Overlapped groups: two halves at the same time, on two threads and, on a GPU, two streams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from debubble.core.kinds import FORWARD_KINDS
from debubble.torch.tasks import Task


class Pairs:
    """Runs groups of tasks; there is nothing of it where there are none."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._helper: ThreadPoolExecutor | None = None
        self._aside: set[tuple[int, int]] = set()
        """Forwards that ran on the side stream, where their backwards will run, too."""

    def start(self) -> None:
        """Begin a step."""
        self._aside.clear()

    def stream_of(self, stage: int, unit: int) -> AbstractContextManager[Any]:
        """A context in which a forward runs on its stream."""
        if (stage, unit) in self._aside:
            assert self._side is not None, "only a GPU has streams"
            stream: AbstractContextManager[Any] = torch.cuda.stream(self._side)
            return stream
        return nullcontext()

    def run(self, calls: Sequence[tuple[Task, Callable[[], None]]]) -> None:
        """Run the first call here, and the others one after the other on a thread."""
        current = None
        if self._side is not None:
            current = torch.cuda.current_stream(self._device)
            # A backward runs on the stream of its forward: the pair's forward takes the other one.
            others = {
                (t.step.stage, t.step.unit) for t, _ in calls if t.step.kind not in FORWARD_KINDS
            }
            if not others & self._aside:
                self._aside |= {
                    (t.step.stage, t.step.unit) for t, _ in calls if t.step.kind in FORWARD_KINDS
                }
            self._side.wait_stream(current)
        if self._helper is None:
            self._helper = ThreadPoolExecutor(1, "debubble-pair")

        def rest() -> None:
            with torch.cuda.stream(current) if current is not None else nullcontext():
                for _, call in calls[1:]:
                    call()

        future = self._helper.submit(rest)
        try:
            calls[0][1]()
        finally:
            future.result()
        if self._side is not None and current is not None:
            current.wait_stream(self._side)
