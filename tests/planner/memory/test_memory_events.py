"""Moments of a rank's program."""

import numpy as np
import pytest

import debubble as db
from debubble.core.actions import Kind, kinds_of, stages_of
from debubble.core.waits import primary_of
from debubble.planner.memory.memory_events import backwards, producers


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
    "schedule", ["1f1b", "zb-h1", "zb-v", "dualpipe-v", "interleaved-1f1b", "gpipe"]
)
def test_what_comes_is_what_actions_wait_for_first(schedule):
    made = db.make(schedule, ranks=4, microbatches=8)
    kinds, stages = kinds_of(made.actions), stages_of(made.actions)
    forwards = (kinds == Kind.F) & (stages > 0)
    backs = np.isin(kinds, (Kind.I, Kind.B)) & (stages < made.stages - 1)
    for which in (forwards, backs):
        assert which.any()
        assert np.array_equal(producers(made)[which], primary_of(made)[which])
