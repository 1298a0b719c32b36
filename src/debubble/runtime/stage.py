"""One stage of one copy of the model: what F, R, I, W, B, OFFLOAD and RELOAD do there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from debubble.runtime.autograd import (
    Branches,
    accumulate,
    backward_input,
    backward_weight,
    first_activation,
)
from debubble.runtime.weights import Versions, Weights, own_leaf
from debubble.runtime.world import RunError


class Activations:
    """What autograd saves in one forward, so that it can leave the device and come back."""

    def __init__(self, stay: Sequence[Tensor]) -> None:
        self._stay = {tensor.untyped_storage().data_ptr() for tensor in stay}
        self._slots: list[_Slot] = []

    def saved(self) -> Any:
        """A context in which what autograd saves goes through here."""
        return torch.autograd.graph.saved_tensors_hooks(self._pack, lambda slot: slot.tensor)

    def _pack(self, tensor: Tensor) -> _Slot:
        slot = _Slot(tensor, tensor.shape, tensor.dtype)
        if tensor.untyped_storage().data_ptr() not in self._stay:
            self._slots.append(slot)
        return slot

    def leave(self) -> Tensor:
        """All of it as one row of bytes; nothing else holds it afterwards."""
        rows = [slot.tensor.contiguous().view(-1).view(torch.uint8) for slot in self._slots]
        for slot in self._slots:
            slot.tensor = slot.tensor.new_empty(0)
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


@dataclass
class _Slot:
    tensor: Tensor
    shape: torch.Size
    dtype: torch.dtype


@dataclass
class Held:
    """What a stage keeps of one microbatch or slice between its forward and its backward."""

    x: Tensor
    target: Tensor | None
    share: float
    weights: Weights
    roots: list[Tensor] = field(default_factory=list)
    """The output, or the loss on the last stage, then keys and values; empty before R."""
    inputs: list[Tensor] = field(default_factory=list)
    """What I computes gradients of: the input, then keys and values of earlier slices."""
    activations: Activations | None = None
    rest: list[Branches] | None = None


class Stage:
    """One stage of one copy.

    Parameters
    ----------
    module
        Its computation.
    loss
        On the last stage, the mean loss of (output, target).
    wants_input
        Whether a backward computes the gradient of the input: on all stages but the first, and
        there, too, when I is an action of its own, so that it has something to compute.
    slices
        Slices of a microbatch.
    versions
        How many versions of the weights are kept; a forward takes the oldest.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Callable[[Tensor, Tensor], Tensor] | None,
        wants_input: bool,
        slices: int,
        versions: int,
    ) -> None:
        self.module, self.loss, self.wants_input = module, loss, wants_input
        self.slices = slices
        self.weights = Versions(module.named_parameters(), versions)
        self.held: dict[int, Held] = {}
        self.losses: dict[int, Tensor] = {}
        self._memory: dict[int, list[Tensor]] = {}
        """Keys and values of slices, as leaves that collect their gradients."""

    def forward(
        self,
        unit: int,
        x: Tensor,
        target: Tensor | None,
        share: float,
        *,
        version: int = 0,
        recomputed: bool = False,
        leaves: bool = False,
    ) -> Tensor:
        """F: the output; the last stage adds `share` of its loss to the step's.

        `version` of the weights is used by the backward, too. Without a graph when it is
        `recomputed`; `leaves` when an OFFLOAD will come.
        """
        held = Held(x, target, share, self.weights.after(version))
        if leaves:
            held.activations = Activations([*held.weights.values()])
        self.held[unit] = held
        output = self._run(unit, held, graph=not recomputed)
        if self.loss is not None:
            self.losses[unit] = output.detach()
        return output.detach()

    def recompute(self, unit: int) -> None:
        """R: the forward again, now with its graph."""
        self._run(unit, self._of(unit), graph=True)

    def backward(self, unit: int, gradient: Tensor | None) -> Tensor | None:
        """B: the gradient of the input; those of the weights are added up."""
        held = self._of(unit)
        roots, gradients = self._ends(unit, held, gradient)
        del self.held[unit]
        # A stage without weights whose input wants no gradient has nothing to do.
        if roots[0].requires_grad:
            torch.autograd.backward(roots, gradients)
        return held.x.grad

    def backward_input(self, unit: int, gradient: Tensor | None) -> Tensor | None:
        """I: the gradient of the input."""
        held = self._of(unit)
        roots, gradients = self._ends(unit, held, gradient)
        found, held.rest = backward_input(roots, gradients, held.inputs)
        for leaf, part in zip(held.inputs[1:], found[1:], strict=True):
            accumulate(leaf, part)
        held.roots.clear()
        return found[0] if found else None

    def backward_weight(self, unit: int) -> None:
        """W: what I left."""
        held = self._of(unit)
        if held.rest is None:
            raise RunError("W comes before I")
        del self.held[unit]
        backward_weight(held.rest)

    def activations(self, unit: int) -> Activations:
        """What OFFLOAD and RELOAD move."""
        found = self._of(unit).activations
        assert found is not None, "a forward knows when an OFFLOAD will come"
        return found

    def _of(self, unit: int) -> Held:
        if unit not in self.held:
            raise RunError("nothing is held: the forward is missing, or a backward came before")
        return self.held[unit]

    def _run(self, unit: int, held: Held, graph: bool) -> Tensor:
        earlier = self._earlier(unit) if self.slices > 1 else []
        leaves = [leaf for parts in earlier for leaf in parts]
        start = sum(parts[0].shape[2] for parts in earlier)
        x = held.x = held.x.detach()
        if self.wants_input and x.is_floating_point():
            x.requires_grad_()
        own: list[Tensor] = []
        anchored = graph and self.wants_input and not x.requires_grad
        with ExitStack() as stack:
            stack.enter_context(torch.set_grad_enabled(graph))
            if held.activations is not None and graph:
                stack.enter_context(held.activations.saved())
            anchor = stack.enter_context(first_activation(self.module)) if anchored else []
            output: Tensor
            if self.slices > 1:
                past = [torch.cat(parts, 2) for parts in zip(*earlier, strict=True)]
                output, own = self._call(held, x, start, past)
            else:
                output = self._call(held, x)
            if self.loss is not None:
                assert held.target is not None
                output = self.loss(output, held.target) * held.share
        if graph:
            held.roots = [output, *own]
            held.inputs = [*([x] if x.requires_grad else anchor[:1]), *leaves]
        if self.slices > 1 and unit not in self._memory:
            self._memory[unit] = [own_leaf(part) for part in own]
        return output

    def _call(self, held: Held, *arguments: Any) -> Any:
        return torch.func.functional_call(self.module, held.weights, arguments)

    def _earlier(self, unit: int) -> list[list[Tensor]]:
        """Keys and values of the slices before this one, slice by slice."""
        first = unit - unit % self.slices
        return [self._memory[other] for other in range(first, unit)]

    def _ends(
        self, unit: int, held: Held, gradient: Tensor | None
    ) -> tuple[list[Tensor], list[Tensor | None]]:
        """Roots and their gradients; later slices have left theirs at keys and values."""
        if not held.roots:
            raise RunError("there is no graph: R is missing, or a backward came before")
        roots, gradients = held.roots[:1], [gradient]
        for root, leaf in zip(held.roots[1:], self._memory.pop(unit, []), strict=True):
            if leaf.grad is not None:
                roots.append(root)
                gradients.append(leaf.grad)
        return roots, gradients
