"""V-Min, V-Half and V-ZB: their blocks, published numbers, and orders computed in their memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import debubble as db
from debubble.engine.timeline import Timeline
from debubble.schedules._storage import Terms
from debubble.schedules.controllable_memory import (
    MOST_RANKS,
    V_HALF,
    V_MIN,
    V_TWO_THIRDS,
    V_ZB,
    VBlock,
    largest_block,
)
from debubble.schedules.forms import closed_forms
from debubble.schedules.registry import find
from tests import oracle
from tests.conftest import EXPLORES

REAL = {"F": 44.18, "I": 40.265, "W": 38, "p2p": 2.17}
UNIT = {"F": 1, "I": 1, "W": 1}
PRINTED = 0.005
"""Tables have two decimals."""
BLOCKS = {"v-min": V_MIN, "v-half": V_HALF, "v-zb": V_ZB}
each_name = pytest.mark.parametrize("name", BLOCKS)


def timed(name: str, p: int, m: int, costs: db.Costs | None = None, **options: Any) -> Timeline:
    return db.simulate(db.make(name, ranks=p, microbatches=m, costs=costs, **options), costs)


@pytest.mark.parametrize("block", [V_MIN, V_HALF, V_TWO_THIRDS, V_ZB])
@pytest.mark.parametrize("p", range(1, 33) if EXPLORES else [*range(1, 15), 21, 32])
def test_a_block_holds_what_it_says_and_no_two_passes_of_a_rank_collide(
    block: VBlock, p: int
) -> None:
    slots = block.slots(p)
    homes = db.Placement.v(p).ranks_of_stages
    taken = set(zip([*homes, *homes[::-1]], slots % 6, strict=True))
    assert len(taken) == 4 * p
    for m in (1, 2, p, 2 * p, 3 * p + 5):
        order = db.Schedule.from_programs("x", db.Placement.v(p), m, block.programs(p, m))
        timeline = db.simulate(order)
        assert timeline.graph.completed == 2 * p * m
        assert timeline.peak_activation.max() == min(block.memory(p), m)


def test_first_slots_are_the_published_ones() -> None:
    for p in range(1, 33):
        rank = np.arange(p)
        k = 2 if p % 3 == 0 else 0
        passes = np.split(V_MIN.slots(p), 4)
        assert passes[0].tolist() == rank.tolist()
        assert passes[1][::-1].tolist() == (2 * p - rank - 1).tolist()
        assert passes[2].tolist() == (2 * p + k + rank).tolist()
        assert passes[3][::-1].tolist() == (4 * p + k - rank - 1).tolist()
        k = 3 if p % 2 == 0 else 0
        passes = np.split(V_HALF.slots(p), 4)
        assert passes[0].tolist() == (2 * rank).tolist()
        assert passes[1][::-1].tolist() == (3 * p - rank - 2).tolist()
        assert passes[2].tolist() == (3 * p + k + 2 * rank - 1).tolist()
        assert passes[3][::-1].tolist() == (6 * p + k - rank - 2).tolist()


@pytest.mark.parametrize("p", range(3, 33))
def test_bubbles_of_the_published_orders_with_equal_times(p: int) -> None:
    costs = db.Costs(F=1, I=1, W=1)
    bubbles = {
        "v-min": (4 * p - 5 - 2 * (p % 3 == 0),) * 2,
        "v-half": (3 * p - 7 + 3 * (p % 2),) * 2,
        "v-zb": (p - 1, 0),
    }
    for name, (makespan, stage_time) in bubbles.items():
        for m in (2 * p, 3 * p + 1):
            timeline = timed(name, p, m, costs, published=True)
            assert timeline.makespan - 6 * m == makespan
            assert timeline.stage_time.max() - 6 * m == stage_time
            forms = closed_forms(timeline.schedule, costs)
            assert {form.form.quantity: form.value for form in forms} == {
                "makespan": timeline.makespan,
                "stage_time": timeline.stage_time.max(),
                "peak_activation": timeline.peak_activation.max(),
            }
            assert {form.form.accuracy for form in forms} == {"exact"}


# p, chunk times, microbatches; stage bubble and memory found with the authors' scheduler
PUBLISHED = [
    ("v-min", 4, (1, 1, 1), 8, 11, 2),
    ("v-min", 6, (1, 1, 1), 18, 17, 3),
    ("v-min", 8, (1, 1, 1), 16, 27, 4),
    ("v-min", 16, (1, 1, 1), 32, 59, 6),
    ("v-half", 4, (1, 1, 1), 8, 5, 3),
    ("v-half", 6, (1, 1, 1), 18, 11, 4),
    ("v-half", 8, (1, 1, 1), 16, 17, 5),
    ("v-half", 16, (1, 1, 1), 32, 41, 9),
    ("v-min", 4, (3, 4, 2), 8, 82, 2),
    ("v-min", 4, (3, 4, 2), 16, 130, 2),
    ("v-min", 16, (3, 4, 2), 32, 394, 6),
    ("v-min", 16, (3, 4, 2), 64, 586, 6),
    ("v-half", 4, (3, 4, 2), 8, 29, 3),
    ("v-half", 4, (3, 4, 2), 16, 29, 3),
    ("v-half", 16, (3, 4, 2), 32, 187, 9),
    ("v-half", 16, (3, 4, 2), 64, 187, 9),
    ("v-zb", 4, (1, 1, 1), 8, 0, 4),
    ("v-zb", 8, (1, 1, 1), 16, 0, 8),
    ("v-zb", 4, (3, 4, 2), 8, 10, 4),
    ("v-zb", 16, (3, 4, 2), 32, 58, 16),
]


@pytest.mark.parametrize(("name", "p", "times", "m", "bubble", "memory"), PUBLISHED)
def test_stage_bubbles_of_the_authors_scheduler(
    name: str, p: int, times: tuple[int, int, int], m: int, bubble: float, memory: float
) -> None:
    F, I, W = times
    costs = db.Costs(F=F, I=I, W=W)
    work = 2 * m * (F + I + W)
    fixed = timed(name, p, m, costs, published=True)
    assert fixed.peak_activation.max() == memory
    if name != "v-zb":  # theirs is computed from the costs
        assert fixed.stage_time.max() - work == bubble
    for objective in ("stage-time", "makespan"):
        timeline = timed(name, p, m, costs, objective=objective)
        assert timeline.stage_time.max() - work <= bubble
        assert timeline.peak_activation.max() <= memory


# Best makespan any published scheduler reaches with this peak memory; rank costs.
FRONTIER = [
    ("v-min", 4, 8, REAL, 2, 1353.74),
    ("v-half", 4, 8, REAL, 3, 1151.24),
    ("v-zb", 4, 8, REAL, 4, 1078.38),
    ("v-zb", 4, 8, REAL, 8, 1059.49),
    ("v-min", 4, 8, UNIT, 2, 29.5),
    ("v-half", 4, 8, UNIT, 3, 26.5),
    ("v-zb", 4, 8, UNIT, 4, 25.5),
    ("v-min", 4, 16, REAL, 2, 2483.5),
    ("v-half", 4, 16, REAL, 3, 2130.8),
    ("v-zb", 4, 16, REAL, 4, 2057.94),
    ("v-zb", 4, 16, REAL, 8, 2039.05),
    ("v-min", 4, 16, UNIT, 2, 53.5),
    ("v-half", 4, 16, UNIT, 3, 50.5),
    ("v-zb", 4, 16, UNIT, 4, 49.5),
    ("v-min", 8, 16, REAL, 4, 2713.7),
    ("v-half", 8, 16, REAL, 5, 2436.41),
    ("v-half", 8, 16, REAL, 6, 2412.67),
    ("v-zb", 8, 16, REAL, 8, 2189.7),
    ("v-zb", 8, 16, REAL, 15.5, 2147.15),
    ("v-min", 8, 16, UNIT, 4, 59.5),
    ("v-half", 8, 16, UNIT, 5, 56.5),
    ("v-zb", 8, 16, UNIT, 8, 51.5),
    ("v-min", 8, 32, REAL, 4, 4973.22),
    ("v-half", 8, 32, REAL, 5, 4395.53),
    ("v-half", 8, 32, REAL, 6, 4371.79),
    ("v-zb", 8, 32, REAL, 8, 4148.82),
    ("v-zb", 8, 32, REAL, 15.5, 4106.27),
    ("v-min", 8, 32, UNIT, 4, 107.5),
    ("v-half", 8, 32, UNIT, 5, 104.5),
    ("v-zb", 8, 32, UNIT, 8, 99.5),
]


@pytest.mark.parametrize(("name", "p", "m", "times", "memory", "best"), FRONTIER)
def test_no_published_scheduler_is_faster_in_the_same_memory(
    name: str, p: int, m: int, times: dict[str, float], memory: float, best: float
) -> None:
    timeline = timed(name, p, m, db.Costs.per_rank(**times), memory=memory)
    assert timeline.makespan <= best + PRINTED
    assert timeline.peak_activation.max() <= memory


def steady_wait(name: str, costs: db.Costs, p: int = 6) -> float:
    """What a microbatch takes beyond the work of a rank, in the steady part of the fixed order."""
    few, many = (timed(name, p, m, costs, published=True) for m in (4 * p, 6 * p))
    return float(many.makespan - few.makespan - many.ideal + few.ideal) / (2 * p)


def test_the_published_v_min_waits_for_every_microbatch_when_times_differ() -> None:
    assert steady_wait("v-min", db.Costs()) == 0
    assert steady_wait("v-min", db.Costs(F=3, I=4, W=2)) == 6
    p = 4
    costs = db.Costs(F=3, I=4, W=2)
    few, many = (timed("v-min", p, m, costs).makespan - 18 * m for m in (8, 16))
    assert many - few < 6 * 8


@pytest.mark.parametrize("p", [4, 5, 8])
@pytest.mark.parametrize("W", range(1, 9))
@pytest.mark.parametrize(("F", "I"), [(3, 3), (3, 4), (5, 3), (2, 6), (7, 2)])
def test_the_published_v_half_waits_when_one_kind_takes_too_long(
    p: int, F: int, I: int, W: int
) -> None:
    waits = steady_wait("v-half", db.Costs(F=F, I=I, W=W), p)
    if W + 2 * I >= 2 * F and W + 2 * F >= 2 * I:
        assert waits == 0
    else:
        assert waits > 0


@st.composite
def uneven(draw: st.DrawFn, p: int) -> db.Costs:
    time = st.integers(0, 16).map(lambda n: n / 4)
    times = st.lists(time, min_size=2 * p, max_size=2 * p)
    return db.Costs(
        F=draw(times),
        I=draw(times),
        W=draw(times),
        p2p=draw(time),
        activation=draw(st.none() | st.lists(time, min_size=2 * p, max_size=2 * p)),
        kept_for_weight=draw(st.sampled_from([0.0, 0.5, 1.0])),
    )


@pytest.mark.slow
@each_name
@settings(max_examples=20)
@given(p=st.integers(1, 7), m=st.integers(1, 14), data=st.data())
def test_what_is_computed_is_never_slower_than_the_published_order(
    name: str, p: int, m: int, data: st.DataObject
) -> None:
    costs = data.draw(uneven(p))
    objective = data.draw(st.sampled_from(["makespan", "stage-time"]))
    fixed = timed(name, p, m, costs, published=True)
    timeline = timed(name, p, m, costs, objective=objective)
    held = 2 * BLOCKS[name].memory(p) * timeline.table.activation.max()
    assert fixed.peak_activation.max() <= held + 1e-9
    assert timeline.peak_activation.max() <= held + 1e-9
    if objective == "makespan":
        assert timeline.makespan <= fixed.makespan + 1e-6
    else:
        assert timeline.stage_time.max() <= fixed.stage_time.max() + 1e-6


@each_name
@settings(max_examples=15)
@given(p=st.integers(1, 9), m=st.integers(1, 40), data=st.data())
def test_the_published_order_runs_in_the_oracle(
    name: str, p: int, m: int, data: st.DataObject
) -> None:
    costs = data.draw(uneven(p))
    timeline = timed(name, p, m, costs, published=True)
    assert timeline.makespan == oracle.simulate(timeline.schedule, costs).makespan


@each_name
def test_the_published_order_does_not_depend_on_costs(name: str) -> None:
    costs = db.Costs(F=3, I=1, W=9, p2p=2)
    plain, other = (
        db.make(name, ranks=5, microbatches=13, costs=given, published=True)
        for given in (None, costs)
    )
    assert plain == other


def test_the_largest_block_that_fits_takes_part() -> None:
    terms = Terms.of(db.Placement.v(8), db.Costs(), None)
    fitting = {memory: largest_block(terms, memory) for memory in (3.9, 4, 5, 5.5, 6, 8, 40)}
    assert fitting == {
        3.9: None, 4: V_MIN, 5: V_HALF, 5.5: V_HALF, 6: V_TWO_THIRDS, 8: V_ZB, 40: V_ZB
    }  # fmt: skip
    assert largest_block(terms, [8, 8, 8, 8, 8, 8, 8, 4.5]) is V_MIN
    doubled = Terms.of(db.Placement.v(8), db.Costs(activation=[1] * 16), None)
    assert largest_block(doubled, 10) is V_HALF


@each_name
def test_memory_may_be_smaller_larger_or_one_for_each_rank(name: str) -> None:
    limits = [4, 3, 2, 1]
    timeline = timed(name, 4, 9, memory=limits)
    assert np.all(timeline.peak_activation <= limits)
    assert timed(name, 4, 9, memory=1).peak_activation.tolist() == [1] * 4
    assert timed(name, 4, 9, memory=8).makespan <= timed(name, 4, 9).makespan
    with pytest.raises(db.ParameterError, match=r"memory 0.5 is too small.*at least 1$"):
        timed(name, 4, 9, memory=0.5)


@each_name
def test_refusals_name_the_way_out(name: str) -> None:
    with pytest.raises(db.ParameterError, match="did you mean 'stage-time'"):
        timed(name, 4, 8, objective="stagetime")
    with pytest.raises(db.ParameterError, match=r"ranks is 513; the nearest that works is 512"):
        db.make(name, ranks=MOST_RANKS + 1, microbatches=2)
    entry = find(name)
    assert entry.chunks == 2
    assert [option.name for option in entry.options] == ["objective", "published"]
