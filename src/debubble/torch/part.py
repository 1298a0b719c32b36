"""A stage, or one of its layers, that runs alone: F, B, I and W of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from debubble.torch.autograd import Anchor, Branches, Splitter
from debubble.torch.layers import layers_of
from debubble.torch.losses import added_losses


@dataclass(frozen=True)
class Part:
    """A stage, or one of its layers, with what it is called with.

    Parameters
    ----------
    module
        What runs.
    args, kwargs
        Its arguments; those tensors that require a gradient get one in the backward.
    loss
        On the last stage, the loss of its output.
    splitter
        Splits its backwards.
    """

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    loss: Callable[[Any], Tensor] | None = None
    splitter: Splitter = field(default_factory=Splitter)

    def forward(self, split: bool = False, own: bool = False) -> Forward:
        """F. Where no input wants a gradient, I of a `split` backward gets something to end at.

        That is an input of floating-point numbers, else the first activation. `own` copies the
        tensors of this call, as every microbatch has its own.
        """
        args, kwargs = mapped((self.args, self.kwargs), _copy if own else leaf_of)
        inputs = [t for t in tensors_of((args, kwargs)) if t.requires_grad]
        if split and not inputs:
            inputs = [t.requires_grad_() for t in tensors_of(args) if t.is_floating_point()]
        anchored = split and not inputs
        with ExitStack() as stack:
            anchor = stack.enter_context(Anchor(self.module).found()) if anchored else []
            added = stack.enter_context(added_losses())
            output = self.module(*args, **kwargs)
            if self.loss is not None:
                output = self.loss(output)
        outputs = [t for t in tensors_of(output) if t.requires_grad]
        roots = outputs + [value for value in added if value.requires_grad]
        alone = len(outputs) if self.loss is None else 0
        return Forward(
            self.splitter, roots, alone, inputs or anchor[:1], list(tensors_of(args)), output
        )


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

    def backward_input(self, gradients: Sequence[Tensor]) -> list[Branches]:
        """I: what is left for the weights."""
        rest: list[Branches] = []
        if self.roots:
            _, rest = self.splitter.backward_input(self.roots, gradients, self.inputs)
        self.roots.clear()
        self.result = None
        return rest


def layer_parts(part: Part) -> list[Part]:
    """The layers of a stage, each with what it is called with."""
    layers = layers_of(part.module)
    called: dict[nn.Module, Part] = {}
    calls = 0

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal calls
        calls += 1
        called[module] = Part(module, *mapped((args, kwargs), leaf_of))

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
