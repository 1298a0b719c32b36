"""Published figures of public traces, where they are."""

from __future__ import annotations

import numpy as np
import pytest

from debubble.core.errors import FormatError
from debubble.diagnosis.diagnose import read_trace
from debubble.diagnosis.readers.folder import read
from tests.diagnosis.readers.third_party import CASES, third_party


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


def test_a_published_run_of_megatron_app() -> None:
    """One iteration of Megatron with 4 ranks, 4 chunks and 8 microbatches."""
    found = read_trace(third_party("megatronapp_pp4_v4_iter10.json.gz", CASES))
    assert (found.name.text, found.schedule.stages) == ("interleaved-1f1b", 16)
    assert 1e3 * float(np.mean(found.run.step_times)) == pytest.approx(676.7, abs=0.1)


def test_metadata_before_events() -> None:
    """PyTorch's profiler wrote 70 KB of a configuration before the events of a GPipe run."""
    found = read_trace(third_party("kineto_70KB_metadata", CASES))
    assert found.name.text == "gpipe"
    assert 1e3 * float(np.mean(found.run.step_times)) == pytest.approx(378.8, abs=0.1)


@pytest.mark.parametrize(
    "name", ["torchrun_tee.log", "srun_label.log", "after_64KiB_of_nccl.log.gz"]
)
def test_logs_of_launchers(name: str) -> None:
    costs = read(third_party(f"megatron_timers_{name}", CASES)).costs
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
        read(third_party(name, CASES))
