"""Training without a pipeline, which pipelines are compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from debubble.core.schedule import Schedule
from debubble.torch.models.build import ROWS, TOKENS, VOCABULARY, WIDTH, GPTStage

RATE = 1e-2


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output.flatten(0, -2), target.flatten())


def gpt(stages: int, seed: int = 0) -> list[nn.Module]:
    """A transformer with a layer per stage, the same every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return [GPTStage(s == 0, s == stages - 1).double() for s in range(stages)]


def mlp(stages: int, seed: int = 0) -> list[nn.Module]:
    """A layer per stage, on vectors."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()).double() for _ in range(stages)]


def text(microbatches: int, step: int) -> tuple[Tensor, Tensor]:
    """Tokens and the tokens behind them."""
    source = torch.Generator().manual_seed(100 + step)
    row = torch.randint(VOCABULARY, (microbatches * ROWS, TOKENS + 1), generator=source)
    return row[:, :-1], row[:, 1:]


def vectors(microbatches: int, step: int) -> tuple[Tensor, Tensor]:
    """Vectors and what they are mapped to."""
    source = torch.Generator().manual_seed(200 + step)
    both = torch.randn(2, microbatches * 4, WIDTH, generator=source, dtype=torch.float64)
    return both[0], both[1]


def adamw(weights: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(weights, lr=RATE)


def train(
    stages: Sequence[nn.Module],
    schedule: Schedule,
    data: Callable[[int, int], tuple[Tensor, Tensor]],
    loss_fn: Callable[[Any, Any], Tensor],
    steps: int,
) -> list[dict[str, Any]]:
    """What every step of a loop without a pipeline gives: loss, gradients, weights.

    Stages of schedules that keep several versions of the weights compute with older ones.
    """
    whole = nn.Sequential(*stages)
    optimizers = [adamw(stage.parameters()) for stage in stages]
    older = [schedule.stored_versions[rank] - 1 for rank in schedule.placement.table[0]]
    history: list[list[list[Tensor]]] = []
    found = []
    for step in range(steps):
        history.append([[w.detach().clone() for w in stage.parameters()] for stage in stages])
        newest = history[-1]
        with torch.no_grad():
            for number, stage in enumerate(stages):
                used = history[max(step - older[number], 0)][number]
                for weight, value in zip(stage.parameters(), used, strict=True):
                    weight.copy_(value)
        x, y = data(schedule.microbatches, step)
        total = 0.0
        for part, target in zip(
            x.tensor_split(schedule.microbatches),
            y.tensor_split(schedule.microbatches),
            strict=True,
        ):
            loss = loss_fn(whole(part), target) / schedule.microbatches
            loss.backward()
            total += loss.item()
        with torch.no_grad():
            for stage, values in zip(stages, newest, strict=True):
                for weight, value in zip(stage.parameters(), values, strict=True):
                    weight.copy_(value)
        gradients = {
            f"{number}.{name}": weight.grad.clone()
            for number, stage in enumerate(stages)
            for name, weight in stage.named_parameters()
            if weight.grad is not None
        }
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        weights = {
            f"{number}.{name}": weight.detach().clone()
            for number, stage in enumerate(stages)
            for name, weight in stage.named_parameters()
        }
        found.append({"loss": total, "gradients": gradients, "weights": weights})
    return found
