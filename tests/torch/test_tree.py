"""Which tensors carry gradients from stage to stage."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import debubble.torch as dt
from tests.torch.world import in_ranks

M = 4


class Waves(nn.Module):
    """A layer of complex numbers."""

    def __init__(self, number: int) -> None:
        super().__init__()
        source = torch.Generator().manual_seed(number)
        self.weight = nn.Parameter(torch.randn(6, 6, dtype=torch.complex128, generator=source))

    def forward(self, x: Tensor) -> Tensor:
        x = x if x.is_complex() else torch.complex(x, x / 2)
        return torch.tanh(x @ self.weight)


def loss_fn(output: Tensor, target: Tensor) -> Tensor:
    return (output.abs() - target).square().mean()


@pytest.mark.parametrize("name", ["interleaved-1f1b", "zb-v"])
def test_complex_numbers_carry_gradients(name: str) -> None:
    def work(rank: int) -> None:
        source = torch.Generator().manual_seed(9)
        x, y = torch.randn(2, 2 * M, 6, dtype=torch.float64, generator=source)
        alone = nn.Sequential(*map(Waves, range(4)))
        wanted = 0.0
        for part, target in zip(x.chunk(M), y.chunk(M), strict=True):
            loss = loss_fn(alone(part), target) / M
            loss.backward()
            wanted += loss.item()
        pipe = dt.Pipeline(name, Waves, loss_fn, microbatches=M)
        for _ in range(2):
            pipe.zero_grad()
            assert pipe.step(x, target=y).item() == pytest.approx(wanted, rel=1e-12)
            for stage, module in pipe.stages.items():
                torch.testing.assert_close(module.weight.grad, alone[stage].weight.grad)

    in_ranks(2, work)
