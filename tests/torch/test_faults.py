"""A rank that dies, hangs or raises ends the step of all of them, and all raise why."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional

import debubble.torch as dt
from tests.patience import patience
from tests.torch.loop import mlp, vectors
from tests.torch.world import in_ranks

M = 4

SHORT = round(patience(4))
"""Seconds after which a rank that hangs is noticed."""


class Bad(nn.Module):
    """Does something bad in its tenth forward."""

    def __init__(self, how: str, group: Any = None) -> None:
        super().__init__()
        self.layer, self.how, self.calls = nn.Linear(32, 32).double(), how, 0
        self.group = group

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        x = self.layer(x)
        if self.calls == 10:
            if self.how == "raises":
                raise ValueError("my layer does not like this input")
            if self.how == "memory":
                raise RuntimeError("out of memory")
            if self.how == "leaves":
                raise SystemExit(3)
            if self.how == "backward":
                x.register_hook(refuse)
            if self.how == "meets":
                dist.all_reduce(torch.zeros(1), group=self.group)
            if self.how == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.how == "hangs":
                time.sleep(1000)
        return x


def refuse(_: Tensor) -> None:
    raise ArithmeticError("no gradient today")


def train(name: str, bad: dict[int, nn.Module], **options: Any) -> list[float]:
    """Losses of four steps with some bad stages, on this rank."""
    pipe = dt.Pipeline(
        name, lambda stage: bad.get(stage) or mlp(1)[0], functional.mse_loss,
        **{"timeout": SHORT} | options, microbatches=M,
    )  # fmt: skip
    losses = []
    for step in range(4):
        x, y = vectors(M, step)
        losses.append(pipe.step(x, target=y).item())
    return losses


def raised(name: str, bad: dict[int, nn.Module], **options: Any) -> str:
    """The error of a training, with its notes."""
    try:
        train(name, bad, **options)
    except BaseException as error:
        return "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])])
    return "nothing"


RAISED = {
    "raises": "ValueError: my layer does not like this input",
    "memory": "RuntimeError: out of memory",
    "leaves": "SystemExit: 3",
    "backward": "ArithmeticError: no gradient today",
}


def test_all_ranks_raise_what_one_raises_and_train_on() -> None:
    """Only the failed pipeline ends: a new one trains in the same processes."""

    def work(rank: int) -> tuple[dict[Any, str], list[list[float]]]:
        found = {
            (how, name): raised(name, {1: Bad(how)}) for how in RAISED for name in ("1f1b", "zb-v")
        }
        theirs = dist.new_group()
        found["raises", "torch"] = raised("1f1b", {1: Bad("raises")}, engine="torch", group=theirs)
        two = dist.new_group([1, 2])
        found["raises", "meets"] = raised("1f1b", {1: Bad("raises"), 2: Bad("meets", two)})
        return found, [train(name, {}) for name in ("1f1b", "zb-v")]

    ranks = in_ranks(3, work)
    for case, error in ranks[1][0].items():
        assert error.startswith(RAISED[case[0]]), (case, error)
        assert "\ndebubble: rank 1 was at action " in error, (case, error)
        for other, _ in (ranks[0], ranks[2]):
            assert other[case].startswith(f"RunError: rank 1 failed: {RAISED[case[0]]} (test_f")
            assert "; it was at action " in other[case]
    assert ranks[0][1] == ranks[1][1] == ranks[2][1]


def broken(how: str) -> list[Any]:
    limit = SHORT  # as here, not as a process finds it later
    return in_ranks(3, lambda _: train("1f1b", {1: Bad(how)}, timeout=limit), fails=True)


def test_a_rank_that_dies(capfd: pytest.CaptureFixture[str]) -> None:
    first, second, third = broken("dies")
    # Said at once: a launcher ends the others before they can raise.
    assert "debubble: rank" in capfd.readouterr().err
    assert second == -signal.SIGKILL
    for other in (first, third):
        assert "lost the rank it waited for at action" in other, other
        assert "from rank 1" in other or "to rank 1" in other


def test_a_rank_that_hangs() -> None:
    first, second, third = broken("hangs")
    assert second == 2, second
    for other in (first, third):
        assert f"nothing has moved for {SHORT} s: rank 1 hangs at action" in other, other


class MeetsPeers(nn.Module):
    """Sums over the ranks that share a stage, as tensor parallelism does; fails on one of them."""

    def __init__(self, peers: Any, fails: bool) -> None:
        super().__init__()
        self.layer, self.peers, self.fails = mlp(1)[0], peers, fails

    def forward(self, x: Tensor) -> Tensor:
        if self.fails:
            raise ValueError("my shard is broken")
        dist.all_reduce(x.detach().clone(), group=self.peers)
        found: Tensor = self.layer(x)
        return found


def test_a_process_of_one_of_several_pipelines_is_named_so_that_it_is_found() -> None:
    def work(rank: int) -> None:
        mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp"))
        stage = MeetsPeers(mesh["tp"].get_group(), fails=rank == 2)
        pipe = dt.Pipeline(
            "1f1b", {rank // 2: stage}, functional.mse_loss, microbatches=M, group=mesh["pp"],
            timeout=patience(20),
        )  # fmt: skip
        x, y = vectors(M, 0)
        pipe.step(x, target=y)

    first, peer, failed, waits = in_ranks(4, work, fails=True)
    name = "rank 1 (global rank 2, tp 0)"
    assert failed.startswith("ValueError: my shard is broken")
    assert f"debubble: {name} was at action " in failed
    cause = f"{name} failed: ValueError: my shard is broken (test_faults.py, line "
    assert first.startswith(f"RunError: {cause}")
    before = f"\nbefore that, in another pipeline of the job: {cause}"
    assert peer.startswith("RunError: rank 1 (global rank 3, tp 1) failed: RuntimeError: ")
    assert before in peer
    assert waits.startswith("RuntimeError: ")


def test_a_rank_that_does_not_come() -> None:
    def work(rank: int) -> None:
        pipe = dt.Pipeline("1f1b", mlp(2), functional.mse_loss, microbatches=M, timeout=SHORT)
        if rank:
            time.sleep(2 * SHORT)
        x, y = vectors(M, 0)
        pipe.step(x, target=y)

    first, _ = in_ranks(2, work, fails=True)
    assert f"nothing has moved for {SHORT} s: rank 1 is in no step" in first


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
    def work(rank: int) -> None:
        pipe = dt.Pipeline("1f1b", mlp(2), functional.mse_loss, microbatches=M, timeout=SHORT)
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
