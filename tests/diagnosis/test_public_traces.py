"""Published figures of public traces, where they are."""

from __future__ import annotations

import numpy as np
import pytest

from debubble.diagnosis.diagnose import read_trace
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
