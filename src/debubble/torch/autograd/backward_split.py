"""The form of a stage's graph: which nodes I runs, where W begins, and what W does not need.

The graphs of a stage's microbatches have the same form. It is worked out for the first one; for the
others it is compared, node by node, and worked out anew only where it differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from debubble.torch.autograd.saved_tensors import addresses, saved_names, shows_saved, storages


@dataclass(eq=False)
class WeightGroup:
    """Nodes whose branches lead to the same weights, in numbers of a form."""

    weights: list[Tensor]
    captures: list[int] = field(default_factory=list)
    """Places in :attr:`SplitPlan.captures`."""
    starts: list[int] = field(default_factory=list)
    """Roots from which no target can be reached."""
    several: bool = False


@dataclass(eq=False)
class SplitPlan:
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
    groups: list[WeightGroup]
    early: list[GradientEdge]
    """Weights whose gradients come in I."""
    spent: list[tuple[int, str]]
    """Nodes that W does not run, and what they call a tensor that nobody else saved."""
    stays: list[bool]
    """Whether W needs a target."""


def same(
    form: SplitPlan, starts: Sequence[GradientEdge], ends: Sequence[GradientEdge]
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


def split_plan(
    starts: Sequence[GradientEdge], ends: Sequence[GradientEdge]
) -> tuple[SplitPlan, list[Node]]:
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
    groups: list[WeightGroup] = []
    branches = {
        number: _once([leaf for child, _ in rows[number][1] if child not in path
                       for leaf in _below(child, weights)])
        for number in sorted(path - last)
    }  # fmt: skip
    past = [number for start in starts if (number := numbers[start.node]) not in path]
    # Behind other nodes of a branch they are W's: who knows what these take.
    behind = [leaf for number, row in enumerate(rows) if number not in path
              for child, _ in row[1] for leaf in _below(child, weights)]  # fmt: skip
    behind += [leaf for number in past for leaf in weights[number]]
    early = _early(list(branches.values()), behind)
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
    # On the way from one use of a weight to the other are nodes of other groups, which need them.
    groups.sort(key=lambda group: not group.several)
    spent = path - last - _run_again(rows, captures, groups, weights)
    others = [node for number, node in enumerate(nodes) if number not in spent]
    needed = {
        address for node in others for name in saved_names(type(node))
        for address in addresses(node, name)
    }  # fmt: skip
    shown = all(map(shows_saved, others))
    form = SplitPlan(
        [(numbers[start.node], start.output_nr) for start in starts],
        [numbers.get(end.node) for end in ends],
        rows, captures, onward, groups, list(early.values()), _spent(nodes, rows, spent, needed),
        [not shown or bool(storages(_below(end.node, [])).keys() & needed) for end in ends],
    )  # fmt: skip
    return form, nodes


def _early(branches: Sequence[list[Tensor]], behind: Sequence[Tensor]) -> dict[int, GradientEdge]:
    """Vectors among the weights, by id, and where their gradients go in.

    Not those that W reaches with others, or that are `behind` other nodes.
    """
    late = {id(leaf) for leaf in behind}
    late |= {id(leaf) for found in branches for leaf in found if leaf.dim() > 1}
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
    """Nodes on the way to the targets that W runs, too."""
    found = {number for number, _ in captures}
    for group in groups:
        if not group.several:
            continue
        # W goes from use to use of a weight.
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
    """What `spent` nodes saved, and neither is a weight nor `needed` by others."""
    ends = {child for row in rows for child, _ in row[1] if not isinstance(child, int)}
    stays = needed | storages(leaf for end in ends for leaf in _below(end, [])).keys()
    return [
        (number, name)
        for number in sorted(spent) for name in saved_names(type(nodes[number]))
        if addresses(nodes[number], name) - stays
    ]  # fmt: skip


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


def _join(groups: list[WeightGroup], new: WeightGroup) -> None:
    """Add a group; those that share a weight come together."""
    mine = {id(leaf) for leaf in new.weights}
    for other in [group for group in groups if mine & {id(leaf) for leaf in group.weights}]:
        groups.remove(other)
        new = WeightGroup(
            _once([*other.weights, *new.weights]), other.captures + new.captures,
            other.starts + new.starts, several=True,
        )  # fmt: skip
        mine |= {id(leaf) for leaf in new.weights}
    groups.append(new)
