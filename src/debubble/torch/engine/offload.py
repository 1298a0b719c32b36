"""Offloaded activations: copies on the host, or on another rank that keeps them for a while."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from debubble.core.actions import COPY_KINDS
from debubble.core.kinds import KINDS, WAIT_KINDS
from debubble.torch.autograd.saved_tensors import Slot
from debubble.torch.engine.plan import ExecutionPlan, ProgramStep
from debubble.torch.errors import RunError
from debubble.torch.ranks.process_group import Ranks, Tag


class Activations:
    """Tensors that autograd saves in one forward, which can leave the device and come back."""

    def __init__(self, stay: Sequence[Tensor]) -> None:
        self._stay = {tensor.untyped_storage().data_ptr() for tensor in stay}
        self._slots: list[_Slot] = []

    def saved(self) -> Any:
        """Return a context in which tensors that autograd saves are collected here."""
        return torch.autograd.graph.saved_tensors_hooks(self._pack, lambda slot: slot.tensor)

    def _pack(self, tensor: Tensor) -> _Slot:
        slot = _Slot(tensor)
        if tensor.untyped_storage().data_ptr() not in self._stay:
            self._slots.append(slot)
        return slot

    def leave(self) -> Tensor:
        """Return all of them as one row of bytes; nothing else holds them afterwards."""
        there = [slot.tensor for slot in self._slots if slot.tensor is not None]
        rows = [tensor.contiguous().view(-1).view(torch.uint8) for tensor in there]
        for slot in self._slots:
            slot.tensor = None
        return torch.cat(rows) if rows else torch.empty(0, dtype=torch.uint8)

    @property
    def size(self) -> int:
        """Number of bytes that leave."""
        return sum(slot.shape.numel() * slot.dtype.itemsize for slot in self._slots)

    def come_back(self, row: Tensor) -> None:
        """Restore the tensors from the bytes that :meth:`leave` returned."""
        begin = 0
        for slot in self._slots:
            end = begin + slot.shape.numel() * slot.dtype.itemsize
            # A slice of the row may be unaligned for its type: a copy is aligned.
            slot.tensor = row[begin:end].clone().view(slot.dtype).view(slot.shape)
            begin = end


class _Slot(Slot):
    def __init__(self, tensor: Tensor) -> None:
        super().__init__(tensor)
        self.shape, self.dtype = tensor.shape, tensor.dtype


UnitKey = tuple[int, int]
"""Stage and microbatch (or slice)."""


class Copies:
    """Activations that left this rank, and those that this rank keeps for others.

    A rank that keeps some has no actions for that: a thread follows the program of the sender.
    """

    def __init__(self, ranks: Ranks, plan: ExecutionPlan) -> None:
        moves = [[step for step in program if step.kind in COPY_KINDS] for program in plan.programs]
        pairs = [(rank, steps[0].peer) for rank, steps in enumerate(moves) if steps]
        pairs = [pair for pair in pairs if pair[1] >= 0]
        self._ranks = ranks
        self._keeper = next((pair[1] for pair in pairs if pair[0] == ranks.rank), None)
        self._kept = [
            (owner, moves[owner], ranks) for owner, keeper in pairs if keeper == ranks.rank
        ]  # fmt: skip
        on_gpu = ranks.device.type == "cuda"
        self._streams = [torch.cuda.Stream(ranks.device) for _ in range(2)] if on_gpu else []
        """Streams of a GPU, for copies to the host and back."""
        mine = (step for step in plan.programs[ranks.rank] if step.kind in WAIT_KINDS)
        self._awaited = {(step.stage, step.unit) for step in mine}
        self._leaving: dict[UnitKey, tuple[Any, Tensor]] = {}
        """Rows that WAIT_OFFLOAD waits for."""
        self._away: dict[UnitKey, tuple[Any, Tensor]] = {}
        """Rows on the host, and the events of their copies; empty where another rank keeps them."""
        self._coming: dict[UnitKey, tuple[Any, Tensor]] = {}
        self._sending: list[tuple[Any, Tensor]] = []
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start the threads that keep activations of other ranks."""
        self._threads = [
            threading.Thread(target=_keep, args=kept, daemon=True) for kept in self._kept
        ]
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        """Wait until everything that left this rank, or was kept here, is back."""
        for work, _ in self._sending:
            work.wait(self._ranks.timeout)
        self._sending.clear()
        for thread in self._threads:
            thread.join()

    def leave(self, key: UnitKey, row: Tensor) -> None:
        """Run OFFLOAD: begin to move a row of bytes away."""
        if self._keeper is None:
            self._away[key] = self._copied(row, to_host=True)
            if key in self._awaited:
                self._leaving[key] = self._away[key][0], row
            elif self._streams:
                row.record_stream(self._streams[0])
            return
        row = row.to("cpu")
        for tensor in (torch.tensor([row.numel()]), row):
            work = self._ranks.channel.send(tensor, self._keeper, Tag.COPIES)
            self._sending.append((work, tensor))
        self._away[key] = (None, torch.empty(0))

    def left(self, key: UnitKey) -> None:
        """Run WAIT_OFFLOAD: computations from now on begin when the row is away.

        On a GPU only the computing stream waits. Then nothing holds the row, and the next
        computation gets its memory. Had it been recorded as used by another stream, PyTorch's
        allocator would keep its memory until the copy is over, and take more of the device.
        """
        event, _ = self._leaving.pop(key, (None, None))
        if event is not None:
            event.wait()

    def fetch(self, key: UnitKey, size: int) -> None:
        """Run RELOAD: begin to bring a row back."""
        if key not in self._away:
            raise RunError(f"{key[0]}RELOAD{key[1]} comes before its OFFLOAD")
        left, row = self._away.pop(key)
        if self._keeper is None:
            self._coming[key] = self._copied(row, to_host=False, after=left)
            return
        row = torch.empty(size, dtype=torch.uint8)
        self._coming[key] = (self._ranks.channel.begin(row, self._keeper, Tag.RETURNS), row)

    def back(self, key: UnitKey) -> Tensor:
        """Wait for the bytes, and return them."""
        if key not in self._coming:
            raise RunError(f"{key[0]}RELOAD{key[1]} is missing: its backward comes")
        work, row = self._coming.pop(key)
        if isinstance(work, torch.cuda.Event):
            work.wait()
            row.record_stream(torch.cuda.current_stream(self._ranks.device))
        elif work is not None:
            work.wait(self._ranks.timeout)
        return row

    def _copied(self, row: Tensor, *, to_host: bool, after: Any = None) -> tuple[Any, Tensor]:
        """Copy on a side stream; return the event of its end, or None, and the copy."""
        if not self._streams:
            return None, row
        stream = self._streams[0 if to_host else 1]
        stream.wait_stream(torch.cuda.current_stream(self._ranks.device))
        if after is not None:
            stream.wait_event(after)
        with torch.cuda.stream(stream):
            device = "cpu" if to_host else self._ranks.device
            there = torch.empty(row.shape, dtype=row.dtype, device=device, pin_memory=to_host)
            there.copy_(row, non_blocking=True)
        return stream.record_event(), there


def _keep(owner: int, steps: list[ProgramStep], ranks: Ranks) -> None:
    kept: dict[UnitKey, Tensor] = {}
    channel = ranks.channel
    for step in steps:
        key = (step.stage, step.unit)
        if KINDS[step.kind].undoes is None:
            size = int(channel.receive(torch.empty(1, dtype=torch.int64), owner, Tag.COPIES))
            row = torch.empty(size, dtype=torch.uint8)
            kept[key] = channel.receive(row, owner, Tag.COPIES)
        else:
            channel.send(kept.pop(key), owner, Tag.RETURNS).wait(ranks.timeout)
