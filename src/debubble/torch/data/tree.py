"""Trees of tensors between stages: taken apart for the wire, and put together after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from debubble.torch.errors import RunError


class Leaf(NamedTuple):
    """Shape and type of a tensor in a tree; `carries` when a gradient comes back for it."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    carries: bool

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')} {list(self.shape)}"


class Constant(NamedTuple):
    """A leaf that is no tensor, which is part of the form of the tree."""

    value: Any

    def __str__(self) -> str:
        return repr(self.value)


class TreeForm(NamedTuple):
    """Form of a tree: its structure, with shapes and types of its tensors."""

    tree: pytree.TreeSpec
    leaves: tuple[Leaf | Constant, ...]

    @property
    def tensors(self) -> list[Leaf]:
        """Forms of its tensors, in order."""
        return [leaf for leaf in self.leaves if isinstance(leaf, Leaf)]

    def __str__(self) -> str:
        return ", ".join(map(str, self.leaves)) or "nothing"

    def __reduce__(self) -> tuple[Any, ...]:
        # Structures cannot be pickled, but a tree of numbers with the same structure can.
        numbers = pytree.tree_unflatten(range(len(self.leaves)), self.tree)
        return _spec, (numbers, self.leaves)


ONE = pytree.tree_structure(0)
"""Structure of a tree that is one leaf."""


def _spec(numbers: Any, leaves: tuple[Leaf | Constant, ...]) -> TreeForm:
    return TreeForm(ONE if isinstance(numbers, int) else pytree.tree_structure(numbers), leaves)


def take_apart(value: Any, trains: bool) -> tuple[list[Tensor], TreeForm]:
    """Return a tree's tensors and form; gradients come back for them if the stage `trains`."""
    if isinstance(value, Tensor):
        return [value], TreeForm(ONE, (_leaf(value, trains),))
    leaves, tree = pytree.tree_flatten(value)
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    forms = tuple(
        _leaf(leaf, trains) if isinstance(leaf, Tensor) else Constant(leaf) for leaf in leaves
    )
    return tensors, TreeForm(tree, forms)


def put_together(tensors: list[Tensor], form: TreeForm) -> Any:
    """Return the tree with these tensors."""
    if form.tree is ONE or (len(form.leaves) == 1 == len(tensors) and form.tree == ONE):
        return tensors[0]
    rest = iter(tensors)
    leaves = [next(rest) if isinstance(leaf, Leaf) else leaf.value for leaf in form.leaves]
    return pytree.tree_unflatten(leaves, form.tree)


def arguments(value: Any) -> tuple[Any, ...]:
    """Return another stage's output as arguments: a tuple or list is several."""
    return tuple(value) if isinstance(value, tuple | list) else (value,)


def mapped(tree: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Return a tree with every tensor replaced."""
    return pytree.tree_map_only(Tensor, function, tree)


def tensors_of(tree: Any) -> list[Tensor]:
    """Return the tensors of a tree."""
    if isinstance(tree, Tensor):
        return [tree]
    if tree.__class__ is tuple and all(isinstance(leaf, Tensor) for leaf in tree):
        return list(tree)
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def moved_to(tree: Any, device: torch.device | str, dtype: torch.dtype | None = None) -> Any:
    """Return a tree on another device, with another type of floating-point numbers if given."""
    return mapped(tree, lambda x: x.to(device, dtype if x.is_floating_point() else None))


def differentiable(tensor: Tensor) -> bool:
    """Return if a tensor's type can have gradients: real and complex numbers."""
    return tensor.is_floating_point() or tensor.is_complex()


def _leaf(tensor: Tensor, trains: bool) -> Leaf:
    if tensor.layout != torch.strided:
        raise RunError(f"a stage returned a {tensor.layout} tensor; return its to_dense()")
    return Leaf(tuple(tensor.shape), tensor.dtype, trains and differentiable(tensor))
