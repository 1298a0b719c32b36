"""The reference is plain training; differences of any kind are found."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import debubble as db
from debubble.torch.models.build import StagedModel, build, gpt_tiny
from debubble.torch.run.job import RATE, RunData
from debubble.torch.run.verify import reference, verify

STAGES = 3


def batches_of(schedule: db.Schedule) -> RunData:
    return RunData("mlp", schedule)


def gradients(model: StagedModel, microbatches: range) -> list[list[torch.Tensor]]:
    """Gradients of the mean loss by PyTorch, stage by stage, with the weights as they are."""
    whole = torch.nn.Sequential(*model.stages)
    whole.zero_grad()
    for number in microbatches:
        x, target = (part.double() for part in model.data(number))
        (model.loss(whole(x), target) / len(microbatches)).backward()
    return [[w.grad.clone() for w in stage.parameters()] for stage in model.stages]


def compare(found: Any, iteration: int, wanted: list[list[torch.Tensor]]) -> None:
    for stage, part in enumerate(wanted):
        ours = found[iteration, stage].values()
        for got, gradient in zip(ours, part, strict=True):
            np.testing.assert_allclose(got, gradient.numpy(), rtol=1e-10, atol=1e-14)


def test_one_version_is_stochastic_gradient_descent() -> None:
    schedule = db.make("1f1b", ranks=STAGES, microbatches=4, iterations=3)
    losses, found = reference(schedule, batches_of(schedule))
    model = build("mlp", STAGES)
    whole = torch.nn.Sequential(*model.stages).double()
    optimizer = torch.optim.SGD(whole.parameters(), lr=RATE)
    for iteration in range(3):
        compare(found, iteration, gradients(model, range(4 * iteration, 4 * iteration + 4)))
        optimizer.step()
    assert losses.shape == (3,)


def test_two_versions_are_gradients_of_weights_one_step_old() -> None:
    schedule = db.make("pipedream-2bw", ranks=STAGES, microbatches=4, iterations=4)
    _, found = reference(schedule, batches_of(schedule))
    model = build("mlp", STAGES)
    whole = torch.nn.Sequential(*model.stages).double()
    older = newest = [w.detach().clone() for w in whole.parameters()]
    for iteration in range(4):
        with torch.no_grad():
            for weight, value in zip(whole.parameters(), older, strict=True):
                weight.copy_(value)
        wanted = gradients(model, range(4 * iteration, 4 * iteration + 4))
        compare(found, iteration, wanted)
        flat = [gradient for part in wanted for gradient in part]
        older, newest = newest, [w - RATE * g for w, g in zip(newest, flat, strict=True)]


def test_pipedream_is_older_on_earlier_ranks() -> None:
    schedule = db.make("pipedream", ranks=STAGES, microbatches=1, iterations=6)
    _, found = reference(schedule, batches_of(schedule))
    model = build("mlp", STAGES)
    stages = [stage.double() for stage in model.stages]
    history = [[[w.detach().clone() for w in stage.parameters()] for stage in stages]]
    for iteration in range(6):
        for rank, stage in enumerate(stages):
            used = history[max(iteration - (STAGES - 1 - rank), 0)][rank]
            with torch.no_grad():
                for weight, value in zip(stage.parameters(), used, strict=True):
                    weight.copy_(value)
        wanted = gradients(model, range(iteration, iteration + 1))
        compare(found, iteration, wanted)
        history.append(
            [
                [w - RATE * g for w, g in zip(ws, gs, strict=True)]
                for ws, gs in zip(history[-1], wanted, strict=True)
            ]
        )


SCHEDULE = db.make("gpipe", ranks=2, microbatches=2)


def results() -> tuple[RunData, Any, Any]:
    """What ranks would return when all is right."""
    batches = batches_of(SCHEDULE)
    losses, found = reference(SCHEDULE, batches)
    ranks: list[dict[Any, Any]] = [{}, {}]
    for (iteration, stage), part in found.items():
        ranks[stage][iteration, stage] = {name: g.copy() for name, g in part.items()}
    return batches, ranks, [{}, {0: losses[0] / 2, 1: losses[0] / 2}]


def test_what_is_equal_is_equal() -> None:
    checked = verify(SCHEDULE, *results())
    assert (checked.equal, checked.gradient_error, checked.tensors) == (True, 0.0, 4)


@pytest.mark.parametrize("off", [1e-6, math.nan, math.inf])
def test_one_number_that_differs_is_found(off: float) -> None:
    batches, ranks, losses = results()
    ranks[1][0, 1]["0.bias"][3] += off
    checked = verify(SCHEDULE, batches, ranks, losses)
    assert not checked.equal
    assert checked.worst == "0.bias of stage 1, iteration 0"
    data = checked.to_dict()
    assert not data["equal"]
    assert data["gradient_error"] == (pytest.approx(off) if math.isfinite(off) else None)


def test_a_gradient_that_is_missing_is_found() -> None:
    batches, ranks, losses = results()
    del ranks[0][0, 0]["0.weight"]
    assert not verify(SCHEDULE, batches, ranks, losses).equal


def test_a_loss_that_differs_is_found() -> None:
    batches, ranks, losses = results()
    losses[1][0] *= 1.001
    checked = verify(SCHEDULE, batches, ranks, losses)
    assert checked.relative_error == 0.0
    assert not checked.equal


def test_models_are_the_same_every_time() -> None:
    first, second = build("gpt-tiny", 2), build(gpt_tiny, 2)
    for ours, theirs in zip(first.stages, second.stages, strict=True):
        for (name, a), (_, b) in zip(
            ours.named_parameters(), theirs.named_parameters(), strict=True
        ):
            assert torch.equal(a, b), name
    assert torch.equal(first.data(5)[0], second.data(5)[0])
    assert not torch.equal(first.data(5)[0], first.data(6)[0])
