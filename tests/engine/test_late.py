"""Forwards as late as possible."""

from __future__ import annotations

import numpy as np
import pytest

import debubble as db
from debubble.analysis.bubbles import bubbles
from debubble.core.actions import Kind, kinds_of, pairs_of

NAMES = ["gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-v", "dualpipe-v", "pipedream-2bw"]
COSTS = db.Costs(F=1, I=1.5, W=0.5, p2p=0.25)


@pytest.mark.parametrize("mode", ["overlapped", "channel", "blocking"])
@pytest.mark.parametrize("name", NAMES)
def test_only_forwards_move_and_no_order_does(name: str, mode: str) -> None:
    schedule = db.make(name, ranks=4, microbatches=8, costs=COSTS)
    soon = db.simulate(schedule, COSTS, mode)
    late = soon.as_late_as_possible()
    plain = (kinds_of(schedule.actions) == Kind.F) & (pairs_of(schedule.actions) == 0)
    assert late.makespan == soon.makespan == late.end.max()
    assert (late.end[~plain] == soon.end[~plain]).all()
    assert (late.end >= soon.end).all()
    assert (late.end > soon.end).any() == (late.slack[plain] < soon.slack[plain]).any()
    assert (late.slack >= -1e-9).all()
    assert late.critical_path() == soon.critical_path()
    assert (late.peak_activation == soon.peak_activation).all()
    for rank in range(4):
        part = slice(schedule.offsets[rank], schedule.offsets[rank + 1])
        start, end = late.start[part], late.end[part]
        alone = pairs_of(schedule.actions[part]) != 2
        assert (start[alone][1:] >= end[alone][:-1] - 1e-9).all()
    idle, sooner = bubbles(late).totals, bubbles(soon).totals
    assert idle.sum() == pytest.approx(sooner.sum())


def test_every_forward_is_just_before_what_waits_for_it() -> None:
    """As PipeDream draws 1F1B: on the last rank nothing changes, above it forwards move."""
    late = db.simulate(
        db.make("1f1b", ranks=4, microbatches=8), db.Costs(F=1, B=2)
    ).as_late_as_possible()
    schedule = late.schedule
    names = [str(action) for row in schedule.rows() for action in row]
    start = {name: (late.start[i], late.end[i]) for i, name in enumerate(names)}
    for stage in range(4):
        for microbatch in range(8):
            end = start[f"{stage}F{microbatch}"][1]
            row = [str(action) for action in schedule.rows()[stage]]
            after = row[row.index(f"{stage}F{microbatch}") + 1]
            waiting = [start[after][0]]
            waiting += [start[f"{stage + 1}F{microbatch}"][0]] if stage < 3 else []
            assert end == min(waiting)


def test_memory_is_held_for_a_shorter_time() -> None:
    soon = db.simulate(db.make("eager-1f1b", ranks=4, microbatches=8), db.Costs(F=1, B=2))
    late = soon.as_late_as_possible()

    def held(timeline: db.Timeline, rank: int) -> float:
        times, memory = timeline.memory_curve(rank)
        return float(np.sum(np.diff(times) * memory[:-1]))

    assert held(late, 0) < held(soon, 0)
