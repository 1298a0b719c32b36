"""How much the loss of a microbatch counts in that of its batch."""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import debubble as db
import debubble.torch as dt
from debubble.torch.data.batch import count_rows, count_weights, shares_of
from debubble.torch.models.build import StagedModel
from debubble.torch.run.job import RunData
from tests.torch.loop import cross_entropy, gpt, mlp, text, vectors
from tests.torch.world import in_ranks

M = 4
ENGINES = ["debubble", "torch"]


class Lines(logging.Handler):
    """What a rank is told."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def masked_mean(output: Tensor, target: Tensor) -> Tensor:
    """A mean that gives NaN, and NaN gradients, where no target counts."""
    counts = target != -100
    each = functional.cross_entropy(output.flatten(0, -2), target.flatten(), reduction="none")
    return (each * counts.flatten()).sum() / counts.sum()


def compared(pipe: Any, whole: list[nn.Module]) -> None:
    for name, weight in pipe.named_parameters():
        stage, _, path = name.partition(".")
        path = path.removeprefix("module.")
        wanted = whole[int(stage)].get_parameter(path).grad
        found = weight.grad.full_tensor() if isinstance(weight.grad, DTensor) else weight.grad
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["1f1b", "zb-h1"])
def test_a_microbatch_of_padding_alone_counts_nothing(engine: str, name: str) -> None:
    def work(rank: int) -> tuple[float, list[float], float]:
        x, y = text(M, 0)
        y = y.clone()
        y[: len(y) // M] = -100
        whole = gpt(2)
        wanted = masked_mean(nn.Sequential(*whole)(x), y)
        wanted.backward()
        pipe = dt.Pipeline(
            name, gpt(2), masked_mean, microbatches=M, engine=engine, scale_grads="tokens"
        )
        losses: list[Tensor] = []
        loss = pipe.step(x, target=y, losses=losses)
        compared(pipe, whole)
        assert loss.item() == pytest.approx(wanted.item(), rel=1e-12)
        y[:] = -100
        nothing = pipe.step(x, target=y)
        compared(pipe, whole)
        return wanted.item(), [each.item() for each in losses], nothing.item()

    for rank, (wanted, losses, nothing) in enumerate(in_ranks(2, work)):
        assert math.isnan(nothing)
        if rank:
            assert math.isnan(losses[0])
            assert min(losses[1:]) < wanted < max(losses[1:])


def test_rows_are_counted_where_they_are() -> None:
    schedule = db.make("1f1b", ranks=1, microbatches=3)
    parts = {n: {"y": torch.zeros(rows, 2), "of": "all"} for n, rows in enumerate((3, 3, 2))}
    assert shares_of(count_weights(parts, schedule, "mean"), 1) == [3 / 8, 3 / 8, 2 / 8]
    assert shares_of(count_weights(parts, schedule, "sum"), 1) == [1 / 3] * 3
    assert count_rows(("a name", torch.zeros(()), torch.zeros(5, 1))) == 5
    assert count_rows((3, torch.zeros(()))) == 0
    data = [(torch.zeros(rows, 4), torch.zeros(())) for rows in (1, 3, 2, 2)]
    order = db.make("1f1b", ranks=2, microbatches=2, iterations=2)
    model = StagedModel(mlp(2), functional.mse_loss, data.__getitem__)
    assert RunData(lambda _: model, order).shares == [1 / 4, 3 / 4, 1 / 2, 1 / 2]


def test_targets_of_any_form_and_another_number_of_microbatches() -> None:
    def loss(output: Tensor, target: dict[str, Any]) -> Tensor:
        return (output.sum(1) * target["factor"]).mean()

    def work(rank: int) -> None:
        x = vectors(3, 0)[0][:11]
        factor = torch.linspace(-1, 1, 11, dtype=torch.float64)
        whole = mlp(2)
        wanted = loss(nn.Sequential(*whole)(x), {"factor": factor})
        wanted.backward()
        pipe = dt.Pipeline("1f1b", mlp(2), loss, microbatches=M)
        for microbatches in (4, 3, 7):
            pipe.use("zb-h1", microbatches=microbatches)
            pipe.zero_grad()
            given = {"target": {"factor": factor, "name": "some"}}
            for found in (pipe.eval(x, **given), pipe.step(x, **given)):
                assert found.item() == pytest.approx(wanted.item(), rel=1e-12)
            compared(pipe, whole)
        # Targets without rows: those of the inputs count.
        pipe = dt.Pipeline("1f1b", mlp(2), lambda y, _: y.mean(), microbatches=M)
        assert pipe.step(x, target="none").item() == pytest.approx(
            nn.Sequential(*mlp(2))(x).mean().item(), rel=1e-12
        )

    in_ranks(2, work)


def test_what_rows_do_not_tell_is_said_once() -> None:
    def work(rank: int) -> list[str]:
        told = Lines()
        logging.getLogger("debubble").addHandler(told)
        x, y = text(M, 0)
        pipe = dt.Pipeline("1f1b", gpt(2), cross_entropy, microbatches=M)
        pipe.step(x, target=y)
        assert not told.texts
        y = y.clone()
        y[-1, 1:] = -100
        for _ in range(2):
            pipe.step(x, target=y)
        pipe = dt.Pipeline("1f1b", gpt(2), cross_entropy, microbatches=M, scale_grads="tokens")
        pipe.step(x, target=y)
        return told.texts

    assert in_ranks(2, work)[0] == []
    (line,) = in_ranks(2, work)[1]
    assert "count by their rows" in line
    assert "scale_grads='tokens'" in line


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
@pytest.mark.filterwarnings("ignore")
def test_tokens_of_all_replicas_count_alike(how: str) -> None:
    def work(rank: int) -> None:
        pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        replicas = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        x, y = text(2 * M, 0)
        y = y.clone()
        y[len(y) // 2 :, 1:] = -100
        whole = gpt(2)
        cross_entropy(nn.Sequential(*whole)(x), y).backward()
        model, group = gpt(2), replicas[rank % 2]

        def stage(number: int) -> nn.Module:
            if how == "ddp":
                return DistributedDataParallel(model[number], process_group=group)
            return fully_shard(model[number], mesh=DeviceMesh.from_group(group, "cpu"))

        pipe = dt.Pipeline(
            "zb-h1", stage, cross_entropy, microbatches=M, group=pairs[rank // 2],
            scale_grads="tokens",
        )  # fmt: skip
        own = slice(0, len(y) // 2) if rank < 2 else slice(len(y) // 2, None)
        loss = pipe.step(x[own], target=y[own])
        compared(pipe, whole)
        mine = cross_entropy(nn.Sequential(*whole)(x[own]), y[own])
        assert loss.item() == pytest.approx(mine.item(), rel=1e-12)

    in_ranks(4, work)
