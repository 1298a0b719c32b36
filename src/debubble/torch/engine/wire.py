"""Tensors between the ranks of a pipeline; their shapes and types are learned on the way.

The output of a stage has one form for inputs of one signature. In the first step with a signature
a message carries its form and goes over the channel of the host; a receive waits for it no sooner
than its tensors are needed. From then on both ends know the form: bare tensors go into buffers that
were posted early. Where forms change in every step, only the form goes over the host.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from debubble.torch.data.tree import Leaf, TreeForm
from debubble.torch.engine.plan import ProgramStep
from debubble.torch.errors import RunError
from debubble.torch.ranks.message_log import LoggedMessage, MessageLog
from debubble.torch.ranks.process_group import Ranks, Tag


class Boundary(NamedTuple):
    """A copy of the model, two stages of which one gets tensors, and the signature of the input."""

    copy: int
    source: int
    """Stage that makes activations."""
    target: int
    """Stage that gets them."""
    carried: bool
    """If they are carried, which neighbors do in addition."""
    signature: int


class SendPost(NamedTuple):
    """A send, and its tensors."""

    step: ProgramStep
    boundary: Boundary
    tensors: Sequence[Tensor]
    back: bool
    """If they are gradients."""


@dataclass(eq=False)
class Arrival:
    """A receive, and its tensors that are on their way to this rank."""

    step: ProgramStep
    boundary: Boundary
    back: bool
    """If gradients come."""
    position: int
    """Of the receive in the program."""
    form: TreeForm | None = None
    """None while it comes with the tensors."""
    tensors: list[Tensor] = field(default_factory=list)
    works: list[Any] = field(default_factory=list)
    logged: LoggedMessage | None = None


class Wire:
    """Point-to-point transfers of one rank.

    Transfers of a directed pair of ranks meet in the order in which they are posted.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.log = MessageLog()
        self._forms: dict[Boundary, TreeForm] = {}
        """Forms of earlier steps, which both ends know."""
        self._new: dict[Boundary, TreeForm] = {}
        """Forms of this step."""
        self._sending: dict[int, deque[tuple[list[Any], list[Tensor], LoggedMessage]]] = {}
        """By peer: works and tensors that are under way, oldest first."""
        self._gone: dict[int, int] = {}
        """By peer: number of messages of this step that have arrived."""
        self._coming: dict[int, deque[Arrival]] = {}
        """By peer: arrivals that come with their forms, oldest first."""
        self.announces = False
        """If a form goes ahead of its tensors, which go with the others, and a receive waits for it
        when it is posted: for forms that are new in every step, and receives that stand right
        before what they are for."""
        self._announced: list[tuple[Any, Tensor]] = []
        """Works of such forms, with what they send."""
        self._batches: list[tuple[int, list[Any]]] = []
        """Positions and works of batches that no host has waited for."""

    def check(self, boundary: Boundary, form: TreeForm) -> None:
        """Compare the output of a stage with its earlier one for such an input."""
        known = self._forms.get(boundary) or self._new.get(boundary)
        if known is None:
            _check_constants(boundary.source, form)
            self._new[boundary] = known = form
        if known is not form and known != form:
            raise RunError(
                f"stage {boundary.source} returned {form}; its first microbatch of this shape "
                f"returned {known}; return the same shapes and types for inputs of one shape"
            )

    def post(self, place: int, sends: Sequence[SendPost], arrivals: Sequence[Arrival]) -> None:
        """Post sends and receives together; `place` is the first one's position in the program."""
        start, batched = self.ranks.start, self.ranks.batched
        operations: list[tuple[bool, Tensor, int]] = []
        """Those of a batch: if it is a send, the tensor, the peer."""
        batch: list[Any] = []
        """Works of the batch, which belong to all its messages."""
        for step, boundary, tensors, back in sends:
            parts = [_sendable(tensor, self.ranks.wire) for tensor in tensors]
            works = batch
            logged = self.log.post(True, step.peer, parts)
            known = back or boundary in self._forms
            if self.announces and not known:
                self._announced += self._send_form(step, self._new[boundary])
            if self.announces or known:
                posts = [(True, part, step.peer) for part in parts]
                if batched:
                    operations += posts
                else:
                    works = start(posts, Tag.TENSORS)
            else:
                works, parts = self._send_with_form(step, self._new[boundary], parts)
            self._sending.setdefault(step.peer, deque()).append((works, parts, logged))
        for arrival in arrivals:
            peer, boundary, back = arrival.step.peer, arrival.boundary, arrival.back
            arrival.form = self._forms.get(boundary) or (self._new[boundary] if back else None)
            if arrival.form is None and self.announces:
                self._receive_form(arrival)
            if arrival.form is None:
                arrival.logged = self.log.post(False, peer, ())
                self._coming.setdefault(peer, deque()).append(arrival)
                continue
            arrival.tensors = [
                torch.empty(leaf.shape, dtype=leaf.dtype, device=self.ranks.wire)
                for leaf in arrival.form.tensors if leaf.carries or not back
            ]  # fmt: skip
            arrival.logged = self.log.post(False, peer, arrival.tensors)
            posts = [(False, part, peer) for part in arrival.tensors]
            if batched:
                operations += posts
                arrival.works = batch
            else:
                arrival.works = start(posts, Tag.TENSORS)
        if operations:
            batch += start(operations, Tag.TENSORS)
            self._batches.append((place, batch))

    def release_sent(self, peer: int, count: int) -> None:
        """Release the first `count` messages of this step to a rank, which has got them."""
        gone = self._gone.get(peer, 0)
        sending = self._sending.get(peer)
        while sending and gone < count:
            works, _, logged = sending[0]
            # Batches run in turn, and that of the answer, which is over, was not posted before that
            # of the send: on a GPU this adds no wait to the stream.
            self.ranks.wait(works)
            logged.done = True
            sending.popleft()
            gone += 1
        self._gone[peer] = gone

    def receive(self, arrival: Arrival) -> list[Tensor]:
        """Wait for tensors, and return them on this rank's device."""
        if arrival.form is None:
            self._receive_with_forms(arrival)
        self.ranks.wait(arrival.works)
        if arrival.logged is not None:
            arrival.logged.done = True
        if self.ranks.wire == self.ranks.device:
            return arrival.tensors
        return [tensor.to(self.ranks.device) for tensor in arrival.tensors]

    def finish(self, at: Callable[[int], None]) -> None:
        """Wait until everything is sent; both ends know all forms from now on.

        Batches are waited for in the order of the program, each for the timeout at most; `at` is
        called with the position of each.
        """
        for place, works in self._batches:
            at(place)
            for work in works:
                work.wait(self.ranks.timeout)
        self._batches.clear()
        for work, _ in self._announced:
            work.wait(self.ranks.timeout)
        self._announced.clear()
        for sending in self._sending.values():
            for works, _, logged in sending:
                self.ranks.wait(works)
                logged.done = True
        self._sending.clear()
        self._gone.clear()
        self._forms |= self._new
        self._new.clear()

    def forget(self) -> None:
        """Learn all forms anew."""
        self._forms.clear()

    def _send_with_form(
        self, step: ProgramStep, form: TreeForm, parts: Sequence[Tensor]
    ) -> tuple[list[Any], list[Tensor]]:
        """Send tensors after their form; return works, and the tensors that they need."""
        channel = self.ranks.channel
        sent = self._send_form(step, form)
        for part in (part.to("cpu") for part in parts):
            sent.append((channel.send(part, step.peer, Tag.FORMS), part))
        works, tensors = zip(*sent, strict=True)
        return list(works), list(tensors)

    def _send_form(self, step: ProgramStep, form: TreeForm) -> list[tuple[Any, Tensor]]:
        """Begin to send a form; return works with the tensors that they need."""
        return self.ranks.channel.send_object((str(step), form), step.peer, Tag.FORMS)

    def _receive_with_forms(self, wanted: Arrival) -> None:
        """Receive messages with forms from a peer, up to the wanted one."""
        channel = self.ranks.channel
        coming = self._coming[wanted.step.peer]
        while wanted.form is None:
            arrival = coming.popleft()
            for leaf in self._receive_form(arrival).tensors:
                part = torch.empty(leaf.shape, dtype=leaf.dtype)
                channel.receive(part, arrival.step.peer, Tag.FORMS)
                arrival.tensors.append(part.to(self.ranks.wire))

    def _receive_form(self, arrival: Arrival) -> TreeForm:
        """Wait for the form of an arrival, and note it."""
        step = arrival.step
        got: tuple[str, TreeForm] = self.ranks.channel.receive_object(step.peer, Tag.FORMS)
        found, form = got
        if found != str(step.other_end):
            raise RunError(f"{step} got {found} from rank {step.peer} in place of {step.other_end}")
        arrival.form = self._new[arrival.boundary] = form
        return form


def _sendable(tensor: Tensor, wire: torch.device) -> Tensor:
    """Return a tensor without a graph, in one piece, on the device that tensors are sent from."""
    if tensor.requires_grad or tensor.device != wire:
        tensor = tensor.detach().to(wire)
    return tensor.contiguous()


def _check_constants(stage: int, form: TreeForm) -> None:
    """Refuse a value that cannot be sent to another rank and compared there."""
    for leaf in form.leaves:
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
    if not form.tensors:
        raise RunError(
            f"stage {stage} returned {form} and no tensor; return what the next stage computes with"
        )
