"""A backward in two parts: I, the gradients of the inputs, and W, those of the weights, later.

Autograd's graph of a stage leads from its output to its input; branches that do not lead to the
input lead to weights. I runs the nodes on the way to the input and notes the gradient that reaches
every node with a branch. W starts at these nodes with the noted gradients and runs their branches
only: nothing of I is done again.

The graphs of a stage's microbatches have the same form. It is worked out for the first one; for the
others it is compared, node by node, and worked out anew only where it differs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

Gradients: TypeAlias = Sequence[Tensor | None]


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


@dataclass(eq=False)
class _Group:
    """Nodes whose branches lead to the same weights, in numbers of a form."""

    weights: list[Tensor]
    captures: list[int] = field(default_factory=list)
    """Places in :attr:`Form.captures`."""
    starts: list[int] = field(default_factory=list)
    """Roots from which no target can be reached."""
    several: bool = False


@dataclass(eq=False)
class Form:
    """The form of a stage's graph.

    Nodes have numbers in the order of a search from the roots. A row of `nodes` has a node's class
    and its children: a number, a leaf's own node, which is the same in all graphs, or None.
    """

    starts: list[tuple[int, int]]
    """Number and output of each root's node."""
    ends: list[int | None]
    """Number of each target's node; None for one that cannot be reached."""
    nodes: list[tuple[type, list[tuple[int | Node | None, int]]]]
    captures: list[tuple[int, int]]
    """Nodes with a branch to weights, by number and input."""
    onward: list[int]
    """Roots from which a target can be reached."""
    groups: list[_Group]


class Splitter:
    """Splits backwards of one stage."""

    def __init__(self) -> None:
        self._forms: dict[tuple[int, int], Form] = {}
        """By the number of roots and targets, which slices of a sequence differ in."""

    def backward_input(
        self, roots: Sequence[Tensor], gradients: Gradients, targets: Sequence[Tensor]
    ) -> tuple[list[Tensor | None], list[Branches]]:
        """Gradients of `targets`, and what is left to do for the weights.

        Parameters
        ----------
        roots, gradients
            Outputs, and the gradient of each; None for a scalar loss.
        targets
            Inputs, which are leaves.

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
        form = self._forms.get((len(starts), len(ends)))
        nodes = None if form is None else _same(form, starts, ends)
        if form is None or nodes is None:
            form, nodes = _form(starts, ends)
            self._forms[len(starts), len(ends)] = form
        edges = [GradientEdge(nodes[number], slot) for number, slot in form.captures]
        found: list[Tensor | None] = [None] * (len(targets) + len(edges))
        if form.onward:
            outputs = [starts[root] for root in form.onward]
            seeded = [seeds[root] for root in form.onward]
            found = list(
                torch.autograd.grad(
                    outputs, [*ends, *edges], seeded, retain_graph=True, allow_unused=True
                )
            )
        captured = found[len(targets) :]
        rest = []
        for group in form.groups:
            onto = [(edges[place], captured[place]) for place in group.captures]
            past = [(starts[place], seeds[place]) for place in group.starts]
            inside = [(edge, gradient) for edge, gradient in onto if gradient is not None]
            if inside or past:
                rest.append(Branches(group.weights, inside, past, group.several))
        return found[: len(targets)], rest


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


def _same(
    form: Form, starts: Sequence[GradientEdge], ends: Sequence[GradientEdge]
) -> list[Node] | None:
    """The nodes of a graph of this form, in its numbers; None for another form."""
    nodes: list[Node] = []
    for (number, slot), start in zip(form.starts, starts, strict=True):
        if slot != start.output_nr:
            return None
        if number == len(nodes):
            nodes.append(start.node)
        elif number > len(nodes) or nodes[number] is not start.node:
            return None
    # Roots come first in the numbering, in both graphs.
    for number, (kind, children) in enumerate(form.nodes):
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
    for place, end in zip(form.ends, ends, strict=True):
        if place is not None and nodes[place] is not end.node:
            return None
    return nodes if len(set(nodes)) == len(nodes) else None


def _form(starts: Sequence[GradientEdge], ends: Sequence[GradientEdge]) -> tuple[Form, list[Node]]:
    """Work out the form of a graph."""
    ended = {end.node for end in ends}
    numbers: dict[Node, int] = {}
    for start in starts:
        numbers.setdefault(start.node, len(numbers))
    nodes = list(numbers)
    rows: list[tuple[type, list[tuple[int | Node | None, int]]]] = []
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
    path = _path(rows, {numbers[node] for node in ended if node in numbers})
    weights = _weights(nodes, rows)
    slots: dict[int, set[int]] = {}
    for start in starts:
        slots.setdefault(numbers[start.node], set()).add(start.output_nr)
    for parent in path:
        for number, slot in rows[parent][1]:
            if isinstance(number, int):
                slots.setdefault(number, set()).add(slot)
    last = {numbers[node] for node in ended if node in numbers}
    captures: list[tuple[int, int]] = []
    groups: list[_Group] = []
    for number in sorted(path - last):
        found = [
            leaf for child, _ in rows[number][1]
            for leaf in ([] if child in path else _below(child, weights))
        ]  # fmt: skip
        if found:
            places = range(len(captures), len(captures) + len(slots[number]))
            captures += [(number, slot) for slot in sorted(slots[number])]
            _join(groups, _Group(_once(found), captures=list(places)))
    onward = []
    for place, start in enumerate(starts):
        number = numbers[start.node]
        if number in path:
            onward.append(place)
        elif weights[number]:
            _join(groups, _Group(_once(weights[number]), starts=[place]))
    # On the way from one use of a weight to the other are nodes of other groups, which need them.
    groups.sort(key=lambda group: not group.several)
    form = Form(
        [(numbers[start.node], start.output_nr) for start in starts],
        [numbers.get(end.node) for end in ends],
        rows, captures, onward, groups,
    )  # fmt: skip
    return form, nodes


_Rows: TypeAlias = list[tuple[type, list[tuple[int | Node | None, int]]]]


def _order(rows: _Rows) -> list[int]:
    """Numbers of all nodes, children before parents."""
    done: list[int] = []
    seen: set[int] = set()
    stack = [(number, False) for number in range(len(rows))]
    while stack:
        number, left = stack.pop()
        if left:
            done.append(number)
        elif number not in seen:
            seen.add(number)
            stack.append((number, True))
            stack += [(child, False) for child, _ in rows[number][1] if isinstance(child, int)]
    return done


def _path(rows: _Rows, ends: set[int]) -> set[int]:
    """Nodes from which an end can be reached, ends included."""
    path = set(ends)
    for number in _order(rows):
        if any(isinstance(child, int) and child in path for child, _ in rows[number][1]):
            path.add(number)
    return path


def _weights(nodes: Sequence[Node], rows: _Rows) -> list[list[Tensor]]:
    """The leaves below every node; below a node that is a leaf's own, that leaf."""
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


def _join(groups: list[_Group], new: _Group) -> None:
    """Add a group; those that share a weight come together."""
    mine = {id(leaf) for leaf in new.weights}
    for other in [group for group in groups if mine & {id(leaf) for leaf in group.weights}]:
        groups.remove(other)
        new = _Group(
            _once([*other.weights, *new.weights]), other.captures + new.captures,
            other.starts + new.starts, several=True,
        )  # fmt: skip
        mine |= {id(leaf) for leaf in new.weights}
    groups.append(new)


def _replace(noted: dict[int, Tensor]) -> Callable[..., Any]:
    def hook(gradients: tuple[Tensor | None, ...]) -> Any:
        return tuple(noted.get(slot) for slot in range(len(gradients)))

    return hook
