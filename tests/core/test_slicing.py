"""Cuts of sequences, and what slices of them cost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from debubble import CostError, Costs, ParameterError, Placement, Schedule
from debubble.core.actions import Kind
from debubble.core.cost_table import CostTable
from debubble.core.slicing import Slicing, even_work
from tests.strategies import SHARES, TIMES, cuts

LINE = Placement.linear(1)


def one(table: CostTable, kind: Kind) -> list[float]:
    return table.duration[kind].tolist()


@given(st.integers(1, 12), st.floats(0, 1))
def test_even_work_is_even(slices: int, attention: float) -> None:
    slicing = Slicing(even_work(slices, attention))
    work = (1 - attention) * np.asarray(slicing.shares) + attention * slicing.attention
    assert work == pytest.approx([1 / slices] * slices)
    assert sum(slicing.shares) == pytest.approx(1)
    assert (np.diff(slicing.shares) <= 1e-12).all()


def test_attention_of_a_slice_is_its_causal_area() -> None:
    # (j + 1)² − j² of s² for s equal slices: 1, 3, 5, 7 sixteenths.
    assert Slicing((0.25,) * 4).attention.tolist() == [1 / 16, 3 / 16, 5 / 16, 7 / 16]
    assert Slicing((0.25, 0.75)).attention.tolist() == [1 / 16, 15 / 16]
    assert Slicing((0.25, 0.75), exchange=True).attention.tolist() == [0.25, 0.75]


def test_slices_take_their_share_of_the_time() -> None:
    costs = Costs(F=16, I=20, W=12, attention=0.5)
    table = costs.resolve(LINE, Slicing((0.25,) * 4))
    # F is 8 linear and 8 attention; of B, 32, half is attention, all of it in I.
    assert one(table, Kind.F) == [2.5, 3.5, 4.5, 5.5]
    assert one(table, Kind.W) == [3, 3, 3, 3]
    assert one(table, Kind.I) == [2, 4, 6, 8]
    assert one(table, Kind.B) == [5, 7, 9, 11]
    assert one(table, Kind.R) == one(table, Kind.F)


def test_a_full_backward_of_its_own_time_is_cut_like_its_parts() -> None:
    table = Costs(F=4, B=32, attention=0.25).resolve(LINE, Slicing((0.5, 0.5)))
    # A quarter of 32 is attention: 1/4 and 3/4 of it by area, beside half of the rest.
    assert one(table, Kind.B) == [14, 18]
    fused = Costs(F=4, I=8, W=8, B=8, attention=0.5).resolve(LINE, Slicing((0.5, 0.5)))
    assert one(fused, Kind.B) == [3, 5]
    # Attention is half of I + W, all of I: nothing is left of I that goes by tokens.
    assert one(fused, Kind.I) == [2, 6]


def test_the_gradient_of_weights_has_no_attention() -> None:
    table = Costs(F=4, I=2, W=6, attention=1.0).resolve(LINE, Slicing((0.5, 0.5)))
    assert one(table, Kind.W) == [3, 3]
    assert one(table, Kind.I) == [0.5, 1.5]
    assert one(table, Kind.B) == [3.5, 4.5]


@given(st.data())
def test_slices_add_up_to_the_whole(data: st.DataObject) -> None:
    costs = Costs(
        F=data.draw(TIMES), I=data.draw(TIMES), W=data.draw(TIMES), attention=data.draw(SHARES),
        kv=data.draw(TIMES), activation=data.draw(TIMES), kept_for_weight=0.5, message=2,
        bandwidth=4,
    )  # fmt: skip
    placement = Placement.bidirectional(2)
    shares = data.draw(cuts(data.draw(st.integers(1, 6))))
    whole = costs.resolve(placement)
    sliced = costs.resolve(placement, Slicing(shares, exchange=data.draw(st.booleans())))
    places = placement.stages * placement.copies
    for name in ("duration", "activation", "kept", "kv"):
        parts = getattr(sliced, name)
        total = parts.reshape(*parts.shape[:-1], -1, places).sum(axis=-2)
        assert np.allclose(total, getattr(whole, name)), name
    moved = sum(sliced.transfer(0, 1, part) for part in range(len(shares)))
    assert moved == pytest.approx(whole.transfer(0, 1))


def test_latency_is_paid_by_every_slice() -> None:
    costs = Costs(p2p=3, message=8, bandwidth=2)
    table = costs.resolve(Placement.linear(2), Slicing((0.25, 0.75)))
    assert [table.transfer(0, 1, part) for part in (0, 1)] == [4, 6]
    assert table.transfer(1, 1) == 0


def test_exchange_takes_its_share_and_twice_that_on_the_way_back() -> None:
    costs = Costs(F=4, I=4, W=4, exchange=1)
    table = costs.resolve(LINE, Slicing((0.25, 0.75), exchange=True))
    assert one(table, Kind.F) == [1.25, 3.75]
    assert one(table, Kind.I) == [1.5, 4.5]
    assert one(table, Kind.W) == [1, 3]
    assert one(table, Kind.B) == [2.5, 7.5]
    assert costs.resolve(LINE, Slicing((0.5, 0.5))).duration[Kind.F].tolist() == [2, 2]


def test_a_pair_takes_the_share_its_slices_take() -> None:
    table = Costs(F=2, I=2, W=2, O=5).resolve(LINE, Slicing((0.25, 0.75)))
    # Places of the only stage are its slices; 3/4 of F beside 1/4 of B are 2.5 of 6.
    assert table.pair((Kind.F, 1), (Kind.B, 0)) == pytest.approx(5 * 2.5 / 6)
    table = Costs(F=2, I=2, W=2, overlap_factor=0.5).resolve(LINE, Slicing((0.25, 0.75)))
    assert table.pair((Kind.F, 1), (Kind.B, 0)) == pytest.approx(1.25)


def test_rank_costs_and_stages_of_their_own() -> None:
    costs = Costs.per_rank(F=[2, 4], I=2, W=2, attention=[0, 1], kv=4, activation=6)
    table = costs.resolve(Placement.v(2), Slicing((0.5, 0.5)))
    assert table.duration[Kind.F].tolist() == [0.5, 0.5, 0.5, 0.5, 0.5, 1.5, 1.5, 0.5]
    assert table.kv.tolist() == [1] * 8
    assert table.activation.tolist() == [1.5] * 8


@pytest.mark.parametrize(
    ("cut", "message"),
    [
        ((0.5,), "cut has 1 shares for 2 slices"),
        ((0.5, 0.6), "the shares of the cut add up to 1.1; make it 1"),
        ((1.0, 0.0), "cut has a share of 0; shares go from above 0 to 1"),
        ((1.5, -0.5), "cut\\[0\\] is 1.5; give a share up to 1"),
        ((float("nan"), 1.0), "cut has a share of nan"),
    ],
)
def test_bad_cuts_are_refused(cut: tuple[float, ...], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        Schedule.from_text([[]], LINE, 1, slices=2, cut=cut)


def test_attention_is_a_share() -> None:
    with pytest.raises(CostError, match=r"attention is 1\.5; it is a share between 0 and 1"):
        Costs(attention=1.5)
    with pytest.raises(CostError, match="kv is -1"):
        Costs(kv=-1)


def test_equal_shares_written_out_are_equal_slices() -> None:
    rows = [["0F0.0", "0F0.1", "0B0.1", "0B0.0"]]
    plain = Schedule.from_text(rows, LINE, 1, slices=2)
    assert plain == Schedule.from_text(rows, LINE, 1, slices=2, cut=(0.5, 0.5))
    assert plain != Schedule.from_text(rows, LINE, 1, slices=2, cut=(0.25, 0.75))
    assert plain != Schedule.from_text(rows, LINE, 1, slices=2, exchange=True)
