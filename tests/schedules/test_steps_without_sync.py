"""Optimizer steps that do not wait for all ranks, and weights kept for work in flight."""

from __future__ import annotations

import numpy as np
import pytest

import debubble as db
from debubble.core.actions import Kind, kinds_of


@pytest.mark.parametrize("p", [2, 4, 8])
@pytest.mark.parametrize(("name", "fill"), [("zb-h2", 1.0), ("zb-v", 0.5)])
@pytest.mark.parametrize("iterations", [1, 2, 7])
def test_zero_bubble_is_zero_over_iterations_with_post_validation(
    name: str, fill: float, p: int, iterations: int
) -> None:
    m = 3 * p
    costs = db.Costs.per_rank(F=1, I=1, W=1)

    def timeline(sync: str) -> db.Timeline:
        schedule = db.make(name, ranks=p, microbatches=m, iterations=iterations, sync=sync)
        assert db.check(schedule).ok
        return db.simulate(schedule, costs)

    free = timeline("post-validation")
    # No rank idles between its first and its last action, in none of the iterations.
    assert free.stage_time == pytest.approx([3 * m * iterations] * p)
    assert free.makespan == 3 * m * iterations + (p - 1) * fill
    # With the usual norm over all ranks every iteration pays the ramp again.
    assert timeline("global").makespan == (3 * m + (p - 1) * fill) * iterations


def test_the_partial_norm_is_handed_down_the_ranks() -> None:
    rows = [["0F0", "0B0", "0OPT0"], ["0F1", "0B1", "0OPT0"]]
    # Two copies that share nothing: rank 1 has its gradients at 3 and the norm of rank 0 later, and
    # rank 0 has the norm of both later still.
    schedule = db.Schedule.from_text(rows, db.Placement(((0,), (1,)), "copies"), 2)
    costs = db.Costs(F=1, B=2, OPT=5, p2p=0.5)
    start = {
        sync: db.simulate(db.Schedule(
            "custom", schedule.placement, 2, schedule.actions, schedule.offsets, sync=sync,
        ), costs).start[[2, 5]].tolist()
        for sync in ("global", "local", "post-validation")
    }  # fmt: skip
    assert start == {"global": [4, 3.5], "local": [3, 3], "post-validation": [3, 3.5]}


def test_a_step_whose_norm_never_comes_is_named() -> None:
    rows = db.make("1f1b", ranks=3, microbatches=2, iterations=1).rows()
    rows[1].pop()
    schedule = db.Schedule.from_text(rows, db.Placement.linear(3), 2, sync="post-validation")
    for mode in ("overlapped", "blocking"):
        with pytest.raises(db.ScheduleError, match=r"2OPT0 .*waits for 1OPT0"):
            db.simulate(schedule, p2p_mode=mode)


def test_sync_needs_steps_and_has_three_values() -> None:
    with pytest.raises(db.ParameterError, match="no optimizer step to wait; give iterations, too"):
        db.make("zb-h2", ranks=2, microbatches=4, sync="post-validation")
    with pytest.raises(db.ParameterError, match="use one of global, local, post-validation"):
        db.make("zb-h2", ranks=2, microbatches=4, iterations=2, sync="none")


@pytest.mark.parametrize("p", [1, 2, 3, 8])
@pytest.mark.parametrize("m", [1, 2, 3, 8, 20])
def test_pipedream_keeps_the_weights_of_all_microbatches_in_flight(p: int, m: int) -> None:
    schedule = db.make("pipedream", ranks=p, microbatches=m, iterations=4 * p)
    assert schedule.versions == tuple(-(-(p - 1 - r) // m) + 1 for r in range(p))
    if m == 1:
        assert schedule.versions == tuple(p - r for r in range(p))
    assert db.check(schedule).ok
    # One version less on any rank that keeps several, and the weights of a forward are gone.
    for rank, kept in enumerate(schedule.versions):
        if kept == 1:
            continue
        fewer = list(schedule.versions)
        fewer[rank] -= 1
        short = db.Schedule(
            "short", schedule.placement, m, schedule.actions, schedule.offsets,
            iterations=schedule.iterations, sync="local", weight_versions=tuple(fewer),
        )  # fmt: skip
        problems = db.check(short).problems
        assert {(problem.code, problem.rank) for problem in problems} == {("weight-versions", rank)}


def test_pipedream_steps_behind_every_backward_and_never_drains() -> None:
    p, n = 4, 40
    timeline = db.simulate(
        db.make("pipedream", ranks=p, microbatches=1, iterations=n), db.Costs(F=1, B=2)
    )
    assert timeline.makespan == (n + p - 1) * 3
    for rank in range(p):
        kinds = kinds_of(timeline.schedule.program(rank))
        backwards = np.flatnonzero(kinds == Kind.B)
        assert (kinds[backwards + 1] == Kind.OPT).all()
