"""What goes from stage to stage: trees of tensors, taken apart for the wire and put together."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from debubble.torch.errors import RunError


class Leaf(NamedTuple):
    """A tensor of a tree, without its numbers; `carries` when a gradient comes back for it."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    carries: bool

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')} {list(self.shape)}"


class Constant(NamedTuple):
    """A leaf that is no tensor: it belongs to the form of the tree."""

    value: Any

    def __str__(self) -> str:
        return repr(self.value)


class TreeForm(NamedTuple):
    """The form of a tree."""

    tree: pytree.TreeSpec
    leaves: tuple[Leaf | Constant, ...]

    @property
    def tensors(self) -> list[Leaf]:
        """Its tensors, in order."""
        return [leaf for leaf in self.leaves if isinstance(leaf, Leaf)]

    def __str__(self) -> str:
        return ", ".join(map(str, self.leaves)) or "nothing"

    def __reduce__(self) -> tuple[Any, ...]:
        # A tree of numbers has the form, in types that can be pickled.
        numbers = pytree.tree_unflatten(range(len(self.leaves)), self.tree)
        return _spec, (numbers, self.leaves)


ONE = pytree.tree_structure(0)
"""The form of a tree that is one leaf."""


def _spec(numbers: Any, leaves: tuple[Leaf | Constant, ...]) -> TreeForm:
    return TreeForm(ONE if isinstance(numbers, int) else pytree.tree_structure(numbers), leaves)


def take_apart(value: Any, trains: bool) -> tuple[list[Tensor], TreeForm]:
    """Tensors of a tree, and its form; if the stage trains, those that can carry gradients."""
    if isinstance(value, Tensor):
        return [value], TreeForm(ONE, (_leaf(value, trains),))
    leaves, tree = pytree.tree_flatten(value)
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    forms = tuple(
        _leaf(leaf, trains) if isinstance(leaf, Tensor) else Constant(leaf) for leaf in leaves
    )
    return tensors, TreeForm(tree, forms)


def put_together(tensors: list[Tensor], spec: TreeForm) -> Any:
    """The tree of these tensors."""
    if spec.tree is ONE or (len(spec.leaves) == 1 == len(tensors) and spec.tree == ONE):
        return tensors[0]
    rest = iter(tensors)
    leaves = [next(rest) if isinstance(leaf, Leaf) else leaf.value for leaf in spec.leaves]
    return pytree.tree_unflatten(leaves, spec.tree)


def arguments(value: Any) -> tuple[Any, ...]:
    """What a stage gets of another's output: a tuple or list is several arguments."""
    if isinstance(value, tuple | list):
        return tuple(value)
    return (value,)


def moved_to(tree: Any, device: torch.device | str, dtype: torch.dtype | None = None) -> Any:
    """A tree of tensors on another device, maybe with another type of floating-point numbers."""
    return pytree.tree_map_only(
        Tensor, lambda x: x.to(device, dtype if x.is_floating_point() else None), tree
    )


def differentiable(tensor: Tensor) -> bool:
    """Whether tensors of its type have gradients: those of real and of complex numbers."""
    return tensor.is_floating_point() or tensor.is_complex()


def _leaf(tensor: Tensor, trains: bool) -> Leaf:
    if tensor.layout != torch.strided:
        raise RunError(f"a stage returned a {tensor.layout} tensor; return its to_dense()")
    return Leaf(tuple(tensor.shape), tensor.dtype, trains and differentiable(tensor))
