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
from debubble.torch.ranks.abort import abort_gloo, abort_group

PINGS = 20
"""Messages by which the clocks of two hosts are compared."""


class Tag(IntEnum):
    """Sorts of messages on the host; those of one tag between two ranks keep their order."""

    TENSORS = 0
    """Outputs and gradients of stages."""
    FORMS = 1
    """Outputs of stages together with their form."""
    COPIES = 2
    """Activations on the way to the rank that keeps them."""
    RETURNS = 6
    """Activations on the way back: two ranks may keep each other's."""
    VOCABULARY = 3
    """Results of shards of the output layer."""
    WEIGHTS = 4
    """Weights that several ranks have, and their gradients."""
    STEPS = 5
    """Conditions of optimizer steps."""
    SUMS = 7
    """Sums over all ranks."""


class Channel:
    """Connections between the hosts of some ranks, for no other messages than theirs."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        self.rank, self.size, self.timeout = rank, size, timeout
        # Making a group of the world's would need all ranks of the world, or equal names of groups.
        self._gloo: Any = dist.ProcessGroupGloo(store, rank, size, timeout)
        _CHANNELS.add(self)
        # Binomial tree: a rank's lowest bit that is set leads up, the bits below it lead down.
        low = rank & -rank if rank else 1 << size.bit_length()
        self._above = rank - low if rank else None
        bits = (1 << place for place in range(low.bit_length() - 1))
        self._below = [rank + bit for bit in bits if rank + bit < size]

    def abort(self) -> None:
        """Make all calls fail that wait here or at a peer, and later ones; from any thread."""
        abort_gloo(self._gloo, self.rank, self.size)

    def send(self, tensor: Tensor, peer: int, tag: Tag) -> Any:
        """Begin to send a tensor; return the work to wait for."""
        return self._gloo.send([tensor], peer, int(tag))

    def begin(self, tensor: Tensor, peer: int, tag: Tag) -> Any:
        """Begin to receive into a tensor; return the work to wait for."""
        return self._gloo.recv([tensor], peer, int(tag))

    def receive(self, tensor: Tensor, peer: int, tag: Tag) -> Tensor:
        """Receive into a tensor, and return it."""
        self.begin(tensor, peer, tag).wait(self.timeout)
        return tensor

    def send_object(self, thing: Any, peer: int, tag: Tag) -> list[tuple[Any, Tensor]]:
        """Begin to send an object; return works with the tensors that they need."""
        row = _as_bytes(thing)
        return [(self.send(part, peer, tag), part) for part in (torch.tensor([row.numel()]), row)]

    def receive_object(self, peer: int, tag: Tag) -> Any:
        """Receive an object that :meth:`send_object` sends."""
        size = self.receive(torch.empty(1, dtype=torch.int64), peer, tag)
        return _from_bytes(self.receive(torch.empty(int(size), dtype=torch.uint8), peer, tag))

    def sum(self, numbers: Tensor, *, largest: bool = False) -> Tensor:
        """Sum numbers over all ranks, or take the largest, in place.

        They go up a binomial tree and down again: one message each way and rank, from this thread.
        Collectives of gloo wake threads of its own, and send a message for each part of the row.
        """
        wanted = [(rank, torch.empty_like(numbers)) for rank in self._below]
        works = [self.begin(part, rank, Tag.SUMS) for rank, part in wanted]
        for work, (_, part) in zip(works, wanted, strict=True):
            work.wait(self.timeout)
            torch.maximum(numbers, part, out=numbers) if largest else numbers.add_(part)
        if self._above is not None:
            total = torch.empty_like(numbers)
            back = self.begin(total, self._above, Tag.SUMS)
            sent = self.send(numbers, self._above, Tag.SUMS)
            back.wait(self.timeout)
            sent.wait(self.timeout)
            numbers.copy_(total)
        works = [self.send(numbers, rank, Tag.SUMS) for rank in self._below]
        for work in works:
            work.wait(self.timeout)
        return numbers

    def add(self, numbers: Sequence[float]) -> list[float]:
        """Return the sums of a list of numbers over all ranks."""
        found: list[float] = self.sum(torch.tensor(numbers, dtype=torch.float64)).tolist()
        return found

    def gather(self, thing: Any) -> list[Any]:
        """Return the objects of all ranks."""
        row = _as_bytes(thing)
        sizes = torch.zeros(self.size, dtype=torch.int64)
        sizes[self.rank] = row.numel()
        longest = int(self.sum(sizes).max())
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: row.numel()] = row
        found = [torch.empty_like(padded) for _ in range(self.size)]
        self._gloo.allgather([found], [padded]).wait(self.timeout)
        return [_from_bytes(part[:size]) for part, size in zip(found, sizes.tolist(), strict=True)]

    def clock(self) -> int:
        """Return what to add to this host's clock for that of rank 0's host, in nanoseconds."""
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
                    # The shortest way there and back has the smallest error.
                    took = time.perf_counter_ns() - int(now)
                    if took < best:
                        best, offset = took, int(theirs) - int(now) - took // 2
        return offset


@dataclass(frozen=True, eq=False)
class Ranks:
    """The ranks of a pipeline, seen from one of them."""

    rank: int
    """This rank of the schedule."""
    size: int
    group: Any
    """Process group whose ranks are the schedule's; tensors on a GPU go through it."""
    channel: Channel
    """Connections on the host: for tensors there, and for all that is no tensor."""
    device: torch.device
    """Device of this rank's stages."""
    wire: torch.device
    """Device that tensors are sent from: the rank's, or the host where the group cannot send it."""
    batched: bool
    """If tensors go through the group, in batches that run one after the other, as NCCL takes them;
    else each goes by itself over the channel."""
    timeout: timedelta
    """Limit of a wait for another rank."""
    store: Any
    """Store of these ranks alone."""
    names: tuple[str, ...]
    """Names of the ranks in messages, by which a user finds their processes."""

    def place(self) -> dict[str, Any]:
        """Return this rank's host, global rank, backend and device, as a trace has them."""
        return {
            "host": socket.gethostname(),
            "global_rank": dist.get_rank(),
            "backend": "nccl" if self.batched else "gloo",
            "device": "cpu" if self.device.type == "cpu" else "gpu",
        }

    @classmethod
    def of(cls, group: Any, device: Any, timeout: float, place: str = "") -> Ranks:
        """Return the ranks of a process group; None is the world's.

        The `place` is that of this process in other groups; a mesh shows it.
        """
        if not dist.is_initialized():
            raise ParameterError(
                "there is no process group; call torch.distributed.init_process_group() before, "
                "in processes that torchrun started"
            )
        if not isinstance(timeout, int | float) or not timeout > 0:
            raise ParameterError(f"timeout is {timeout!r}; give a positive number of seconds")
        if isinstance(group, DeviceMesh):
            place = place or _place_in(group)
            group = group.get_group()
        group = dist.group.WORLD if group is None else group
        if not isinstance(group, dist.ProcessGroup):
            raise ParameterError(
                f"group is {group!r}; give a process group that this process is in, for instance "
                "mesh.get_group('pp')"
            )
        device = _device(device, group)
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
        about = (dist.get_rank(), socket.gethostname(), place)
        names = name_ranks(channel.gather(about), dist.get_world_size())
        return cls(rank, size, group, channel, device, wire, batched, limit, store, names)

    def exchange(self, row: Tensor, ranks: Sequence[int]) -> list[Tensor]:
        """Return the rows of some ranks, in the order of `ranks`; `row` is this rank's."""
        found = [row if rank == self.rank else torch.empty_like(row) for rank in ranks]
        others = [pair for pair in zip(ranks, found, strict=True) if pair[0] != self.rank]
        sends = [(True, row, rank) for rank, _ in others]
        receives = [(False, part, rank) for rank, part in others]
        self.wait(self.start([*sends, *receives], Tag.WEIGHTS))
        return found

    def spread(self, row: Tensor, ranks: Sequence[int], source: int) -> None:
        """Send a row of one of some ranks to the others, in place."""
        transfers = [(False, row, source)]
        if self.rank == source:
            transfers = [(True, row, rank) for rank in ranks if rank != source]
        self.wait(self.start(transfers, Tag.WEIGHTS))

    def start(self, transfers: Sequence[tuple[bool, Tensor, int]], tag: Tag) -> list[Any]:
        """Begin transfers, each with a flag for sends, its tensor and its peer; return their works.

        Where they are one batch, all works belong to all of them.
        """
        if not self.batched:
            send, begin = self.channel.send, self.channel.begin
            return [(send if sends else begin)(part, peer, tag) for sends, part, peer in transfers]
        calls = {True: dist.isend, False: dist.irecv}
        batch = [dist.P2POp(calls[sends], part, group=self.group, group_peer=peer)
                 for sends, part, peer in transfers]  # fmt: skip
        begun: list[Any] = dist.batch_isend_irecv(batch) if batch else []
        return begun

    def wait(self, works: Sequence[Any]) -> None:
        """Wait for transfers; on a GPU its stream waits, and the host goes on."""
        for work in works:
            if self.batched:
                # With a timeout the host would look until the transfer is over.
                work.wait()
            else:
                work.wait(self.timeout)

    def abort(self, *, group: bool) -> None:
        """Make all calls between these ranks fail, those of the `group` too; from any thread."""
        self.channel.abort()
        if group:
            abort_group(self.group)

    def total(self, numbers: Tensor) -> Tensor:
        """Sum numbers over all ranks; on a GPU the host does not wait for it."""
        if not self.batched:
            return self.channel.sum(numbers)
        dist.all_reduce(numbers, group=self.group)
        return numbers

    def agree(self, sync: str) -> None:
        """Wait until an optimizer step may begin, see ``sync`` of a schedule."""
        norm = torch.zeros(1)
        if sync == "global":
            self.channel.sum(norm)
        elif sync == "post-validation":
            # The partial norm goes from rank to rank.
            if self.rank > 0:
                self.channel.receive(norm, self.rank - 1, Tag.STEPS)
            if self.rank < self.size - 1:
                self.channel.send(norm, self.rank + 1, Tag.STEPS).wait(self.timeout)


def name_ranks(found: Sequence[tuple[int, str, str]], world: int) -> tuple[str, ...]:
    """Return names of a pipeline's ranks, given global rank, host and place of each.

    In a pipeline of all processes of one host the rank is enough.
    """
    hosts = len({host for _, host, _ in found}) > 1
    names = []
    for rank, (process, host, place) in enumerate(found):
        parts = [f"global rank {process}"] if len(found) < world or process != rank else []
        parts += [place] if place else []
        parts += [f"on {host}"] if hosts else []
        names.append(f"rank {rank} ({', '.join(parts)})" if parts else f"rank {rank}")
    return tuple(names)


def _place_in(mesh: DeviceMesh) -> str:
    """Return this process's coordinates in the mesh that one was taken out of: ``dp 0, tp 1``."""
    whole = getattr(mesh, "_get_root_mesh", lambda: mesh)()
    names, own = whole.mesh_dim_names or (), mesh.mesh_dim_names or ()
    at = whole.get_coordinate() or ()
    return ", ".join(
        f"{name} {number}" for name, number in zip(names, at, strict=False) if name not in own
    )


def uses_nccl(group: Any) -> bool:
    """Return if a process group sends tensors of a GPU by NCCL."""
    return "cuda:nccl" in dist.get_backend_config(group)


def _device(given: Any, group: Any) -> torch.device:
    """Return the device that is given, else the current GPU with NCCL, else the CPU."""
    if given is None:
        given = "cuda" if torch.cuda.is_available() and uses_nccl(group) else "cpu"
    try:
        device = torch.device(given)
    except (RuntimeError, TypeError):
        raise ParameterError(f"device is {given!r}; give 'cpu', 'cuda:0', …") from None
    if device.type not in ("cpu", "cuda"):
        raise ParameterError(f"device is '{device}'; pipelines run on 'cpu' and 'cuda'")
    if device.type == "cpu":
        return device
    if not torch.cuda.is_available():
        raise ParameterError(
            f"device is '{device}', and PyTorch sees no GPU here; use device='cpu'"
        )
    return device if device.index is not None else torch.device("cuda", torch.cuda.current_device())


_CHANNELS: WeakSet[Channel] = WeakSet()


@atexit.register
def _end_channels() -> None:
    """End the threads of all channels.

    They free the tensors of finished transfers. A thread that frees the last one after the
    interpreter is gone ends the process with SIGABRT.
    """
    for channel in _CHANNELS:
        del channel._gloo


_COUNTS: dict[str, int] = {}
"""Number of pipelines that each group of ranks has made in this process."""


def _as_bytes(thing: Any) -> Tensor:
    return torch.frombuffer(bytearray(pickle.dumps(thing)), dtype=torch.uint8)


def _from_bytes(row: Tensor) -> Any:
    return pickle.loads(row.numpy().tobytes())
