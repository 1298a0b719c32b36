"""A batch has one loss, one gradient and one output, whatever schedule and cut it is trained in."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from torch import Tensor, nn
from torch.nn import functional

import debubble as db
import debubble.torch as dt
from debubble.core.errors import ParameterError
from debubble.schedules.registry import Entry
from debubble.torch.setup import not_for_pytorch
from tests.conftest import EXPLORES
from tests.pairs import sorts
from tests.torch.loop import cross_entropy, gpt, mlp, text, vectors
from tests.torch.world import in_ranks

pytest.importorskip("torch", reason="runs pipelines on PyTorch; install torch")

RANKS = 2
FOR_TORCH = {entry.name for found in sorts().values() for entry in found[:2]}
"""Two of each sort, which PyTorch's runtime runs where it can."""


@dataclass(frozen=True)
class Case:
    """One batch, and how a schedule gets it."""

    schedule: db.Schedule
    engine: str
    scale: str
    cuts: Sequence[int] | None
    """Rows of every microbatch; None leaves the cut to the pipeline."""
    rows: int

    def __str__(self) -> str:
        return f"{self.schedule.name} on {self.engine}, {self.scale}, {self.rows} in {self.cuts}"

    @property
    def of_tokens(self) -> bool:
        """Whether the batch is text, as only some models take slices and shards."""
        return self.scale == "tokens" or self.schedule.slices > 1 or bool(self.schedule.vocabulary)

    def data(self) -> tuple[Tensor, Tensor]:
        """The batch; with ``"tokens"`` a microbatch has only padding, and others some."""
        if not self.of_tokens:
            x, y = vectors(self.rows, 0)
            return x[: self.rows], y[: self.rows]
        x, y = text(self.rows, 0)
        x, y = x[: self.rows], y[: self.rows].clone()
        if self.scale == "tokens":
            y[: self.rows // self.schedule.microbatches] = -100
            y[-1, 1:] = -100
        return x, y

    def stages(self) -> list[nn.Module]:
        return (gpt if self.of_tokens else mlp)(self.schedule.stages)

    @property
    def loss(self) -> Callable[[Any, Any], Tensor]:
        """The mean over the batch; of the sum of microbatches, too, as each gives its part."""
        mean = cross_entropy if self.of_tokens else functional.mse_loss
        if self.scale != "sum":
            return mean
        return lambda output, target: mean(output, target) * len(target) / self.rows

    @property
    def has_outputs(self) -> bool:
        """Whether a training step has the outputs of the whole batch, on one rank."""
        return len(self.schedule.placement.table) == 1 and not self.schedule.vocabulary


def made(entry: Entry) -> db.Schedule:
    for microbatches in range(3, 17):
        try:
            return db.make(entry.name, ranks=RANKS, microbatches=microbatches)
        except ParameterError:
            continue
    raise AssertionError(f"{entry.name} accepts no number of microbatches")


def cases(entry: Entry) -> list[Case]:
    schedule, source = made(entry), random.Random(entry.name)
    m = schedule.microbatches
    rows = m * source.randint(1, 2) + source.randint(1, m - 1)
    ends = sorted(source.sample(range(1, rows), m - 1))
    cuts = [end - begin for begin, end in pairwise([0, *ends, rows])]
    found = [
        Case(schedule, "debubble", "mean", None, rows),
        Case(schedule, "debubble", "mean", cuts, rows),
        Case(schedule, "debubble", "tokens", None, rows),
    ]
    if not schedule.vocabulary and schedule.slices == 1:
        found.append(Case(schedule, "debubble", "sum", None, rows))
    if entry.name in FOR_TORCH and not not_for_pytorch(schedule):
        found.append(Case(schedule, "torch", "tokens", None, 2 * m))
    return found


def apart(case: Case, rank: int) -> float:
    """How far losses, outputs and gradients are from those of the whole batch, as a share."""
    x, y = case.data()
    whole = case.stages()
    output = nn.Sequential(*whole)(x)
    loss = case.loss(output, y)
    loss.backward()
    output, wanted = output.detach(), loss.detach()
    pipe = dt.Pipeline(
        case.schedule, case.stages(), case.loss, engine=case.engine, scale_grads=case.scale
    )
    if case.cuts is None:
        given: dict[str, Any] = {"target": y}
        args: tuple[Tensor, ...] = (x,)
    else:
        parts = [t.split(list(case.cuts)) for t in (x, y)]
        given, args = {"arg_mbs": parts[0], "target_mbs": parts[1]}, ()
    calls = [pipe.eval, pipe.step]
    if case.has_outputs:
        losses, outputs = zip(
            *(call(*args, **given, return_outputs=True) for call in calls), strict=True
        )
    else:
        losses, outputs = tuple(call(*args, **given) for call in calls), ()
    errors = [float((loss - wanted).abs() / wanted) for loss in losses]
    if pipe.is_last:
        errors += [float((found - output).abs().max()) for found in outputs]
    scale = max(float(w.grad.abs().max()) for w in nn.ModuleList(whole).parameters())
    for name, weight in pipe.named_parameters():
        stage, _, path = name.partition(".")
        layer, shard, of_shard = path.partition(f".shard{rank}")
        gradient = whole[int(stage)].get_parameter(layer + of_shard).grad
        if shard:
            gradient = gradient.tensor_split(RANKS)[rank]
        errors.append(float((weight.grad - gradient).abs().max()) / scale)
    return max(errors)


def wrong(entries: Sequence[Entry]) -> dict[str, float]:
    """Cases that are not those of the whole batch, and how far apart they are."""
    every = [case for entry in entries for case in cases(entry)]

    def work(rank: int) -> dict[str, float]:
        return {str(case): apart(case, rank) for case in every}

    found = in_ranks(RANKS, work)
    return {name: error for each in found for name, error in each.items() if not error < 1e-12}


def test_schedules_of_each_sort_train_the_gradient_of_the_whole_batch() -> None:
    assert wrong([found[0] for found in sorts().values()]) == {}


@pytest.mark.slow
def test_schedules_train_the_gradient_of_the_whole_batch() -> None:
    assert wrong(db.schedules()[:: 1 if EXPLORES else 4]) == {}
