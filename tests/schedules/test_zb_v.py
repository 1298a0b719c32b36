"""ZB-V: the published order, and orders computed for costs and memory that beat it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import debubble as db
from debubble.core.actions import kinds_of, microbatches_of, stages_of
from debubble.core.sequence import show
from debubble.schedules.forms import closed_forms
from debubble.schedules.registry import find
from debubble.schedules.zb_v import published_order, zb_v

REAL = {"F": 44.18, "I": 40.265, "W": 38, "p2p": 2.17}
UNIT = {"F": 1, "I": 1, "W": 1}


def solved(p: int, m: int, costs: db.Costs, **options: Any) -> Any:
    return db.simulate(db.make("zb-v", ranks=p, microbatches=m, costs=costs, **options), costs)


def published(p: int, m: int, costs: db.Costs) -> Any:
    order = db.Schedule.from_programs("x", db.Placement.v(p), m, published_order(p, m))
    return db.simulate(order, costs)


def test_published_order_of_two_ranks() -> None:
    rows = db.make("zb-v", ranks=2, microbatches=4).rows()
    assert [" ".join(row) for row in rows] == [
        "0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0F3 0I0 0W0 3F2 3I2 3W2 0I1 0W1 3F3 3I3 3W3 "
        "0I2 0W2 0I3 0W3",
        "1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1F3 1I1 1W1 2F3 2I2 2W2 1I2 2I3 "
        "1I3 1W2 2W3 1W3",
    ]


def test_published_order_is_that_of_pytorch() -> None:
    # Rank 2 of 4 as PyTorch lists it, with 8 microbatches and with 3.
    eight, three = (list(published_order(4, m))[2] for m in (8, 3))
    assert show(eight) == (
        "2F0 2F1 2F2 5F0 2F3 5F1 2F4 5F2 5I0 5W0 5F3 5I1 5W1 2F5 2I0 2W0 5F4 5I2 5W2 2F6 2I1 "
        "2W1 5F5 5I3 5W3 2F7 2I2 2W2 5F6 5I4 5W4 2I3 2W3 5F7 5I5 5W5 2I4 5I6 2I5 5I7 2I6 2W4 "
        "2I7 2W5 5W6 5W7 2W6 2W7"
    )
    assert show(three) == (
        "2F0 2F1 2F2 5F0 5F1 5F2 5I0 5W0 5I1 5W1 2I0 2W0 5I2 5W2 2I1 2W1 2I2 2W2"
    )


@pytest.mark.parametrize("p", range(1, 9))
@pytest.mark.parametrize("more", [-7, -1, 0, 5])
def test_published_order_runs_for_any_number_of_microbatches(p: int, more: int) -> None:
    m = max(1, 2 * p + more)
    timeline = published(p, m, db.Costs())
    assert timeline.graph.completed == 2 * p * m
    assert timeline.peak_activation.max() <= p


@pytest.mark.parametrize("p", [1, 4, 8, 16])
@pytest.mark.parametrize("times", [1, 7])
def test_equal_costs_leave_no_bubble_in_stage_time(p: int, times: int) -> None:
    costs = db.Costs(F=times, I=times, W=times)
    for m in (2 * p, 2 * p + 3, 5 * p):
        timeline = solved(p, m, costs)
        assert timeline.stage_time.tolist() == [6 * m * times] * p
        assert timeline.makespan == (6 * m + p - 1) * times
        assert timeline.peak_activation.tolist() == [p] * p
        forms = {f.form.quantity: f.value for f in closed_forms(timeline.schedule, costs)}
        assert forms == {
            "makespan": timeline.makespan, "stage_time": 6 * m * times, "peak_activation": p
        }  # fmt: skip


@pytest.mark.parametrize(
    ("p", "times", "stage_bubble", "bubble"),
    [
        (4, (1, 1, 1), 0, 3),
        (8, (1, 1, 1), 0, 7),
        (4, (3, 4, 2), 10, 12),
        (16, (3, 4, 2), 58, 60),
    ],
)
@pytest.mark.parametrize("factor", [2, 3, 4])
def test_bubbles_of_the_automatic_v_scheduler_are_reached(
    p: int, times: tuple[int, int, int], stage_bubble: float, bubble: float, factor: int
) -> None:
    F, I, W = times
    m = factor * p
    timeline = solved(p, m, db.Costs(F=F, I=I, W=W))
    work = 2 * m * (F + I + W)
    assert timeline.stage_time.max() - work <= stage_bubble
    assert timeline.makespan - work <= bubble
    assert timeline.peak_activation.max() <= p


@pytest.mark.parametrize(
    ("p", "m", "memory", "bubble"),
    [
        (4, 8, 2, 82),
        (4, 16, 2, 130),
        (4, 8, 3, 29),
        (4, 16, 3, 29),
        (16, 32, 6, 394),
        (16, 64, 6, 586),
        (16, 32, 9, 187),
        (16, 64, 9, 187),
    ],
)
def test_stage_time_in_the_memory_of_v_min_and_v_half_is_better_than_theirs(
    p: int, m: int, memory: float, bubble: float
) -> None:
    timeline = solved(p, m, db.Costs(F=3, I=4, W=2), memory=memory, objective="stage-time")
    assert timeline.stage_time.max() - 18 * m < bubble
    assert timeline.peak_activation.max() <= memory


# Best makespan any published scheduler reaches with this peak memory; rank costs.
FRONTIER = [
    (4, 8, REAL, 2, 1353.74),
    (4, 8, REAL, 3, 1151.24),
    (4, 8, REAL, 4, 1078.38),
    (4, 8, REAL, 8, 1059.49),
    (4, 8, UNIT, 2, 29.5),
    (4, 8, UNIT, 3, 26.5),
    (4, 8, UNIT, 4, 25.5),
    (4, 16, REAL, 2, 2483.5),
    (4, 16, REAL, 3, 2130.8),
    (4, 16, REAL, 4, 2057.94),
    (4, 16, REAL, 8, 2039.05),
    (4, 16, UNIT, 2, 53.5),
    (4, 16, UNIT, 3, 50.5),
    (4, 16, UNIT, 4, 49.5),
    (8, 16, REAL, 4, 2713.7),
    (8, 16, REAL, 5, 2436.41),
    (8, 16, REAL, 6, 2412.67),
    (8, 16, REAL, 8, 2189.7),
    (8, 16, REAL, 15.5, 2147.15),
    (8, 16, UNIT, 4, 59.5),
    (8, 16, UNIT, 5, 56.5),
    (8, 16, UNIT, 8, 51.5),
    (8, 32, REAL, 4, 4973.22),
    (8, 32, REAL, 5, 4395.53),
    (8, 32, REAL, 6, 4371.79),
    (8, 32, REAL, 8, 4148.82),
    (8, 32, REAL, 15.5, 4106.27),
    (8, 32, UNIT, 4, 107.5),
    (8, 32, UNIT, 5, 104.5),
    (8, 32, UNIT, 8, 99.5),
]


@pytest.mark.parametrize(("p", "m", "times", "memory", "best"), FRONTIER)
def test_no_published_scheduler_is_faster_in_the_same_memory(
    p: int, m: int, times: dict[str, float], memory: float, best: float
) -> None:
    timeline = solved(p, m, db.Costs.per_rank(**times), memory=memory)
    assert round(timeline.makespan, 2) <= best
    assert timeline.peak_activation.max() <= memory + 1e-9


def test_twice_the_memory_reaches_the_lower_bound() -> None:
    # Rank p − 1 starts after p − 1 forwards and transfers, and never waits from then on.
    for p, m in ((4, 8), (8, 16)):
        timeline = solved(p, m, db.Costs.per_rank(**REAL), memory=2 * p)
        assert timeline.makespan == pytest.approx(
            (p - 1) * (44.18 / 2 + 2.17) + m * (44.18 + 40.265 + 38)
        )


HIDDEN, SEQUENCE, HEADS = 4096, 4096, 8
ACTIVATION = 34 * HIDDEN + 5 * HEADS * SEQUENCE


@pytest.mark.parametrize(
    ("memory", "makespan"),
    [(None, 2099.445), (7, 2165.185), (6, 2231.795), (5, 2427.905), (4, 2660.6), (2, 4318.315)],
)
def test_profile_with_memory_in_bytes(memory: float | None, makespan: float) -> None:
    costs = db.Costs(
        **REAL | {"W": 38.0}, activation=ACTIVATION, kept_for_weight=32 * HIDDEN / ACTIVATION
    )
    limit = None if memory is None else memory * ACTIVATION
    timeline = solved(4, 8, costs, memory=limit)
    assert timeline.makespan <= makespan + 1e-6
    assert timeline.peak_activation.max() <= (8 * ACTIVATION if limit is None else limit)
    assert timeline.makespan <= published(4, 8, costs).makespan or memory is not None


def slow_last_rank(p: int) -> db.Costs:
    return db.Costs.per_rank(**{kind: [2.0] * (p - 1) + [3.0] for kind in "FIW"}, p2p=0.1)


def embedding_and_head(p: int) -> db.Costs:
    times = np.full((3, 2 * p), 1.0)
    times[:, 0] += [0.1, 0.0, 0.4]
    times[:, -1] += [0.8, 0.8, 0.8]
    return db.Costs(F=times[0], I=times[1], W=times[2], p2p=0.2)


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 3), (4, 12), (8, 16)])
def test_a_slow_last_rank_is_kept_busy(p: int, m: int) -> None:
    costs = slow_last_rank(p)
    timeline = solved(p, m, costs)
    assert timeline.makespan <= published(p, m, costs).makespan
    assert timeline.peak_activation.max() <= p
    bound = (p - 1) * 1.1 + 9 * m
    if m >= 2 * p:
        assert timeline.makespan == pytest.approx(bound)
    else:
        assert timeline.makespan > bound


@pytest.mark.parametrize(
    ("p", "m", "most"), [(4, 3, 31.7), (4, 12, 107.4), (8, 5, 57.1), (8, 16, 143.8)]
)
def test_embedding_and_head_are_scheduled_better_than_published(
    p: int, m: int, most: float
) -> None:
    costs = embedding_and_head(p)
    timeline = solved(p, m, costs)
    assert timeline.makespan <= most + 1e-6
    assert timeline.makespan < published(p, m, costs).makespan
    assert timeline.makespan >= timeline.ideal
    assert timeline.peak_activation.max() <= p


@settings(max_examples=30)
@given(
    p=st.integers(1, 6),
    m=st.integers(1, 14),
    data=st.data(),
)
def test_random_costs_are_scheduled_no_worse_than_published(
    p: int, m: int, data: st.DataObject
) -> None:
    time = st.integers(0, 16).map(lambda n: n / 4)
    times = st.lists(time, min_size=2 * p, max_size=2 * p)
    costs = db.Costs(
        F=data.draw(times), I=data.draw(times), W=data.draw(times), p2p=data.draw(time)
    )
    objective = data.draw(st.sampled_from(["makespan", "stage-time"]))
    timeline, fixed = solved(p, m, costs, objective=objective), published(p, m, costs)
    if objective == "makespan":
        assert timeline.makespan <= fixed.makespan + 1e-6
    else:
        assert timeline.stage_time.max() <= fixed.stage_time.max() + 1e-6
    assert timeline.peak_activation.max() <= p + 1e-9


def test_forwards_and_backwards_of_a_stage_run_in_microbatch_order() -> None:
    schedule = db.make(
        "zb-v", ranks=4, microbatches=9, costs=db.Costs(F=3, I=5, W=1, p2p=1), memory=2.5
    )
    for stage in range(8):
        program = schedule.program(min(stage, 7 - stage))
        for kind in range(3):
            mine = program[(stages_of(program) == stage) & (kinds_of(program) == kind)]
            assert microbatches_of(mine).tolist() == list(range(9))


def test_every_rank_may_have_its_own_limit() -> None:
    limits = [4, 3, 2, 1.5]
    programs = zb_v(ranks=4, microbatches=8, memory=limits)
    order = db.Schedule.from_programs("x", db.Placement.v(4), 8, programs)
    peak = db.simulate(order).peak_activation
    assert np.all(peak <= limits)
    assert peak[3] == 1.5


def test_default_memory_counts_in_the_unit_of_the_costs() -> None:
    sizes = [1, 1, 1, 3, 1, 1, 1, 1]
    costs = db.Costs(F=1, I=2, W=1, activation=sizes)
    timeline = solved(4, 12, costs)
    assert 8 < timeline.peak_activation.max() <= 8 * 3


def test_memory_below_one_microbatch_is_refused() -> None:
    with pytest.raises(db.ParameterError) as error:
        db.make("zb-v", ranks=4, microbatches=8, memory=0.75)
    assert str(error.value) == (
        "memory 0.75 is too small for rank 0, where one microbatch leaves 1; give at least 1"
    )
    assert (
        db.simulate(db.make("zb-v", ranks=4, microbatches=8, memory=1)).peak_activation.tolist()
        == [1] * 4
    )


def test_an_unknown_objective_is_refused() -> None:
    with pytest.raises(db.ParameterError, match="did you mean 'makespan'"):
        db.make("zb-v", ranks=4, microbatches=8, objective="makspan")


def test_it_is_registered_with_its_aliases_and_options() -> None:
    entry = find("zbv")
    assert entry.name == "zb-v"
    assert entry.uses_costs
    assert [option.name for option in entry.options] == ["objective", "published"]
    schedule = db.make("ZB_V", ranks=3, microbatches=6, memory=2)
    assert schedule.options == {"objective": "makespan", "published": False, "memory": 2}
    assert str(schedule.placement) == "V, 6 stages on 3 ranks"
