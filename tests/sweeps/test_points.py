"""Points of a sweep: every one once, and draws that stay what they are."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from debubble.sweeps import Range, Spec

GRID = {"ranks": (2, 4), "schedule": ("1f1b", "zb-h1", "gpipe")}


def test_a_grid_has_every_combination_once() -> None:
    spec = Spec("simulate", {"microbatches": 8}, GRID)
    points = list(spec.points())
    assert [tuple(p.options.values()) for p in points] == [
        (8, ranks, name) for ranks in GRID["ranks"] for name in GRID["schedule"]
    ]
    assert spec.size == len(points) == len({point.key for point in points}) == 6
    assert [point.number for point in points] == list(range(6))
    assert spec.describe() == "simulate: 2 ranks × 3 schedule = 6 points"


def test_a_key_is_that_of_the_options_whatever_their_order() -> None:
    one = Spec("simulate", {"ranks": 2}, {"microbatches": (4,)})
    other = Spec("simulate", {"microbatches": 4}, {"ranks": (2,)})
    assert [p.key for p in one.points()] == [p.key for p in other.points()]
    assert (
        next(Spec("optimize", {"ranks": 2}, {"microbatches": (4,)}).points()).key
        != next(one.points()).key
    )


def test_the_content_of_files_is_part_of_a_key() -> None:
    specs = [Spec("simulate", {"costs": "x.yaml"}, GRID, digests={"x.yaml": d}) for d in "ab"]
    first, second = ({point.key for point in spec.points()} for spec in specs)
    assert not first & second


def test_more_samples_begin_with_the_same_ones() -> None:
    draw = {"costs.p2p": Range(0.01, 1.0, log=True), "ranks": (2, 4, 8)}
    few, many = (Spec("simulate", {}, {}, n, 7, draw) for n in (10, 100))
    options = [point.options for point in many.points()]
    assert [point.options for point in few.points()] == options[:10]
    again = Spec("simulate", {}, {}, 10, 8, draw)
    assert [point.options for point in again.points()] != options[:10]


def test_another_option_changes_no_draw() -> None:
    draw = {"costs.p2p": Range(0.0, 1.0)}
    alone = [p.options["costs.p2p"] for p in Spec("simulate", {}, {}, 5, 0, draw).points()]
    more = Spec("simulate", {}, {}, 5, 0, {"ranks": Range(1, 64, whole=True), **draw})
    assert [p.options["costs.p2p"] for p in more.points()] == alone


def test_equal_draws_are_one_point() -> None:
    spec = Spec("simulate", {}, {}, 100, 0, {"ranks": (2, 4)})
    assert {point.options["ranks"] for point in spec.points()} == {2, 4}
    assert len(list(spec.points())) == 2


def test_samples_are_combined_with_the_grid() -> None:
    spec = Spec("simulate", {}, GRID, 5, 0, {"costs.p2p": Range(0.0, 1.0)})
    points = list(spec.points())
    assert len(points) == spec.size == 30
    drawn = [point.options["costs.p2p"] for point in points]
    assert drawn[:6] == [drawn[0]] * 6
    assert spec.describe() == "simulate: 5 samples × 2 ranks × 3 schedule = 30 points"


@given(st.floats(0, 1, exclude_max=True), st.booleans(), st.booleans())
def test_a_range_stays_within_its_ends(place: float, log: bool, whole: bool) -> None:
    found = Range(2, 50, log, whole).at(place)
    assert 2 <= found <= 50
    assert isinstance(found, int) == whole


def test_whole_numbers_and_steps_reach_both_ends() -> None:
    places = [index / 1000 for index in range(1000)]
    assert {Range(1, 4, whole=True).at(p) for p in places} == {1, 2, 3, 4}
    assert {Range(1, 4, log=True, whole=True).at(p) for p in places} == {1, 2, 3, 4}
    assert {Range(8, 64, whole=True, step=8).at(p) for p in places} == set(range(8, 65, 8))
    steps = sorted({Range(0.0, 0.3, step=0.1).at(p) for p in places})
    assert steps == pytest.approx([0.0, 0.1, 0.2, 0.3])


def test_a_log_range_has_its_middle_at_the_geometric_mean() -> None:
    assert Range(0.01, 1.0, log=True).at(0.5) == pytest.approx(math.sqrt(0.01))
