"""Moments of a rank's program."""

import numpy as np
import pytest

import debubble as db
from debubble.core.actions import Kind, computes, kinds_of, pairs_of, stages_of
from debubble.core.waits import primary_of
from debubble.planner.memory.memory_events import backwards, heads_of, producers


def test_overlapped_actions_are_one_group():
    schedule = db.make("dualpipe-v", ranks=2, microbatches=4)
    timeline = db.simulate(schedule, db.Costs(F=1, I=1, W=1))
    for rank in range(2):
        heads = heads_of(schedule, rank)
        assert heads[0] == schedule.offsets[rank]
        assert len(heads) < len(schedule.program(rank))
        assert np.all(pairs_of(schedule.actions[heads]) <= 1)
        assert np.all(np.diff(timeline.start[heads]) > 0)


def test_copies_are_in_no_group():
    schedule = db.make(
        "1f1b", ranks=2, microbatches=4, offload="full", costs=db.Costs(host_bandwidth=1.0)
    )
    heads = heads_of(schedule, 0)
    assert 0 < len(heads) < len(schedule.program(0))
    assert computes(kinds_of(schedule.actions[heads])).all()


def test_pytorchs_first_stage_runs_its_backward_in_w():
    schedule = db.make("zb-h1", ranks=2, microbatches=2)
    for rank, stays in ((0, 0), (1, 2)):
        program = schedule.program(rank)

        def counts(*how, program=program):
            masks = backwards(kinds_of(program), stages_of(program), *how)
            return tuple(mask.sum() for mask in masks)

        assert counts("megatron") == (2, 2, 0)
        assert counts("torch") == (stays, stays, 2 - stays)
        assert counts("torch", True) == (0, 0, 2)


@pytest.mark.parametrize(
    "schedule", ["1f1b", "zb-h1", "dualpipe-v", "chimera", "vocab-1", "seq1f1b", "pipedream"]
)
def test_what_comes_is_what_actions_wait_for_first(schedule):
    made = db.make(schedule, ranks=4, microbatches=8)
    kinds, stages = kinds_of(made.actions), stages_of(made.actions)
    forwards = (kinds == Kind.F) & (stages > 0)
    backs = np.isin(kinds, (Kind.I, Kind.B)) & (stages < made.stages - 1)
    for which in (forwards, backs):
        assert which.any()
        assert np.array_equal(producers(made)[which], primary_of(made)[which])
