"""The backward in two parts: exact, and nothing of the first part is done in the second."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from debubble.torch.autograd.splitter import Splitter, backward_weight


class Operations(TorchDispatchMode):
    """Counts operations by name."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.count[function.overloadpacket.__name__] += 1
        return function(*args, **(kwargs or {}))


class Tied(nn.Module):
    """Uses one weight three times, one of them through a transpose."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6, dtype=torch.float64))
        self.unused = nn.Parameter(torch.zeros(2, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(torch.tanh(x @ self.weight) @ self.weight.T) @ self.weight + x


class Offset(nn.Module):
    """Adds what depends on weights alone."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6).double()
        self.scale = nn.Parameter(torch.ones(6, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x * torch.exp(self.scale)) + (self.scale * self.inner.bias).sum()


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.LayerNorm(6), nn.Linear(6, 6)).double()


@pytest.mark.parametrize("make", [layers, Tied, Offset])
def test_the_same_gradients_as_in_one_part(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    module = make()
    x = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    gradient = torch.randn(3, 6, dtype=torch.float64)
    module(x).backward(gradient)
    wanted = [x.grad, *(weight.grad for weight in module.parameters())]
    module.zero_grad()
    (found,), rest = Splitter().backward_input([module(x)], [gradient], [x])
    # Vectors may have theirs already.
    assert all(weight.grad is None for weight in module.parameters() if weight.dim() > 1)
    backward_weight(rest)
    got = [found, *(weight.grad for weight in module.parameters())]
    for ours, theirs in zip(got, wanted, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_each_part_does_its_half_of_the_work() -> None:
    module = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
    x = torch.randn(2, 8, requires_grad=True)
    output = module(x)
    with Operations() as first:
        _, rest = Splitter().backward_input([output], [torch.ones_like(output)], [x])
    with Operations() as second:
        backward_weight(rest)
    with Operations() as both:
        module(x).sum().backward()
    assert (first.count["mm"], second.count["mm"]) == (4, 4)
    assert both.count["mm"] == 8
