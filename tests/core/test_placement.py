from __future__ import annotations

import numpy as np
import pytest

from debubble import ParameterError, Placement


def test_shapes_match_their_definitions() -> None:
    assert Placement.linear(3).table == ((0, 1, 2),)
    assert Placement.block(2, 2).table == ((0, 0, 1, 1),)
    assert Placement.loop(2, 3).table == ((0, 1, 0, 1, 0, 1),)
    assert Placement.v(3).table == ((0, 1, 2, 2, 1, 0),)
    assert Placement.wave(2, 4).table == ((0, 1, 1, 0, 0, 1, 1, 0),)
    assert Placement.bidirectional(4).table == ((0, 1, 2, 3), (3, 2, 1, 0))
    assert Placement.explicit([0, 2, 1, 0]).table == ((0, 2, 1, 0),)
    assert Placement.explicit([[0, 1], [1, 0]]).copies == 2


@pytest.mark.parametrize("p", [1, 2, 5])
@pytest.mark.parametrize("v", [1, 2, 3, 4])
def test_every_rank_holds_as_many_stages(p: int, v: int) -> None:
    for placement in (Placement.loop(p, v), Placement.block(p, v), Placement.wave(p, v)):
        assert placement.stages == p * v
        assert placement.chunks == v
        assert [len(placement.stages_on(rank)) for rank in range(p)] == [v] * p


def test_stages_on_a_rank_by_copy() -> None:
    both = Placement.bidirectional(4)
    assert both.stages_on(0) == (0, 3)
    assert both.stages_on(0, copy=1) == (3,)
    assert both.chunks == 1


@pytest.mark.parametrize(
    ("table", "ranks", "message"),
    [
        ([], 0, "at least one stage"),
        ([0, 4], 2, "stage 1 is placed on rank 4; ranks go from 0 to 1"),
        ([0, -1], 0, "stage 1 is placed on rank -1"),
        ([[0, 1], [1]], 0, "same number of stages"),
    ],
)
def test_impossible_tables_are_refused(table: list[int], ranks: int, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        Placement.explicit(table, ranks)


@pytest.mark.parametrize("shape", [Placement.loop, Placement.block, Placement.wave])
@pytest.mark.parametrize(
    ("ranks", "chunks", "message"),
    [
        ("x", 2, "ranks is 'x'; give a whole number from 1 up"),
        (2, 0, "chunks is 0; give a whole number from 1 up"),
        (2.5, 1, "ranks is 2.5; give a whole number"),
        (True, 1, "ranks is True; give a whole number"),
        (10**9, 4, "4000000000 stages; the limit is"),
    ],
)
def test_impossible_sizes_are_refused(shape, ranks, chunks, message) -> None:
    with pytest.raises(ParameterError) as refused:
        shape(ranks, chunks)
    assert str(refused.value).startswith(message)


def test_whole_numbers_of_numpy_make_the_same_placements() -> None:
    one = Placement.wave(np.int64(2), np.int64(2))  # type: ignore[arg-type]
    assert one == Placement.wave(2, 2)
    assert {type(rank) for rank in (one.ranks, *one.table[0])} == {int}
