"""Moments of a rank's program."""

import numpy as np

import debubble as db
from debubble.planner.memory.memory_events import Moments


def test_moments_group_overlapped_actions():
    schedule = db.make("dualpipe-v", ranks=2, microbatches=4)
    timeline = db.simulate(schedule, db.Costs(F=1, I=1, W=1))
    moments = Moments(timeline, 0)
    groups = len(moments.begins)
    assert groups < len(moments.work.program) == len(schedule.program(0))
    assert len(moments.times) == len(moments.heads) == 2 * groups
    assert np.all(np.diff(moments.begins) >= 0)
    found = moments.held((moments.work.starts, 1.0), (moments.work.stops, -1.0))
    assert found.max() == 2
    assert found[-1] == 0
    late = moments.during(moments.times[-1:] + 1)
    assert late == groups - 1
    assert moments.during(np.array([-1.0])) == moments.before(np.array([0.0])) == 0


def test_pytorchs_first_stage_runs_its_backward_in_w():
    schedule = db.make("zb-h1", ranks=2, microbatches=2)
    timeline = db.simulate(schedule, db.Costs(F=1, I=1, W=1))
    for rank, stays in ((0, 0), (1, 2)):
        moments = Moments(timeline, rank)
        split, weights, whole = moments.backwards("megatron")
        assert (split.sum(), weights.sum(), whole.sum()) == (2, 2, 0)
        split, weights, whole = moments.backwards("torch")
        assert (split.sum(), weights.sum(), whole.sum()) == (stays, stays, 2 - stays)
        split, weights, whole = moments.backwards("torch", in_input=True)
        assert (split.sum(), weights.sum(), whole.sum()) == (0, 0, 2)
