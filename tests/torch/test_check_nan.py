"""A step that is asked to says where its first NaN or infinite number began."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import debubble.torch as dt
from debubble.core.errors import DebubbleError
from debubble.torch.errors import RunError
from tests.torch.loop import mlp, vectors
from tests.torch.world import in_ranks

M = 4


class Fault(nn.Module):
    """Computes one wrong number for the third microbatch."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.calls = how, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls != 3:
            return x
        one = torch.zeros_like(x)
        one[0, 0] = 1
        if self.how == "forward":
            return x / (1 - one)
        if self.how == "backward":
            # A root at 0 is 0, and its slope is not finite.
            return x + (x - x.detach()).mul(one).abs().sqrt() * one
        return x


class Root(nn.Module):
    """A layer with a weight whose gradient is infinite for the third microbatch."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.calls = nn.Parameter(torch.zeros(1, dtype=torch.float64)), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x + self.scale.sqrt() if self.calls == 3 else x + self.scale


def loss(output: Tensor, target: Tensor) -> Tensor:
    value = functional.mse_loss(output, target)
    return value / 0 if (target[0, 0] == 7).item() else value


def test_the_place_where_it_began() -> None:
    number = "of 128 numbers (float64 [4, 32])"
    wanted = {
        "forward": f"stage 2, microbatch 2: its forward returns 1 inf {number}, first in its "
        "module 1",
        "backward": f"stage 2, microbatch 2: its backward gives its input a gradient with 128 NaN "
        f"{number}",
        "weight": "stage 2, microbatch 2: its backward gives 1.scale a gradient with 1 inf of 1 "
        "numbers (float64 [1])",
        "data": f"stage 0, microbatch 1: the data has 1 NaN {number}",
        "loss": "stage 3, microbatch 3: the loss of its finite output is inf",
        "before": "2.0.0.weight is not finite before the step: it has 1 NaN of 1024 numbers "
        "(float64 [32, 32])",
        "gradient": "the gradient of 2.0.0.weight is not finite before the step: it has 1024 inf "
        "of 1024 numbers (float64 [32, 32]); call zero_grad()",
    }  # fmt: skip

    def run(name: str, how: str, check: bool) -> tuple[str, float]:
        stages = mlp(4)
        extra = Root() if how == "weight" else Fault(how)
        stages[2] = nn.Sequential(stages[2], extra)
        x, y = vectors(M, 0)
        if how == "data":
            x[5, 5] = torch.nan
        if how == "loss":
            y[12, 0] = 7
        weight = stages[2][0][0].weight
        if how == "before":
            weight.data[0, 0] = torch.nan
        if how == "gradient":
            weight.grad = torch.full_like(weight, torch.inf)
        pipe = dt.Pipeline(name, stages, loss, microbatches=M, check_nan=check)
        try:
            return "", float(pipe.step(x, target=y))
        except RunError as error:
            return str(error), 0.0

    def work(rank: int) -> dict[Any, Any]:
        found: dict[Any, Any] = {
            (how, name): run(name, how, True)[0]
            for how in wanted
            for name in ("zb-v", "interleaved")
        }
        # Without a fault, and where nobody asks.
        return found | {"fine": run("zb-v", "", True), "off": run("zb-v", "data", False)}

    ranks = in_ranks(2, work)
    for how, words in wanted.items():
        for name in ("zb-v", "interleaved"):
            both = [found[how, name] for found in ranks]
            assert all(words in text for text in both), (how, both)
            if how not in ("before", "gradient"):
                assert any(text.startswith("rank ") and "at action" in text for text in both), both
    for found in ranks:
        assert found["fine"][0] == found["off"][0] == ""
        assert found["fine"][1] < 10
        assert not torch.tensor(found["off"][1]).isfinite()


def test_asked_after_the_fact() -> None:
    """A loop that meets a NaN asks for the place, with the data and weights that gave it."""

    def work(rank: int) -> str:
        pipe = dt.Pipeline("1f1b", mlp(2), functional.mse_loss, microbatches=M)
        x, y = vectors(M, 0)
        x[9, 1] = torch.nan
        if not pipe.step(x, target=y).isfinite():
            pipe.zero_grad()
            pipe.check_nan = True
            try:
                pipe.step(x, target=y)
            except RunError as error:
                return str(error)
        return ""

    assert all("stage 0, microbatch 2: the data has 1 NaN" in text for text in in_ranks(2, work))


def test_gradients_of_scaled_losses_may_be_infinite() -> None:
    """A GradScaler leaves out such a step; PyTorch's runtime cannot look."""

    def work(rank: int) -> None:
        x, y = vectors(M, 0)
        pipe = dt.Pipeline("1f1b", mlp(2), loss, microbatches=M, check_nan=True)
        dt.GradScaler(pipe, init_scale=1e308)
        pipe.step(x * 1e9, target=y * 1e9)
        assert not all(weight.grad.isfinite().all() for weight in pipe.parameters())
        theirs = dt.Pipeline("1f1b", mlp(2), loss, microbatches=M, check_nan=True, engine="torch")
        with pytest.raises(DebubbleError, match="does not say where a NaN begins; use engine='de"):
            theirs.step(x, target=y)

    in_ranks(2, work)
