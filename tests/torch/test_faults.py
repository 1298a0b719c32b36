"""A rank that dies, hangs or raises ends all of them, and all say why."""

from __future__ import annotations

import os
import signal
import time
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import debubble.torch as dt
from tests.patience import patience
from tests.torch.loop import mlp, vectors
from tests.torch.world import in_ranks

M = 4


@cache
def short() -> int:
    """Seconds after which a rank that hangs is noticed."""
    return round(patience(2))


class Bad(nn.Module):
    """Does something bad in its tenth forward."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.layer, self.how, self.calls = nn.Linear(32, 32).double(), how, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == 10:
            if self.how == "raises":
                raise ValueError("my layer does not like this input")
            if self.how == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.how == "hangs":
                time.sleep(1000)
        return self.layer(x)


def broken(how: str, name: str = "1f1b") -> list[Any]:
    limit = short()

    def work(rank: int) -> None:
        inner = [Bad(how) if stage == 1 else mlp(1)[0] for stage in range(3)]
        pipe = dt.Pipeline(name, inner, functional.mse_loss, microbatches=M, timeout=limit)
        for step in range(4):
            x, y = vectors(M, step)
            pipe.step(x, target=y)

    return in_ranks(3, work, fails=True)


def test_a_rank_that_raises() -> None:
    first, second, third = broken("raises")
    assert second.startswith("ValueError: my layer does not like this input")
    assert "debubble: rank 1 was at action" in second
    for other in (first, third):
        # It raises the same, or its thread has ended it with the message on stderr.
        assert other == 2 or "rank 1 failed: ValueError: my layer does not" in other, other
        assert other == 2 or "(test_faults.py, line" in other
        assert other == 2 or "it was at action" in other


def test_a_rank_that_dies(capfd: pytest.CaptureFixture[str]) -> None:
    first, second, third = broken("dies")
    # Said at once: a launcher ends the others before they can raise.
    assert "debubble: rank" in capfd.readouterr().err
    assert second == -signal.SIGKILL
    for other in (first, third):
        assert other == 2 or "lost the rank it waited for at action" in other, other
        assert other == 2 or "from rank 1" in other or "to rank 1" in other


def test_a_rank_that_hangs() -> None:
    first, second, third = broken("hangs")
    assert second == 2, second
    for other in (first, third):
        words = f"nothing has moved for {short()} s: rank 1 hangs at action"
        assert other == 2 or words in other, other


def test_a_rank_that_does_not_come() -> None:
    limit = short()

    def work(rank: int) -> None:
        pipe = dt.Pipeline("1f1b", mlp(2), functional.mse_loss, microbatches=M, timeout=limit)
        if rank:
            time.sleep(2 * limit)
        x, y = vectors(M, 0)
        pipe.step(x, target=y)

    first, _ = in_ranks(2, work, fails=True)
    assert f"nothing has moved for {limit} s: rank 1 is in no step" in first


def test_training_goes_on_from_a_checkpoint(tmp_path: Any) -> None:
    def train(rank: int, begin: int, end: int) -> list[float]:
        model = mlp(4)
        pipe = dt.Pipeline("zb-v", model, functional.mse_loss, microbatches=M)
        optimizer = torch.optim.AdamW(pipe.parameters(), lr=1e-2)
        path = tmp_path / f"{rank}.pt"
        if begin:
            saved = torch.load(path)
            pipe.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
        losses = []
        for step in range(begin, end):
            x, y = vectors(M, step)
            losses.append(pipe.step(x, target=y).item())
            optimizer.step()
            optimizer.zero_grad()
        torch.save({"model": pipe.state_dict(), "optimizer": optimizer.state_dict()}, path)
        return losses

    once = in_ranks(2, lambda rank: train(rank, 0, 4))
    first = in_ranks(2, lambda rank: train(rank, 0, 2))
    second = in_ranks(2, lambda rank: train(rank, 2, 4))
    assert once == [a + b for a, b in zip(first, second, strict=True)]


def test_a_stage_that_cannot_be_built() -> None:
    def build(stage: int) -> nn.Module:
        if stage == 1:
            raise OSError("no such checkpoint")
        return mlp(1)[0]

    def work(rank: int) -> None:
        dt.Pipeline("1f1b", build, functional.mse_loss, microbatches=M, timeout=patience(30))

    first, second = in_ranks(2, work, fails=True)
    assert first.startswith("ParameterError: rank 1 cannot begin: OSError: no such checkpoint (")
    assert second.startswith("OSError: no such checkpoint")


@pytest.mark.parametrize("wrong", ["rows", "microbatches"])
def test_a_batch_that_cannot_be_cut(wrong: str) -> None:
    limit = short()

    def work(rank: int) -> None:
        pipe = dt.Pipeline("1f1b", mlp(2), functional.mse_loss, microbatches=M, timeout=limit)
        x, y = vectors(M, 0)
        if wrong == "rows":
            pipe.step(x[:3], target=y[:3])
        else:
            pipe.step(arg_mbs=[x], target_mbs=[y])

    first, _ = in_ranks(2, work, fails=True)
    words = {
        "rows": "has a tensor of shape [3, 32] for 4 microbatches; give at least one row for each",
        "microbatches": "arg_mbs has 1 microbatches; '1f1b' has 4",
    }
    assert words[wrong] in first
