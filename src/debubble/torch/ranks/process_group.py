"""The ranks of a pipeline, and what connects them."""

from __future__ import annotations

import atexit
import pickle
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import _get_default_store  # there is no public way

from debubble.core.errors import ParameterError

WORD = 24
"""The longest word that ranks tell each other."""

PINGS = 20
"""Messages that tell how far apart the clocks of two hosts are."""


class Tag(IntEnum):
    """What messages on the host belong to; those of one tag and two ranks keep their order."""

    TENSORS = 0
    """What stages hand on."""
    FORMS = 1
    """The same, with its form."""
    COPIES = 2
    """Activations that another rank is to keep."""
    RETURNS = 6
    """The same, on their way back: two ranks may keep each other's."""
    VOCABULARY = 3
    """What shards of the output layer exchange."""
    WEIGHTS = 4
    """Weights with several homes, and their gradients."""
    STEPS = 5
    """What optimizer steps wait for."""


def as_bytes(thing: Any) -> Tensor:
    """An object as a row of bytes."""
    return torch.frombuffer(bytearray(pickle.dumps(thing)), dtype=torch.uint8)


def from_bytes(row: Tensor) -> Any:
    """The object of such a row."""
    return pickle.loads(row.numpy().tobytes())


class Channel:
    """Connections of ranks on the host, of their own: nobody else's messages are among theirs."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        self.rank, self.size, self.timeout = rank, size, timeout
        # Making a group of the world's would need all ranks of the world, or equal names of groups.
        self._gloo: Any = dist.ProcessGroupGloo(store, rank, size, timeout)
        _CHANNELS.add(self)

    def send(self, tensor: Tensor, peer: int, tag: Tag) -> Any:
        """Begin to send."""
        return self._gloo.send([tensor], peer, int(tag))

    def begin(self, tensor: Tensor, peer: int, tag: Tag) -> Any:
        """Begin to receive."""
        return self._gloo.recv([tensor], peer, int(tag))

    def receive(self, tensor: Tensor, peer: int, tag: Tag) -> Tensor:
        """Receive."""
        self.begin(tensor, peer, tag).wait(self.timeout)
        return tensor

    def sum(self, numbers: Tensor, *, largest: bool = False) -> Tensor:
        """Add up what ranks have, or take the largest."""
        options: Any = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM
        options.timeout = self.timeout
        self._gloo.allreduce([numbers], options).wait(self.timeout)
        return numbers

    def gather(self, thing: Any) -> list[Any]:
        """An object of every rank."""
        row = as_bytes(thing)
        sizes = torch.zeros(self.size, dtype=torch.int64)
        sizes[self.rank] = row.numel()
        longest = int(self.sum(sizes).max())
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: row.numel()] = row
        found = [torch.empty_like(padded) for _ in range(self.size)]
        self._gloo.allgather([found], [padded]).wait(self.timeout)
        return [from_bytes(part[:size]) for part, size in zip(found, sizes.tolist(), strict=True)]

    def words(self, word: str) -> list[str]:
        """A short word of every rank, in one message of one size."""
        row = torch.zeros(WORD, dtype=torch.uint8)
        row[: len(word)] = torch.frombuffer(bytearray(word.encode()), dtype=torch.uint8)
        found = [torch.empty_like(row) for _ in range(self.size)]
        self._gloo.allgather([found], [row]).wait(self.timeout)
        return [bytes(part.tolist()).rstrip(b"\0").decode() for part in found]

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
                    self.receive(torch.empty_like(now), other, Tag.STEPS)
                    now = torch.tensor([time.perf_counter_ns()])
                    self.send(now, other, Tag.STEPS).wait(self.timeout)
                elif self.rank == other:
                    self.send(now, 0, Tag.STEPS).wait(self.timeout)
                    theirs = self.receive(torch.empty_like(now), 0, Tag.STEPS)
                    took = time.perf_counter_ns() - int(now)
                    if took < best:
                        best, offset = took, int(theirs) - int(now) - took // 2
        return offset


@dataclass(frozen=True, eq=False)
class Ranks:
    """The ranks of a pipeline, as one of them sees them."""

    rank: int
    """Which rank of the schedule this is."""
    size: int
    """How many ranks there are."""
    group: Any
    """The process group whose ranks are the schedule's; tensors on a GPU go through it."""
    channel: Channel
    """The same ranks on the host: tensors there, and what goes beside tensors."""
    device: torch.device
    """Where this rank computes."""
    wire: torch.device
    """Where tensors are when they are sent: the device, or the host where the group cannot."""
    batched: bool
    """Whether tensors are sent through the group, in batches that run one after the other, as NCCL
    takes them; else over the link, each by itself."""
    timeout: timedelta
    """How long a rank waits for another."""
    store: Any
    """Where these ranks, and nobody else, may write."""

    @classmethod
    def of(cls, group: Any, device: Any, timeout: float) -> Ranks:
        """The ranks of a process group, the world's when it is None.

        Raises ParameterError when there is no process group.
        """
        if not dist.is_initialized():
            raise ParameterError(
                "there is no process group; call torch.distributed.init_process_group() before, "
                "in processes that torchrun started"
            )
        if not isinstance(timeout, int | float) or not timeout > 0:
            raise ParameterError(f"timeout is {timeout!r}; give a positive number of seconds")
        if isinstance(group, DeviceMesh):
            group = group.get_group()
        group = dist.group.WORLD if group is None else group
        if not isinstance(group, dist.ProcessGroup):
            raise ParameterError(
                f"group is {group!r}; give a process group that this process is in, for instance "
                "mesh.get_group('pp')"
            )
        if device is None:
            device = "cuda" if torch.cuda.is_available() and uses_nccl(group) else "cpu"
        try:
            device = torch.device(device)
        except (RuntimeError, TypeError):
            raise ParameterError(f"device is {device!r}; give 'cpu', 'cuda:0', …") from None
        if device.type not in ("cpu", "cuda"):
            raise ParameterError(f"device is '{device}'; pipelines run on 'cpu' and 'cuda'")
        if device.type == "cuda" and not torch.cuda.is_available():
            raise ParameterError(
                f"device is '{device}', and PyTorch sees no GPU here; use device='cpu'"
            )
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        limit = timedelta(seconds=timeout)
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        ranks = dist.get_process_group_ranks(group)
        # Ranks of several groups make their pipelines in any order, those of one together.
        key = "debubble/" + "-".join(map(str, ranks))
        count = _COUNTS[key] = _COUNTS.get(key, 0) + 1
        store = dist.PrefixStore(f"{key}/{count}", _get_default_store())
        channel = Channel(dist.PrefixStore("link", store), rank, size, limit)
        batched = device.type == "cuda" and uses_nccl(group)
        wire = device if batched else torch.device("cpu")
        if batched:
            # The first call makes the group's communicator, which takes all ranks; transfers of
            # some of them would wait for others that wait for them.
            dist.all_reduce(torch.zeros(1, device=device), group=group)
        return cls(rank, size, group, channel, device, wire, batched, limit, store)

    def exchange(self, row: Tensor, ranks: Sequence[int]) -> list[Tensor]:
        """What each of some ranks has, in their order; `row` is this rank's."""
        found = [row if rank == self.rank else torch.empty_like(row) for rank in ranks]
        others = [
            (rank, part) for rank, part in zip(ranks, found, strict=True) if rank != self.rank
        ]
        self.wait(self._start([(row, rank) for rank, _ in others], others))
        return found

    def spread(self, row: Tensor, ranks: Sequence[int], source: int) -> None:
        """Give what one of some ranks has to the others, in place."""
        sends, receives = [], [(source, row)]
        if self.rank == source:
            sends, receives = [(row, rank) for rank in ranks if rank != source], []
        self.wait(self._start(sends, receives))

    def wait(self, works: Sequence[Any]) -> None:
        """Wait for transfers; on a GPU its stream does, and not the host, which goes on."""
        for work in works:
            if self.batched:
                # With a timeout the host would look until the transfer is over.
                work.wait()
            else:
                work.wait(self.timeout)

    def total(self, numbers: Tensor) -> Tensor:
        """Add up what ranks have, where tensors are sent; on a GPU nobody waits for it."""
        if not self.batched:
            return self.channel.sum(numbers)
        dist.all_reduce(numbers, group=self.group)
        return numbers

    def agree(self, sync: str) -> None:
        """Wait for what an optimizer step waits for, see ``sync`` of a schedule."""
        norm = torch.zeros(1)
        if sync == "global":
            self.channel.sum(norm)
        elif sync == "post-validation":
            # The partial norm goes from rank to rank.
            if self.rank > 0:
                self.channel.receive(norm, self.rank - 1, Tag.STEPS)
            if self.rank < self.size - 1:
                self.channel.send(norm, self.rank + 1, Tag.STEPS).wait(self.timeout)

    def _start(
        self, sends: Sequence[tuple[Tensor, int]], receives: Sequence[tuple[int, Tensor]]
    ) -> list[Any]:
        if not self.batched:
            works = [self.channel.send(row, rank, Tag.WEIGHTS) for row, rank in sends]
            return works + [self.channel.begin(part, rank, Tag.WEIGHTS) for rank, part in receives]
        calls = [dist.P2POp(dist.isend, row, group=self.group, group_peer=rank)
                 for row, rank in sends]  # fmt: skip
        calls += [dist.P2POp(dist.irecv, part, group=self.group, group_peer=rank)
                  for rank, part in receives]  # fmt: skip
        begun: list[Any] = dist.batch_isend_irecv(calls) if calls else []
        return begun


def uses_nccl(group: Any) -> bool:
    """Whether a process group sends tensors of a GPU by NCCL."""
    return "cuda:nccl" in dist.get_backend_config(group)


_CHANNELS: WeakSet[Channel] = WeakSet()


@atexit.register
def _end_channels() -> None:
    """End the threads of all links.

    They let go of the tensors of what is over; one that does so for the last time when there is no
    interpreter any more ends the process with SIGABRT.
    """
    for channel in _CHANNELS:
        del channel._gloo


_COUNTS: dict[str, int] = {}
"""How many pipelines of this process each group of ranks has made."""
