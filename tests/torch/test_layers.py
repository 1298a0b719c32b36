"""Layers of many makes: a pipeline gives their gradients, whole and split."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint

import debubble as db
import debubble.torch as dt
from tests.conftest import EXPLORES
from tests.torch.world import in_ranks

WIDTH, M, ROWS = 8, 4, 4


class Layer(nn.Module):
    """A function of a linear layer and an input."""

    def __init__(self, function: Callable[[nn.Module, Any], Any], inner: nn.Module) -> None:
        super().__init__()
        self.function, self.inner = function, inner

    def forward(self, *args: Any) -> Any:
        return self.function(self.inner, args[0] if len(args) == 1 else args)


class Square(torch.autograd.Function):
    """Keeps a tensor in its own way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.twice = 2 * x
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * ctx.twice


class Tied(nn.Module):
    """Uses a matrix and a vector twice."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / 3)
        self.gain = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(torch.tanh(x @ self.weight) * self.gain) @ self.weight.T * self.gain


class Gated(nn.Module):
    """Scalars, one of them behind a function, and a vector with a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm = nn.Linear(WIDTH, WIDTH, bias=False), nn.LayerNorm(WIDTH)
        self.gate = nn.Parameter(torch.zeros(1))
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        branch: Tensor = self.inner(self.norm(x))
        return (x + self.gate * torch.exp(self.scale) * branch) * self.scale


class Last(nn.Module):
    """Takes whatever comes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, *args: Any) -> Any:
        parts = list(args[0].values()) if isinstance(args[0], dict) else list(args)
        return self.inner(torch.stack(parts).sum(0))


def linear() -> nn.Module:
    return nn.Linear(WIDTH, WIDTH)


def convolution() -> nn.Module:
    return nn.Sequential(nn.Conv1d(1, 3, 3, padding=1), nn.BatchNorm1d(3), nn.ReLU(inplace=True))


def changed(inner: nn.Module, x: Tensor) -> Tensor:
    y: Tensor = inner(x)
    y[:, :2] = 0
    return torch.where(y > 0, y, x) * x.norm()


def doubled(inner: nn.Module, x: Any) -> Any:
    y = inner(x[0] + x[1] if isinstance(x, tuple) else x)
    return y, y


def named(inner: nn.Module, x: Any) -> Any:
    y = x["a"] + x["b"] if isinstance(x, dict) else x
    return {"a": inner(y), "b": y}


MAKES: dict[str, Callable[[], nn.Module]] = {
    "identity": nn.Identity,
    "the same twice": lambda: Layer(doubled, linear()),
    "a dict": lambda: Layer(named, linear()),
    "convolution": lambda: Layer(lambda inner, x: inner(x[:, None]).sum(1), convolution()),
    "lstm": lambda: Layer(
        lambda inner, x: inner(x[:, None].repeat(1, 3, 1))[0][:, -1],
        nn.LSTM(WIDTH, WIDTH, batch_first=True),
    ),
    "transformer": lambda: Layer(
        lambda inner, x: inner(x[:, None].repeat(1, 3, 1)).mean(1),
        nn.TransformerEncoderLayer(WIDTH, 2, 16, 0.0, batch_first=True, norm_first=True),
    ),
    "custom function": lambda: Layer(lambda inner, x: inner(Square.apply(x.tanh())), linear()),
    "tied": Tied,
    "gated": Gated,
    "embedding": lambda: Layer(
        lambda inner, x: x + inner((x.detach()[:, 0] > 0).long()), nn.Embedding(2, WIDTH)
    ),
    "checkpoint": lambda: Layer(
        lambda inner, x: checkpoint(lambda y: inner(y).tanh(), x, use_reentrant=False), linear()
    ),
    "norm alone": lambda: nn.LayerNorm(WIDTH),
    "weight norm": lambda: nn.Sequential(weight_norm(nn.Linear(WIDTH, WIDTH)), nn.GELU()),
    "in place": lambda: Layer(changed, linear()),
}  # fmt: skip


def build(make: Callable[[], nn.Module], stages: int) -> list[nn.Module]:
    torch.manual_seed(0)
    return [module.double() for module in (*(make() for _ in range(stages - 1)), Last())]


def alone(stages: Sequence[nn.Module], x: Tensor, y: Tensor) -> None:
    for part, target in zip(x.split(ROWS), y.split(ROWS), strict=True):
        value: Any = part
        for stage in stages:
            value = stage(*value) if isinstance(value, tuple) else stage(value)
        (functional.mse_loss(value, target) / M).backward()


NAMES, SPLITS = ("1f1b", "zb-v", "dualpipe-v"), ("auto", "keep")


def layers(name: str, split: str) -> list[tuple[str, Callable[[], nn.Module]]]:
    """All layers, or those that make any two of a layer, a schedule and a split meet."""
    found = []
    for turn, title in enumerate(MAKES, NAMES.index(name) + SPLITS.index(split)):
        if title == "checkpoint":
            # Refused where I and W stay apart: its forward would run once more for W.
            chosen = split == "auto" or name == "1f1b"
        else:
            chosen = EXPLORES or turn % 2 == 0
        found += [(title, MAKES[title])] * chosen
    return found


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("split", SPLITS)
def test_gradients_of_layers(name: str, split: str) -> None:
    schedule = db.make(name, ranks=2, microbatches=M)

    def work(rank: int) -> None:
        x, y = torch.randn(2, M * ROWS, WIDTH, dtype=torch.float64).unbind()
        torch.distributed.broadcast(x, 0)
        torch.distributed.broadcast(y, 0)
        for title, make in layers(name, split):
            model = build(make, schedule.stages)
            pipe = dt.Pipeline(
                schedule, build(make, schedule.stages), functional.mse_loss, split=split
            )
            for _ in range(2):
                alone(model, x, y)
                pipe.step(x, target=y)
            for stage, module in pipe.stages.items():
                for (weight, ours), theirs in zip(
                    module.named_parameters(), model[stage].parameters(), strict=True
                ):
                    where = f"{title}: {stage}.{weight}"
                    assert (ours.grad is None) == (theirs.grad is None), where
                    if ours.grad is not None:
                        torch.testing.assert_close(
                            ours.grad, theirs.grad, rtol=1e-9, atol=1e-11,
                            msg=lambda text, where=where: f"{where}: {text}",
                        )  # fmt: skip

    in_ranks(2, work)
