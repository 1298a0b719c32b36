"""Frozen weights: what is left of times and memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import debubble as db
from debubble import CostError, Costs, Kind, Placement
from debubble.analysis.measures import boundary_transfers, p2p_volume
from debubble.cli.times import parse_times
from debubble.engine.modes import P2P_MODES

PLAIN = Costs(F=2, I=3, W=1, R=2, activation=4, kept_for_weight=0.5, reduce_grad=2)
F, I, W, B, R = Kind.F, Kind.I, Kind.W, Kind.B, Kind.R


def rows(costs: Costs) -> dict[Kind, list[float]]:
    table = costs.resolve(Placement.loop(4, 1))
    return {kind: table.duration[kind].tolist() for kind in (F, I, W, B, R)}


def test_stages_before_the_first_that_trains_have_no_backward() -> None:
    costs = replace(PLAIN, frozen=[1, 1, 0, 1])
    assert rows(costs) == {
        F: [2, 2, 2, 2], I: [0, 0, 3, 3], W: [0, 0, 1, 0], B: [0, 0, 4, 3], R: [0, 0, 2, 2],
    }  # fmt: skip
    table = costs.resolve(Placement.loop(4, 1))
    assert table.activation.tolist() == [0, 0, 4, 4]
    assert table.kept.tolist() == [0, 0, 2, 0]
    assert table.duration[Kind.REDUCE_GRAD].tolist() == [0, 0, 2, 0]


def test_shares_are_what_adapters_leave() -> None:
    assert rows(replace(PLAIN, frozen=0.75)) == {
        F: [2] * 4, I: [3] * 4, W: [0.25] * 4, B: [3.25] * 4, R: [2] * 4,
    }  # fmt: skip
    assert replace(PLAIN, frozen=0.75).resolve(Placement.loop(4, 1)).boundaries is None


def test_what_has_nothing_to_do_is_not_started() -> None:
    costs = replace(PLAIN, launch=0.5, frozen=[1, 0, 1, 0])
    found = rows(costs)
    assert [found[kind][0] for kind in (F, I, W, B, R)] == [2.5, 0, 0, 0, 0]
    assert [found[kind][2] for kind in (F, I, W, B, R)] == [2.5, 3.5, 0, 3.5, 2.5]
    schedule = db.make("1f1b", ranks=4, microbatches=4)
    lengths = replace(costs, microbatch=[0.5, 1, 1, 1.5])
    alone = db.simulate(schedule, lengths).busy
    assert alone[0] == sum(2 * length + 0.5 for length in (0.5, 1, 1, 1.5))


def test_ends_of_the_model_are_frozen_with_their_stages() -> None:
    ends = Costs(F=1, B=2, embedding={"F": 1, "B": 2, "activation": 3}, head={"F": 4, "B": 8})
    table = replace(ends, frozen=[1, 0, 1]).resolve(Placement.loop(3, 1))
    assert table.duration[[F, B]].tolist() == [[2, 1, 5], [0, 2, 5]]
    assert table.activation.tolist() == [0, 1, 1]
    sharded = replace(ends, frozen=[0, 0, 1]).resolve(Placement.loop(3, 1), vocabulary=2)
    assert not sharded.duration[Kind.T].any()
    assert sharded.duration[Kind.S].tolist() == [(4 + 4) / 3] * 3


def test_slices_and_both_directions() -> None:
    schedule = db.make("seq1f1b", ranks=2, microbatches=2, slices=2)
    costs = Costs(F=2, B=4, attention=0.5)
    whole, frozen = (replace(costs, frozen=f).table(schedule) for f in (0.0, [1, 0]))
    assert not frozen.duration[B].reshape(2, 2)[:, 0].any()
    assert np.array_equal(frozen.duration[:, 1::2], whole.duration[:, 1::2])
    both = db.make("chimera", ranks=4, microbatches=4)
    table = replace(costs, frozen=[1, 1, 0, 0]).table(both)
    assert table.duration[B].tolist() == [0, 0, 4, 4] * 2


def test_attention_stays_in_what_is_left() -> None:
    schedule = db.make("zb-h1", ranks=2, microbatches=2)
    costs = Costs(F=2, I=2, W=2, attention=0.5, microbatch=[0.5, 1.5], frozen=[0, 1])
    timeline = db.simulate(schedule, costs)
    # Half of F is attention and all of I, which grows with the square of the length.
    expected = sum(length + length**2 + 2 * length**2 for length in (0.5, 1.5))
    assert timeline.busy[1] == pytest.approx(expected)


@pytest.mark.parametrize("mode", P2P_MODES)
def test_nobody_sends_a_gradient_that_nobody_needs(mode: Any) -> None:
    schedule = db.make("gpipe", ranks=3, microbatches=1)
    costs = Costs(F=1, B=2, p2p=0.5, message=2, frozen=[1, 0, 0])
    timeline = db.simulate(schedule, costs, mode)
    assert timeline.makespan == 3 * 1.5 + 2 + 0.5 + 2 - 0.5
    assert boundary_transfers(schedule) == 4
    assert boundary_transfers(schedule, timeline.table) == 3
    assert p2p_volume(timeline) == 6


def test_a_pair_with_nothing_beside_the_forward_takes_the_forward() -> None:
    table = Costs(F=1, I=1, W=1, O=2.5, frozen=[1, 0]).resolve(Placement.loop(2, 1))
    assert table.pair((F, 0), (B, 0)) == 1
    assert table.pair((F, 1), (B, 1)) == 2.5
    started = Costs(F=1, B=2, overlap_factor=0.5, launch=0.25, frozen=[1, 0])
    table = started.resolve(Placement.loop(2, 1))
    assert table.pair((F, 0), (B, 0)) == 1.25
    assert table.pair((F, 0), (B, 1)) == 1.5 + 0.5


def test_without_frozen_weights_nothing_changes() -> None:
    plain, none = (c.resolve(Placement.loop(4, 1)) for c in (PLAIN, replace(PLAIN, frozen=[0] * 4)))
    assert np.array_equal(plain.duration, none.duration)
    assert none.boundaries is None


def test_frozen_is_a_share_for_every_stage() -> None:
    assert parse_times("F=1,B=2,frozen=1/0", "--times").frozen == (1, 0)
    assert parse_times("F=1,B=2,frozen=0,frozen.0=1", "--times").frozen == {"default": 0, 0: 1}
    with pytest.raises(CostError, match=r"frozen\[1\] is 2; it is a share between 0 and 1"):
        Costs(frozen=[0, 2])
    with pytest.raises(CostError, match="frozen has 2 values for 4 stages"):
        Costs(frozen=[0, 1]).resolve(Placement.loop(4, 1))
    assert not Costs(frozen=0.5).uniform


def test_messages_have_a_flag() -> None:
    assert parse_times("F=1,message=1/2/3", "--times").message == (1, 2, 3)
    assert parse_times("F=1,message=1,message.2=4", "--times").message == {"default": 1, 2: 4}
