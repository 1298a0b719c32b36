"""Accelerate's Megatron plugin asks for Megatron's function at every step, so that it gets ours."""

from __future__ import annotations

import importlib
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from tests import wheels

pytest.importorskip("torch")

import torch

from tests.megatron import gpt

pytestmark = [pytest.mark.slow, pytest.mark.processes]

VERSION = "1.15.0"
NOT_ON_THE_INDEX = [
    "legacy", "legacy.data", "legacy.data.dataset_utils", "legacy.model",
    "legacy.model.classification", "training", "training.arguments", "training.checkpointing",
    "training.global_vars", "training.gpt_builders", "training.initialize", "training.tokenizer",
    "training.tokenizer.tokenizer", "training.training", "training.utils",
]  # fmt: skip
"""Modules of Megatron-LM that the plugin imports, and megatron-core has not."""


def plugin(wheel: Path, job: gpt.Job) -> Any:
    """The plugin's module, on megatron-core alone."""
    sys.path.insert(0, str(wheel))
    for name in NOT_ON_THE_INDEX:
        sys.modules[f"megatron.{name}"] = mock.MagicMock()
    imports: Any = importlib.import_module("accelerate.utils.imports")
    imports.is_megatron_lm_available = lambda: True
    found: Any = importlib.reload(importlib.import_module("accelerate.utils.megatron_lm"))
    args = SimpleNamespace(
        num_micro_batches=job.microbatches, micro_batch_size=gpt.ROWS, seq_length=gpt.TOKENS,
        empty_unused_memory_level=0, consumed_valid_samples=0,
    )  # fmt: skip
    found.get_args, found.get_num_microbatches = lambda: args, lambda: job.microbatches
    found.train_step = partial(train_step, job)
    return found


def train_step(job: gpt.Job, *, forward_backward_func: Any, **given: Any) -> Any:
    """What Megatron-LM's ``training.py`` does with a function, but for its optimizer."""
    names = ("forward_step_func", "data_iterator", "model")
    losses = forward_backward_func(
        **{name: given[name] for name in names}, num_microbatches=job.microbatches,
        seq_length=gpt.TOKENS, micro_batch_size=gpt.ROWS,
    )  # fmt: skip
    return losses, 0, None, None, None, 0.0, 0


def stepped(module: Any, job: gpt.Job) -> Any:
    """Losses, gradients and losses of an evaluation by the plugin's engine."""
    training = gpt.Training(job)
    engine = module.MegatronEngine.__new__(module.MegatronEngine)
    torch.nn.Module.__init__(engine)
    engine.__dict__.update(
        module=training.chunks, optimizer=SimpleNamespace(), scheduler=None, module_config=None,
        train_step_handler=SimpleNamespace(forward_step=partial(gpt.forward_step, job)),
    )  # fmt: skip
    whole = list(gpt.batches(job, 0, job.microbatches))
    batch = {name: torch.cat([part[name] for part in whole]) for name in whole[0]}
    losses, *_ = engine.train_step(**batch)
    gradients = training._gathered(gpt._gradient)
    found = {name: float(loss) for name, loss in engine.eval_step(**batch).items()}
    return gpt.Step(training._reported(losses), gradients, {}), found


def test_its_steps_are_those_of_megatron(request: pytest.FixtureRequest) -> None:
    accelerate = wheels.fetch(wheels.folder_of(request, "accelerate"), "accelerate", VERSION)
    wheel = gpt.fetch(wheels.folder_of(request, "megatron"), gpt.RELEASES[-1])
    jobs = {"zb-h1": gpt.Job(), "zb-v": gpt.Job(chunks=2)}

    def work(rank: int) -> tuple[list[Any], list[str]]:
        import debubble.megatron as dm
        from debubble.torch.engine.own_engine import OwnEngine

        ran, own = list[str](), OwnEngine.step
        OwnEngine.step = lambda engine, data: (  # type: ignore
            ran.append(engine.plan.schedule.name) or own(engine, data)
        )
        module, found = plugin(accelerate, jobs["zb-h1"]), []
        for schedule, job in jobs.items():
            wanted, of_theirs = stepped(module, job)
            dm.install(schedule)
            ours, of_ours = stepped(module, job)
            dm.uninstall()
            found.append((gpt.apart(ours, wanted), of_ours == of_theirs, len(of_ours)))
        return found, ran

    ranks = gpt.in_ranks_of(wheel, 2, work)
    for found, ran in ranks:
        assert [apart for apart, *_ in found] == [(0.0, "")] * 2
        assert ran == ["zb-h1", "zb-v"]
    # The last rank reports an evaluation; on a V the first one, which has the last stage, too.
    assert [told for _, *told in ranks[-1][0]] == [[True, 1]] * 2
