"""GEMS: little memory, and what it costs."""

from __future__ import annotations

import numpy as np
import pytest

import debubble as db


@pytest.mark.parametrize("p", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("times", [(1, 2, 0), (3, 7, 0), (7, 3, 0), (2, 5, 1.5), (5, 2, 1.5)])
def test_time_has_its_closed_form(p: int, times: tuple[float, float, float]) -> None:
    F, B, c = times
    for m in (1, 2, 3, 8):
        costs = db.Costs(F=F, B=B, p2p=c)
        timeline = db.simulate(db.make("gems", ranks=p, microbatches=m), costs)
        hops = (p - 1) * c
        further = p * max(F, B) + min(F, B) + hops
        assert timeline.makespan == p * (F + B) + 2 * hops + (m - 1) * further


@pytest.mark.parametrize("p", [2, 4, 8, 16])
def test_bubble_tends_to_the_published_rate(p: int) -> None:
    schedule = db.make("gems", ranks=p, microbatches=10_000)
    ratio = db.simulate(schedule, db.Costs(F=1, B=2)).bubble_ratio
    assert ratio == pytest.approx((p - 1) / (p + 0.5), abs=1e-4)


@pytest.mark.parametrize("p", [2, 3, 4, 8])
@pytest.mark.parametrize("m", [1, 2, 5, 8])
def test_two_microbatches_are_under_way_and_one_on_a_rank(p: int, m: int) -> None:
    schedule = db.make("gems", ranks=p, microbatches=m)
    assert not db.check(schedule).problems
    timeline = db.simulate(schedule, db.Costs(F=1, B=2))
    assert timeline.peak_activation.tolist() == [1] * p
    number = schedule.actions >> 27
    spans = [(timeline.start[number == k].min(), timeline.end[number == k].max()) for k in range(m)]
    moments = np.arange(timeline.makespan) + 0.5
    under_way = sum(((moments > start) & (moments < end)).astype(int) for start, end in spans)
    assert np.max(under_way) == min(m, 2)
