"""Every schedule trains as a loop without a pipeline does."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import debubble as db
import debubble.torch as dt
from tests.runtime.cases import smallest
from tests.torch.loop import adamw, cross_entropy, gpt, text, train
from tests.torch.world import run

STEPS = 3


def close(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    return torch.allclose(ours, theirs, rtol=1e-9, atol=1e-12)


WANTED: dict[Any, Any] = {}
"""What loops without a pipeline give; many schedules have the same."""


def wanted_of(schedule: db.Schedule) -> Any:
    older = [schedule.versions[rank] for rank in schedule.placement.table[0]]
    key = (schedule.stages, schedule.microbatches, *older)
    if key not in WANTED:
        WANTED[key] = train(gpt(schedule.stages), schedule, text, cross_entropy, STEPS)
    return WANTED[key]


def trained(schedule: db.Schedule, **options: Any) -> list[str]:
    """What differs on this rank from a loop without a pipeline."""
    wanted = wanted_of(schedule)
    model = gpt(schedule.stages)
    pipe = dt.Pipeline(schedule, lambda stage: model[stage], cross_entropy, **options)
    optimizer = adamw(pipe.parameters())
    wrong = []
    for step in range(STEPS):
        x, y = text(schedule.microbatches, step)
        loss = pipe.step(
            x if pipe.is_first else None, target=y if pipe.is_last or schedule.vocabulary else None
        )
        there = wanted[step]
        if not math.isclose(float(loss), there["loss"], rel_tol=1e-9):
            wrong.append(f"loss of step {step}: {float(loss)} for {there['loss']}")
        for what in ("gradients", "weights"):
            if what == "weights":
                optimizer.step()
            for name, weight in pipe.named_parameters():
                ours = weight.grad if what == "gradients" else weight.detach()
                theirs = whole(there[what], name)
                if ours is None or not close(ours, theirs):
                    wrong.append(f"{what} of {name} in step {step}")
        optimizer.zero_grad()
    return wrong


def whole(found: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    """The weight of a name, or its part where that names a shard."""
    stage, layer, shard, leaf = [*name.split("."), "", ""][:4]
    if not shard.startswith("shard"):
        return found[name]
    import torch.distributed as dist

    return found[f"{stage}.{layer}.{leaf}"].tensor_split(dist.get_world_size())[int(shard[5:])]


@pytest.mark.parametrize("half", [0, 1])
def test_every_schedule(half: int) -> None:
    entries = db.schedules()[half::2]
    schedules = [smallest(entry) for entry in entries]

    def work(rank: int) -> dict[str, list[str]]:
        return {schedule.name: trained(schedule) for schedule in schedules}

    for found in run(4, work):
        assert found == {schedule.name: [] for schedule in schedules}
