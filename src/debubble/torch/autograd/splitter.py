"""Backwards in two parts: I, the gradients of the inputs, and W, those of the weights, later.

Autograd's graph of a stage leads from its output to its input; branches that do not lead to the
input lead to weights. I runs the nodes on the way to the input and notes the gradient that reaches
every node with a branch. W starts at these nodes with the noted gradients and runs their branches
only: no node of I runs twice.

Weights that are vectors get their gradients in I: what I alone needed of the tensors that autograd
saved is released when it is over. Vectors with hooks are left to W, as noting a gradient runs them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from graphlib import TopologicalSorter
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from debubble.torch.autograd.saved_tensors import (
    addresses,
    release,
    saved_names,
    shows_saved,
    storages,
)

_Rows: TypeAlias = list[tuple[type, list[tuple[int | Node | None, int]]]]


@dataclass(eq=False)
class WeightGroup:
    """Nodes whose branches lead to the same weights, by their numbers in a plan."""

    weights: list[Tensor]
    captures: list[int] = field(default_factory=list)
    """Indices into :attr:`SplitPlan.captures`."""
    starts: list[int] = field(default_factory=list)
    """Roots from which no target can be reached."""
    several: bool = False


@dataclass(eq=False)
class SplitPlan:
    """A stage's graph, and how its backward is split.

    The graphs of a stage's microbatches have the same form. The plan is made for the first one;
    other graphs are compared with it, node by node, and planned anew only where they differ.
    Nodes have numbers in the order of a search from the roots. A row of `nodes` has a node's class
    and its children: a number, a leaf's own node, which is the same in all graphs, or None.
    """

    starts: list[tuple[int, int]]
    """Number and output of each root's node."""
    ends: list[int | None]
    """Number of each target's node; None for one that cannot be reached."""
    nodes: _Rows
    captures: list[tuple[int, int]]
    """Nodes with a branch to weights, by number and input."""
    onward: list[int]
    """Roots from which a target can be reached."""
    groups: list[WeightGroup]
    early: list[GradientEdge]
    """Weights whose gradients I computes."""
    spent: list[tuple[int, str]]
    """Nodes that W does not run, and the name of a tensor that no other node saved."""
    stays: list[bool]
    """If W needs a target, for each of them."""


def matching_nodes(
    plan: SplitPlan, starts: Sequence[GradientEdge], ends: Sequence[GradientEdge]
) -> list[Node] | None:
    """Return the nodes of a graph in the plan's numbers; None where another plan is needed."""
    if any(leaf._backward_hooks for edge in plan.early if (leaf := _leaf(edge.node)) is not None):
        return None
    nodes: list[Node] = []
    for (number, slot), start in zip(plan.starts, starts, strict=True):
        if slot != start.output_nr:
            return None
        if number == len(nodes):
            nodes.append(start.node)
        elif number > len(nodes) or nodes[number] is not start.node:
            return None
    # Roots come first in the numbering, in both graphs.
    for number, (kind, children) in enumerate(plan.nodes):
        node = nodes[number]
        functions = node.next_functions
        if node.__class__ is not kind or len(functions) != len(children):
            return None
        for (child, slot), (wanted, output) in zip(functions, children, strict=True):
            if wanted.__class__ is int:
                if wanted == len(nodes) and child is not None:
                    nodes.append(child)
                elif wanted >= len(nodes) or nodes[wanted] is not child:
                    return None
                if slot != output:
                    return None
            elif child is not wanted:
                return None
    for place, end in zip(plan.ends, ends, strict=True):
        if place is not None and nodes[place] is not end.node:
            return None
    return nodes if len(set(nodes)) == len(nodes) else None


def split_plan(
    starts: Sequence[GradientEdge], ends: Sequence[GradientEdge]
) -> tuple[SplitPlan, list[Node]]:
    """Plan how to split the backward of a graph; return the plan and the numbered nodes."""
    ended = {end.node for end in ends}
    numbers: dict[Node, int] = {}
    for start in starts:
        numbers.setdefault(start.node, len(numbers))
    nodes = list(numbers)
    rows: _Rows = []
    for node in nodes:  # it grows on the way
        children: list[tuple[int | Node | None, int]] = []
        for child, slot in node.next_functions:
            if child is None or (_leaf(child) is not None and child not in ended):
                children.append((child, slot))
                continue
            if child not in numbers:
                numbers[child] = len(numbers)
                nodes.append(child)
            children.append((numbers[child], slot))
        rows.append((type(node), children))
    last = {numbers[node] for node in ended if node in numbers}
    path = _path(rows, last)
    weights = _weights(nodes, rows)
    slots: dict[int, set[int]] = {}
    for start in starts:
        slots.setdefault(numbers[start.node], set()).add(start.output_nr)
    for parent in path:
        for number, slot in rows[parent][1]:
            if isinstance(number, int):
                slots.setdefault(number, set()).add(slot)
    captures: list[tuple[int, int]] = []
    groups: list[WeightGroup] = []
    branches = {
        number: _once([leaf for child, _ in rows[number][1] if child not in path
                       for leaf in _below(child, weights)])
        for number in sorted(path - last)
    }  # fmt: skip
    past = [number for start in starts if (number := numbers[start.node]) not in path]
    # Weights below further nodes of a branch are W's: those nodes may need more than W keeps.
    beyond = [leaf for number, row in enumerate(rows) if number not in path
              for child, _ in row[1] for leaf in _below(child, weights)]  # fmt: skip
    beyond += [leaf for number in past for leaf in weights[number]]
    early = _early(list(branches.values()), beyond)
    for number, found in branches.items():
        if any(id(leaf) not in early for leaf in found):
            places = range(len(captures), len(captures) + len(slots[number]))
            captures += [(number, slot) for slot in sorted(slots[number])]
            _join(groups, WeightGroup(found, captures=list(places)))
    onward = []
    for place, start in enumerate(starts):
        number = numbers[start.node]
        if number in path:
            onward.append(place)
        elif weights[number]:
            _join(groups, WeightGroup(weights[number], starts=[place]))
    # Between two uses of a weight are nodes of other groups: groups with several uses come first.
    groups.sort(key=lambda group: not group.several)
    spent = path - last - _run_again(rows, captures, groups, weights)
    others = [node for number, node in enumerate(nodes) if number not in spent]
    needed = {
        address for node in others for name in saved_names(type(node))
        for address in addresses(node, name)
    }  # fmt: skip
    shown = all(map(shows_saved, others))
    plan = SplitPlan(
        [(numbers[start.node], start.output_nr) for start in starts],
        [numbers.get(end.node) for end in ends],
        rows, captures, onward, groups, list(early.values()), _spent(nodes, rows, spent, needed),
        [not shown or bool(storages(_below(end.node, [])).keys() & needed) for end in ends],
    )  # fmt: skip
    return plan, nodes


def _early(branches: Sequence[list[Tensor]], beyond: Sequence[Tensor]) -> dict[int, GradientEdge]:
    """Return the vectors without hooks among the weights, by id, and the edges of their gradients.

    Those that W reaches together with others, or that are `beyond` other nodes, are left out.
    """
    late = {id(leaf) for leaf in beyond}
    late |= {id(leaf) for found in branches for leaf in found
             if leaf.dim() > 1 or leaf._backward_hooks}  # fmt: skip
    count = -1
    while count != len(late):
        count = len(late)
        for found in branches:
            mine = {id(leaf) for leaf in found}
            if mine & late:
                late |= mine
    return {
        id(leaf): get_gradient_edge(leaf)
        for found in branches for leaf in found if id(leaf) not in late
    }  # fmt: skip


def _run_again(
    rows: _Rows,
    captures: Sequence[tuple[int, int]],
    groups: Sequence[WeightGroup],
    weights: Sequence[list[Tensor]],
) -> set[int]:
    """Return the nodes on the way to the targets that W runs, too."""
    found = {number for number, _ in captures}
    for group in groups:
        if not group.several:
            continue
        # W runs from use to use of a weight.
        mine = {id(leaf) for leaf in group.weights}
        stack = [captures[place][0] for place in group.captures]
        seen = set(stack)
        while stack:
            for child, _ in rows[stack.pop()][1]:
                if isinstance(child, int) and child not in seen and any(
                    id(leaf) in mine for leaf in weights[child]
                ):  # fmt: skip
                    seen.add(child)
                    stack.append(child)
        found |= seen
    return found


def _spent(
    nodes: Sequence[Node], rows: _Rows, spent: set[int], needed: set[int]
) -> list[tuple[int, str]]:
    """Return tensors that `spent` nodes saved, without weights and those `needed` by others."""
    ends = {child for row in rows for child, _ in row[1] if not isinstance(child, int)}
    stays = needed | storages(leaf for end in ends for leaf in _below(end, [])).keys()
    return [
        (number, name)
        for number in sorted(spent) for name in saved_names(type(nodes[number]))
        if addresses(nodes[number], name) - stays
    ]  # fmt: skip


def _order(rows: _Rows) -> Iterable[int]:
    """Return the numbers of all nodes, children before parents."""
    below = ([child for child, _ in children if isinstance(child, int)] for _, children in rows)
    return TopologicalSorter(dict(enumerate(below))).static_order()


def _path(rows: _Rows, ends: set[int]) -> set[int]:
    """Return the nodes from which an end can be reached, ends included."""
    path = set(ends)
    for number in _order(rows):
        if any(isinstance(child, int) and child in path for child, _ in rows[number][1]):
            path.add(number)
    return path


def _weights(nodes: Sequence[Node], rows: _Rows) -> list[list[Tensor]]:
    """Return the leaves below every node; the node of a leaf has that leaf."""
    found: list[list[Tensor]] = [[] for _ in rows]
    for number in _order(rows):
        leaf = _leaf(nodes[number])
        below = [] if leaf is None else [leaf]
        for child, _ in rows[number][1]:
            below += found[child] if isinstance(child, int) else _below(child, found)
        found[number] = _once(below)
    return found


def _below(child: int | Node | None, weights: list[list[Tensor]]) -> list[Tensor]:
    if child is None:
        return []
    if isinstance(child, int):
        return weights[child]
    leaf = _leaf(child)
    return [] if leaf is None else [leaf]


def _leaf(node: Node) -> Tensor | None:
    leaf: Tensor | None = getattr(node, "variable", None)
    return leaf


def _once(leaves: Sequence[Tensor]) -> list[Tensor]:
    return list({id(leaf): leaf for leaf in leaves}.values())


def _join(groups: list[WeightGroup], new: WeightGroup) -> None:
    """Add a group, and join it with those that share a weight."""
    mine = {id(leaf) for leaf in new.weights}
    for other in [group for group in groups if mine & {id(leaf) for leaf in group.weights}]:
        groups.remove(other)
        new = WeightGroup(
            _once([*other.weights, *new.weights]), other.captures + new.captures,
            other.starts + new.starts, several=True,
        )  # fmt: skip
        mine |= {id(leaf) for leaf in new.weights}
    groups.append(new)


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
            early = len(plan.early)
            several = torch.autograd.grad(
                [starts[root] for root in plan.onward], [*plan.early, *ends, *edges],
                [gradients[root] for root in plan.onward], retain_graph=True, allow_unused=True,
            )  # fmt: skip
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
            hooks = [node.register_prehook(partial(_noted, slots)) for node, slots in noted.items()]
        edges, gradients = zip(*branches.inside, *branches.past, strict=True)
        torch.autograd.backward(edges, gradients, branches.several, inputs=branches.weights)
        for hook in hooks:
            hook.remove()


def _noted(noted: dict[int, Tensor], gradients: tuple[Tensor | None, ...]) -> Any:
    return tuple(noted.get(slot) for slot in range(len(gradients)))
