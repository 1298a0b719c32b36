"""The ranks of a pipeline, and what connects them."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from debubble.core.errors import ParameterError

PINGS = 20
"""Messages that tell how far apart the clocks of two hosts are."""


def send(tensor: Tensor, group: Any, peer: int) -> Any:
    """Begin to send to a rank of a group."""
    return dist.isend(tensor, group=group, group_dst=peer)


def receive(tensor: Tensor, group: Any, peer: int) -> Any:
    """Begin to receive from a rank of a group."""
    return dist.irecv(tensor, group=group, group_src=peer)


@dataclass(frozen=True, eq=False)
class Team:
    """The ranks of a pipeline, as one of them sees them.

    Parameters
    ----------
    rank, size
        Which rank of the schedule this is, of how many.
    group
        Tensors go through this process group; its ranks are the schedule's.
    control
        The same ranks on the host, for what goes beside tensors.
    device
        Where this rank computes.
    wire
        Where tensors are when they are sent: the device, or the host where the group cannot.
    timeout
        How long a rank waits for another.
    """

    rank: int
    size: int
    group: Any
    control: Any
    device: torch.device
    wire: torch.device
    timeout: timedelta

    @classmethod
    def of(cls, group: Any, device: Any, timeout: float) -> Team:
        """The ranks of a process group, the world's when it is None.

        Raises
        ------
        ParameterError
            When there is no process group.
        """
        if not dist.is_initialized():
            raise ParameterError(
                "there is no process group; call torch.distributed.init_process_group() before, "
                "in processes that torchrun started"
            )
        group = dist.group.WORLD if group is None else group
        backend = dist.get_backend(group)
        if device is None:
            cuda = "nccl" in backend
            device = torch.device("cuda", torch.cuda.current_device()) if cuda else "cpu"
        device = torch.device(device)
        limit = timedelta(seconds=timeout)
        rank = dist.get_rank(group)
        # Waits have a limit of their own; that of the group is for what goes on beside.
        control = dist.new_group(
            dist.get_process_group_ranks(group), timeout=2 * limit, backend="gloo",
            use_local_synchronization=True,
        )  # fmt: skip
        wire = device if "nccl" in backend or device.type == "cpu" else torch.device("cpu")
        return cls(rank, dist.get_world_size(group), group, control, device, wire, limit)

    def part(self, ranks: Iterable[int], backend: str | None = None) -> Any:
        """A process group of some ranks, which all of them make in the same order."""
        return dist.new_group(
            sorted(dist.get_global_rank(self.group, rank) for rank in ranks),
            timeout=2 * self.timeout, backend=backend or dist.get_backend(self.group),
            use_local_synchronization=True,
        )  # fmt: skip

    def place(self, group: Any, rank: int) -> int:
        """Which rank of another group a rank is."""
        return dist.get_group_rank(group, dist.get_global_rank(self.group, rank))

    def gather(self, thing: Any) -> list[Any]:
        """An object of every rank."""
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, thing, group=self.control)
        return found

    def sum(self, numbers: Tensor) -> Tensor:
        """Add up what ranks have, on the host."""
        dist.all_reduce(numbers, group=self.control)
        return numbers

    def clock(self) -> int:
        """What to add to this host's clock for that of rank 0's host, in nanoseconds."""
        hosts = self.gather(socket.gethostname())
        best, offset = 1 << 62, 0
        for other in range(1, self.size):
            if hosts[other] == hosts[0]:
                continue
            for _ in range(PINGS):
                now = torch.tensor([time.perf_counter_ns()])
                if self.rank == 0:
                    dist.recv(torch.empty_like(now), group=self.control, group_src=other)
                    now = torch.tensor([time.perf_counter_ns()])
                    dist.send(now, group=self.control, group_dst=other)
                elif self.rank == other:
                    theirs = torch.empty_like(now)
                    dist.send(now, group=self.control, group_dst=0)
                    dist.recv(theirs, group=self.control, group_src=0)
                    took = time.perf_counter_ns() - int(now)
                    if took < best:
                        best, offset = took, int(theirs) - int(now) - took // 2
        return offset
