"""An order that is found while training is as much faster as was predicted."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import debubble as db
import debubble.torch as dt
from debubble.core.errors import ParameterError
from debubble.optimize import search
from tests.kernels import run_by
from tests.some_effort import by_effort
from tests.torch import world
from tests.torch.counted_time import count_time
from tests.torch.loop import mlp, vectors

pytestmark = pytest.mark.processes

M = 8
UNIT, FLIGHT = 20e-3, 1e-6
"""Seconds of an action, and of a message."""


def in_ranks(ranks: int, work: Callable[[int], Any]) -> list[Any]:
    """Call `work` with its rank in every process; searches there end by their effort."""

    def of_rank(rank: int) -> Any:
        search.optimize = by_effort(search.optimize)
        # Compiling the kernels would take far longer than such a search.
        with run_by(compiled=False):
            return work(rank)

    return world.in_ranks(ranks, of_rank)


class Pause(torch.autograd.Function):
    """Takes its time, forward and backward."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, pause: Callable[[float], None], forward: float, backward: float
    ) -> Tensor:
        ctx.pause, ctx.backward = pause, backward
        pause(forward)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore
        ctx.pause(ctx.backward)
        return gradient, None, None, None


class Pausing(nn.Module):
    """Pauses in F and I on the way of its input, in W on the way to its weight."""

    def __init__(self, pause: Callable[[float], None], seconds: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(32, dtype=torch.float64))
        self.pause, self.seconds = pause, seconds

    def forward(self, x: Tensor) -> Tensor:
        x = Pause.apply(x, self.pause, self.seconds, self.seconds)
        return x @ Pause.apply(self.weight + 0, self.pause, 0.0, self.seconds)


def tuned_pipe(
    ranks: int, name: str, slow: int, costs: db.Costs | None, **sizes: Any
) -> tuple[dt.Tuned, str]:
    """Tune four stages of which one is 40 % slower, in time that is counted; what is found, and its
    first report."""

    def work(rank: int) -> tuple[Any, str]:
        clock = count_time(lambda _: FLIGHT)
        pipe = dt.Pipeline(
            name, lambda stage: Pausing(clock.pause, UNIT * (1.4 if stage == slow else 1)),
            functional.mse_loss, microbatches=M, **sizes,
        )  # fmt: skip
        x, y = vectors(M, 0)

        def step() -> None:
            clock.meet()
            pipe.step(x, target=y)

        for _ in range(4):
            step()
        tuned = dt.tune(pipe, time_limit=1, steps=3, costs=costs, compare=step)
        first = tuned.report()
        assert pipe.schedule == tuned.schedule
        for _ in range(4):
            step()
        return tuned, first

    (tuned, first), *others = in_ranks(ranks, work)
    for other, _ in others:
        assert other.schedule == tuned.schedule
        assert other.predicted_gain == tuned.predicted_gain
        assert other.measured_gain == tuned.measured_gain
    return tuned, first


SLOW = {"default": 1.0, 2: 1.4}
COSTS = db.Costs(F=SLOW, I={**SLOW, 0: 0.0}, W=SLOW, time_unit="units")
"""What the stages take of which the third is slow; nothing asks for the gradient of the batch."""


@pytest.mark.parametrize(
    ("ranks", "name", "slow", "costs", "sizes"),
    [
        (4, "gpipe", 0, None, {}),
        (2, "hanayo", 2, None, {"chunks": 2}),
        (4, "1f1b", 2, COSTS, {}),
    ],
)
def test_as_much_is_gained_as_was_predicted(
    ranks: int, name: str, slow: int, costs: Any, sizes: dict[str, int]
) -> None:
    tuned, first = tuned_pipe(ranks, name, slow, costs, **sizes)
    assert tuned.changed, first
    assert tuned.difference is not None
    assert tuned.difference < 1e-12
    assert "measured: after 4 more steps" in first
    assert tuned.measured_gain == pytest.approx(tuned.predicted_gain, abs=1e-3)
    assert db.check(tuned.schedule, memory=PEAKS.get(name)).ok


PEAKS = {"1f1b": [4.0, 3.0, 2.0, 1.0], "gpipe": float(M)}
"""Activations of the running order, which limit the one that is found."""


def quick(name: str = "1f1b", steps: int = 3, **sizes: Any) -> dt.Pipeline:
    pipe = dt.Pipeline(name, lambda _: mlp(1)[0], functional.mse_loss, microbatches=4, **sizes)
    for _ in range(steps):
        x, y = vectors(4, 0)
        pipe.step(x, target=y)
    return pipe


def test_an_order_for_other_costs_is_what_is_tuned() -> None:
    def work(rank: int) -> None:
        pipe = quick("zb-v", steps=2)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            dt.tune(pipe, time_limit=0.5, steps=1)

    in_ranks(2, work)


def with_step_times(times: Callable[[dt.Pipeline], Any]) -> None:
    """Let the pipelines of this process, which ends with the test, have taken some times."""
    dt.Pipeline.step_times = times  # type: ignore[method-assign]


def test_what_gains_less_than_steps_vary_stays() -> None:
    times = np.array([1.0, 1.0, 1.4, 1.4, 1.4])

    def work(rank: int) -> tuple[str, bool]:
        with_step_times(lambda _: times)
        pipe = quick(steps=1)
        tuned = dt.tune(pipe, time_limit=0.5, costs=db.Costs(F=1, B=2))
        assert tuned.predicted_gain > 0.05
        assert tuned.measured_gain is None
        return tuned.report(), pipe.schedule == db.make("1f1b", ranks=4, microbatches=4)

    for report, same in in_ranks(4, work):
        assert same
        assert report.endswith("steps vary by 29 %: the schedule stays as it is")


def test_a_slower_order_is_taken_back() -> None:
    before = db.make("gpipe", ranks=4, microbatches=4)

    def work(rank: int) -> tuple[bool, bool, float | None, str]:
        # Costs that are not those of the stages, and steps that take longer with what they lead to.
        with_step_times(lambda pipe: np.full(9, 1.0 if pipe.schedule == before else 2.0))
        pipe = quick("gpipe", 1)
        tuned = dt.tune(pipe, time_limit=0.5, steps=2, costs=db.Costs(F=1, I=1, W=1))
        changed = tuned.changed
        for _ in range(3):
            x, y = vectors(4, 0)
            pipe.step(x, target=y)
        return changed, pipe.schedule == before, tuned.measured_gain, tuned.report()

    for changed, back, gain, report in in_ranks(4, work):
        assert changed
        assert back
        assert gain == -1.0
        assert report.endswith("100 % more; the previous schedule runs again")


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("dualpipe", {}, "'dualpipe' has several copies of the model, which tune() does not"),
        ("1f1b", {"steps": 9}, "2 steps were measured, the first aside, and steps is 9; run 7"),
        ("1f1b", {"steps": 99}, "steps is 99; give a number from 1 to 15"),
        ("1f1b", {"time_limit": 90}, "time_limit is 90 s; give a positive number up to 30"),
        ("1f1b", {"memory": 0.5}, "memory"),
    ],
)
def test_what_is_refused(name: str, options: dict[str, Any], words: str) -> None:
    def work(rank: int) -> str:
        pipe = quick(name)
        with pytest.raises(ParameterError) as error:
            dt.tune(pipe, **{"steps": 2, "time_limit": 1, **options})
        return str(error.value)

    messages = in_ranks(4 if name == "1f1b" else 2, work)
    assert len(set(messages)) == 1
    assert words in messages[0]
