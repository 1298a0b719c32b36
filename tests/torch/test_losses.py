"""Keyword arguments of a loss function, and losses that stages add."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import debubble.torch as dt
from debubble.core.errors import ParameterError
from tests.torch.loop import cross_entropy, gpt, mlp, vectors
from tests.torch.world import in_ranks

M = 4


def scaled(output: Tensor, target: Tensor, factor: float = 1.0) -> Tensor:
    return functional.mse_loss(output, target) * factor


@pytest.mark.parametrize("engine", ["debubble", "torch"])
def test_arguments_of_a_step_are_of_that_step_alone(engine: str) -> None:
    def work(rank: int) -> None:
        x, y = vectors(M, 0)
        pipe = dt.Pipeline("1f1b", mlp(2), scaled, microbatches=M, engine=engine)
        plain = pipe.step(x, target=y)
        gradients = [weight.grad for weight in pipe.parameters()]
        pipe.zero_grad()
        assert torch.equal(pipe.step(x, target=y, loss_kwargs={"factor": 2.0}), plain * 2)
        for weight, gradient in zip(pipe.parameters(), gradients, strict=True):
            torch.testing.assert_close(weight.grad, gradient * 2)
        assert torch.equal(pipe.eval(x, target=y, loss_kwargs={"factor": 4.0}), plain * 4)
        assert torch.equal(pipe.eval(x, target=y), plain)

    in_ranks(2, work)


def test_a_sharded_output_layer_takes_none() -> None:
    def work(rank: int) -> None:
        pipe = dt.Pipeline("vocab-1", gpt(2), cross_entropy, microbatches=M)
        x = torch.zeros(M, 4, dtype=torch.int64)
        with pytest.raises(ParameterError, match="loss_kwargs has factor, and a sharded output"):
            pipe.step(x, target=x, loss_kwargs={"factor": 2.0})

    in_ranks(2, work)


@pytest.mark.parametrize(
    ("value", "words"), [(torch.zeros(2, 3), r"got \[2, 3\]; give"), (0.5, r"got 0\.5; give")]
)
def test_an_added_loss_is_one_number(value: Any, words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        dt.add_loss(value)
