"""Repeating blocks: many microbatches repeat the middle of few, and kernels agree."""

from __future__ import annotations

import numpy as np
import pytest

import debubble as db
from debubble.core.placement import Placement
from debubble.schedules import _blocks
from debubble.schedules.controllable_memory import V_HALF, V_MIN, V_TWO_THIRDS, V_ZB, VBlock

each_block = pytest.mark.parametrize("block", [V_MIN, V_HALF, V_TWO_THIRDS, V_ZB])


@pytest.mark.slow
@each_block
@pytest.mark.parametrize("p", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16])
def test_more_microbatches_repeat_the_middle(block: VBlock, p: int) -> None:
    placement = Placement.v(p)
    slots = block.slots(p)
    for m in (3 * p + 3, 3 * p + 4, 3 * p + 5, 5 * p + 20):
        stretched = _blocks.repeat_block(placement, slots, m)
        complete = _blocks._laid_out(placement, slots, m)
        for one, other in zip(stretched, complete, strict=True):
            assert one.tolist() == other.tolist()


def test_a_block_of_one_stage_per_rank_splits_the_backwards_of_1f1b() -> None:
    # Down in steps of one slot and back in steps of two, modulo three these never meet.
    p, m = 4, 20
    block = np.array([0, 1, 2, 3, 4, 6, 8, 10])
    programs = _blocks.repeat_block(Placement.linear(p), block, m)
    timeline = db.simulate(db.Schedule.from_programs("x", Placement.linear(p), m, programs))
    assert timeline.peak_activation.max() == p
    whole = db.simulate(db.make("1f1b", ranks=p, microbatches=m))
    assert timeline.graph.completed == p * m
    assert timeline.makespan < whole.makespan


@each_block
def test_the_compiled_kernel_equals_its_python_source(
    block: VBlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = []
    for run in (_blocks.fill_gaps.compiled, _blocks.fill_gaps.interpret):
        monkeypatch.setattr(_blocks.fill_gaps, "run", lambda _, *args, run=run: run(*args))
        _blocks._laid_out_once.cache_clear()
        orders.append(_blocks.repeat_block(Placement.v(5), block.slots(5), 19))
    for one, other in zip(*orders, strict=True):
        assert np.array_equal(one, other)


def test_two_passes_in_one_slot_are_refused() -> None:
    with pytest.raises(AssertionError, match="two passes in one slot"):
        _blocks.repeat_block(Placement.v(2), np.arange(0, 24, 3), 4)
