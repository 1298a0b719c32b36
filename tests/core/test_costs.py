from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import debubble
from debubble import CostError, Costs, DebubbleDeprecationWarning, Kind, Placement
from debubble.core.costs import COST_FIELDS

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
        ({"F": math.nan}, "F is nan; give a finite number"),
        ({"W": math.inf}, "W is inf; give a finite number"),
        ({"I": "2"}, "I is '2'; give a number"),
        ({"F": True}, "F is True; give a number"),
        ({"F": [1, -2]}, r"F\[1\] is -2"),
        ({"F": []}, r"F is \[\]; give a number, a list with one per stage"),
        ({"kept_for_weight": 1.5}, "kept_for_weight is 1.5; it is a share between 0 and 1"),
        ({"kept_for_weight": {0: 0, 1: 2}}, "share between 0 and 1"),
        (
            {"recompute_kept": [0, 1.5]},
            r"recompute_kept\[1\] is 1.5; it is a share",
        ),
        ({"bandwidth": 0}, "bandwidth is 0"),
        ({"p2p": [[0, -1], [0, 0]]}, r"p2p\[0\]\[1\] is -1"),
        ({"basis": "stage"}, "use 'action' or 'rank'"),
        ({"basis": 3}, "basis is 3; use 'action' or 'rank'"),
        ({"chunks": 0}, "chunks is 0; give a whole number from 1 up"),
        ({"chunks": 1.5}, "chunks is 1.5; give a whole number"),
        ({"chunks": math.nan, "basis": "rank"}, "chunks is nan; give a whole number"),
        ({"chunks": "2"}, "chunks is '2'; give a whole number"),
        ({"p2p": [0.1, 0.2]}, r"p2p is \[0.1, 0.2\]; give a number, or a square matrix"),
        ({"p2p": [[0, 1], [1]]}, r"p2p\[1\] has 1 numbers; give 2, one per receiving rank"),
        ({"p2p": [[0, 1], 1]}, r"p2p\[1\] is 1; give 2 numbers"),
        ({"p2p": {0: 1}}, r"p2p is \{0: 1\}; give a number, or a square matrix"),
        ({"p2p": []}, r"p2p is \[\]; give a number"),
        ({"p2p": None}, "p2p is None; give a number"),
        ({"message": []}, r"message is \[\]; give a number, a list with one per boundary"),
        ({"bandwidth": [1]}, r"bandwidth is \[1\]; give a number"),
        ({"host_bandwidth": 1e-200}, "host_bandwidth is 1e-200; give a positive number"),
        ({"host_link_shared_by": 3}, "host_link_shared_by is 3; a link to the host serves 1 or 2"),
        ({"F": [[1, 2]]}, r"F\[0\] is \[1, 2\]; give a number"),
        ({"F": 10**400}, "F is 1000.*; give a finite number"),
        ({"F": 1e308, "I": 1e308}, r"F is 1e\+308; costs go to 1e\+100; use another unit"),
        ({"F": b"2"}, "F is b'2'; give a number, a list with one per stage, or a mapping"),
        ({"F": {1, 2}}, r"F is \{1, 2\}; give a number"),
        ({"F": object()}, "F is <object .*>; give a number"),
        ({"F": np.True_}, "F is True; give a number"),
        ({"F": {2: 1.5}}, r"F has no value for stage 0; .*\{default: 1, 2: 1.5\}"),
        ({"F": {"x": 1}}, "F has the key 'x'; keys are stages 0, 1, 2, … and 'default'"),
        ({"F": {True: 1}}, "F has the key True; keys are stages"),
        ({"F": {-1: 1}}, "F has the key -1; keys are stages"),
        ({"F": {0: 1, "0": 2}}, "F has the key '0'; it is there twice"),
        ({"O": {}}, r"O is \{\}; give a number, a list with one per stage, or a mapping"),
        ({"O": {(0, 1, 2): 1}}, r"O has the key \(0, 1, 2\); keys are stages of the forward"),
        ({"O": {(0, "x"): 1}}, r"O has the key \(0, 'x'\); keys are stages of the forward"),
        ({"OPT": {0: 1, 9: 1}}, "OPT has no value for rank 1"),
    ],
)
def test_bad_values_are_refused_by_name(values: dict[str, Any], message: str) -> None:
    with pytest.raises(CostError, match=message):
        Costs(**values)


@pytest.mark.parametrize(
    ("costs", "message"),
    [
        (Costs(F=[1, 2, 3]), "F has 3 values for 4 stages; give one number, or one per stage"),
        (
            Costs(F=[1, 2.5]),
            r"; if they are for all stages of a rank together, "
            r"give basis: rank \(--rank-times\); if for each of them, write 1/2.5/2.5/1",
        ),
        (Costs.per_rank(F=[1, 2, 3]), "F has 3 values for 2 ranks"),
        (Costs(F={0: 1, 1: 1}), "F has no value for stage 2; give 0..3, or one for all others"),
        (Costs(F={"default": 1, 7: 2}), "F names stage 7; stages go to 3"),
        (Costs.per_rank(F={"default": 1, 2: 2}), "F names rank 2; ranks go to 1"),
        (Costs(O={(0, 99): 9}), "O names the pair 0,99; stages go to 3"),
        (Costs(O={9: 9}), "O names stage 9; stages go to 3"),
        (Costs(O=[1, 2, 3]), "O has 3 values for 4 stages"),
        (Costs(OPT={"default": 1, 2: 1}), "OPT names rank 2; ranks go to 1"),
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


def test_values_for_some_stages_stand_over_a_default() -> None:
    assert durations(Costs(F={"default": 1, 2: 1.5}), Kind.F) == [1, 1, 1.5, 1]
    assert durations(Costs(F={"default": 1}), Kind.F) == [1, 1, 1, 1]
    assert durations(Costs(F={"3": 4, "default": 1}), Kind.F) == [1, 1, 1, 4]
    assert durations(Costs.per_rank(F={"default": 2, 1: 6}), Kind.F) == [1, 3, 3, 1]
    assert Costs(OPT={"default": 1, 0: 2}).resolve(V).optimizer.tolist() == [2, 1]
    assert Costs(F={"default": 1, 2: 1.5}).scaled(2).F == {"default": 2, 2: 3}


def test_overlapped_time_by_stage_of_the_forward() -> None:
    table = Costs(F=1, B=2, O=[2.5, 2.6, 2.7, 2.8]).resolve(V)
    assert [table.pair((0, s), (3, 3 - s)) for s in range(4)] == [2.5, 2.6, 2.7, 2.8]
    table = Costs(F=1, B=2, O={1: 2.6, "0,3": 2.9, (3, 0): 2.8}).resolve(V)
    assert table.pair((0, 1), (3, 2)) == 2.6
    assert table.pair((0, 0), (3, 3)) == 2.9
    assert table.pair((0, 3), (3, 0)) == 2.8
    assert table.pair((0, 0), (3, 2)) == table.pair((0, 2), (3, 1)) == 3  # the sum of their parts
    table = Costs(F=1, B=2, O={"default": 2.5, 1: 2.6, (1, 2): 2.7}).resolve(V)
    assert [table.pair((0, s), (3, 2)) for s in range(4)] == [2.5, 2.7, 2.5, 2.5]
    assert table.pair((0, 1), (3, 3)) == 2.6


def test_overlapped_time_of_ranks_follows_the_placement() -> None:
    table = Costs.per_rank(F=2, B=4, O=[5, 5.5]).resolve(V)
    assert [table.pair((0, s), (3, 3 - s)) for s in range(4)] == [2.5, 2.75, 2.75, 2.5]
    # Stages of a second copy run the other way round.
    both = Costs.per_rank(F=2, B=4, O=[5, 5.5]).resolve(Placement.bidirectional(2))
    assert [both.pair((0, place), (3, place)) for place in range(4)] == [5, 5.5, 5.5, 5]


def test_overlapped_times_per_stage_decide_the_makespan() -> None:
    import debubble as db

    schedule = db.make("1f1b-overlap", ranks=4, microbatches=8)
    by_stage = Costs(F=1, B=2, O=[2.5, 2.6, 2.7, 2.8])
    by_pair = Costs(F=1, B=2, O={(0, 0): 2.5, (1, 1): 2.6, (2, 2): 2.7, (3, 3): 2.8})
    assert db.simulate(schedule, by_stage).makespan == pytest.approx(31.6)
    assert db.simulate(schedule, by_pair).makespan == pytest.approx(31.6)


class Rude:
    def __float__(self) -> float:
        raise RuntimeError("no")


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.binary()
    | st.just(10**400) | st.builds(Rude) | st.sampled_from([np.float32(2), np.array([1, 2.0])]),
    lambda inner: st.lists(inner, max_size=4)
    | st.tuples(inner, inner)
    | st.dictionaries(
        st.integers(-1, 4) | st.sampled_from(["default", "0", "0,3", "F", (0, 3), True, 1.5]),
        inner, max_size=5,
    ),
    max_leaves=9,
)  # fmt: skip


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from([*COST_FIELDS, "basis", "chunks"]), ANYTHING, max_size=4))
def test_anything_is_refused_or_simulates_to_numbers(
    values: dict[str, Any],
) -> None:
    import debubble as db

    schedule = db.make("dualpipe-v", ranks=2, microbatches=4, iterations=1)
    with suppress(CostError):
        timeline = db.simulate(schedule, Costs(**values))
        assert math.isfinite(timeline.makespan)
        assert np.isfinite(timeline.peak_activation).all()


def test_in_pytorchs_runtime_stage_0_does_its_backward_in_w() -> None:
    placement = Placement.loop(2, 2)
    plain = Costs(F=1, I=[2, 3, 4, 5], W=1, kept_for_weight=0.25, embedding={"F": 1, "B": 3})
    theirs = replace(plain, runtime="torch").resolve(placement)
    ours = plain.resolve(placement)
    first = [(Kind.I, 0.0), (Kind.W, 3.0 + 3.0), (Kind.B, 6.0), (Kind.F, 2.0)]
    for kind, time in first:
        assert theirs.duration[kind, 0] == time
    assert np.array_equal(theirs.duration[:, 1:], ours.duration[:, 1:])
    assert theirs.kept.tolist() == theirs.activation.tolist() == [0.5] * 4
    assert ours.kept.tolist() == [0.125] * 4
    assert not replace(plain, embedding=None, I=2, runtime="torch").uniform
    with pytest.raises(CostError, match="runtime is 'cuda'; use 'any' or 'torch' or 'debubble'"):
        Costs(runtime="cuda")


def test_costs_measured_in_pytorchs_runtime_stay_as_they_are() -> None:
    placement = Placement.linear(3)
    measured = Costs(F=1, I=[0, 1, 1], W=[2, 1, 1], runtime="torch")
    plain = replace(measured, runtime="any")
    assert np.array_equal(measured.resolve(placement).duration, plain.resolve(placement).duration)


def test_the_former_name_of_launch_works_on_and_warns() -> None:
    wanted = Costs(F=1, launch=0.5)
    with pytest.warns(DebubbleDeprecationWarning, match="overhead= is .*; use launch=$") as caught:
        assert Costs(F=1, overhead=0.5) == wanted  # type: ignore[call-arg]
    assert caught[0].filename == __file__
    with pytest.warns(DebubbleDeprecationWarning, match="use launch="):
        assert replace(Costs(F=1), overhead=0.5) == wanted  # type: ignore[call-arg]
    with pytest.warns(DebubbleDeprecationWarning, match="use launch=") as caught:
        assert Costs.per_rank(F=1, overhead=0.5) == Costs.per_rank(F=1, launch=0.5)
    assert caught[0].filename == __file__
    with pytest.warns(DebubbleDeprecationWarning, match="use Costs.launch"):
        assert wanted.overhead == 0.5
    with pytest.warns(DebubbleDeprecationWarning), pytest.raises(CostError, match="give it once"):
        Costs(F=1, overhead=0.5, launch=0.25)  # type: ignore[call-arg]


def test_launch_is_paid_once_by_every_action() -> None:
    plain, started = Costs(F=1, I=2, W=3, B=4), Costs(F=1, I=2, W=3, B=4, launch=0.5)
    table = started.resolve(V)
    more = table.duration - plain.resolve(V).duration
    timed = [Kind.F, Kind.I, Kind.W, Kind.B, Kind.R, Kind.S, Kind.T]
    assert np.all(more[timed] == 0.5)
    assert more.sum() == 0.5 * more[timed].size
    assert table.pair((Kind.F, 0), (Kind.B, 1)) == 1 + 4 + 2 * 0.5


@pytest.mark.parametrize(
    ("given", "time"),
    [({"overlap_factor": 0.8}, 0.8 * 5 + 1), ({"O": 3}, 3 + 1), ({"O": {(0, 1): 3.5}}, 3.5 + 1)],
)
def test_both_halves_of_a_pair_have_launch(given: Any, time: float) -> None:
    table = Costs(F=1, B=4, launch=0.5, **given).resolve(V)
    assert table.pair((Kind.F, 0), (Kind.B, 1)) == pytest.approx(time)


def test_launch_is_not_divided_by_chunks_or_slices() -> None:
    costs = Costs.per_rank(F=4, I=4, W=4, launch=0.5)
    assert costs.resolve(V).duration[Kind.F, 0] == 4 / V.chunks + 0.5
    halves = Costs(F=4, launch=0.5).table(
        debubble.make("terapipe", ranks=2, microbatches=1, slices=2)
    )
    assert halves.duration[Kind.F].tolist() == [2.5] * 4


def test_launch_changes_which_schedule_is_faster() -> None:
    sizes = {"ranks": 4, "microbatches": 16}
    for launch, faster in ((0.0, "zb-h1"), (0.5, "1f1b")):
        costs = Costs(launch=launch)
        rows = debubble.compare(["1f1b", "zb-h1"], costs=costs, **sizes).rows
        assert min(rows, key=lambda row: row.makespan).name == faster
