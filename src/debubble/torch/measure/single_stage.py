"""F, B, I and W of a stage, or one of its layers, that runs alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from debubble.torch.autograd.splitter import Branches, Splitter, run_branches
from debubble.torch.data.losses import added_losses
from debubble.torch.data.tree import differentiable
from debubble.torch.models.layers import find_layers


@dataclass(frozen=True)
class SingleStage:
    """A stage, or one of its layers, with its arguments."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    """Its arguments; tensors that require a gradient get one in the backward."""
    loss: Callable[[Any], Tensor] | None = None
    """Loss of the output, on the last stage."""
    splitter: Splitter = field(default_factory=Splitter)

    def forward(self, split: bool = False, own: bool = False) -> StageForward:
        """Run F; `own` copies the arguments, as every microbatch has its own.

        For a `split` backward inputs get gradients where they can; otherwise I would do nothing.
        """
        args, kwargs = mapped((self.args, self.kwargs), _copy if own else detach)
        inputs = [t for t in tensors_of((args, kwargs)) if t.requires_grad]
        if split and not inputs:
            inputs = [t.requires_grad_() for t in tensors_of(args) if differentiable(t)]
        with added_losses() as added:
            output = self.module(*args, **kwargs)
            if self.loss is not None:
                output = self.loss(output)
        outputs = [t for t in tensors_of(output) if t.requires_grad]
        roots = outputs + [value for value in added if value.requires_grad]
        alone = len(outputs) if self.loss is None else 0
        return StageForward(self.splitter, roots, alone, inputs, list(tensors_of(args)), output)


@dataclass
class StageForward:
    """Result of an F: roots of its backward, of which the first `outputs` want gradients."""

    splitter: Splitter
    roots: list[Tensor]
    outputs: int
    inputs: list[Tensor]
    args: list[Tensor]
    result: Any
    branches: list[Branches] = field(default_factory=list)
    """Work that I leaves to W."""
    seeds: list[Tensor] = field(default_factory=list)
    """Gradients of the roots, where I does nothing and leaves all to W."""

    def gradients(self) -> list[Tensor]:
        """Return some gradient for every root."""
        return [
            torch.randn_like(root) if index < self.outputs else torch.ones_like(root)
            for index, root in enumerate(self.roots)
        ]

    def backward(self, gradients: Sequence[Tensor]) -> None:
        """Run B."""
        if self.roots:
            torch.autograd.backward(self.roots, list(gradients))
        self.roots.clear()
        self.result = None

    def backward_input(self, gradients: Sequence[Tensor]) -> None:
        """Run I."""
        if self.roots and self.inputs:
            _, self.branches = self.splitter.backward_input(self.roots, gradients, self.inputs)
            self.roots.clear()
        elif self.roots:
            self.seeds = list(gradients)
        self.result = None

    @property
    def left(self) -> bool:
        """If I left work to W."""
        return bool(self.branches or self.seeds)

    @property
    def kept(self) -> list[Tensor]:
        """Gradients that W needs."""
        pairs = (pair for each in self.branches for pair in (*each.inside, *each.past))
        return [*self.seeds, *(gradient for _, gradient in pairs)]

    def backward_weight(self) -> None:
        """Run W."""
        run_branches(self.branches)
        if self.seeds:
            torch.autograd.backward(self.roots, self.seeds)
        self.roots.clear()


def layer_parts(part: SingleStage) -> list[SingleStage]:
    """Return the layers of a stage with their arguments."""
    layers = find_layers(part.module)
    called: dict[nn.Module, SingleStage] = {}
    calls = 0

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal calls
        calls += 1
        called[module] = SingleStage(module, *mapped((args, kwargs), detach))

    hooks = [layer.register_forward_pre_hook(note, with_kwargs=True) for layer in layers]
    try:
        part.forward()
    finally:
        for hook in hooks:
            hook.remove()
    # The time of a layer that is called twice, or never, belongs to no one place of the model.
    return [called[layer] for layer in layers] if calls == len(layers) == len(called) else []


def mapped(tree: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Return a tree with every tensor replaced."""
    return tree_map_only(Tensor, function, tree)


def tensors_of(tree: Any) -> Iterator[Tensor]:
    """Yield the tensors of a tree."""
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))


def detach(tensor: Tensor) -> Tensor:
    """Return the tensor as a leaf that requires a gradient if it did before."""
    return tensor.detach().requires_grad_(tensor.requires_grad)


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)
