"""Every schedule trains as a loop without a pipeline does."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pytest
import torch

import debubble as db
import debubble.torch as dt
from tests.conftest import EXPLORES
from tests.pairs import combined, sorts
from tests.small import smallest
from tests.torch.loop import adamw, cross_entropy, gpt, text, train
from tests.torch.world import in_ranks

STEPS = 3


def close(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    return torch.allclose(ours, theirs, rtol=1e-9, atol=1e-12)


class Wanted:
    """What loops without a pipeline give: computed once, and not in every rank."""

    def __init__(self, schedules: Iterable[db.Schedule]) -> None:
        self._found: dict[Any, Any] = {}
        for schedule in schedules:
            key = self._key(schedule)  # many schedules have the same
            if key not in self._found:
                found = train(gpt(schedule.stages), schedule, text, cross_entropy, STEPS)
                self._found[key] = found

    @staticmethod
    def _key(schedule: db.Schedule) -> tuple[int, ...]:
        older = [schedule.stored_versions[rank] for rank in schedule.placement.table[0]]
        return (schedule.stages, schedule.microbatches, *older)

    def of(self, schedule: db.Schedule) -> Any:
        """What every step gives."""
        return self._found[self._key(schedule)]


def trained(schedule: db.Schedule, wanted: Any, steps: int = STEPS) -> list[str]:
    """What differs on this rank from a loop without a pipeline."""
    model = gpt(schedule.stages)
    pipe = dt.Pipeline(schedule, lambda stage: model[stage], cross_entropy)
    optimizer = adamw(pipe.parameters())
    wrong = []
    for step in range(steps):
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


class Stepping(dt.Pipeline):
    """Takes the optimizer steps that stand in the schedule."""

    def _optimizer_steps(self) -> Any:
        def step(iteration: int) -> None:
            if self.optimizer is None:
                self.optimizer = adamw(self.parameters())
            self.optimizer.step()
            self.optimizer.zero_grad()

        self.optimizer: Any = None
        return step


@pytest.mark.parametrize("name", ["zb-h1", "pipedream-2bw", "dualpipe"])
def test_optimizer_steps_within_a_schedule(name: str) -> None:
    made = db.make(name, ranks=2, microbatches=4, iterations=STEPS)
    one = db.make(name, ranks=2, microbatches=4)
    wanted = Wanted([one]).of(one)

    def work(rank: int) -> None:
        model = gpt(made.stages)
        pipe = Stepping(made, lambda stage: model[stage], cross_entropy)
        batches = [text(4, step) for step in range(STEPS)]
        x, y = (torch.cat(part) for part in zip(*batches, strict=True))
        loss = pipe.step(x, target=y)
        assert loss.item() == pytest.approx(sum(one["loss"] for one in wanted) / STEPS, rel=1e-9)
        for key, weight in pipe.named_parameters():
            assert close(weight.detach(), wanted[-1]["weights"][key]), key

    in_ranks(2, work)


def test_stages_of_pytorch_and_modules_by_number() -> None:
    from torch.distributed.pipelining import PipelineStage

    made = db.make("zb-v", ranks=2, microbatches=4)
    x, y = text(4, 0)

    def work(rank: int) -> list[float]:
        cpu = torch.device("cpu")
        losses = []
        for form in ("stages", "mapping", "list"):
            model = gpt(4)
            stages: Any = {
                "stages": [PipelineStage(model[s], s, 4, cpu) for s in ((0, 3), (1, 2))[rank]],
                "mapping": {s: model[s] for s in ((0, 3), (1, 2))[rank]},
                "list": torch.nn.ModuleList(model),
            }[form]
            losses.append(dt.Pipeline(made, stages, cross_entropy).step(x, target=y).item())
        wrong = [PipelineStage(gpt(4)[s], s, 4, cpu) for s in (0, 1)]
        with pytest.raises(db.ParameterError, match="make PipelineStages for"):
            dt.Pipeline(made, wrong, cross_entropy)
        return losses

    first, second = in_ranks(2, work)
    assert first == second
    assert len(set(first)) == 1


def whole(found: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    """The weight of a name, or its part where that names a shard."""
    stage, layer, shard, leaf = [*name.split("."), "", ""][:4]
    if not shard.startswith("shard"):
        return found[name]
    import torch.distributed as dist

    return found[f"{stage}.{layer}.{leaf}"].tensor_split(dist.get_world_size())[int(shard[5:])]


def test_schedules_of_every_sort() -> None:
    """All schedules have their gradients in test_gradients.py; the sorts that combine much train in
    batches in test_batched.py.

    Of those that keep older weights each is here: what they keep shows in the third step.
    """
    few = {of_sort[0].name for sort, of_sort in sorts().items() if sort not in combined()}
    made = [smallest(entry) for entry in db.schedules()]
    schedules = [one for one in made if EXPLORES or one.name in few or max(one.stored_versions) > 1]
    wanted = Wanted(schedules)

    def work(rank: int) -> dict[str, list[str]]:
        return {
            one.name: trained(one, wanted.of(one), STEPS if max(one.stored_versions) > 1 else 2)
            for one in schedules
        }

    for found in in_ranks(4, work):
        assert found == {schedule.name: [] for schedule in schedules}
