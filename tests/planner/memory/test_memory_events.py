"""Moments of a rank's program."""

import numpy as np
import pytest

import debubble as db
from debubble.core.waits import primary_of
from debubble.planner.memory.memory_events import Moments, rank_programs


def test_moments_group_overlapped_actions():
    schedule = db.make("dualpipe-v", ranks=2, microbatches=4)
    timeline = db.simulate(schedule, db.Costs(F=1, I=1, W=1))
    moments = Moments(timeline)
    groups = int(moments.work.counts[0])
    assert groups < np.count_nonzero(moments.work.ranks == 0) == len(schedule.program(0))
    assert len(moments.times(0)) == 2 * groups
    assert np.all(np.diff(moments.times(0)) >= 0)
    found = moments.held((moments.work.starts, 1.0), (moments.work.stops, -1.0))
    assert found.max() == 2
    assert np.all(found[:, -1] == 0)
    late = moments.during(moments.times(0)[-1:] + 1, rank=0)
    assert late == 2 * (groups - 1)
    for rank in range(2):
        first = rank * moments.work.width
        assert moments.during(np.array([-1.0]), rank) == first
        assert moments.before(np.array([0.0]), rank) == first


def test_pytorchs_first_stage_runs_its_backward_in_w():
    schedule = db.make("zb-h1", ranks=2, microbatches=2)
    timeline = db.simulate(schedule, db.Costs(F=1, I=1, W=1))
    moments = Moments(timeline)
    for rank, stays in ((0, 0), (1, 2)):
        own = moments.work.ranks == rank
        split, weights, whole = (mask[own].sum() for mask in moments.backwards("megatron"))
        assert (split, weights, whole) == (2, 2, 0)
        split, weights, whole = (mask[own].sum() for mask in moments.backwards("torch"))
        assert (split, weights, whole) == (stays, stays, 2 - stays)
        masks = moments.backwards("torch", in_input=True)
        assert [mask[own].sum() for mask in masks] == [0, 0, 2]


@pytest.mark.parametrize(
    "schedule", ["1f1b", "zb-h1", "dualpipe-v", "chimera", "vocab-1", "seq1f1b", "pipedream"]
)
def test_what_comes_is_what_actions_wait_for_first(schedule):
    work = rank_programs(db.make(schedule, ranks=4, microbatches=8))
    expected = primary_of(db.make(schedule, ranks=4, microbatches=8))[work.positions]
    for which in (work.takes_input, work.takes_gradient):
        assert len(which)
        assert np.array_equal(work.producer[which], expected[which])
