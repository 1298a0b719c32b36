"""Chimera, BitPipe and Hanayo: one rule of slots."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import debubble as db
from debubble.core.actions import microbatches_of, stages_of
from debubble.schedules.forms import closed_forms
from tests.conftest import EXPLORES
from tests.forms import hold

EVEN = [2, 4, 6, 8, 16]


def run(name: str, p: int, m: int, F: float = 1, B: float = 2, **options: Any) -> Any:
    schedule = db.make(name, ranks=p, microbatches=m, **options)
    return db.simulate(schedule, db.Costs(F=F, B=B))


@pytest.mark.parametrize(
    ("p", "equal", "double"), [(4, 10, 16), (6, 16, 26), (8, 22, 36), (16, 46, 76)]
)
def test_a_unit_of_chimera(p: int, equal: float, double: float) -> None:
    assert run("chimera", p, p, F=1, B=1).makespan == equal
    timeline = run("chimera", p, p, F=1, B=2)
    assert timeline.makespan == double
    ramp = list(range(p // 2 + 1, p + 1))
    assert timeline.peak_activation.tolist() == ramp + ramp[::-1]


@pytest.mark.parametrize(("p", "rate"), [(4, 25), (6, 30.8), (8, 33.3), (16, 36.8)])
def test_bubble_rates_of_a_unit_of_chimera(p: int, rate: float) -> None:
    assert round(100 * run("chimera", p, p, F=1, B=2).bubble_ratio, 1) == rate


@pytest.mark.parametrize("p", EVEN)
@pytest.mark.parametrize("units", [1, 2, 5])
def test_bubble_of_chimera_with_equal_times_is_the_published_one(p: int, units: int) -> None:
    m = units * p
    assert run("chimera", p, m, F=1, B=1).bubble_ratio == pytest.approx((p - 2) / (2 * m + p - 2))


def by_phases(p: int, rank: int, units: int, batch: int) -> list[tuple[str, str]]:
    """(kind, end) of every action, in the phases that the authors' runtime runs through."""
    half = p // 2
    a = half - rank if rank < half else rank - half + 1
    b = half - a
    c = b + (batch - 1) * half
    near, far, near_back, far_back = [("F", "near")], [("F", "far")], ("B", "near"), ("B", "far")
    order: list[tuple[str, str]] = []
    for unit in range(units):
        order += ([near_back] * (unit > 0) + near * batch) * a
        order += (far * batch + near * batch) * b
        order += (far * batch + [far_back]) * a
        order += [near_back, far_back] * c
    return order + [near_back] * a


@pytest.mark.parametrize("p", EVEN)
@pytest.mark.parametrize("units", [1, 2, 3])
@pytest.mark.parametrize(("scaling", "batch"), [("direct", 1), ("doubling", 2)])
def test_chimera_is_the_order_of_its_authors(p: int, units: int, scaling: str, batch: int) -> None:
    m = units * p * batch
    schedule = db.make("chimera", ranks=p, microbatches=m, scaling=scaling)
    for rank, program in enumerate(schedule):
        near = min(rank, p - 1 - rank)
        seen = [(a.kind.name, "near" if a.stage == near else "far") for a in program]
        assert seen == by_phases(p, rank, units, batch)
        for kind in (db.Kind.F, db.Kind.B):
            for stage in (near, p - 1 - near):
                numbers = [a.microbatch for a in program if a[:2] == (stage, kind)]
                assert numbers == sorted(numbers)
                assert len(numbers) == m // 2


@pytest.mark.parametrize("p", EVEN)
def test_doubling_hides_the_gaps_between_units_for_more_memory(p: int) -> None:
    for units in (1, 2, 4):
        m = 2 * p * units
        direct, doubled = run("chimera", p, m), run("chimera", p, m, scaling="doubling")
        assert direct.makespan - 3 * m == (p - 2) * (1 + 2 * units)
        assert doubled.makespan - 3 * m == 1.5 * (p - 2)
        assert doubled.peak_activation.max() == 2 * p


@pytest.mark.parametrize("p", EVEN)
def test_halves_have_the_order_of_pairs_and_the_memory_of_whole_microbatches(p: int) -> None:
    pairs = db.make("chimera", ranks=p, microbatches=4 * p, scaling="doubling")
    halves = db.make("chimera", ranks=p, microbatches=4 * p, scaling="halving")
    assert pairs == halves
    peak = db.simulate(halves, db.Costs(F=0.5, B=1, activation=0.5)).peak_activation
    assert (peak.min(), peak.max()) == (3 * p / 4 + 0.5, p)


# Chunk-microbatches as the authors number them, for 4 ranks and 8 microbatches: 0, 1, 4, 5 on the
# first half of one copy and 8, 9, 12, 13 on its second; 2, 3, 6, 7 and 10, 11, 14, 15 on the other.
BITPIPE_FORWARDS = [
    [0, 1, 2, 10, 3, 11, 8, 9, 4, 5, 6, 14, 7, 15, 12, 13],
    [0, 2, 1, 3, 10, 8, 11, 9, 4, 6, 5, 7, 14, 12, 15, 13],
    [2, 0, 3, 1, 8, 10, 9, 11, 6, 4, 7, 5, 12, 14, 13, 15],
    [2, 3, 0, 8, 1, 9, 10, 11, 6, 7, 4, 12, 5, 13, 14, 15],
]
BITPIPE_BACKWARDS = [
    [8, 9, 10, 2, 11, 3, 0, 1, 12, 13, 14, 6, 15, 7, 4, 5],
    [8, 10, 9, 11, 2, 0, 3, 1, 12, 14, 13, 15, 6, 4, 7, 5],
    [10, 8, 11, 9, 0, 2, 1, 3, 14, 12, 15, 13, 4, 6, 5, 7],
    [10, 11, 8, 0, 9, 1, 2, 3, 14, 15, 12, 4, 13, 5, 6, 7],
]


def test_bitpipe_is_the_order_of_its_authors() -> None:
    numbers = [0, 1, 4, 5, 2, 3, 6, 7]
    for rank, program in enumerate(db.make("bitpipe", ranks=4, microbatches=8)):
        for kind, expected in (("F", BITPIPE_FORWARDS), ("B", BITPIPE_BACKWARDS)):
            seen = [
                numbers[a.microbatch] + 8 * (a.stage >= 4) for a in program if a.kind.name == kind
            ]
            assert seen == expected[rank]


@pytest.mark.parametrize("p", EVEN)
@pytest.mark.parametrize("units", [1, 2, 3])
def test_bitpipe_switches_between_forwards_and_backwards_as_its_authors_do(
    p: int, units: int
) -> None:
    for rank, program in enumerate(db.make("bitpipe", ranks=p, microbatches=units * p)):
        warm_up = p + p // 2 + min(rank, p - 1 - rank)
        left = 2 * p - warm_up
        expected = "F" * warm_up
        for unit in range(units):
            expected += "FB" * left + "B" * (warm_up - left + 1)
            if unit < units - 1:
                expected += "FB" * (left - 1) + "F" * (warm_up - left + 1)
        expected += "B" * (left - 1)
        assert "".join(action.kind.name for action in program) == expected


@pytest.mark.parametrize("p", EVEN)
@pytest.mark.parametrize("units", [1, 3])
def test_bitpipe_halves_the_bubble_of_chimera(p: int, units: int) -> None:
    costs = db.Costs.per_rank(F=10, B=24)
    m = units * p
    one, two = (
        db.simulate(db.make(name, ranks=p, microbatches=m), costs)
        for name in ("chimera", "bitpipe")
    )
    assert two.makespan - m * 34 == (one.makespan - m * 34) / 2
    assert one.peak_activation.max() == two.peak_activation.max() == p


@pytest.mark.parametrize("p", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("m", [1, 2, 3, 7, 8, 24])
def test_hanayo_is_chimera_cut_in_half(p: int, m: int) -> None:
    both, cut = run("chimera", 2 * p, 2 * m), run("hanayo", p, m)
    assert cut.makespan == both.makespan
    assert (2 * cut.peak_activation).tolist() == both.peak_activation[:p].tolist()


@pytest.mark.parametrize("p", [2, 3, 4, 8])
@pytest.mark.parametrize("waves", [1, 2, 3, 4])
def test_waves_shrink_the_bubble_of_hanayo(p: int, waves: int) -> None:
    costs = db.Costs.per_rank(F=24, B=48)
    timeline = db.simulate(db.make("hanayo", ranks=p, microbatches=p, chunks=2 * waves), costs)
    assert timeline.makespan - p * 72 == (p - 1) * 48 / waves
    # 1F1B has one and a half times the bubble of one wave.
    one = db.simulate(db.make("1f1b", ranks=p, microbatches=p), costs)
    assert one.makespan - p * 72 == (p - 1) * 72
    assert timeline.peak_activation.max() == pytest.approx(one.peak_activation.max()) == p


@pytest.mark.parametrize("p", [2, 5, 8])
@pytest.mark.parametrize("waves", [1, 2, 3])
def test_hanayo_beats_1f1b_for_few_units(p: int, waves: int) -> None:
    costs = db.Costs.per_rank(F=12, B=24)

    def ahead(units: int) -> float:
        m = units * p
        one = db.make("1f1b", ranks=p, microbatches=m)
        wave = db.make("hanayo", ranks=p, microbatches=m, chunks=2 * waves)
        return db.simulate(one, costs).makespan - db.simulate(wave, costs).makespan

    even = 3 * waves - 1
    assert ahead(even - 1) > ahead(even) == 0 > ahead(even + 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("chimera", {}),
        ("chimera", {"scaling": "doubling"}),
        ("bitpipe", {}),
        ("hanayo", {}),
        ("hanayo", {"chunks": 4}),
        ("hanayo", {"chunks": 6}),
    ],
    ids=str,
)
@pytest.mark.parametrize("half", [1, 2, 3, 4, 7])
def test_forms_hold_for_any_times_and_any_number_of_microbatches(
    name: str, options: dict[str, Any], half: int
) -> None:
    p = half if name == "hanayo" else 2 * half
    draw = random.Random(p)
    for m in (*range(1, 2 * p + 2), 3 * p, 4 * p, 4 * p + 1, 6 * p):
        schedule = db.make(name, ranks=p, microbatches=m, **options)
        assert not db.check(schedule).problems
        for _ in range(5 if EXPLORES else 2):
            costs = db.Costs(F=draw.randint(0, 40), B=draw.randint(0, 120))
            values = closed_forms(schedule, costs)
            assert {v.form.quantity for v in values} == {"makespan", "peak_activation"}
            assert {v.form.accuracy for v in values} <= {"exact", "upper bound"}
            hold(schedule, costs, f"{name} p={p} m={m}")


@pytest.mark.parametrize("m", [1, 2, 5, 8, 11])
@pytest.mark.parametrize("name", ["chimera", "bitpipe"])
def test_the_first_copy_takes_the_first_half(name: str, m: int) -> None:
    schedule = db.make(name, ranks=4, microbatches=m)
    copies = schedule.copies_of(microbatches_of(schedule.actions))
    table = schedule.placement.ranks_of_stages.reshape(2, -1)
    rank = np.repeat(np.arange(4), np.diff(schedule.offsets))
    assert np.array_equal(table[copies, stages_of(schedule.actions)], rank)


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("chimera", {"ranks": 5}, "an even number of ranks; ranks is 5; .* is 4"),
        ("chimera", {"scaling": "tripling"}, "'direct', 'doubling' or 'halving'; .* tripling"),
        ("bitpipe", {"ranks": 3}, "an even number of ranks; ranks is 3; .* is 2"),
        ("bitpipe", {"chunks": 4}, "'bitpipe' has chunks = 2; got 4"),
        ("hanayo", {"chunks": 3}, "an even number of chunks, .*; chunks is 3; .* is 2"),
    ],
)
def test_refusals(name: str, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(db.ParameterError, match=message):
        db.make(name, **({"ranks": 4, "microbatches": 8} | parameters))
