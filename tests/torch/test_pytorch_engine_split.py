"""Stages that PyTorch's own split of a backward cannot serve keep theirs in one piece."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import debubble as db
import debubble.torch as dt
from tests.torch.loop import mlp, vectors
from tests.torch.world import in_ranks

M = 4


class View(nn.Module):
    """Returns a view, as many transformers do."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).unsqueeze(0).view(x.shape)


def made(how: str) -> list[nn.Module]:
    stages = mlp(4)
    if how == "views":
        return [View(stage) for stage in stages]
    if how.startswith("frozen"):
        for stage in stages[:3]:
            stage.requires_grad_(False)
    return stages


@pytest.mark.parametrize("how", ["views", "frozen before the last"])
def test_gradients_are_those_of_a_loop(how: str) -> None:
    x, y = vectors(M, 0)
    stages = made(how)
    functional.mse_loss(nn.Sequential(*stages)(x), y).backward()
    wanted = {
        f"{number}.{name}": weight.grad
        for number, stage in enumerate(stages) for name, weight in stage.named_parameters()
    }  # fmt: skip

    def work(rank: int) -> dict[str, Tensor | None]:
        schedule = db.make("zb-v", ranks=2, microbatches=M)
        pipe = dt.Pipeline(schedule, made(how), functional.mse_loss, engine="torch")
        pipe.step(x, target=y)
        return {name: weight.grad for name, weight in pipe.named_parameters()}

    found = {name: part for each in in_ranks(2, work) for name, part in each.items()}
    assert found.keys() == wanted.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, wanted[name], rtol=0, atol=1e-12)


def test_stages_that_begin_to_train() -> None:
    x, y = vectors(M, 0)
    stages = made("plain")
    functional.mse_loss(nn.Sequential(*stages)(x), y).backward()

    def work(rank: int) -> dict[str, Tensor | None]:
        schedule = db.make("zb-v", ranks=2, microbatches=M)
        pipe = dt.Pipeline(schedule, made("frozen"), functional.mse_loss, engine="torch")
        pipe.step(x, target=y)
        pipe.zero_grad()
        for weight in pipe.parameters():
            weight.requires_grad_()
        pipe.step(x, target=y)
        return {name: weight.grad for name, weight in pipe.named_parameters()}

    for name, gradient in ((n, g) for each in in_ranks(2, work) for n, g in each.items()):
        number, _, rest = name.partition(".")
        wanted = stages[int(number)].get_parameter(rest).grad
        torch.testing.assert_close(gradient, wanted, rtol=0, atol=1e-12)
