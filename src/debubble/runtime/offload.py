"""Activations that leave a rank: to its host, or to another rank that keeps them for a while."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from debubble.core.actions import COPY_KINDS, Kind
from debubble.runtime.plan import Plan, Step
from debubble.runtime.world import RunError, World

Key = tuple[int, int]
"""Stage and microbatch (or slice)."""


class Copies:
    """What left this rank, and what this rank keeps for others.

    The rank that keeps has no actions for that: a thread follows the program of the rank that
    sends, over a process group of the two.
    """

    def __init__(self, world: World, plan: Plan) -> None:
        moves = [[step for step in program if step.kind in COPY_KINDS] for program in plan.programs]
        pairs = [(rank, steps[0].peer) for rank, steps in enumerate(moves) if steps]
        groups = {
            pair: dist.new_group(sorted(pair), backend="gloo") for pair in pairs if pair[1] >= 0
        }
        self._keeper = next((pair for pair in groups if pair[0] == world.rank), None)
        self._group = groups.get(self._keeper) if self._keeper else None
        self._kept = [
            (owner, groups[owner, keeper], moves[owner])
            for owner, keeper in groups if keeper == world.rank
        ]  # fmt: skip
        self._away: dict[Key, Tensor] = {}
        """What left; without content where another rank keeps that."""
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
            work.wait()
        self._sending.clear()
        for thread in self._threads:
            thread.join()

    def leave(self, key: Key, row: Tensor) -> None:
        """OFFLOAD: a row of bytes leaves."""
        self._away[key] = row = row.to("cpu")
        if self._keeper is None:
            return
        for tensor in (torch.tensor([row.numel()]), row):
            work = dist.isend(tensor, self._keeper[1], group=self._group)
            self._sending.append((work, tensor))
        self._away[key] = torch.empty(0)

    def fetch(self, key: Key, size: int) -> None:
        """RELOAD: it begins to come back."""
        if key not in self._away:
            raise RunError(f"{key[0]}RELOAD{key[1]} comes before its OFFLOAD")
        row, work = self._away.pop(key), None
        if self._keeper is not None:
            row = torch.empty(size, dtype=torch.uint8)
            work = dist.irecv(row, self._keeper[1], group=self._group)
        self._coming[key] = (work, row)

    def back(self, key: Key) -> Tensor:
        """The bytes, when they are back."""
        if key not in self._coming:
            raise RunError(f"{key[0]}RELOAD{key[1]} is missing: its backward comes")
        work, row = self._coming.pop(key)
        if work is not None:
            work.wait()
        return row


def _keep(owner: int, group: Any, steps: list[Step]) -> None:
    kept: dict[Key, Tensor] = {}
    for step in steps:
        key = (step.stage, step.unit)
        if step.kind == Kind.OFFLOAD:
            size = torch.empty(1, dtype=torch.int64)
            dist.recv(size, owner, group=group)
            kept[key] = torch.empty(int(size), dtype=torch.uint8)
            dist.recv(kept[key], owner, group=group)
        else:
            dist.send(kept.pop(key), owner, group=group)
