"""Pipelines beside data parallelism: sub-groups, DDP and fully_shard around stages."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import debubble as db
import debubble.torch as dt
from debubble.core.errors import ParameterError
from debubble.lowering.sharding import add_sharding
from tests.torch.loop import adamw, cross_entropy, gpt, mlp, text
from tests.torch.world import in_ranks

M = 4
STEPS = 2


def alone(stages: int) -> list[dict[str, Any]]:
    """Two steps on the batches of both replicas, by a loop without any parallelism."""
    model = nn.ModuleList(gpt(stages))
    optimizer = adamw(model.parameters())
    found = []
    for step in range(STEPS):
        # Gradients of two steps of a pipeline add up.
        for turn in range(2):
            for replica in range(2):
                x, y = text(M, 10 * step + 5 * turn + replica)
                for part, target in zip(x.tensor_split(M), y.tensor_split(M), strict=True):
                    for stage in model:
                        part = stage(part)
                    (cross_entropy(part, target) / M / 2).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        gradients = {name: weight.grad.clone() for name, weight in model.named_parameters()}
        optimizer.step()
        optimizer.zero_grad()
        weights = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        found.append({"norm": norm, "gradients": gradients, "weights": weights})
    return found


def full(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@pytest.mark.parametrize(
    ("how", "name"),
    [("ddp", "zb-v"), ("ddp", "dualpipe"), ("fsdp", "zb-v with sharding"), ("fsdp", "dualpipe")],
)
def test_data_parallel_stages(how: str, name: str) -> None:
    made = db.make(name.partition(" ")[0], ranks=2, microbatches=M)
    if "sharding" in name:
        made = add_sharding(made, mode="fsdp")
    wanted = alone(made.stages)  # once, and not in every rank

    def work(rank: int) -> None:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
        dp, pp = mesh["dp"], mesh["pp"]
        model = gpt(made.stages)

        def stage(number: int) -> nn.Module:
            if how == "ddp":
                return DistributedDataParallel(model[number], process_group=dp.get_group())
            fully_shard(model[number].block, mesh=dp)
            return fully_shard(model[number], mesh=dp)

        pipe = dt.Pipeline(made, stage, cross_entropy, group=pp if how == "ddp" else pp.get_group())
        optimizer = adamw(pipe.parameters())
        for step, there in enumerate(wanted):
            for turn in range(2):
                x, y = text(M, 10 * step + 5 * turn + dp.get_local_rank())
                pipe.step(x, target=y)
            torch.testing.assert_close(pipe.clip_grad_norm_(0.5), there["norm"])
            pipe.eval(x, target=y)  # which leaves gradients, and weights in their shards
            for key, weight in pipe.named_parameters():
                assert weight.grad is not None
                torch.testing.assert_close(
                    full(weight.grad), there["gradients"][key], rtol=1e-6, atol=1e-9
                )
            optimizer.step()
            optimizer.zero_grad()
            for key, weight in pipe.named_parameters():
                ours = full(weight.detach())
                torch.testing.assert_close(ours, there["weights"][key], rtol=1e-6, atol=1e-9)
        x, y = text(M, dp.get_local_rank())
        losses = [None] * 4
        dist.all_gather_object(losses, pipe.eval(x, target=y).item())
        first, second = losses[:2], losses[2:]
        assert first[0] == first[1] != second[0] == second[1]

    in_ranks(4, work)


@pytest.mark.parametrize("wrap", [DistributedDataParallel, fully_shard])
def test_replicas_are_not_ranks_of_the_same_pipeline(wrap: Any) -> None:
    """The default group of either is all ranks: gradients of several stages would be averaged."""

    def work(rank: int) -> str:
        stages = [wrap(one) for one in mlp(2)]
        with pytest.raises(ParameterError) as caught:
            dt.Pipeline("1f1b", stages, cross_entropy, microbatches=M)
        return str(caught.value)

    for rank, message in enumerate(in_ranks(2, work)):
        assert message.startswith(f"stage {rank} is replicated or sharded over ranks 0 and 1")
