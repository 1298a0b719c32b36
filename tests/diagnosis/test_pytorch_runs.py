"""Real traces of PyTorch's pipelines on gloo ranks of this machine, diagnosed."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="traces pipelines of PyTorch; install torch")

import debubble as db
from debubble.diagnosis.diagnose import Diagnosis, read_trace
from tests.diagnosis.readers.pytorch_runs import trace, trace_own
from tests.torch.world import in_ranks as in_ranks  # marks the tests

M = 4


def assert_sound(found: Diagnosis) -> None:
    """Clocks of one host are one, and the account of every rank is closed."""
    assert all(one.low <= 0 <= one.high for one in found.clocks.intervals)
    assert not found.clocks.offsets.any()
    assert found.clocks.warnings == ()
    step = float(found.run.step_times.mean())
    for one in found.accounts:
        assert one.compute + sum(one.causes.values()) == pytest.approx(step, abs=1e-6)
        assert min(one.causes.values()) >= 0


@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("ScheduleGPipe", "gpipe"),
        ("Schedule1F1B", "1f1b"),
        ("ScheduleInterleaved1F1B", "torch:Interleaved1F1B"),
        ("ScheduleInterleavedZeroBubble", "torch:InterleavedZeroBubble"),
        ("ScheduleZBVZeroBubble", "torch:ZBVZeroBubble"),
        ("ScheduleLoopedBFS", "torch:LoopedBFS"),
    ],
)
def test_the_order_is_recovered(tmp_path: Path, name: str, order: str) -> None:
    trace(tmp_path, name, M, steps=3)
    found = read_trace(tmp_path)
    assert_sound(found)
    from debubble.interchange.files import resolve

    if order.startswith("torch:"):
        wanted = resolve(order, ranks=2, microbatches=M, chunks=2)
    else:
        wanted = db.make(order, ranks=2, microbatches=M)
    assert found.schedule.placement.table == wanted.placement.table
    assert found.schedule.rows() == wanted.rows()
    assert found.name.differences == ()
    assert found.name.text != "custom"


def test_profiles_of_our_own_engine_name_its_actions(tmp_path: Path) -> None:
    orders = {
        name: db.make(name, ranks=2, microbatches=M) for name in ("1f1b", "zb-v", "dualpipe-v")
    }
    trace_own(tmp_path, list(orders), M, steps=2)
    for name, order in orders.items():
        found = read_trace(tmp_path / name)
        assert_sound(found)
        assert found.schedule.rows() == order.rows()
        assert len(found.run.steps) == 2
        assert len(found.schedule) == len(order)
