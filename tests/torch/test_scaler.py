"""Scaled losses: the same scales, skipped steps and weights as without a pipeline."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import debubble as db
import debubble.torch as dt
from tests.torch.loop import WIDTH, vectors
from tests.torch.world import in_ranks

M, STEPS = 4, 10
OPTIONS = {"init_scale": 2.0**127, "growth_interval": 2, "growth_factor": 4.0}
"""A scale with which some gradients overflow in float32, and one that comes back there."""


def layers() -> list[nn.Module]:
    """Of very different gradients: that of the first overflows last."""
    torch.manual_seed(0)
    found = [nn.Linear(WIDTH, WIDTH) for _ in range(2)]
    with torch.no_grad():
        found[1].weight.mul_(1e-2)
    return found


def data(step: int) -> tuple[Any, Any]:
    x, y = vectors(M, step)
    return x.float(), 1000 * y.float()


def alone() -> tuple[list[float], list[float], list[Any]]:
    """Losses, scales and weights of a loop without a pipeline."""
    model = nn.Sequential(*layers())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", **OPTIONS)
    losses, scales = [], []
    for step in range(STEPS):
        x, y = data(step)
        total = 0.0
        for part, target in zip(x.tensor_split(M), y.tensor_split(M), strict=True):
            loss = functional.mse_loss(model(part), target) / M
            scaler.scale(loss).backward()
            total += loss.item()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(total)
        scales.append(scaler.get_scale())
    return losses, scales, [weight.detach() for weight in model.parameters()]


@pytest.mark.parametrize("engine", ["debubble", "torch"])
def test_all_ranks_skip_the_same_steps(engine: str) -> None:
    def work(rank: int) -> Any:
        pipe = dt.Pipeline(
            "1f1b", layers(), functional.mse_loss, engine=engine, microbatches=M
        )  # fmt: skip
        optimizer = torch.optim.SGD(pipe.parameters(), lr=1e-3)
        scaler = dt.GradScaler(pipe, **OPTIONS)
        losses, scales, own = [], [], []
        for step in range(STEPS):
            x, y = data(step)
            losses.append(pipe.step(x, target=y).item())
            own.append(all(w.grad.isfinite().all() for w in pipe.parameters()))
            scaler.unscale_(optimizer)
            pipe.clip_grad_norm_(1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            scales.append(scaler.get_scale())
        with pytest.raises(db.ParameterError, match=r"leave out scaler\.scale\(loss\)\.backward"):
            scaler.scale(torch.zeros(()))
        return losses, scales, [weight.detach() for weight in pipe.parameters()], own

    losses, scales, weights = alone()
    first, second = in_ranks(2, work)
    assert scales[0] < OPTIONS["init_scale"]
    assert any(b > a for a, b in itertools.pairwise(scales))
    # One rank overflows where the other does not.
    assert first[3] != second[3]
    for rank in (first, second):
        assert rank[1] == scales
        assert rank[0] == pytest.approx(losses, rel=1e-5)
    for ours, theirs in zip([*first[2], *second[2]], weights, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_ranks_must_scale_alike() -> None:
    def work(rank: int) -> str:
        pipe = dt.Pipeline("1f1b", layers(), functional.mse_loss, microbatches=M)
        dt.GradScaler(pipe, init_scale=2.0 + rank)
        x, y = data(0)
        try:
            pipe.step(x, target=y)
        except (db.ParameterError, dt.RunError) as error:
            return str(error)
        return ""

    for words in in_ranks(2, work):
        assert "others by another number; make a GradScaler on all ranks" in words
