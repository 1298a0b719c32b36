"""Tensors between the ranks of a pipeline; their shapes and types are learned on the way.

What a stage hands on has one form for inputs of one signature. In the first step that sees a
signature a message goes with its form, by way of the control group, and a receive waits for it no
sooner than its tensors are needed. From then on both ends know the form: bare tensors go into
buffers that were posted early.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch import distributed as dist

from debubble.torch.data.tree import Leaf, TreeForm
from debubble.torch.engine.plan import ProgramStep
from debubble.torch.errors import RunError
from debubble.torch.ranks.process_group import Channel, Ranks, Tag, as_bytes, from_bytes


class Boundary(NamedTuple):
    """What tensors belong to: a copy of the model, the stage that gets them, and a signature."""

    copy: int
    stage: int
    signature: int


@dataclass(eq=False)
class Arrival:
    """Tensors that are to come."""

    step: ProgramStep
    """The receive."""
    spec: TreeForm | None
    """None while it comes with the tensors."""
    tensors: list[Tensor] = field(default_factory=list)
    works: list[Any] = field(default_factory=list)
    position: int = 0
    """Of the receive in the program."""


class Wire:
    """Point-to-point transfers of one rank.

    Transfers of a directed pair of ranks meet in the order in which they are posted.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.specs: dict[Boundary, TreeForm] = {}
        """Forms that were learned in earlier steps."""
        self._new: dict[Boundary, TreeForm] = {}
        """Forms of this step."""
        self._sending: dict[int, deque[tuple[list[Any], list[Tensor]]]] = {}
        """By peer: what is under way, oldest first."""
        self._gone: dict[int, int] = {}
        """By peer: how many messages of this step are not."""
        self._coming: dict[int, deque[tuple[Boundary, Arrival]]] = {}
        self._batches: list[tuple[int, list[Any]]] = []
        """Where the program posted what no host has waited for, and its works."""

    def check(self, boundary: Boundary, spec: TreeForm) -> None:
        """Compare what a stage returned with what it returned before for such an input.

        Raises RunError when it differs, with both.
        """
        known = self.specs.get(boundary) or self._new.get(boundary)
        if known is None:
            _check_constants(boundary.stage - 1, spec)
            self._new[boundary] = known = spec
        if known is not spec and known != spec:
            raise RunError(
                f"stage {boundary.stage - 1} returned {spec}; its first microbatch of this shape "
                f"returned {known}; return the same shapes and types for inputs of one shape"
            )

    def post(
        self,
        place: int,
        sends: Sequence[tuple[ProgramStep, Boundary, Sequence[Tensor], bool]],
        receives: Sequence[tuple[ProgramStep, Boundary, bool]],
    ) -> list[Arrival]:
        """Post a group of sends and receives.

        `place` is that of its first action in the program. A send is its action, boundary, tensors,
        and whether they are gradients; a receive its action, boundary, and whether gradients come.
        """
        operations: list[tuple[bool, Tensor, int]] = []
        """Whether it is a send, the tensor, the peer."""
        begun: list[tuple[list[Any], int, int]] = []
        """Where works go; begin and end of their operations."""
        for step, boundary, tensors, back in sends:
            parts = [tensor.detach().to(self.ranks.wire).contiguous() for tensor in tensors]
            works: list[Any] = []
            if back or boundary in self.specs:
                begun.append((works, len(operations), len(operations) + len(parts)))
                operations += [(True, part, step.peer) for part in parts]
            else:
                parts = self._told(step, boundary, parts)
                works += [self.ranks.channel.send(part, step.peer, Tag.FORMS) for part in parts]
            self._sending.setdefault(step.peer, deque()).append((works, parts))
        arrivals = []
        for step, boundary, back in receives:
            spec = self._spec(boundary) if back else self.specs.get(boundary)
            arrival = Arrival(step, spec)
            if spec is None:
                self._coming.setdefault(step.peer, deque()).append((boundary, arrival))
            else:
                leaves = [leaf for leaf in spec.tensors if leaf.carries or not back]
                arrival.tensors = self._buffers(leaves)
                end = len(operations) + len(arrival.tensors)
                begun.append((arrival.works, len(operations), end))
                operations += [(False, part, step.peer) for part in arrival.tensors]
            arrivals.append(arrival)
        if operations:
            self._start(place, operations, begun)
        return arrivals

    def answered(self, peer: int, count: int) -> None:
        """A rank has got so many messages of this step: they are kept no longer."""
        gone = self._gone.get(peer, 0)
        sending = self._sending.get(peer)
        while sending and gone < count:
            works, _ = sending[0]
            # Batches run in turn, and that of the answer, which is over, was not posted before that
            # of the send: on a GPU this adds no wait to the stream.
            self.ranks.wait(works)
            sending.popleft()
            gone += 1
        self._gone[peer] = gone

    def receive(self, arrival: Arrival) -> list[Tensor]:
        """Wait for tensors."""
        if arrival.spec is None:
            self._drain(arrival)
        self.ranks.wait(arrival.works)
        if self.ranks.wire == self.ranks.device:
            return arrival.tensors
        return [tensor.to(self.ranks.device) for tensor in arrival.tensors]

    def finish(self, at: Callable[[int], None]) -> None:
        """Wait until everything is sent; what was learned is known from now on.

        Batches are waited for here, each as long as the timeout says, in the order of the program.

        Parameters
        ----------
        at
            Told what is waited for: a place in the program.
        """
        for place, works in self._batches:
            at(place)
            for work in works:
                work.wait(self.ranks.timeout)
        self._batches.clear()
        for sending in self._sending.values():
            for works, _ in sending:
                self.ranks.wait(works)
        self._sending.clear()
        self._gone.clear()
        if self._new:
            self.specs |= self._new
            self._new = {}

    def forget(self) -> None:
        """Learn all forms anew."""
        self.specs.clear()

    def _spec(self, boundary: Boundary) -> TreeForm:
        return self.specs.get(boundary) or self._new[boundary]

    def _buffers(self, leaves: Sequence[Leaf]) -> list[Tensor]:
        wire = self.ranks.wire
        return [torch.empty(leaf.shape, dtype=leaf.dtype, device=wire) for leaf in leaves]

    def _start(
        self,
        place: int,
        operations: list[tuple[bool, Tensor, int]],
        begun: list[tuple[list[Any], int, int]],
    ) -> None:
        if self.ranks.batched:
            group = self.ranks.group
            calls = {True: dist.isend, False: dist.irecv}
            one: list[Any] = dist.batch_isend_irecv(
                [dist.P2POp(calls[sends], part, group=group, group_peer=peer)
                 for sends, part, peer in operations]
            )  # fmt: skip
            for works, _, _ in begun:
                works += one
            self._batches.append((place, one))
            return
        call = {True: self.ranks.channel.send, False: self.ranks.channel.begin}
        found = [call[sends](part, peer, Tag.TENSORS) for sends, part, peer in operations]
        for works, begin, end in begun:
            works += found[begin:end]

    def _told(self, step: ProgramStep, boundary: Boundary, parts: Sequence[Tensor]) -> list[Tensor]:
        """Tensors with their form, which the peer does not know yet: for the control group."""
        return [*packed((str(step), self._new[boundary])), *(part.to("cpu") for part in parts)]

    def _drain(self, wanted: Arrival) -> None:
        """Take what a peer told, up to the wanted."""
        channel = self.ranks.channel
        coming = self._coming[wanted.step.peer]
        while wanted.spec is None:
            boundary, arrival = coming.popleft()
            step = arrival.step
            found, spec = unpacked(channel, step.peer)
            if found != str(step.other_end):
                raise RunError(
                    f"{step} got {found} from rank {step.peer} in place of {step.other_end}"
                )
            arrival.spec = self._new[boundary] = spec
            for leaf in spec.tensors:
                part = torch.empty(leaf.shape, dtype=leaf.dtype)
                channel.receive(part, step.peer, Tag.FORMS)
                arrival.tensors.append(part.to(self.ranks.wire))


def _check_constants(stage: int, spec: TreeForm) -> None:
    """Refuse what cannot go to another rank, or cannot be compared with that of the next one."""
    for leaf in spec.leaves:
        if isinstance(leaf, Leaf):
            continue
        try:
            fine = bool(pickle.loads(pickle.dumps(leaf.value)) == leaf.value)
        except Exception:
            fine = False
        if not fine:
            raise RunError(
                f"stage {stage} returned a {type(leaf.value).__name__}; return tensors, and beside "
                "them only numbers, words and None, the same for every microbatch"
            )
    if not spec.tensors:
        raise RunError(
            f"stage {stage} returned {spec} and no tensor; return what the next stage computes with"
        )


def packed(thing: Any) -> tuple[Tensor, Tensor]:
    """An object as two tensors to send: how many bytes it has, and its bytes."""
    row = as_bytes(thing)
    return torch.tensor([row.numel()]), row


def unpacked(channel: Channel, peer: int) -> Any:
    """Receive what :func:`packed` gave."""
    size = channel.receive(torch.empty(1, dtype=torch.int64), peer, Tag.FORMS)
    return from_bytes(channel.receive(torch.empty(int(size), dtype=torch.uint8), peer, Tag.FORMS))
