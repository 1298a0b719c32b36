"""What is read while a stage runs: times and FLOPs."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry


class Stopwatch:
    """Times between marks in milliseconds; on CUDA those of the stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device if device.type == "cuda" else None
        self._marks: list[Any] = []

    def mark(self) -> None:
        """Note the time."""
        if self._device is None:
            self._marks.append(time.perf_counter_ns())
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        self._marks.append(event)

    def read(self) -> list[float]:
        """Times since the first mark, from mark to mark; forgets them."""
        marks, self._marks = self._marks, []
        pairs = pairwise(marks)
        if self._device is None:
            return [(end - start) / 1e6 for start, end in pairs]
        torch.cuda.synchronize(self._device)
        return [start.elapsed_time(end) for start, end in pairs]


class Flops(TorchDispatchMode):
    """Counts the FLOPs of everything that runs, with PyTorch's formulas.

    PyTorch's own counter hooks modules, too, and gradients of inputs alone do not pass its hooks.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operator and count it."""
        result = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.total += formula(*args, **(kwargs or {}), out_val=result)
        return result
