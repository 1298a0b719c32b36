"""Backwards in two parts: I, the gradients of the inputs, and W, those of the weights, later.

Autograd's graph of a stage leads from its output to its input; branches that do not lead to the
input lead to weights. I runs the nodes on the way to the input and notes the gradient that reaches
every node with a branch. W starts at these nodes with the noted gradients and runs their branches
only: no node of I runs twice.

Weights that are vectors, scales and biases of norms for instance, get their gradients in I: a node
computes them with that of its input, and what it saved need not stay. So what I alone needed of the
tensors that autograd saved is released when it is over: these nodes will not run again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from debubble.torch.autograd.backward_split import SplitPlan, matching_nodes, split_plan
from debubble.torch.autograd.saved_tensors import release


@dataclass(eq=False)
class Branches:
    """Gradients at the nodes above some weights, where W starts."""

    weights: list[Tensor]
    inside: list[tuple[GradientEdge, Tensor]]
    """Edges on the way to the inputs, with all that flows into the node."""
    past: list[tuple[GradientEdge, Tensor]]
    """Edges of outputs from which no input can be reached; more may flow there from inside."""
    several: bool
    """If several nodes lead to the same weight."""


class Splitter:
    """Splitter of the backwards of one stage."""

    def __init__(self) -> None:
        self._plans: dict[tuple[int, int], SplitPlan] = {}
        """By the numbers of roots and targets, which differ between slices of a sequence."""

    def backward_input(
        self,
        roots: Sequence[Tensor | GradientEdge],
        gradients: Sequence[Tensor],
        targets: Sequence[Tensor],
        others: Sequence[Tensor] = (),
    ) -> tuple[list[Tensor | None], list[Branches]]:
        """Compute the gradients of `targets` and `others`, and leave those of the weights to W.

        The `roots` are outputs, or the edges of their gradients, with a gradient each. The
        `targets` are inputs, which are leaves: they lose their numbers where W does not need these;
        those of `others` stay. Returns the gradient of every leaf, None where no output depends on
        it; and the argument of :func:`run_branches`.
        """
        ends = [get_gradient_edge(leaf) for leaf in (*targets, *others)]
        starts = [get_gradient_edge(x) if isinstance(x, Tensor) else x for x in roots]
        plan = self._plans.get((len(starts), len(ends)))
        nodes = None if plan is None else matching_nodes(plan, starts, ends)
        if plan is None or nodes is None:
            plan, nodes = split_plan(starts, ends)
            self._plans[len(starts), len(ends)] = plan
        edges = [GradientEdge(nodes[number], slot) for number, slot in plan.captures]
        found: list[Tensor | None] = [None] * (len(ends) + len(edges))
        if plan.onward:
            outputs = [starts[root] for root in plan.onward]
            seeded = [gradients[root] for root in plan.onward]
            wanted = [*plan.early, *ends, *edges]
            early = len(plan.early)
            several = torch.autograd.grad(
                outputs, wanted, seeded, retain_graph=True, allow_unused=True
            )
            found = list(several[early:])
            there = [pair for pair in zip(plan.early, several[:early], strict=True)
                     if pair[1] is not None]  # fmt: skip
            if there:
                weights, slopes = zip(*there, strict=True)
                torch.autograd.backward(weights, slopes)
            for number, name in plan.spent:
                release(nodes[number], name)
            for target, stays, gradient in zip(targets, plan.stays, found, strict=False):
                if not stays and gradient is not None:
                    target.data = target.new_empty(0)
        captured = found[len(ends) :]
        rest = []
        for group in plan.groups:
            onto = [(edges[place], captured[place]) for place in group.captures]
            past = [(starts[place], gradients[place]) for place in group.starts]
            inside = [(edge, gradient) for edge, gradient in onto if gradient is not None]
            if inside or past:
                rest.append(Branches(group.weights, inside, past, group.several))
        return found[: len(ends)], rest


def run_branches(rest: list[Branches]) -> None:
    """Add the gradients of the weights to their ``grad``."""
    for branches in rest:
        hooks = []
        if branches.several:
            # A weight with two uses: the gradient that flows between them is noted already.
            noted: dict[Node, dict[int, Tensor]] = {}
            for edge, gradient in branches.inside:
                noted.setdefault(edge.node, {})[edge.output_nr] = gradient
            hooks = [node.register_prehook(_replace(slots)) for node, slots in noted.items()]
        edges, gradients = zip(*branches.inside, *branches.past, strict=True)
        torch.autograd.backward(edges, gradients, branches.several, inputs=branches.weights)
        for hook in hooks:
            hook.remove()


def _replace(noted: dict[int, Tensor]) -> Callable[..., Any]:
    def hook(gradients: tuple[Tensor | None, ...]) -> Any:
        return tuple(noted.get(slot) for slot in range(len(gradients)))

    return hook
