"""Compare what a pipeline computed with what the model computes without one.

The reference runs whole microbatches through all stages, one after the other, with autograd's own
backward. Gradients of an iteration are compared as its optimizer step gets them.

A rank that keeps n versions of the weights takes the oldest of them for all microbatches of an
iteration, forward and backward: weights that are n − 1 optimizer steps old. One version is training
with a flush. Two on all ranks are PipeDream-2BW's rule, w(k + 1) = w(k) − rate · gradient(w(k − 1))
(arXiv 2006.09503). PipeDream (arXiv 1806.03377) keeps p − r of them on rank r.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import Kind, kinds_of
from debubble.core.schedule import Schedule

if TYPE_CHECKING:
    from debubble.runtime.models import Batches

TOLERANCE = 1e-9
"""Largest error of a gradient, in float64 and relative to the largest gradient of all."""

Arrays: TypeAlias = Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True)
class Verification:
    """The pipeline's loss and gradients beside those of the model without a pipeline.

    Parameters
    ----------
    loss, reference_loss
        Of the last iteration, mean over microbatches.
    loss_error
        Largest difference over the iterations.
    gradient_error, relative_error
        Largest difference of any gradient, absolute and relative to the largest gradient.
    worst
        Where that is.
    tensors
        How many gradients were compared.
    """

    loss: float
    reference_loss: float
    loss_error: float
    gradient_error: float
    relative_error: float
    worst: str
    tensors: int

    @property
    def equal(self) -> bool:
        """Whether loss and every gradient agree within :data:`TOLERANCE`."""
        scale = max(abs(self.reference_loss), 1e-300)
        return self.loss_error <= TOLERANCE * scale and self.relative_error <= TOLERANCE

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        values = {
            key: value if not isinstance(value, float) or math.isfinite(value) else None
            for key, value in asdict(self).items()
        }
        return values | {"equal": self.equal, "tolerance": TOLERANCE}


def verify(
    schedule: Schedule,
    batches: Batches,
    gradients: Sequence[Mapping[tuple[int, int, int], Arrays]],
    losses: Sequence[Mapping[int, float]],
) -> Verification:
    """Compare what ranks computed in float64 with the reference.

    Parameters
    ----------
    schedule, batches
        What was run.
    gradients
        Of every rank, by (iteration, copy, stage) and name.
    losses
        Of every rank, the share of its microbatches or slices in their step's loss.
    """
    wanted_losses, wanted = reference(schedule, batches)
    period = schedule.microbatches * schedule.slices
    found_losses = np.zeros(len(wanted_losses))
    for shares in losses:
        for unit, share in shares.items():
            found_losses[min(unit // period, len(found_losses) - 1)] += share
    scale = max((float(np.abs(g).max()) for part in wanted.values() for g in part.values()
                 if g.size), default=0.0)  # fmt: skip
    error, worst, tensors = 0.0, "", 0
    for place, rank, name, gradient in _where(schedule, wanted):
        tensors += 1
        got = gradients[rank].get(place, {}).get(name)
        off = math.inf
        if got is not None and got.shape == gradient.shape:
            off = float(np.abs(got - gradient).max()) if gradient.size else 0.0
        if math.isnan(off) or off > error:
            error = math.inf if math.isnan(off) else off
            iteration, _, stage = place
            owner = f"stage {stage}" if stage < schedule.stages else f"rank {rank}'s output layer"
            worst = f"{name} of {owner}, iteration {iteration}"
    loss_error = float(np.abs(found_losses - wanted_losses).max())
    return Verification(
        float(found_losses[-1]),
        float(wanted_losses[-1]),
        math.inf if math.isnan(loss_error) else loss_error,
        error,
        error / scale if scale else error,
        worst,
        tensors,
    )


def _where(
    schedule: Schedule, wanted: Mapping[tuple[int, int], Arrays]
) -> Iterator[tuple[tuple[int, int, int], int, str, NDArray[np.float64]]]:
    """Every gradient with its (iteration, copy, stage), rank and name there.

    A sharded output layer counts as the stage after the last.
    """
    for (iteration, stage), part in wanted.items():
        for name, gradient in part.items():
            layer, _, parameter = name.rpartition(".")
            if schedule.vocabulary and stage == schedule.stages - 1 and layer == "output":
                for rank, rows in enumerate(np.array_split(gradient, schedule.ranks)):
                    yield (iteration, 0, stage + 1), rank, parameter, rows
                continue
            for copy, row in enumerate(schedule.placement.table):
                yield (iteration, copy, stage), row[stage], name, gradient


def versions_used(schedule: Schedule) -> NDArray[np.int64]:
    """Optimizer steps behind the weights of each (stage, microbatch)."""
    number = np.arange(schedule.microbatches * schedule.iterations)
    copies = schedule.copies_of(number * schedule.slices)
    ranks = np.asarray(schedule.placement.table)[copies].T
    older = np.asarray(schedule.versions)[ranks] - 1
    used: NDArray[np.int64] = np.maximum(number // schedule.microbatches - older, 0)
    return used


def reference(
    schedule: Schedule, batches: Batches
) -> tuple[NDArray[np.float64], dict[tuple[int, int], dict[str, NDArray[np.float64]]]]:
    """Loss of every iteration, and gradients by (iteration, stage) and name."""
    import copy

    import torch

    from debubble.runtime.weights import RATE

    modules = [copy.deepcopy(stage).double() for stage in batches.model.stages]
    batches = batches.to("cpu", torch.float64)
    steps = bool(np.any(kinds_of(schedule.actions) == Kind.OPT))
    used = versions_used(schedule) * steps
    weights = [[{name: w.detach().requires_grad_() for name, w in module.named_parameters()}
                for module in modules]]  # fmt: skip
    iterations = schedule.iterations if steps else 1
    per_iteration = schedule.microbatches * schedule.iterations // iterations
    losses = np.zeros(iterations)
    gradients: dict[tuple[int, int], dict[str, NDArray[np.float64]]] = {}
    for iteration in range(iterations):
        for number in range(iteration * per_iteration, (iteration + 1) * per_iteration):
            x, target = batches.microbatch(number)
            for stage, module in enumerate(modules):
                version = weights[used[stage, number]][stage]
                x = torch.func.functional_call(module, version, (x,))
            loss = batches.model.loss(x, target) / schedule.microbatches
            loss.backward()
            losses[iteration] += loss.item()
        fresh = []
        for stage in range(len(modules)):
            total = {name: torch.zeros_like(w) for name, w in weights[0][stage].items()}
            for version in (every[stage] for every in weights):
                for name, w in version.items():
                    total[name] += 0 if w.grad is None else w.grad
                    w.grad = None
            gradients[iteration, stage] = {name: g.numpy() for name, g in total.items()}
            fresh.append({name: (w.detach() - RATE * total[name]).requires_grad_()
                          for name, w in weights[-1][stage].items()})  # fmt: skip
        weights.append(fresh)
    return losses, gradients
