"""Which microbatch takes which place, against all assignments and simulations one by one."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import debubble as db
from debubble.optimize.lengths.assign import arrange

LENGTHS = [1.0, 1.5, 0.5, 1.25, 0.75, 1.0]


def by_hand(
    schedule: db.Schedule, costs: db.Costs, lengths: list[float], memory: float | None = None
) -> float:
    """The smallest makespan over all orders of the lengths that fit."""
    best = np.inf
    for order in set(permutations(lengths)):
        timeline = db.simulate(schedule, replace(costs, microbatch=order))
        if memory is None or timeline.peak_activation.max() <= memory + 1e-9:
            best = min(best, timeline.makespan)
    return float(best)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "gpipe", "interleaved-1f1b", "dualpipe-v"])
def test_few_microbatches_are_arranged_best(name: str) -> None:
    schedule = db.make(name, ranks=3, microbatches=6)
    costs = db.Costs(F=1, I=1.25, W=0.75, p2p=0.25, attention=0.25, message=1, bandwidth=4)
    found = arrange(schedule, replace(costs, microbatch=LENGTHS))
    assert found is not None
    assert found.makespan == pytest.approx(by_hand(schedule, costs, LENGTHS))
    own = replace(costs, microbatch=[LENGTHS[i] for i in found.microbatches])
    assert db.simulate(schedule, own).makespan == pytest.approx(found.makespan)
    assert sorted(found.microbatches) == list(range(6))


def test_memory_limits_which_run_beside_each_other() -> None:
    schedule = db.make("1f1b", ranks=3, microbatches=5)
    lengths = [2.0, 2.0, 0.5, 0.5, 0.5]
    costs = db.Costs(F=1, B=2)
    free = arrange(schedule, replace(costs, microbatch=lengths))
    tight = arrange(schedule, replace(costs, microbatch=lengths), memory=4.5)
    assert free is not None
    assert tight is not None
    assert tight.makespan == by_hand(schedule, costs, lengths, 4.5) >= free.makespan
    assert arrange(schedule, replace(costs, microbatch=lengths), memory=2.5) is None


@settings(max_examples=10)
@given(st.lists(st.sampled_from([0.5, 1.0, 1.5, 2.0]), min_size=5, max_size=5))
def test_any_lengths(lengths: list[float]) -> None:
    schedule, costs = db.make("zb-h1", ranks=2, microbatches=5), db.Costs()
    found = arrange(schedule, replace(costs, microbatch=lengths))
    assert found is not None
    assert found.makespan == by_hand(schedule, costs, lengths)


@pytest.mark.slow
def test_many_microbatches_are_arranged_no_worse_than_given_and_at_random() -> None:
    rng = np.random.default_rng(0)
    schedule = db.make("1f1b", ranks=4, microbatches=12)
    lengths = rng.choice([0.5, 0.75, 1, 1.5, 2], 12).tolist()
    costs = db.Costs(F=1, B=2, microbatch=lengths)
    found = arrange(schedule, costs)
    assert found is not None
    for _ in range(200):
        other = rng.permutation(lengths).tolist()
        assert found.makespan <= db.simulate(schedule, replace(costs, microbatch=other)).makespan
    assert arrange(schedule, costs) == found


@pytest.mark.parametrize("memory", [None, 3.0])
def test_optimize_with_lengths(memory: float | None) -> None:
    lengths = [1.0, 1.5, 0.5, 1.25]
    costs = db.Costs(F=1, I=1, W=1, microbatch=lengths)
    result = db.optimize(
        ranks=2, microbatches=4, costs=costs, memory=memory, cache=False, effort=0.05
    )
    own = result.timeline.table.costs
    assert own.microbatch == tuple(lengths)
    assert db.simulate(result.schedule, costs).makespan == result.makespan
    assert result.lower_bound <= result.makespan
    assert memory is None or result.timeline.peak_activation.max() <= memory + 1e-9
    assert result.makespan <= by_hand(result.schedule, costs, lengths, memory) + 1e-9
    assert [cell for cell in result.schedule.rows()[0] if cell.startswith("0F")] == [
        f"0F{number}" for number in result.microbatches
    ]
    sequence = "/".join(f"{lengths[number]:g}" for number in result.microbatches)
    assert (
        f"in the order {' '.join(map(str, result.microbatches))}, with lengths {sequence}"
        in str(result)
    )
    data = result.to_dict()
    assert data["order_of_microbatches"] == list(result.microbatches)
    assert data["lengths"] == lengths
    assert result.published is not None
    assert result.published.rows[0].makespan == pytest.approx(result.makespan)


def test_memory_that_long_microbatches_do_not_leave_is_refused() -> None:
    costs = db.Costs(F=1, B=2, microbatch=[4, 1, 0.5, 0.5])
    with pytest.raises(db.ParameterError, match="the longest 4 times the average one; give 4 tim"):
        db.optimize(ranks=2, microbatches=4, costs=costs, memory=3, cache=False, effort=0.05)


def test_one_rank_is_proven_optimal() -> None:
    costs = db.Costs(F=1, B=2, microbatch=[1, 2, 0.5])
    result = db.optimize(ranks=1, microbatches=3, costs=costs, cache=False, effort=0.05)
    assert (result.makespan, result.lower_bound, result.status) == (10.5, 10.5, "optimal")


def test_lengths_of_one_are_no_lengths() -> None:
    same = db.optimize(ranks=2, microbatches=4, costs=db.Costs(microbatch=1), effort=0.05)
    assert same.microbatches == ()


def test_a_length_of_one_for_each_is_proven_as_without() -> None:
    asked = {"ranks": 2, "microbatches": 4, "memory": 2, "cache": False, "published": False,
             "workers": 1}  # fmt: skip
    equal = db.optimize(**asked, costs=db.Costs(F=10, I=12, W=8, microbatch=[1, 1, 1, 1]))
    plain = db.optimize(**asked, costs=db.Costs(F=10, I=12, W=8))
    assert (equal.makespan, equal.lower_bound) == (plain.makespan, plain.lower_bound)
    assert equal.status == "optimal"


def test_memory_is_not_swept_for_lengths() -> None:
    from debubble.optimize.pareto import sweep_memory

    with pytest.raises(db.ParameterError, match="memory is swept for microbatches of one length"):
        sweep_memory(ranks=2, microbatches=2, costs=db.Costs(microbatch=[1, 2]))


@pytest.mark.slow
def test_asked_to_stop_it_takes_the_best_of_those_it_has_tried() -> None:
    costs = db.Costs(F=1, B=2, microbatch=[1.0, 2.0, 0.5, 1.5, 3.0, 0.25, 0.75])
    schedule = db.make("1f1b", ranks=3, microbatches=7)
    whole, part = arrange(schedule, costs), arrange(schedule, costs, stop=lambda: True)
    assert whole is not None
    assert part is not None
    assert part.makespan >= whole.makespan
    assert part.microbatches[:2] == (0, 1)


def test_a_search_that_is_ended_has_an_assignment_that_fits() -> None:
    costs = db.Costs(F=1, B=2, microbatch=[1.0, 2.0, 0.5, 1.5, 3.0, 0.25])
    result = db.optimize(
        ranks=2, microbatches=6, costs=costs, memory=4.0, cache=False, workers=1,
        until=lambda: True,
    )  # fmt: skip
    assert result.status == "interrupted"
    assert result.timeline.peak_activation.max() <= 4.0 + 1e-9
    assert sorted(result.microbatches or ()) == list(range(6))


@pytest.mark.slow
def test_no_slower_than_published_orders_whether_these_are_asked_for_or_not() -> None:
    costs = db.Costs(F=10, I=12, W=8, microbatch=[0.5, 1, 1, 1.5, 1.5, 1, 1, 0.5])
    known = db.simulate(db.make("interleaved-zb", ranks=4, microbatches=8, costs=costs), costs)
    assert known.peak_activation.max() <= 5
    for published in (True, False):
        found = db.optimize(
            ranks=4, microbatches=8, costs=costs, memory=5, cache=False, published=published,
            effort=0.01, workers=1,
        )  # fmt: skip
        assert found.timeline.peak_activation.max() <= 5
        assert found.makespan <= known.makespan
        assert (found.published is not None) == published


FUSED: dict[str, Any] = {"cache": False, "published": False, "effort": 0.05, "workers": 1}
PLAIN = db.Costs(F=2, I=3, W=2, kept_for_weight=0.5, host_bandwidth=0.5)


@pytest.mark.parametrize("last", [1.0, 1.0001])
def test_backwards_are_fused_where_that_is_asked_for(last: float) -> None:
    costs = replace(PLAIN, microbatch=[1, 1, 1, last])
    result = db.optimize(ranks=3, chunks=1, microbatches=4, costs=costs, backward="fused", **FUSED)
    assert result.makespan == pytest.approx(42, rel=2e-4)
    assert result.status == "optimal"
    assert {cell[1] for row in result.schedule.rows() for cell in row} == {"F", "B"}


def test_backwards_are_split_where_that_is_asked_for_even_if_it_is_slower() -> None:
    costs = db.Costs(F=2, I=3, W=2, B=4, microbatch=[0.8, 1, 1.2])
    result = db.optimize(
        ranks=2, chunks=2, microbatches=3, costs=costs, backward="split", placement="wave", **FUSED
    )
    assert {cell[1] for row in result.schedule.rows() for cell in row} == {"F", "I", "W"}


@pytest.mark.slow
@pytest.mark.parametrize("backward", ["free", "fused", "split"])
def test_activations_are_offloaded_where_that_is_asked_for(backward: Any) -> None:
    costs = replace(PLAIN, microbatch=[1.2, 0.8, 1.2, 0.8])
    result = db.optimize(
        ranks=2, chunks=1, microbatches=4, costs=costs, backward=backward, offload=[0], **FUSED
    )
    assert result.offload == [0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lengths", "offload"), [([1.2, 0.8, 1.2, 0.8], "free"), ([0.7, 1, 1.3, 0.7], [0])]
)
@pytest.mark.parametrize("runtime", ["any", "torch"])
def test_memory_is_kept_while_copies_are_under_way(
    runtime: str, lengths: list[float], offload: Any
) -> None:
    costs = replace(PLAIN, runtime=runtime, microbatch=lengths)
    result = db.optimize(
        ranks=2, chunks=1, microbatches=len(lengths), costs=costs, memory=2, offload=offload,
        **FUSED | {"effort": 0.01},
    )  # fmt: skip
    assert db.simulate(result.schedule, costs).peak_activation.max() <= 2 + 1e-9


def test_a_rank_that_has_room_for_one_microbatch_is_solved() -> None:
    """The solver once pushed starts on by one unit at a time, and did not come back."""
    costs = db.Costs(F=[3, 1], I=[1, 5], W=[1, 5], B=[1, 8], p2p=0.5, microbatch=[1, 1.0001, 1.3])
    result = db.optimize(
        ranks=2, chunks=1, microbatches=3, costs=costs, memory=[1.3, 2.6], backward="fused",
        **FUSED | {"effort": 0.3},
    )  # fmt: skip
    assert result.makespan == pytest.approx(45.9013)
    assert result.status == "optimal"


def test_microbatches_that_are_all_short_need_less_memory() -> None:
    costs = db.Costs(F=5, I=4, W=3, microbatch=[0.7, 0.6])
    result = db.optimize(ranks=2, chunks=1, microbatches=2, costs=costs, memory=[1.4, 0.7], **FUSED)
    assert result.timeline.peak_activation.max() <= 1.4
    with pytest.raises(db.ParameterError, match=r"memory 0\.5 is too small"):
        db.optimize(ranks=2, chunks=1, microbatches=2, costs=costs, memory=0.5, **FUSED)
