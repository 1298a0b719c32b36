from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from debubble import CostError, Costs, Kind, Placement

V = Placement.v(2)


def durations(costs: Costs, kind: Kind, placement: Placement = V) -> list[float]:
    return costs.resolve(placement).duration[kind].tolist()


def test_full_backward_is_the_sum_of_its_parts() -> None:
    assert durations(Costs(I=2, W=3), Kind.B) == [5.0] * 4
    assert durations(Costs(B=5), Kind.I) == [2.5] * 4
    assert durations(Costs(B=5), Kind.W) == [2.5] * 4
    assert durations(Costs(B=4, I=2, W=3), Kind.B) == [4.0] * 4


def test_values_per_stage_and_by_mapping() -> None:
    assert durations(Costs(F=[1, 2, 3, 4]), Kind.F) == [1, 2, 3, 4]
    assert durations(Costs(F={3: 4, 1: 2, 0: 1, 2: 3}), Kind.F) == [1, 2, 3, 4]
    assert durations(Costs(F=np.array([1, 2, 3, 4])), Kind.F) == [1, 2, 3, 4]


def test_rank_costs_are_divided_by_the_chunks_and_follow_the_placement() -> None:
    costs = Costs.per_rank(F=[2, 6], p2p=0.5, O=3)
    assert durations(costs, Kind.F) == [1, 3, 3, 1]
    assert durations(costs, Kind.F, Placement.linear(2)) == [2, 6]
    table = costs.resolve(V)
    assert table.link.tolist() == [[0, 0.5], [0.5, 0]]
    assert table.pair((0, 1), (3, 2)) == 1.5
    assert Costs.per_rank(F=2, chunks=4).resolve(V).duration[Kind.F].tolist() == [0.5] * 4


def test_two_copies_share_stage_costs_and_not_rank_costs() -> None:
    both = Placement.bidirectional(2)
    assert durations(Costs(F=[1, 2]), Kind.F, both) == [1, 2, 1, 2]
    assert durations(Costs.per_rank(F=[1, 2]), Kind.F, both) == [1, 2, 2, 1]


def test_overlapped_pairs() -> None:
    table = Costs(F=1, B=2).resolve(V)
    assert table.pair((0, 0), (3, 1)) == 3
    assert Costs(F=1, B=2, overlap_factor=0.8).resolve(V).pair((0, 0), (3, 1)) == pytest.approx(2.4)
    some = Costs(F=1, B=2, O={(0, 3): 2.5}).resolve(V)
    assert some.pair((0, 0), (3, 3)) == 2.5
    assert some.pair((0, 1), (3, 3)) == 3


def test_activation_counts_in_units_of_a_rank_by_default() -> None:
    assert Costs().resolve(V).activation.tolist() == [0.5] * 4
    assert Costs().resolve(Placement.bidirectional(2)).activation.tolist() == [1.0] * 4
    table = Costs.per_rank(activation=8, kept_for_weight=0.25).resolve(V)
    assert table.activation.tolist() == [4.0] * 4
    assert table.kept.tolist() == [1.0] * 4
    assert table.checkpoint.tolist() == [0.0] * 4
    table = Costs.per_rank(activation=8, recompute_kept=[0.25, 0.5]).resolve(V)
    assert table.checkpoint.tolist() == [1.0, 2.0, 2.0, 1.0]


def test_transfers_take_latency_and_size_over_bandwidth() -> None:
    costs = Costs(p2p=1, message=10, bandwidth=4)
    assert costs.transfer == 3.5
    assert costs.resolve(V).link[0, 1] == 3.5
    assert math.isnan(Costs(p2p=[[0, 1], [2, 0]]).transfer)


def test_scaled_times_leave_memory_alone() -> None:
    scaled = Costs(F=[1, 2], O={(0, 1): 3}, p2p=[[0, 1], [2, 0]], activation=7).scaled(2)
    assert (scaled.F, scaled.O, scaled.p2p) == (
        (2.0, 4.0),
        {(0, 1): 6.0},
        ((0.0, 2.0), (4.0, 0.0)),
    )
    assert scaled.activation == 7


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"F": -1}, "F is -1; costs are not negative"),
        ({"F": math.nan}, "F is nan; give a number"),
        ({"W": math.inf}, "W is inf; give a finite number"),
        ({"I": "2"}, "I is '2'; give a number"),
        ({"F": True}, "F is True; give a number"),
        ({"F": [1, -2]}, r"F\[1\] is -2"),
        ({"F": []}, "F is an empty list"),
        ({"kept_for_weight": 1.5}, "kept_for_weight is 1.5; it is a share between 0 and 1"),
        ({"kept_for_weight": {0: 0, 1: 2}}, "share between 0 and 1"),
        ({"recompute_kept": [0, 1.5]}, "recompute_kept is .* share between 0 and 1"),
        ({"bandwidth": 0}, "bandwidth is 0"),
        ({"p2p": [[0, -1], [0, 0]]}, r"p2p\[0\]\[1\] is -1"),
        ({"basis": "stage"}, "use 'action' or 'rank'"),
        ({"chunks": 0}, "chunks is 0"),
    ],
)
def test_bad_values_are_refused_by_name(values: dict[str, Any], message: str) -> None:
    with pytest.raises(CostError, match=message):
        Costs(**values)


@pytest.mark.parametrize(
    ("costs", "message"),
    [
        (Costs(F=[1, 2]), "F has 2 values for 4 stages; give one number, or one per stage"),
        (Costs.per_rank(F=[1, 2, 3]), "F has 3 values for 2 ranks"),
        (Costs(F={0: 1, 1: 1, 3: 1}), "F has no value for stage 2; give 0..3"),
        (Costs(F={0: 1, 1: 1, 2: 1, 3: 1, 4: 1}), "F names stage 4; stages go to 3"),
        (Costs(OPT=[1, 2, 3]), "OPT has 3 values for 2 ranks"),
        (Costs(p2p=[[0, 1, 2]] * 3), "p2p is 3 × 3; for 2 ranks give 2 × 2"),
    ],
)
def test_values_that_do_not_fit_the_placement_are_refused(costs: Costs, message: str) -> None:
    with pytest.raises(CostError, match=message):
        costs.resolve(V)


def test_misspelt_names_get_a_hint() -> None:
    with pytest.raises(CostError, match="unknown cost 'p2pp'; did you mean 'p2p'"):
        Costs.per_rank(p2pp=1)
