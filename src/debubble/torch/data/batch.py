"""One step's data, cut into what actions work on; and what an engine does with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from debubble.core.errors import ParameterError
from debubble.core.schedule import Schedule
from debubble.torch.ranks.process_group import Ranks

if TYPE_CHECKING:
    from debubble.torch.engine.recorder import Recorder

IGNORED = -100
"""The target that PyTorch's cross-entropy leaves out."""


@dataclass(frozen=True, eq=False)
class StepData:
    """The data of one step by unit: microbatch, or slice of one."""

    args: Mapping[int, tuple[Any, ...]] = field(default_factory=dict)
    """Positional arguments of the first stage; empty on ranks that do not hold it."""
    kwargs: Mapping[int, dict[str, Any]] = field(default_factory=dict)
    """Keyword arguments of every stage of this rank."""
    targets: Mapping[int, Any] = field(default_factory=dict)
    """What the loss compares the last stage's output with; empty on ranks that do not hold it."""
    weights: Sequence[float] = ()
    """Share of each unit's loss in that of its iteration. A unit with a share of 0, all of whose
    targets are padding for instance, counts nowhere, whatever its loss is."""
    scale: float = 1.0
    """A backward computes the gradient of `scale` times the loss of the step."""
    signatures: Sequence[int] = ()
    """Numbers that stand for the shapes and types of a unit's input: what stages hand on has the
    same shape and type for units of the same number. They begin anew with every copy of the
    model."""
    anew: bool = False
    """Whether other weights want gradients than before: then stages hand on other forms."""


@dataclass(frozen=True, eq=False)
class ForwardResult:
    """What forwards without backwards give."""

    losses: Mapping[int, Tensor]
    """By unit, on ranks with the last stage, when there were targets; auxiliary losses, too."""
    outputs: Mapping[int, Any]
    """By unit, of the last stage."""


class Engine(Protocol):
    """What walks an order: PyTorch's runtime, or our own.

    It is made of an :class:`debubble.torch.setup.EngineSetup`. Gradients are added to the ``grad``
    of the modules' parameters and are those of this rank alone: sums over copies of the model, tied
    weights and data-parallel replicas are taken after the step, see
    :mod:`debubble.torch.autograd.gradients`.
    """

    recorder: Recorder
    """When every action of the latest steps began and ended."""

    def step(self, batch: StepData) -> Mapping[int, Tensor]:
        """Forwards and backwards.

        Returns the unit's loss where the last stage is; elsewhere, and added to it, auxiliary
        losses. Tensors are detached and have no dimensions.
        """

    def forward(self, batch: StepData, outputs: bool) -> ForwardResult:
        """Forwards only; the last stage's outputs are kept when they are asked for."""


def cut(tree: Any, count: int, name: str) -> list[Any]:
    """A tree of tensors in `count` parts along dimension 0; what is no tensor is in all of them.

    Raises ParameterError when a tensor has fewer rows than there are microbatches.
    """
    leaves, spec = pytree.tree_flatten(tree)
    columns = []
    for leaf in leaves:
        if isinstance(leaf, Tensor) and leaf.dim():
            if len(leaf) < count:
                raise ParameterError(
                    f"{name} has a tensor of shape {list(leaf.shape)} for {count} microbatches; "
                    "give at least one row for each, or the microbatches themselves with "
                    "arg_mbs=, kwarg_mbs= and target_mbs="
                )
            columns.append(leaf.tensor_split(count))
        else:
            columns.append((leaf,) * count)
    return [
        pytree.tree_unflatten([column[number] for column in columns], spec)
        for number in range(count)
    ]


def sliced(tree: Any, schedule: Schedule) -> list[Any]:
    """A microbatch in the schedule's slices, along dimension 1."""
    shares = schedule.cut or (1 / schedule.slices,) * schedule.slices
    leaves, spec = pytree.tree_flatten(tree)
    columns = []
    for leaf in leaves:
        if not isinstance(leaf, Tensor) or leaf.dim() < 2:
            columns.append((leaf,) * schedule.slices)
            continue
        tokens = leaf.shape[1]
        ends = [round(tokens * sum(shares[: part + 1])) for part in range(schedule.slices - 1)]
        columns.append(leaf.tensor_split(ends, dim=1))
    return [
        pytree.tree_unflatten([column[part] for column in columns], spec)
        for part in range(schedule.slices)
    ]


def in_units(microbatches: Sequence[Any], schedule: Schedule) -> dict[int, Any]:
    """What belongs to microbatches, by unit."""
    if schedule.slices == 1:
        return dict(enumerate(microbatches))
    parts = [part for each in microbatches for part in sliced(each, schedule)]
    return dict(enumerate(parts))


def count_tokens(target: Any) -> float:
    """How many numbers of a target count: those of tensors that are not −100."""
    found = 0.0
    for leaf in pytree.tree_leaves(target):
        if isinstance(leaf, Tensor):
            found += float(leaf.numel() if leaf.is_floating_point() else (leaf != IGNORED).sum())
    return found


def count_rows(tree: Any) -> float:
    """Rows of a microbatch: the length of its first tensor with dimensions, 0 without one."""
    leaves = pytree.tree_leaves(tree)
    return float(next((len(x) for x in leaves if isinstance(x, Tensor) and x.dim()), 0))


def count_weights(targets: Mapping[int, Any], schedule: Schedule, scale: str) -> list[float]:
    """How much the loss of every unit counts, by its target; 0 for units without one here.

    Under ``"tokens"`` that is the number of its targets that count. Under ``"mean"`` it is the
    number of its microbatch's rows, and under ``"sum"`` it is 1 for all; slices share it by tokens.
    """
    counts, slices = [0.0] * schedule.units, schedule.slices
    if scale == "tokens":
        for unit, target in targets.items():
            counts[unit] = count_tokens(target)
        return counts
    for first in range(0, schedule.units, slices):
        if first in targets:
            units = range(first, first + slices)
            whole = count_rows(targets[first]) if scale == "mean" else 1.0
            tokens = [count_tokens(targets[unit]) for unit in units] if slices > 1 else [1.0]
            for unit, count in zip(units, tokens, strict=True):
                counts[unit] = whole * count / max(sum(tokens), 1.0)
    return counts


def shares_of(counts: Sequence[float], iterations: int) -> list[float]:
    """Return counts as shares of their iteration's sum."""
    period = len(counts) // iterations
    shares = []
    for first in range(0, len(counts), period):
        part = counts[first : first + period]
        total = sum(part) or 1.0
        shares += [count / total for count in part]
    return shares


def summed(parts: Iterable[Mapping[int, Sequence[Tensor]]]) -> dict[int, Tensor]:
    """Losses by unit; those of one unit are added up."""
    found: dict[int, Tensor] = {}
    for part in parts:
        for unit, losses in part.items():
            for loss in losses:
                found[unit] = found[unit] + loss if unit in found else loss
    return found


def weighted(losses: Mapping[int, Tensor], weights: Sequence[float]) -> dict[int, Tensor]:
    """Losses times the weights of their units, without those that count nowhere."""
    return {unit: loss * weights[unit] for unit, loss in losses.items() if weights[unit]}


def merged(outputs: Mapping[int, Any]) -> Any:
    """Outputs of microbatches in one tree, along dimension 0."""
    if not outputs:
        return None
    trees = [outputs[unit] for unit in sorted(outputs)]
    leaves = [pytree.tree_leaves(tree) for tree in trees]
    spec = pytree.tree_structure(trees[0])
    merged = [
        torch.cat(column) if isinstance(column[0], Tensor) and column[0].dim() else column[0]
        for column in zip(*leaves, strict=True)
    ]
    return pytree.tree_unflatten(merged, spec)


def append_losses(
    losses: list[Tensor] | None, found: Mapping[int, Tensor], batch: StepData
) -> None:
    """Losses of single units, where the last stage is."""
    if losses is not None:
        losses.extend(found[unit] for unit in sorted(found) if unit in batch.targets)


def sum_losses(losses: Mapping[int, Tensor], ranks: Ranks) -> Tensor:
    """The sum of weighted losses over all ranks; NaN without any, as of forwards alone."""
    total = torch.zeros(2, dtype=torch.float64, device=ranks.wire)
    if losses:
        parts = [loss.to(total) for loss in losses.values()]
        total[0], total[1] = torch.stack(parts).sum(), len(parts)
    ranks.total(total)
    return (total[0] / (total[1] > 0)).to(ranks.device)
