"""All ranks call the same methods; where one does not, all say so, and none aborts or hangs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.nn import functional

import debubble as db
import debubble.torch as dt
from tests.patience import patience
from tests.torch.loop import mlp, vectors
from tests.torch.world import in_ranks

M = 4


def step(pipe: Any) -> None:
    x, y = vectors(M, 0)
    pipe.step(x, target=y)


def other(call: Callable[[Any], Any]) -> list[Any]:
    """What ranks say when the first one makes a call that the second does not."""

    def work(rank: int) -> None:
        pipe = dt.Pipeline(
            "1f1b", mlp(2), functional.mse_loss, microbatches=M, timeout=patience(20)
        )
        step(pipe)
        if rank == 0:
            call(pipe)
        step(pipe)

    return in_ranks(2, work, fails=True)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("eval", lambda pipe: pipe.eval(vectors(M, 0)[0])),
        ("clip_grad_norm_", lambda pipe: pipe.clip_grad_norm_(1.0)),
        ("costs", lambda pipe: pipe.costs()),
        ("use", lambda pipe: pipe.use(db.make("gpipe", ranks=2, microbatches=M))),
        ("load_state_dict", lambda pipe: pipe.load_state_dict(pipe.state_dict())),
    ],
)
def test_a_call_of_one_rank_alone(name: str, call: Callable[[Any], Any]) -> None:
    for found in other(call):
        assert found.startswith(f"RunError: rank 1 calls step() and rank 0 {name}(); all ranks")


def test_both_ranks_of_other_calls_are_named_as_their_processes() -> None:
    def work(rank: int) -> None:
        group = dist.new_group([1, 2])
        if rank:
            pipe = dt.Pipeline(
                "1f1b", mlp(2), functional.mse_loss, microbatches=M, timeout=patience(20),
                group=group,
            )  # fmt: skip
            step(pipe) if rank == 1 else pipe.eval(vectors(M, 0)[0])

    words = "rank 1 (global rank 2) calls eval() and rank 0 (global rank 1) step(); all ranks"
    for found in in_ranks(3, work, fails=True)[1:]:
        assert found.startswith(f"RunError: {words}")


def test_gradients_are_off_on_one_rank() -> None:
    def work(rank: int) -> None:
        pipe = dt.Pipeline(
            "1f1b", mlp(2), functional.mse_loss, microbatches=M, timeout=patience(20)
        )
        with torch.set_grad_enabled(rank == 0):
            step(pipe)

    first, second = in_ranks(2, work, fails=True)
    assert first.startswith("RunError: rank 1 failed: step() computes gradients, and they are off")
    assert second.startswith("ParameterError: step() computes gradients, and they are off")


def test_a_file_that_one_host_does_not_have(tmp_path: Path) -> None:
    path = tmp_path / "order.csv"
    db.make("1f1b", ranks=2, microbatches=M).save(path)

    def work(rank: int) -> None:
        name = path if rank == 0 else tmp_path / "nothing.csv"
        dt.Pipeline(name, mlp(2), functional.mse_loss, timeout=patience(20))

    first, second = in_ranks(2, work, fails=True)
    assert first.startswith("ParameterError: rank 1 cannot begin: there is no file")
    assert second.startswith("FormatError: there is no file")


def test_a_rank_that_leaves_between_two_steps() -> None:
    def work(rank: int) -> None:
        pipe = dt.Pipeline(
            "1f1b", mlp(2), functional.mse_loss, microbatches=M, timeout=patience(20)
        )
        step(pipe)
        if rank == 0:
            raise OSError("the disk is full")
        step(pipe)

    _, second = in_ranks(2, work, fails=True)
    assert second.startswith("RunError: rank 1 lost the rank it waited for at the beginning")


def test_a_rank_that_is_only_sending_when_another_one_fails() -> None:
    class Nothing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.long()

    def work(rank: int) -> None:
        stages = [Nothing(), *mlp(1)]
        pipe = dt.Pipeline(
            "1f1b", stages, functional.mse_loss, microbatches=M, timeout=patience(20)
        )
        step(pipe)

    first, second = in_ranks(2, work, fails=True)
    assert first.startswith("RunError: rank 1 failed: RuntimeError: mat1 and mat2 must have"), first
    assert second.startswith("RuntimeError: mat1 and mat2 must have")
