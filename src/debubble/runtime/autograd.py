"""A backward in two parts: I, the gradients of the inputs, and W, those of the weights, later.

Autograd's graph of a stage leads from its output to its input; branches that do not lead to the
input lead to weights. I runs the nodes on the way to the input and notes the gradient that reaches
every node with a branch. W starts at these nodes with the noted gradients and runs their branches
only: nothing of I is done again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

Gradients: TypeAlias = Sequence[Tensor | None]


@dataclass
class Branches:
    """Nodes whose branches lead to the same weights, and the gradients that reached them."""

    weights: set[Tensor]
    reached: dict[Node, list[Tensor | None]] = field(default_factory=dict)


def backward_input(
    roots: Sequence[Tensor], gradients: Gradients, targets: Sequence[Tensor]
) -> tuple[list[Tensor | None], list[Branches]]:
    """Gradients of `targets`, and what is left to do for the weights.

    Parameters
    ----------
    roots, gradients
        Outputs, and the gradient of each; None for a scalar loss.
    targets
        Inputs, or activations between them and the outputs.

    Returns
    -------
    gradients, rest
        Of every target, None where no output depends on it; and the argument of
        :func:`backward_weight`.
    """
    ends = [get_gradient_edge(target) for target in targets]
    starts = [get_gradient_edge(root) for root in roots]
    seeds = [
        torch.ones_like(root) if gradient is None else gradient
        for root, gradient in zip(roots, gradients, strict=True)
    ]
    path = _path({start.node for start in starts}, {end.node for end in ends})
    rest: list[Branches] = []
    hooks = []
    for node in path.difference(end.node for end in ends):
        weights = _weights(child for child, _ in node.next_functions if child not in path)
        if weights:
            reached: list[Tensor | None] = []
            hooks.append(node.register_prehook(_note(reached)))
            _add(rest, node, weights, reached)
    onward = [(start, seed) for start, seed in zip(starts, seeds, strict=True)
              if start.node in path]  # fmt: skip
    found: list[Tensor | None] = [None] * len(targets)
    if onward:
        edges, seeded = zip(*onward, strict=True)
        found = list(
            torch.autograd.grad(edges, targets, seeded, retain_graph=True, allow_unused=True)
        )
    for hook in hooks:
        hook.remove()
    below = [
        (end, gradient)
        for target, end, gradient in zip(targets, ends, found, strict=True)
        if gradient is not None and not target.is_leaf
    ]
    aside = [
        (start, seed) for start, seed in zip(starts, seeds, strict=True) if start.node not in path
    ]
    for edge, gradient in below + aside:
        weights = _weights([edge.node])
        if weights:
            _add(rest, edge.node, weights, [None] * edge.output_nr + [gradient])
    return found, rest


def backward_weight(rest: list[Branches]) -> None:
    """Add the gradients of the weights to their ``grad``."""
    for branches in rest:
        edges, seeds, hooks = [], [], []
        for node, reached in branches.reached.items():
            for output, gradient in enumerate(reached):
                if gradient is not None:
                    edges.append(GradientEdge(node, output))
                    seeds.append(gradient)
            if len(branches.reached) > 1:
                # A weight that is used twice: what flows from one use to the other is noted there.
                hooks.append(node.register_prehook(_replace(tuple(reached))))
        weights = list(branches.weights)
        gradients = torch.autograd.grad(edges, weights, seeds, allow_unused=True)
        for hook in hooks:
            hook.remove()
        for weight, gradient in zip(weights, gradients, strict=True):
            accumulate(weight, gradient)


def accumulate(leaf: Tensor, gradient: Tensor | None) -> None:
    """Add a gradient to a leaf's."""
    if gradient is not None:
        leaf.grad = gradient if leaf.grad is None else leaf.grad + gradient


@contextmanager
def first_activation(module: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the first output with a gradient that a part of `module` computes.

    A stage whose input has no gradient, token numbers for instance, has I go down to there.
    """
    found: list[Tensor] = []

    def note(part: nn.Module, inputs: Any, output: Any) -> None:  # noqa: ARG001
        if not found and isinstance(output, Tensor) and output.requires_grad:
            found.append(output)

    parts = [part for part in module.modules() if not any(True for _ in part.children())]
    hooks = [part.register_forward_hook(note) for part in parts]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def _path(starts: set[Node], ends: set[Node]) -> set[Node]:
    """Nodes from which an end can be reached, ends included."""
    path: set[Node] = set()
    seen: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(start, False) for start in starts]
    while stack:
        node, left = stack.pop()
        if left:
            if any(child in path for child, _ in node.next_functions):
                path.add(node)
        elif node in ends:
            path.add(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack += [(child, False) for child, _ in node.next_functions if child is not None]
    return path


def _weights(nodes: Iterable[Node | None]) -> set[Tensor]:
    """The leaves that nodes lead to."""
    found: set[Tensor] = set()
    seen: set[Node] = set()
    stack = [node for node in nodes if node is not None]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            found.add(leaf)
        stack += [child for child, _ in node.next_functions if child is not None]
    return found


def _add(
    rest: list[Branches], node: Node, weights: set[Tensor], reached: list[Tensor | None]
) -> None:
    """Add a node; nodes that share a weight come together."""
    joined = Branches(weights, {node: reached})
    for other in [other for other in rest if other.weights & weights]:
        joined.weights |= other.weights
        joined.reached |= other.reached
        rest.remove(other)
    rest.append(joined)


def _note(reached: list[Tensor | None]) -> Callable[..., None]:
    def hook(gradients: tuple[Tensor | None, ...]) -> None:
        reached[:] = gradients

    return hook


def _replace(reached: tuple[Tensor | None, ...]) -> Callable[..., Any]:
    def hook(gradients: Any) -> Any:  # noqa: ARG001 - the signature is torch's
        return reached

    return hook
