"""Output layers that are sharded: models that can be, models that cannot, orders made by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import debubble as db
from debubble.core.actions import Kind, kinds_of
from debubble.core.errors import ParameterError
from debubble.core.schedule import Schedule
from debubble.lowering.transfers import add_transfers
from debubble.torch.errors import RunError
from debubble.torch.models.build import Model, build
from debubble.torch.run.run import Settings, run
from tests.torch.autograd.test_gradients import verified

WORDS, WIDTH = 7, 4


class Last(nn.Module):
    """Two rows of three tokens to logits, without a bias."""

    def __init__(self, after: bool = False) -> None:
        super().__init__()
        self.output = nn.Linear(WIDTH, WORDS, bias=False)
        self.after = after

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.output(x.tanh())
        return y + 1 if self.after else y


def made(loss: Any = None, after: bool = False) -> Any:
    def data(microbatch: int) -> tuple[torch.Tensor, torch.Tensor]:
        source = torch.Generator().manual_seed(microbatch)
        x = torch.randn(2, 3, WIDTH, generator=source)
        return x, torch.randint(WORDS, (2, 3), generator=source)

    def cross_entropy(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(logits.flatten(0, 1), target.flatten())

    def function(stages: int) -> Model:
        first = [nn.Linear(WIDTH, WIDTH) for _ in range(stages - 1)]
        return Model([*first, Last(after)], loss or cross_entropy, data)

    return function


@pytest.mark.processes
@pytest.mark.parametrize("name", ["vocab-1", "vocab-2"])
def test_a_layer_without_bias_and_rows_that_do_not_divide(name: str) -> None:
    verified(db.make(name, ranks=3, microbatches=4), "debubble", made())


@pytest.mark.processes
@pytest.mark.parametrize("name", ["vocab-1", "vocab-2"])
def test_one_rank_has_the_whole_layer(name: str) -> None:
    verified(db.make(name, ranks=1, microbatches=3), "debubble", made())


@pytest.mark.processes
def test_logits_whose_exponentials_overflow() -> None:
    def large(stages: int) -> Model:
        model = build(made(), stages)
        with torch.no_grad():
            model.stages[-1].output.weight *= 2000  # type: ignore[union-attr, operator]
        return model

    verified(db.make("vocab-2", ranks=2, microbatches=3), "debubble", large)


@pytest.mark.parametrize(
    ("ranks", "model", "words"),
    [
        (2, "mlp", "the last stage has none; give it an nn.Linear named output"),
        (8, made(), "7 rows for 8 ranks"),
        (2, made(after=True), "does not apply its output layer last"),
        (2, made(loss=lambda y, _: y.square().mean()), "under the mean cross-entropy"),
    ],
)
def test_models_that_cannot_be_sharded(ranks: int, model: Any, words: str) -> None:
    schedule = db.make("vocab-1", ranks=ranks, microbatches=4)
    with pytest.raises(ParameterError, match=words):
        run(schedule, Settings(model, steps=0, runtime="debubble"))


@pytest.mark.processes
def test_a_pass_before_its_forward_ends_the_run() -> None:
    lowered = add_transfers(db.make("vocab-1", ranks=2, microbatches=2))
    programs = [lowered.program(rank) for rank in range(2)]
    early = np.flatnonzero(kinds_of(programs[1]) == Kind.S)[:1]
    programs[1] = np.concatenate([programs[1][early], np.delete(programs[1], early)])
    broken = Schedule.from_programs("broken", lowered.placement, 2, programs, vocabulary=1)
    with pytest.raises(RunError, match=r"hidden states of microbatch 0 are not there on rank 1"):
        run(broken, Settings(steps=0, runtime="debubble", timeout=20))
