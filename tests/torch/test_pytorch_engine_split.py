"""Stages that PyTorch's own split of a backward cannot serve keep theirs in one piece."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import debubble as db
import debubble.torch as dt
from debubble.torch.models.build import WIDTH, CausalAttention
from debubble.torch.pytorch.runtime import PyTorchRuntime
from tests.torch.loop import mlp, vectors
from tests.torch.world import in_ranks

M = 4


@contextmanager
def heard(name: str) -> Iterator[list[str]]:
    """The lines of a logger."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger(name).addHandler(handler)
    yield lines
    logging.getLogger(name).removeHandler(handler)


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


class Counted(nn.Module):
    """Some layers in one checkpoint, which count their forwards."""

    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.layers = nn.Sequential(*mlp(layers))
        self.forwards = 0

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = checkpoint(self.inner, x, use_reentrant=False)
        return found

    def inner(self, x: Tensor) -> Tensor:
        self.forwards += 1
        found: Tensor = self.layers(x)
        return found


def test_pytorchs_own_split_computes_a_checkpointed_forward_in_i_and_for_every_group_in_w() -> None:
    """Why stages that recompute keep whole backwards: a fact about PyTorch, not about us."""
    stage, x = Counted(3), vectors(1, 0)[0].requires_grad_()
    output = [stage(x)]
    _, groups = stage_backward_input(output, [torch.ones_like(x)], [x], stage.parameters())
    assert stage.forwards == 2
    stage_backward_weight(stage.parameters(), groups)
    assert stage.forwards == 2 + len(groups) == 5


@pytest.mark.parametrize("engine", ["debubble", "torch"])
def test_checkpointed_stages_compute_their_forward_twice_and_no_more(engine: str) -> None:
    x, y = vectors(M, 0)

    def work(rank: int) -> tuple[list[int], dict[str, Tensor | None]]:
        with torch.random.fork_rng(devices=[]):
            stages = [Counted() for _ in range(4)]
        pipe = dt.Pipeline("zb-v", stages, functional.mse_loss, microbatches=M, engine=engine)
        pipe.eval(x, target=y)
        pipe.step(x, target=y)
        pipe.zero_grad()
        for stage in stages:
            stage.forwards = 0
        pipe.step(x, target=y)
        gradients = {name: weight.grad for name, weight in pipe.named_parameters()}
        return [stages[number].forwards for number in pipe.stages], gradients

    whole = nn.Sequential(*[Counted() for _ in range(4)])
    functional.mse_loss(whole(x), y).backward()
    for forwards, gradients in in_ranks(2, work):
        assert forwards == [2 * M] * 2
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, whole.get_parameter(name).grad, rtol=0, atol=1e-12)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), CausalAttention()
        self.out = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x), 0, [])[0]
        found: Tensor = x + self.out(x)
        return found


def test_pytorchs_i_frees_no_activation() -> None:
    """What the rule of ``runtime: torch`` says, of a transformer's layers."""
    block, saved = Block(), {}

    class Box:
        def __init__(self, tensor: Tensor) -> None:
            self.tensor = tensor

    def pack(tensor: Tensor) -> Box:
        box, storage = Box(tensor), tensor.untyped_storage()
        saved[id(box)] = storage.data_ptr(), storage.nbytes()
        weakref.finalize(box, saved.pop, id(box), None)
        return box

    own = {weight.untyped_storage().data_ptr() for weight in block.parameters()}

    def held() -> int:
        gc.collect()
        return sum(size for place, size in dict(saved.values()).items() if place not in own)

    def output() -> list[Tensor]:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda box: box.tensor):
            return [block(x)]

    x = torch.randn(2, 4, WIDTH, requires_grad=True)
    out = output()
    before = held()
    groups: Any = stage_backward_input(out, [torch.ones_like(x)], [x], block.parameters())[1]
    assert held() == before > 0
    stage_backward_weight(block.parameters(), groups)


def test_weights_without_a_gradient_are_named_after_the_first_step() -> None:
    """PyTorch's W leaves out weights that fully_shard has put back into shards."""

    def work(rank: int) -> list[str]:
        schedule = db.make("zb-h1", ranks=2, microbatches=M)
        mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("pp", "dp"))
        x, y = vectors(M, 0)
        found = []
        with heard("debubble") as lines:
            for shards in (False, True):
                stage = mlp(2)[rank]
                if shards:
                    fully_shard(stage[0], mesh=mesh["dp"], reshard_after_forward=True)
                    fully_shard(stage, mesh=mesh["dp"], reshard_after_forward=True)
                place = PipelineStage(
                    stage, rank, 2, torch.device("cpu"), group=mesh["pp"].get_group()
                )
                runtime = PyTorchRuntime(schedule, [place], functional.mse_loss)
                for _ in range(2):
                    runtime.step(*[x] * (rank == 0), **{"target": y} if rank else {})
                found.append(len(lines))
        assert found[0] == 0, lines
        return lines

    _, second = in_ranks(2, work)
    (line,) = second
    assert line.startswith("stage 1: 0.weight and 1 more got no gradient in the first step")
