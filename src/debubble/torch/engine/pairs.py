"""Overlapped groups: two halves at the same time, on two threads and, on a GPU, two streams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from debubble.core.kinds import FORWARD_KINDS
from debubble.torch.engine.stage import StageOutput
from debubble.torch.engine.tasks import Task


class Pairs:
    """Runs groups of tasks; there is nothing of it where there are none."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._helper: ThreadPoolExecutor | None = None
        self._aside: set[tuple[int, int]] = set()
        """Stages and units whose forward ran on the side stream, where autograd keeps them."""

    def start(self) -> None:
        """Begin a step."""
        self._aside.clear()

    def run(self, calls: Sequence[tuple[Task, Any, Callable[[], None]]]) -> None:
        """Run the first call here, and the others one after the other on a thread.

        Parameters
        ----------
        calls
            Each with its task and with what it computes with.
        """
        current = None if self._side is None else torch.cuda.current_stream(self._device)
        if self._side is not None and current is not None:
            self._choose_streams([task for task, _, _ in calls])
            self._side.wait_stream(current)
        if self._helper is None:
            self._helper = ThreadPoolExecutor(1, "debubble-pair")

        def one(task: Task, operand: Any, call: Callable[[], None]) -> None:
            with self._stream_of(task, operand, current):
                call()

        def rest() -> None:
            for some in calls[1:]:
                one(*some)

        future = self._helper.submit(rest)
        try:
            one(*calls[0])
        finally:
            future.result()
        if self._side is not None and current is not None:
            current.wait_stream(self._side)

    def _choose_streams(self, tasks: Sequence[Task]) -> None:
        """Send the first forward to the side stream, unless a backward of the group runs there.

        A backward runs on the stream of its forward.
        """
        keys = [(task.step.stage, task.step.unit) for task in tasks]
        forwards = [task.step.kind in FORWARD_KINDS for task in tasks]
        taken = {key for key, forward in zip(keys, forwards, strict=True) if not forward}
        if not taken & self._aside and any(forwards):
            self._aside.add(keys[forwards.index(True)])

    def _stream_of(
        self, task: Task, operand: Any, current: torch.cuda.Stream | None
    ) -> AbstractContextManager[Any]:
        if self._side is None or current is None:
            return nullcontext()
        stream = self._side if (task.step.stage, task.step.unit) in self._aside else current
        # The other half may ask for memory while this one still reads what it then lets go of.
        for tensor in operand.tensors if isinstance(operand, StageOutput) else operand or ():
            if isinstance(tensor, Tensor) and tensor.is_cuda:
                tensor.record_stream(stream)
        context: AbstractContextManager[Any] = torch.cuda.stream(stream)
        return context
