"""A backward in two parts: I, the gradients of the inputs, and W, those of the weights, later.

Autograd's graph of a stage leads from its output to its input; branches that do not lead to the
input lead to weights. I runs the nodes on the way to the input and notes the gradient that reaches
every node with a branch. W starts at these nodes with the noted gradients and runs their branches
only: nothing of I is done again.

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

from debubble.torch.autograd.backward_split import SplitPlan, same, split_plan
from debubble.torch.autograd.saved_tensors import release


@dataclass(eq=False)
class Branches:
    """Gradients at the nodes before some weights."""

    weights: list[Tensor]
    inside: list[tuple[GradientEdge, Tensor]]
    """On the way to the inputs: all that flows into the node."""
    past: list[tuple[GradientEdge, Tensor]]
    """At outputs from which no input can be reached; more may flow there from inside."""
    several: bool
    """Whether several nodes lead to the same weight."""


class Splitter:
    """Splits backwards of one stage."""

    def __init__(self) -> None:
        self._forms: dict[tuple[int, int], SplitPlan] = {}
        """By the number of roots and targets, which slices of a sequence differ in."""

    def backward_input(
        self,
        roots: Sequence[Tensor | GradientEdge],
        gradients: Sequence[Tensor],
        targets: Sequence[Tensor],
        others: Sequence[Tensor] = (),
    ) -> tuple[list[Tensor | None], list[Branches]]:
        """Gradients of `targets` and `others`, and what is left to do for the weights.

        Parameters
        ----------
        roots, gradients
            Outputs, or where their gradients go in, and the gradient of each.
        targets
            Inputs, which are leaves. They are left without numbers where W does not need these.
        others
            Leaves whose numbers stay.

        Returns
        -------
        gradients, rest
            Of every leaf, None where no output depends on it; and the argument of
            :func:`backward_weight`.
        """
        ends = [get_gradient_edge(leaf) for leaf in (*targets, *others)]
        starts = [get_gradient_edge(x) if isinstance(x, Tensor) else x for x in roots]
        form = self._forms.get((len(starts), len(ends)))
        nodes = None if form is None else same(form, starts, ends)
        if form is None or nodes is None:
            form, nodes = split_plan(starts, ends)
            self._forms[len(starts), len(ends)] = form
        edges = [GradientEdge(nodes[number], slot) for number, slot in form.captures]
        found: list[Tensor | None] = [None] * (len(ends) + len(edges))
        if form.onward:
            outputs = [starts[root] for root in form.onward]
            seeded = [gradients[root] for root in form.onward]
            wanted = [*form.early, *ends, *edges]
            early = len(form.early)
            several = torch.autograd.grad(
                outputs, wanted, seeded, retain_graph=True, allow_unused=True
            )
            found = list(several[early:])
            there = [pair for pair in zip(form.early, several[:early], strict=True)
                     if pair[1] is not None]  # fmt: skip
            if there:
                weights, slopes = zip(*there, strict=True)
                torch.autograd.backward(weights, slopes)
            for number, name in form.spent:
                release(nodes[number], name)
            for target, stays, gradient in zip(targets, form.stays, found, strict=False):
                if not stays and gradient is not None:
                    target.data = target.new_empty(0)
        captured = found[len(ends) :]
        rest = []
        for group in form.groups:
            onto = [(edges[place], captured[place]) for place in group.captures]
            past = [(starts[place], gradients[place]) for place in group.starts]
            inside = [(edge, gradient) for edge, gradient in onto if gradient is not None]
            if inside or past:
                rest.append(Branches(group.weights, inside, past, group.several))
        return found[: len(ends)], rest


def backward_weight(rest: list[Branches]) -> None:
    """Add the gradients of the weights to their ``grad``."""
    for branches in rest:
        hooks = []
        if branches.several:
            # A weight that is used twice: what flows from one use to the other is noted there.
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
