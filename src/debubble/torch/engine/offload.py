"""Activations that leave a rank: to its host, or to another rank that keeps them for a while."""

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
    """What autograd saves in one forward, so that it can leave the device and come back."""

    def __init__(self, stay: Sequence[Tensor]) -> None:
        self._stay = {tensor.untyped_storage().data_ptr() for tensor in stay}
        self._slots: list[_Slot] = []

    def saved(self) -> Any:
        """A context in which what autograd saves goes through here."""
        return torch.autograd.graph.saved_tensors_hooks(self._pack, lambda slot: slot.tensor)

    def _pack(self, tensor: Tensor) -> _Slot:
        slot = _Slot(tensor)
        if tensor.untyped_storage().data_ptr() not in self._stay:
            self._slots.append(slot)
        return slot

    def leave(self) -> Tensor:
        """All of it as one row of bytes; nothing else holds it afterwards."""
        there = [slot.tensor for slot in self._slots if slot.tensor is not None]
        rows = [tensor.contiguous().view(-1).view(torch.uint8) for tensor in there]
        for slot in self._slots:
            slot.tensor = None
        return torch.cat(rows) if rows else torch.empty(0, dtype=torch.uint8)

    @property
    def size(self) -> int:
        """How many bytes leave."""
        return sum(slot.shape.numel() * slot.dtype.itemsize for slot in self._slots)

    def come_back(self, row: Tensor) -> None:
        """Take what :meth:`leave` gave."""
        begin = 0
        for slot in self._slots:
            end = begin + slot.shape.numel() * slot.dtype.itemsize
            # A slice may begin where its numbers must not: a copy is aligned.
            slot.tensor = row[begin:end].clone().view(slot.dtype).view(slot.shape)
            begin = end


class _Slot(Slot):
    def __init__(self, tensor: Tensor) -> None:
        super().__init__(tensor)
        self.shape, self.dtype = tensor.shape, tensor.dtype


Key = tuple[int, int]
"""Stage and microbatch (or slice)."""


class Copies:
    """What left this rank, and what this rank keeps for others.

    The rank that keeps has no actions for that: a thread follows the program of the rank that
    sends.
    """

    def __init__(self, ranks: Ranks, plan: ExecutionPlan) -> None:
        moves = [[step for step in program if step.kind in COPY_KINDS] for program in plan.programs]
        pairs = [(rank, steps[0].peer) for rank, steps in enumerate(moves) if steps]
        pairs = [pair for pair in pairs if pair[1] >= 0]
        self._team = ranks
        self._keeper = next((pair[1] for pair in pairs if pair[0] == ranks.rank), None)
        self._kept = [
            (owner, moves[owner], ranks) for owner, keeper in pairs if keeper == ranks.rank
        ]  # fmt: skip
        on_gpu = ranks.device.type == "cuda"
        self._streams = [torch.cuda.Stream(ranks.device) for _ in range(2)] if on_gpu else []
        """Of a GPU, for what leaves and for what comes back."""
        mine = (step for step in plan.programs[ranks.rank] if step.kind in WAIT_KINDS)
        self._awaited = {(step.stage, step.unit) for step in mine}
        self._leaving: dict[Key, tuple[Any, Tensor]] = {}
        """What is waited for until it left."""
        self._away: dict[Key, tuple[Any, Tensor]] = {}
        """What left, and what tells that it is there; nothing where another rank keeps it."""
        self._coming: dict[Key, tuple[Any, Tensor]] = {}
        self._sending: list[tuple[Any, Tensor]] = []
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Begin to keep for others."""
        self._threads = [
            threading.Thread(target=_keep, args=kept, daemon=True) for kept in self._kept
        ]
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        """Wait until everything that left this rank, or was kept here, is back."""
        for work, _ in self._sending:
            work.wait(self._team.timeout)
        self._sending.clear()
        for thread in self._threads:
            thread.join()

    def leave(self, key: Key, row: Tensor) -> None:
        """OFFLOAD: a row of bytes leaves."""
        if self._keeper is None:
            self._away[key] = self._copied(row, to_host=True)
            if key in self._awaited:
                self._leaving[key] = self._away[key][0], row
            elif self._streams:
                row.record_stream(self._streams[0])
            return
        row = row.to("cpu")
        for tensor in (torch.tensor([row.numel()]), row):
            work = self._team.channel.send(tensor, self._keeper, Tag.COPIES)
            self._sending.append((work, tensor))
        self._away[key] = (None, torch.empty(0))

    def left(self, key: Key) -> None:
        """WAIT_OFFLOAD: what is computed from now on begins when the row is away.

        On a GPU only the stream that computes waits. Then nothing holds on to the row, and what is
        computed next gets its memory. Had it been recorded as used by another stream, PyTorch's
        allocator would keep its memory until the copy is over, and take more of the device.
        """
        event, row = self._leaving.pop(key, (None, None))
        if event is not None:
            event.wait()
        del row

    def fetch(self, key: Key, size: int) -> None:
        """RELOAD: it begins to come back."""
        if key not in self._away:
            raise RunError(f"{key[0]}RELOAD{key[1]} comes before its OFFLOAD")
        left, row = self._away.pop(key)
        if self._keeper is None:
            self._coming[key] = self._copied(row, to_host=False, after=left)
            return
        row = torch.empty(size, dtype=torch.uint8)
        self._coming[key] = (self._team.channel.begin(row, self._keeper, Tag.RETURNS), row)

    def back(self, key: Key) -> Tensor:
        """The bytes, when they are back."""
        if key not in self._coming:
            raise RunError(f"{key[0]}RELOAD{key[1]} is missing: its backward comes")
        work, row = self._coming.pop(key)
        if isinstance(work, torch.cuda.Event):
            work.wait()
            row.record_stream(torch.cuda.current_stream(self._team.device))
        elif work is not None:
            work.wait(self._team.timeout)
        return row

    def _copied(self, row: Tensor, *, to_host: bool, after: Any = None) -> tuple[Any, Tensor]:
        """Copy beside what is computed, from now on; the event at the end, None when it is over."""
        if not self._streams:
            return None, row
        stream = self._streams[0 if to_host else 1]
        stream.wait_stream(torch.cuda.current_stream(self._team.device))
        if after is not None:
            stream.wait_event(after)
        with torch.cuda.stream(stream):
            device = "cpu" if to_host else self._team.device
            there = torch.empty(row.shape, dtype=row.dtype, device=device, pin_memory=to_host)
            there.copy_(row, non_blocking=True)
        return stream.record_event(), there


def _keep(owner: int, steps: list[ProgramStep], ranks: Ranks) -> None:
    kept: dict[Key, Tensor] = {}
    channel = ranks.channel
    for step in steps:
        key = (step.stage, step.unit)
        if KINDS[step.kind].undoes is None:
            size = int(channel.receive(torch.empty(1, dtype=torch.int64), owner, Tag.COPIES))
            row = torch.empty(size, dtype=torch.uint8)
            kept[key] = channel.receive(row, owner, Tag.COPIES)
        else:
            channel.send(kept.pop(key), owner, Tag.RETURNS).wait(ranks.timeout)
