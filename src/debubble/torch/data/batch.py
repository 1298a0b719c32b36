"""The data of one step, cut into microbatches or slices, and the losses that come out of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from debubble.core.errors import ParameterError
from debubble.core.schedule import Schedule
from debubble.torch.data.tree import mapped, tensors_of
from debubble.torch.ranks.process_group import Ranks

IGNORED = -100
"""Target that PyTorch's cross-entropy leaves out."""


@dataclass(frozen=True, eq=False)
class StepData:
    """The data of one step by unit: microbatch, or slice of one."""

    args: Mapping[int, tuple[Any, ...]] = field(default_factory=dict)
    """Positional arguments of the first stage; empty on ranks that do not hold it."""
    kwargs: Mapping[int, dict[str, Any]] = field(default_factory=dict)
    """Keyword arguments of every stage of this rank."""
    targets: Mapping[int, Any] = field(default_factory=dict)
    """Targets of the loss; empty on ranks without the last stage."""
    weights: Sequence[float] = ()
    """Share of each unit's loss in that of its iteration. A unit with a share of 0, for instance
    one with padding as targets only, counts nowhere, whatever its loss is."""
    scale: float = 1.0
    """A backward computes the gradient of `scale` times the loss of the step."""
    signatures: Sequence[int] = ()
    """Number of a unit's form of input: outputs of stages have the same shape and type for units of
    the same number. The numbers begin anew with every copy of the model."""
    anew: bool = False
    """If other weights want gradients than before, so that outputs have other forms."""
    outputs: dict[int, Any] | None = None
    """Outputs of the last stage by unit, once they are there; None keeps none."""
    metrics: dict[int, Any] | None = None
    """Metrics that the loss function returns, by unit; None keeps none."""
    finite: bool = False
    """If results are checked for NaN and infinite numbers."""
    scaled: bool = False
    """If a scaler multiplies losses, so that gradients may be infinite."""

    def keeping(self, *, outputs: bool = False, metrics: bool = False, finite: bool) -> StepData:
        """Return the data of a step that keeps outputs and metrics, and checks its numbers."""
        if not (outputs or metrics or finite):
            return self
        return replace(
            self, outputs={} if outputs else None, metrics={} if metrics else None, finite=finite
        )


def split_batch(tree: Any, count: int, name: str) -> list[Any]:
    """Cut the tensors of a tree in `count` parts along dimension 0; all parts get the rest."""

    def parts(leaf: Tensor) -> Sequence[Tensor] | None:
        if not leaf.dim():
            return None
        if len(leaf) < count:
            raise ParameterError(
                f"{name} has a tensor of shape {list(leaf.shape)} for {count} microbatches; "
                "give at least one row for each, or the microbatches themselves with "
                "arg_mbs=, kwarg_mbs= and target_mbs="
            )
        return leaf.tensor_split(count)

    return _split_tree(tree, count, parts)


def split_slices(tree: Any, schedule: Schedule) -> list[Any]:
    """Cut the tensors of a microbatch in the schedule's slices, along dimension 1."""
    shares = schedule.cut or (1 / schedule.slices,) * schedule.slices

    def parts(leaf: Tensor) -> Sequence[Tensor] | None:
        if leaf.dim() < 2:
            return None
        tokens = leaf.shape[1]
        ends = [round(tokens * sum(shares[: part + 1])) for part in range(schedule.slices - 1)]
        return leaf.tensor_split(ends, dim=1)

    return _split_tree(tree, schedule.slices, parts)


def _split_tree(
    tree: Any, count: int, parts: Callable[[Tensor], Sequence[Tensor] | None]
) -> list[Any]:
    if isinstance(tree, Tensor):
        return list(parts(tree) or (tree,) * count)
    leaves, form = pytree.tree_flatten(tree)
    columns = [
        (parts(leaf) if isinstance(leaf, Tensor) else None) or (leaf,) * count for leaf in leaves
    ]
    rows = zip(*columns, strict=True) if columns else [()] * count
    if tree.__class__ is tuple and all(isinstance(leaf, Tensor) for leaf in tree):
        return list(rows)
    return [pytree.tree_unflatten(row, form) for row in rows]


def by_unit(microbatches: Sequence[Any], schedule: Schedule) -> dict[int, Any]:
    """Return data of microbatches by unit."""
    if schedule.slices == 1:
        return dict(enumerate(microbatches))
    return dict(enumerate(part for each in microbatches for part in split_slices(each, schedule)))


def count_tokens(target: Any) -> float:
    """Return how many numbers of a target count: those of tensors that are not −100."""
    return sum(
        (float(leaf.numel() if leaf.is_floating_point() else (leaf != IGNORED).sum())
         for leaf in tensors_of(target)),
        0.0,
    )  # fmt: skip


def count_rows(tree: Any) -> float:
    """Return the length of a microbatch's first tensor with dimensions, 0 without one."""
    for tensor in tensors_of(tree):
        if tensor.dim():
            return float(tensor.shape[0])
    return 0.0


def count_weights(targets: Mapping[int, Any], schedule: Schedule, scale: str) -> list[float]:
    """Return how much the loss of every unit counts by its target; 0 for units without one here.

    Under ``"tokens"`` that is the number of its targets that count. Under ``"mean"`` it is the
    number of its microbatch's rows, and under ``"sum"`` it is 1 for all; slices share it by tokens.
    """
    counts, slices = [0.0] * schedule.units, schedule.slices
    if scale == "tokens" or (scale == "mean" and slices == 1):
        counted = count_tokens if scale == "tokens" else count_rows
        for unit, target in targets.items():
            counts[unit] = counted(target)
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


def add_by_unit(parts: Iterable[Mapping[int, Sequence[Tensor]]]) -> dict[int, Tensor]:
    """Return the sums of each unit's losses."""
    found: dict[int, Tensor] = {}
    for part in parts:
        for unit, losses in part.items():
            for loss in losses:
                found[unit] = found[unit] + loss if unit in found else loss
    return found


def apply_weights(losses: Mapping[int, Tensor], weights: Sequence[float]) -> dict[int, Tensor]:
    """Return losses times the weights of their units, without those that count nowhere."""
    return {unit: loss * weights[unit] for unit, loss in losses.items() if weights[unit]}


def join_outputs(outputs: Mapping[int, Any], slices: int) -> Any:
    """Return outputs of all units in one tree: slices along dimension 1, microbatches along 0."""
    if not outputs:
        return None
    trees = [outputs[unit] for unit in sorted(outputs)]
    if slices > 1:
        trees = [_joined(trees[i : i + slices], 1) for i in range(0, len(trees), slices)]
    return _joined(trees, 0)


def _joined(trees: Sequence[Any], dim: int) -> Any:
    """Return trees as one, whose tensors that have a dimension are joined along it."""
    columns = zip(*map(pytree.tree_leaves, trees), strict=True)
    leaves = [
        torch.cat(column, dim) if isinstance(column[0], Tensor) and column[0].dim() > dim
        else column[0] for column in columns
    ]  # fmt: skip
    return pytree.tree_unflatten(leaves, pytree.tree_structure(trees[0]))


def append_results(
    results: list[Any] | None, found: Mapping[int, Any], targets: Mapping[int, Any]
) -> None:
    """Append results of the units that have targets here to the list of the caller, if any."""
    if results is not None:
        results.extend(found[unit] for unit in sorted(found) if unit in targets)


def sum_losses(
    losses: Mapping[int, Tensor], weights: Sequence[float], times: float, ranks: Ranks
) -> Tensor:
    """Return `times` the sum of weighted losses over all ranks; NaN without any."""
    if ranks.batched:
        total = torch.zeros(2, dtype=torch.float64, device=ranks.wire)
        counted = apply_weights(losses, weights)
        if counted:
            total[0] = torch.stack(list(counted.values())).to(total).sum()
            total[1] = len(counted)
        ranks.total(total)
        return total[0] / (total[1] > 0) * times
    # On a host numbers cost less than tensors of one number.
    units = [unit for unit in losses if weights[unit]]
    values = torch.stack([losses[unit] for unit in units]).tolist() if units else []
    own = sum(value * weights[unit] for unit, value in zip(units, values, strict=True))
    found, count = ranks.channel.add([own, len(units)])
    mean = found * times if count else math.nan
    return torch.tensor(mean, dtype=torch.float64, device=ranks.device)


_ADDED: ContextVar[list[Tensor] | None] = ContextVar("added losses", default=None)


def add_loss(value: Tensor) -> None:
    """Add a scalar to the loss of the microbatch whose forward runs.

    Called in the forward of a stage. The value counts like the microbatch's own loss; outside of
    pipelines, in a forward by itself for instance, it is dropped.

    Parameters
    ----------
    value
        One number, with the graph that leads to the weights.

    Raises
    ------
    ParameterError
        When the value is not one number.
    """
    if not isinstance(value, Tensor) or value.numel() != 1:
        what = list(value.shape) if isinstance(value, Tensor) else repr(value)
        raise ParameterError(f"add_loss() got {what}; give a tensor with one number")
    added = _ADDED.get()
    if added is not None:
        added.append(value.reshape(()))


class Loss:
    """Loss function of the training loop, with the keyword arguments of a step."""

    def __init__(self, compute: Callable[..., Tensor]) -> None:
        self._compute = compute
        self._kwargs: dict[str, Any] = {}

    def __call__(self, output: Any, target: Any) -> Tensor:
        """Return the loss of a microbatch."""
        return self._compute(output, target, **self._kwargs)

    def take(
        self, kwargs: Mapping[str, Any] | None, wants: Mapping[str, bool], sharded: bool
    ) -> None:
        """Set the keyword arguments of a step.

        Raises ParameterError when there are some, or a step `wants` more than losses, and the
        output layer is `sharded`: it computes its loss itself.
        """
        if sharded and any(wants.values()):
            name = next(name for name, wanted in wants.items() if wanted)
            raise ParameterError(
                f"a sharded output layer computes its loss itself, and gives no {name} in such a "
                "call; eval(return_outputs=True) has outputs"
            )
        if kwargs and sharded:
            raise ParameterError(
                f"loss_kwargs has {', '.join(kwargs)}, and a sharded output layer computes its "
                "loss itself; leave them out, or use a schedule that does not shard it"
            )
        self._kwargs = dict(kwargs or {})


class added_losses:  # noqa: N801 - it is called as a function
    """Context that collects the losses that :func:`add_loss` gets."""

    __slots__ = ("_token",)

    def __enter__(self) -> list[Tensor]:
        found: list[Tensor] = []
        self._token = _ADDED.set(found)
        return found

    def __exit__(self, *_: object) -> None:
        _ADDED.reset(self._token)


def zero_of(output: Any) -> Tensor:
    """Return a zero whose gradient is zero everywhere in an output.

    It replaces a loss that counts nowhere: NaN times 0 would be NaN.
    """
    found = torch.zeros(())
    for leaf in tensors_of(output):
        if leaf.requires_grad:
            everywhere = torch.ones_like(leaf, dtype=torch.bool)
            found = found.to(leaf) + leaf.masked_fill(everywhere, 0).sum()
    return found


def take_metrics(value: Any, unit: int, metrics: dict[int, Any] | None) -> Any:
    """Return the loss of what a loss function returned, and keep the metrics if they are wanted."""
    loss, found = value if isinstance(value, tuple) and len(value) == 2 else (value, None)
    if metrics is not None:
        if found is None:
            raise ParameterError(
                "loss_fn returned no metrics, and metrics= takes some; return (loss, metrics)"
            )
        metrics[unit] = mapped(found, Tensor.detach)
    return loss


def check_loss_value(loss: Any, output: Any) -> Tensor:
    """Return a loss as a tensor without dimensions; refuse one that gives no gradient."""
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        what = list(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise ParameterError(
            f"loss_fn returned {what}; return one number, the mean over the microbatch, or "
            "(loss, metrics)"
        )
    if isinstance(output, Tensor) and output.requires_grad and not loss.requires_grad:
        raise ParameterError(
            "loss_fn returned a number that has no gradient; compute it from the output without "
            "detach(), item() or no_grad()"
        )
    return loss.reshape(())
