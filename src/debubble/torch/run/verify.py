"""Comparison of a pipeline's loss and gradients with those of the model without a pipeline.

The reference is one model: whole microbatches go through all stages, one after the other, with
autograd's own backward. Gradients of an iteration are compared as its optimizer step gets them.

A rank that keeps n versions of the weights takes the oldest of them for all microbatches of an
iteration, forward and backward: weights that are n − 1 optimizer steps old. One version is training
with a flush. Two on all ranks are PipeDream-2BW's rule, w(k + 1) = w(k) − rate · gradient(w(k − 1))
(arXiv 2006.09503). PipeDream (arXiv 1806.03377) keeps p − r of them on rank r.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from debubble.core.kinds import STEP_KINDS
from debubble.core.schedule import Schedule
from debubble.engine.validate import has
from debubble.torch.engine.vocabulary import LAYERS
from debubble.torch.run.job import RATE, RunData, copied

TOLERANCE = {"float64": 1e-9, "float32": 1e-4}
"""Largest error of a gradient relative to the largest gradient of all, by type of numbers."""

Arrays: TypeAlias = Mapping[str, NDArray[np.float64]]
Reference: TypeAlias = tuple[NDArray[np.float64], dict[tuple[int, int], Arrays]]
"""Loss of every iteration, and gradients by (iteration, stage) and name."""
Place: TypeAlias = tuple[int, int, int, str]
"""Iteration, stage, rank and name of a gradient."""


@dataclass(frozen=True)
class Verification:
    """Differences between a pipeline's loss and gradients and those of the model alone."""

    loss: float
    reference_loss: float
    """As `loss`: of the last iteration, mean over microbatches."""
    loss_error: float
    """Largest difference over the iterations."""
    gradient_error: float
    """Largest difference of any gradient."""
    relative_error: float
    """Largest difference relative to the largest gradient."""
    worst: str
    """Place of the largest difference."""
    tensors: int
    """Number of gradients that were compared."""
    dtype: str = "float64"
    """Type of the numbers: ``"float64"``, or ``"float32"`` where the model has no such kernels."""
    random: bool = False
    """If the model differs from itself, so that gradients cannot be compared."""

    @property
    def tolerance(self) -> float:
        """The largest error that counts as equal."""
        return TOLERANCE[self.dtype]

    @property
    def equal(self) -> bool:
        """If loss and every gradient agree within :data:`TOLERANCE`."""
        scale = max(abs(self.reference_loss), 1e-300)
        return self.loss_error <= self.tolerance * scale and self.relative_error <= self.tolerance

    def to_dict(self) -> dict[str, Any]:
        """Return the verification as plain data."""
        values = {
            key: value if not isinstance(value, float) or math.isfinite(value) else None
            for key, value in asdict(self).items()
        }
        return values | {"equal": self.equal, "tolerance": self.tolerance}


def comparison_dtype(data: RunData) -> torch.dtype:
    """Return the type to compare a model in: float64, or float32 where kernels lack it."""
    modules = copied(dict(enumerate(data.model.stages)), "cpu", torch.float64)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            data.loss(list(modules.values()), 0, torch.float64)
    except RuntimeError as error:
        if any(word in str(error).lower() for word in ("double", "float64", "bfloat16")):
            return torch.float32
        raise
    return torch.float64


def verify(
    schedule: Schedule,
    data: RunData,
    gradients: Sequence[Mapping[tuple[int, int], Arrays]],
    losses: Sequence[Mapping[int, float]],
    dtype: torch.dtype = torch.float64,
) -> Verification:
    """Compare results of ranks with the reference.

    Every rank has its gradients by (iteration, stage) and name, and the shares of its microbatches
    or slices in the loss of their step.
    """
    wanted = reference(schedule, data, dtype)
    period = schedule.microbatches * schedule.slices
    found = np.zeros(len(wanted[0]))
    for shares in losses:
        for unit, share in shares.items():
            found[min(unit // period, len(found) - 1)] += share
    checked = _compare(schedule, wanted, found, gradients, dtype)
    if checked.equal or not math.isfinite(checked.reference_loss):
        return checked
    again = reference(schedule, data, dtype)
    return replace(checked, random=_is_random(wanted, again, checked.tolerance))


def _compare(
    schedule: Schedule,
    wanted: Reference,
    losses: NDArray[np.float64],
    gradients: Sequence[Mapping[tuple[int, int], Arrays]],
    dtype: torch.dtype,
) -> Verification:
    wanted_losses, parts = wanted
    wanted_at = dict(_by_place(schedule, parts))
    found_at = {
        (*place, rank, name): gradient
        for rank, found in enumerate(gradients)
        for place, part in found.items() for name, gradient in part.items()
    }  # fmt: skip
    error, worst = 0.0, ""
    for place, gradient in wanted_at.items():
        off = _difference(found_at.get(place), gradient)
        if off > error:
            error, worst = off, _describe(schedule, place)
    for place in found_at:
        if place not in wanted_at:
            error, worst = math.inf, f"{_describe(schedule, place)}, which is not trained"
    scale = _largest(parts)
    loss_error = float(np.abs(losses - wanted_losses).max())
    return Verification(
        loss=float(losses[-1]),
        reference_loss=float(wanted_losses[-1]),
        loss_error=math.inf if math.isnan(loss_error) else loss_error,
        gradient_error=error,
        relative_error=error / scale if scale else error,
        worst=worst,
        tensors=len(wanted_at),
        dtype=str(dtype).removeprefix("torch."),
    )


def _by_place(
    schedule: Schedule, wanted: Mapping[tuple[int, int], Arrays]
) -> Iterator[tuple[Place, NDArray[np.float64]]]:
    """Yield every gradient by its place; a sharded output layer is the stage after the last."""
    for (iteration, stage), part in wanted.items():
        for name, gradient in part.items():
            layer, _, parameter = name.rpartition(".")
            if schedule.vocabulary and stage == schedule.stages - 1 and layer in LAYERS:
                for rank, rows in enumerate(np.array_split(gradient, schedule.ranks)):
                    yield (iteration, stage + 1, rank, parameter), rows
                continue
            for row in schedule.placement.table:
                yield (iteration, stage, row[stage], name), gradient


def _difference(found: NDArray[np.float64] | None, wanted: NDArray[np.float64]) -> float:
    """Return the largest difference; infinity for NaN, and where shapes differ."""
    if found is None or found.shape != wanted.shape:
        return math.inf
    off = float(np.abs(found - wanted).max(initial=0.0))
    return math.inf if math.isnan(off) else off


def _describe(schedule: Schedule, place: Place) -> str:
    iteration, stage, rank, name = place
    owner = f"stage {stage}" if stage < schedule.stages else f"rank {rank}'s output layer"
    return f"{name} of {owner}, iteration {iteration}"


def _largest(parts: Mapping[Any, Arrays]) -> float:
    """Return the largest absolute value of any gradient."""
    return max(
        (float(np.abs(g).max(initial=0.0)) for part in parts.values() for g in part.values()),
        default=0.0,
    )


def _is_random(first: Reference, second: Reference, tolerance: float) -> bool:
    """Return if the model computed something else the second time."""
    if not np.allclose(first[0], second[0], rtol=tolerance, atol=0.0):
        return True
    most = tolerance * _largest(first[1])
    return any(
        _difference(second[1][place][name], gradient) > most
        for place, part in first[1].items()
        for name, gradient in part.items()
    )


def versions_used(schedule: Schedule) -> NDArray[np.int64]:
    """Return the number of optimizer steps before the weights of each (stage, microbatch)."""
    number = np.arange(schedule.microbatches * schedule.iterations)
    copies = schedule.copies_of(number * schedule.slices)
    ranks = np.asarray(schedule.placement.table)[copies].T
    older = np.asarray(schedule.versions)[ranks] - 1
    used: NDArray[np.int64] = np.maximum(number // schedule.microbatches - older, 0)
    return used


def reference(schedule: Schedule, data: RunData, dtype: torch.dtype = torch.float64) -> Reference:
    """Compute loss and gradients without a pipeline, with the schedule's optimizer steps."""
    modules = copied(dict(enumerate(data.model.stages)), "cpu", dtype)
    steps = has(schedule, STEP_KINDS)
    used = versions_used(schedule) * steps
    # A weight that several stages share has one id, by which all versions know it.
    names = {stage: {name: id(w) for name, w in module.named_parameters()}
             for stage, module in modules.items()}  # fmt: skip
    newest = {id(w): w.detach().clone().requires_grad_(w.requires_grad)
              for module in modules.values() for w in module.parameters()}  # fmt: skip
    versions: list[dict[int, Tensor]] = [newest]
    iterations = schedule.iterations if steps else 1
    per_iteration = schedule.microbatches * schedule.iterations // iterations
    losses = np.zeros(iterations)
    gradients: dict[tuple[int, int], Arrays] = {}
    shares = data.shares
    for iteration in range(iterations):
        for number in range(iteration * per_iteration, (iteration + 1) * per_iteration):
            stages = [
                partial(_call, module, {name: versions[used[stage, number]][key]
                                        for name, key in names[stage].items()})
                for stage, module in modules.items()
            ]  # fmt: skip
            loss = data.loss(stages, number, dtype) * shares[number]
            if loss.requires_grad:
                loss.backward()
            losses[iteration] += loss.item()
        total = {key: torch.zeros_like(w) for key, w in newest.items() if w.requires_grad}
        for version in versions:
            for key, w in version.items():
                if w.grad is not None:
                    total[key] += w.grad
                    w.grad = None
        for stage, own in names.items():
            gradients[iteration, stage] = {
                name: total[key].numpy() for name, key in own.items() if key in total
            }
        newest = {
            key: (w.detach() - RATE * total[key]).requires_grad_() if key in total else w
            for key, w in newest.items()
        }
        versions.append(newest)
    return losses, gradients


def _call(module: torch.nn.Module, weights: dict[str, Tensor], *args: Any) -> Any:
    return torch.func.functional_call(module, weights, args)
