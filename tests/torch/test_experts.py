"""Split backwards of stages whose graph differs from microbatch to microbatch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from debubble.torch.autograd.splitter import Splitter, backward_weight

WIDTH, EXPERTS = 4, 3


class Experts(nn.Module):
    """Every row goes through one layer, and all layers share a matrix of another shape."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS)])
        self.shared = nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x: Tensor, choices: list[int]) -> Tensor:
        y = x * 1
        for choice in choices:
            y = y + torch.tanh(self.layers[choice](y))
            y = y + self.shared(y).chunk(2, dim=-1)[0]
        return y


def test_graphs_of_any_form_split_as_one_part() -> None:
    torch.manual_seed(0)
    module = Experts().double()
    splitter = Splitter()
    for choices in ([0], [0, 1], [1, 2, 0], [], [2], [0, 1], [2, 1, 0], [0]):
        x = torch.randn(2, WIDTH, dtype=torch.float64)
        gradient = torch.randn_like(x)
        results = []
        for split in (False, True):
            leaf = x.clone().requires_grad_()
            module.zero_grad()
            y = module(leaf, choices)
            if split:
                (found,), rest = splitter.backward_input([y], [gradient], [leaf])
                backward_weight(rest)
            else:
                y.backward(gradient)
                found = leaf.grad
            results.append([found, *(weight.grad for weight in module.parameters())])
        for whole, parts in zip(*results, strict=True):
            torch.testing.assert_close(parts, whole, rtol=0, atol=1e-12)


class Routed(nn.Module):
    """Every row goes to the layer that a gate chooses for it; layers that get none are left out."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS)])
        self.gate = nn.Linear(WIDTH, EXPERTS)

    def forward(self, x: Tensor) -> Tensor:
        chances = self.gate(x).softmax(-1)
        chosen = chances.argmax(-1)
        y = torch.zeros_like(x)
        for number, layer in enumerate(self.layers):
            rows = (chosen == number).nonzero()[:, 0]
            if len(rows):
                y = y.index_add(0, rows, layer(x[rows]) * chances[rows, number, None])
        return y


def test_routers_make_other_graphs_of_the_same_kinds_of_nodes() -> None:
    torch.manual_seed(0)
    module = Routed().double()
    splitter = Splitter()
    for _ in range(30):
        x = torch.randn(3, WIDTH, dtype=torch.float64, requires_grad=True)
        y, gradient = module(x), torch.randn(3, WIDTH, dtype=torch.float64)
        leaves = [x, *module.parameters()]
        whole = torch.autograd.grad(y, leaves, gradient, retain_graph=True, allow_unused=True)
        module.zero_grad()
        (found,), rest = splitter.backward_input([y], [gradient], [x])
        backward_weight(rest)
        parts = [found, *(weight.grad for weight in module.parameters())]
        for part, wanted in zip(parts, whole, strict=True):
            torch.testing.assert_close(part, wanted, rtol=0, atol=1e-12)
