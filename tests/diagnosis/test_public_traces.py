"""Published figures of public traces, where they are."""

from __future__ import annotations

import numpy as np
import pytest

from debubble.core.errors import FormatError
from debubble.diagnosis.changes import Change
from debubble.diagnosis.diagnose import read_trace
from debubble.diagnosis.readers.folder import read
from debubble.diagnosis.run import PAIR
from debubble.diagnosis.what_if import with_changes, with_schedule
from tests.diagnosis.readers.third_party import third_party


def test_a_heavy_last_stage() -> None:
    """StragglerAnalysis publishes S = 1.1787 for this job."""
    found = read_trace(third_party("timeline-ST.json.gz"))
    assert (found.name.text, found.observed.copies, found.schedule.ranks) == ("1f1b", 2, 4)
    assert found.slowdown.total == pytest.approx(1.1787, abs=0.02)
    assert found.slowdown.last_stage == pytest.approx(1.28, abs=0.07)
    first = found.findings[0]
    assert (first.cause, first.where["stage"], first.persistence) == ("slow-stage", 3, 1.0)
    assert found.replay_error < 0.01
    assert len(found.findings) == 1


def test_unaligned_ranks() -> None:
    """Eight ranks whose clocks begin when they like, 20 iterations."""
    found = read_trace(third_party("primus-pp8"))
    assert found.name.text == "1f1b"
    assert len(found.clocks.intervals) == 7 * 20
    assert all(one.low < one.high for one in found.clocks.intervals)
    assert found.clocks.half_width <= 0.75e-3
    assert found.replay_error <= 0.01
    slow = found.slowdown
    last = len(slow.actual) - 1
    assert found.run.steps[int(found.run.step_of[0][last])] == 20
    lost = slow.actual[last] - slow.ideal[last]
    saved = slow.actual[last] - slow.without_last[last]
    assert slow.actual[last] / slow.ideal[last] == pytest.approx(1.0576, abs=0.01)
    assert saved / lost == pytest.approx(0.84, abs=0.05)
    assert found.findings[0].where["stage"] == 7
    for one in found.accounts:
        closed = one.compute + sum(one.causes.values())
        assert closed == pytest.approx(float(np.mean(found.run.step_times)), abs=1e-9)


def test_sends_that_wait_for_their_receivers() -> None:
    """MegatronApp: rank 0 waits for its send to rank 3, which computes the heavy last stage."""
    found = read_trace(third_party("../cases/megatronapp_pp4_v4_iter10.csv"))
    assert found.mode[0] == "turns"
    used = found.replay.transfers.typical
    assert used[~np.isnan(used)] == pytest.approx(3.9e-3, rel=0.1)
    assert found.replay.plan == pytest.approx(0.6767, rel=0.05)
    assert (found.findings[0].cause, found.findings[0].where["stage"]) == ("slow-stage", 15)
    assert all(one.cause != "slow-link" for one in found.findings)
    assert with_schedule(found.replay, "interleaved-1f1b").gain == 0
    for name in ("zb-v", "zb-h1", "1f1b"):
        assert with_schedule(found.replay, name).after > 0.527


@pytest.mark.parametrize(
    ("name", "healthy"),
    [("gpipe_slow_stage2", 0.3788), ("f1b_slow_stage2", 0.3775),
     ("dt_1f1b_slow_stage2.json.gz", 0.5271)],
)  # fmt: skip
def test_a_planted_stage_of_real_runs_is_gone(name: str, healthy: float) -> None:
    """The same job ran without the fault."""
    found = read_trace(third_party(f"../cases/{name}"))
    assert with_changes(found.replay, [Change.parse("stage2*=0.667")]).after == pytest.approx(
        healthy, rel=0.05
    )
    first = found.findings[0]
    assert (first.cause, first.where["stage"]) == ("slow-stage", 2)
    assert first.before - first.seconds == pytest.approx(healthy, rel=0.05)
    assert found.model_error < 0.03


def test_pairs_of_a_real_run() -> None:
    """Every forward sleeps 10 ms and every backward 20 ms, and PyTorch adds 1 to 2 ms."""
    found = read_trace(third_party("../cases/dualpipev_no_fault"))
    run = found.run
    pairs = (run.cls == PAIR) & run.counted
    for rank in range(4):
        times = run.duration[:, pairs & (run.rank == rank)]
        assert np.median(times) == pytest.approx(31.5e-3, rel=0.05)
    assert all(one.cause not in ("slow-worker", "slow-stage") for one in found.findings)
    assert with_schedule(found.replay, "dualpipe-v").gain == 0


def test_a_published_run_of_megatron_app() -> None:
    """One iteration of Megatron with 4 ranks, 4 chunks and 8 microbatches."""
    found = read_trace(third_party("../cases/megatronapp_pp4_v4_iter10.json.gz"))
    assert (found.name.text, found.schedule.stages) == ("interleaved-1f1b", 16)
    assert 1e3 * float(np.mean(found.run.step_times)) == pytest.approx(676.7, abs=0.1)


def test_metadata_before_events() -> None:
    """PyTorch's profiler wrote 70 KB of a configuration before the events of a GPipe run."""
    found = read_trace(third_party("../cases/kineto_70KB_metadata"))
    assert found.name.text == "gpipe"
    assert 1e3 * float(np.mean(found.run.step_times)) == pytest.approx(378.8, abs=0.1)


@pytest.mark.parametrize(
    "name", ["torchrun_tee.log", "srun_label.log", "after_64KiB_of_nccl.log.gz"]
)
def test_logs_of_launchers(name: str) -> None:
    costs = read(third_party(f"../cases/megatron_timers_{name}")).costs
    assert costs is not None
    assert pytest.approx((25.03, 25.01, 25.07, 38.79), abs=0.01) == costs.F


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("deepspeed.log", r"rank 0 alone logs.*forward_microstep 2,785\.85 ms"),
        ("megatron_old.log", "sums of forward-compute and backward-compute, but no"),
    ],
)
def test_logs_that_lack_their_beginning_are_recognized(name: str, said: str) -> None:
    with pytest.raises(FormatError, match=said):
        read(third_party(f"../cases/{name}"))
