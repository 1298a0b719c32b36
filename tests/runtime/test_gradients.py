"""Every schedule computes the loss and the gradients of the model without a pipeline."""

from __future__ import annotations

from dataclasses import replace

import pytest

import debubble as db
from debubble.lowering.recompute import add_recompute
from debubble.runtime.report import RunReport
from debubble.runtime.run import Settings, not_for_torch, run
from debubble.runtime.verify import Verification
from debubble.schedules.registry import Entry
from tests.small import RANKS, smallest

ENTRIES = db.schedules()
SHARDED = [entry for entry in ENTRIES if "vocabulary" in entry.fields]


def verified(schedule: db.Schedule, runtime: str, model: str = "gpt-tiny") -> Verification:
    report = run(schedule, Settings(model, steps=0, runtime=runtime, timeout=120))
    assert isinstance(report, RunReport)
    assert report.runtime == runtime
    assert report.verification is not None
    assert report.equal, str(report)
    assert report.verification.loss > 0
    return report.verification


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_every_schedule_on_our_executor(entry: Entry) -> None:
    schedule = smallest(entry)
    stages, copies = schedule.stages, schedule.placement.copies
    shards = 2 * (schedule.ranks - 1) if schedule.vocabulary else 0
    assert verified(schedule, "debubble").tensors == copies * (12 * stages + 2 + 4) + shards


@pytest.mark.parametrize(
    "entry",
    [entry for entry in ENTRIES if not not_for_torch(smallest(entry))],
    ids=lambda entry: entry.name,
)
def test_what_pytorch_can_express_on_its_runtime(entry: Entry) -> None:
    verified(smallest(entry), "torch")


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_training_steps(entry: Entry) -> None:
    """Three optimizer steps, with all versions of the weights that the schedule keeps."""
    schedule = smallest(entry, iterations=3)
    small = schedule.slices == 1 and not schedule.vocabulary
    checked = verified(schedule, "debubble", "mlp" if small else "gpt-tiny")
    assert checked.tensors >= 3 * 2 * schedule.stages


@pytest.mark.parametrize("after", ["forward", "gradient"])
@pytest.mark.parametrize("entry", SHARDED, ids=lambda entry: entry.name)
def test_a_sharded_output_layer_behind_recomputes(entry: Entry, after: str) -> None:
    schedule = replace(add_recompute(smallest(entry)), recompute_after=after)
    verified(schedule, "debubble")


@pytest.mark.parametrize("sync", ["global", "local", "post-validation"])
def test_optimizer_steps_wait_by_any_rule(sync: str) -> None:
    schedule = db.make("zb-h1", ranks=RANKS, microbatches=6, iterations=2, sync=sync)
    verified(schedule, "debubble", "mlp")


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_fewer_ranks(ranks: int) -> None:
    verified(db.make("zb-v", ranks=ranks, microbatches=4), "debubble", "mlp")
