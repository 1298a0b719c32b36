"""A stage, or one of its layers, that runs alone: F, B, I and W of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from debubble.torch.autograd.splitter import Branches, Splitter, backward_weight
from debubble.torch.data.losses import added_losses
from debubble.torch.data.tree import differentiable
from debubble.torch.models.layers import find_layers


@dataclass(frozen=True)
class SingleStage:
    """A stage, or one of its layers, with what it is called with."""

    module: nn.Module
    """What runs."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    """Its arguments; those tensors that require a gradient get one in the backward."""
    loss: Callable[[Any], Tensor] | None = None
    """On the last stage, the loss of its output."""
    splitter: Splitter = field(default_factory=Splitter)
    """Splits its backwards."""

    def forward(self, split: bool = False, own: bool = False) -> Forward:
        """F. In a `split` backward inputs that can have a gradient get one.

        Where there are none, I has nothing to do. `own` copies the tensors of this call, as every
        microbatch has its own.
        """
        args, kwargs = mapped((self.args, self.kwargs), _copy if own else leaf_of)
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
        return Forward(self.splitter, roots, alone, inputs, list(tensors_of(args)), output)


@dataclass
class WeightWork:
    """Work that I leaves to W: branches of the graph, or all of it where I has nothing to do."""

    branches: list[Branches]
    roots: list[Tensor] = field(default_factory=list)
    seeds: list[Tensor] = field(default_factory=list)

    @property
    def gradients(self) -> list[Tensor]:
        """Gradients that are kept for W."""
        pairs = (pair for each in self.branches for pair in (*each.inside, *each.past))
        return [*self.seeds, *(gradient for _, gradient in pairs)]

    def __bool__(self) -> bool:
        return bool(self.branches or self.roots)

    def backward_weight(self) -> None:
        """W."""
        backward_weight(self.branches)
        if self.roots:
            torch.autograd.backward(self.roots, self.seeds)
        self.roots.clear()


@dataclass
class Forward:
    """What an F leaves: the roots of its backward, of which the first `outputs` want gradients."""

    splitter: Splitter
    roots: list[Tensor]
    outputs: int
    inputs: list[Tensor]
    args: list[Tensor]
    result: Any

    def gradients(self) -> list[Tensor]:
        """Some gradient of every root."""
        return [
            torch.randn_like(root) if index < self.outputs else torch.ones_like(root)
            for index, root in enumerate(self.roots)
        ]

    def backward(self, gradients: Sequence[Tensor]) -> None:
        """B."""
        if self.roots:
            torch.autograd.backward(self.roots, list(gradients))
        self.roots.clear()
        self.result = None

    def backward_input(self, gradients: Sequence[Tensor]) -> WeightWork:
        """I, and the rest."""
        rest = WeightWork([])
        if self.roots and self.inputs:
            _, rest.branches = self.splitter.backward_input(self.roots, gradients, self.inputs)
        elif self.roots:
            rest = WeightWork([], list(self.roots), list(gradients))
        self.roots.clear()
        self.result = None
        return rest


def layer_parts(part: SingleStage) -> list[SingleStage]:
    """The layers of a stage, each with what it is called with."""
    layers = find_layers(part.module)
    called: dict[nn.Module, SingleStage] = {}
    calls = 0

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal calls
        calls += 1
        called[module] = SingleStage(module, *mapped((args, kwargs), leaf_of))

    hooks = [layer.register_forward_pre_hook(note, with_kwargs=True) for layer in layers]
    try:
        part.forward()
    finally:
        for hook in hooks:
            hook.remove()
    # A layer that is called twice, or never, has no time that belongs to one place of the model.
    return [called[layer] for layer in layers] if calls == len(layers) == len(called) else []


def mapped(tree: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """A pytree with every tensor replaced."""
    return tree_map_only(Tensor, function, tree)


def tensors_of(tree: Any) -> Iterator[Tensor]:
    """The tensors in a pytree."""
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))


def leaf_of(tensor: Tensor) -> Tensor:
    """The same numbers without the graph that leads to them."""
    return tensor.detach().requires_grad_(tensor.requires_grad)


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)
