"""Every schedule computes the loss and the gradients of the model without a pipeline."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import debubble as db
from debubble.core.schedule import SYNCS
from debubble.lowering.recompute import add_recompute
from debubble.schedules.registry import Entry
from debubble.torch.run.report import RunReport
from debubble.torch.run.run import Settings, run
from debubble.torch.run.verify import Verification
from debubble.torch.setup import not_for_pytorch
from tests.conftest import EXPLORES
from tests.pairs import combined, sorts
from tests.patience import patience
from tests.small import RANKS, smallest
from tests.torch.together import Case, Together
from tests.torch.world import ByValue

pytestmark = pytest.mark.processes

ENTRIES = db.schedules()
SHARDED = [entry for entry in ENTRIES if "vocabulary" in entry.fields]
EXPRESSIBLE = {entry.name for entry in ENTRIES if not not_for_pytorch(smallest(entry))}
FOR_TORCH = [
    entry
    for of_sort in sorts().values()
    for entry in [one for one in of_sort if one.name in EXPRESSIBLE][: None if EXPLORES else 2]
]
"""Some of each sort: test_pytorch_engine.py has all that PyTorch's runtime can express."""
SEVERAL_STEPS = {of_sort[0].name for of_sort in combined().values()}
AFTER = ("forward", "gradient")
RUNTIMES = ("debubble", "torch")


def verified(schedule: db.Schedule, runtime: str, model: Any = "gpt-tiny") -> Verification:
    source = model if isinstance(model, str) else ByValue(model)
    settings = Settings(source, steps=0, runtime=runtime, timeout=patience(120))
    report = run(schedule, settings)
    assert isinstance(report, RunReport)
    assert report.runtime == runtime
    assert report.verification is not None
    assert report.equal, str(report)
    assert report.verification.loss > 0
    return report.verification


def stepped(entry: Entry) -> Case:
    """Optimizer steps: three where older weights are kept, the last after their last use; else two
    for one of each sort that combines much, and one for the others."""
    if entry.fields.get("newest_weights"):
        # What it computes depends on when its steps are.
        return Case(smallest(entry))
    if max(smallest(entry).versions) > 1:
        iterations = 3
    else:
        iterations = 2 if EXPLORES or entry.name in SEVERAL_STEPS else 1
    schedule = smallest(entry, iterations=iterations)
    small = schedule.slices == 1 and not schedule.vocabulary
    return Case(schedule, "mlp" if small else "gpt-tiny")


def recomputed(entry: Entry, after: str) -> Case:
    return Case(replace(add_recompute(smallest(entry)), recompute_after=after))


@pytest.fixture(scope="module")
def ours() -> Together:
    """Everything that our executor runs here."""
    cases = {entry.name: stepped(entry) for entry in ENTRIES}
    cases |= {
        f"{entry.name}, recompute after {after}": recomputed(entry, after)
        for entry in SHARDED
        for after in AFTER
    }
    cases |= {
        sync: Case(db.make("zb-h1", ranks=RANKS, microbatches=6, iterations=2, sync=sync), "mlp")
        for sync in SYNCS
    }
    return Together(cases)


@pytest.fixture(scope="module")
def theirs() -> Together:
    """Everything that PyTorch's runtime can express."""
    return Together({entry.name: Case(smallest(entry), runtime="torch") for entry in FOR_TORCH})


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_every_schedule_on_our_executor(entry: Entry, ours: Together) -> None:
    """Some optimizer steps, with all versions of the weights that the schedule keeps."""
    case = stepped(entry)
    schedule = case.schedule
    tensors = schedule.placement.copies * (12 * schedule.stages + 2 + 4)
    if schedule.vocabulary:
        tensors += 2 * (schedule.ranks - 1)
    if case.model == "mlp":
        tensors = schedule.placement.copies * 2 * schedule.stages
    assert ours.verified(entry.name).tensors == schedule.iterations * tensors


@pytest.mark.parametrize("entry", FOR_TORCH, ids=lambda entry: entry.name)
def test_what_pytorch_can_express_on_its_runtime(entry: Entry, theirs: Together) -> None:
    assert theirs.verified(entry.name).tensors


@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("entry", SHARDED, ids=lambda entry: entry.name)
def test_a_sharded_output_layer_behind_recomputes(entry: Entry, after: str, ours: Together) -> None:
    assert ours.verified(f"{entry.name}, recompute after {after}").tensors


@pytest.mark.parametrize("sync", SYNCS)
def test_optimizer_steps_wait_by_any_rule(sync: str, ours: Together) -> None:
    assert ours.verified(sync).tensors


@pytest.mark.processes
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_run_says_which_runtime_it_took(runtime: str) -> None:
    verified(db.make("zb-h1", ranks=RANKS, microbatches=5), runtime)


@pytest.mark.processes
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_fewer_ranks(ranks: int) -> None:
    verified(db.make("zb-v", ranks=ranks, microbatches=4), "debubble", "mlp")
