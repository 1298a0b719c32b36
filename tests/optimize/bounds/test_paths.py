"""Lower bounds are bounds, in every mode of transfers, and tight where they should be."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import debubble as db
from debubble.core.actions import Kind
from debubble.core.cost_table import CostTable
from debubble.engine.graph import P2P_MODES
from debubble.optimize.bounds.paths import longest_paths, lower_bound, one_rank, prove
from debubble.optimize.cp_sat.model import ExactModel
from debubble.optimize.problem import Problem
from debubble.optimize.programs.backward import relaxed
from debubble.optimize.programs.list_scheduling import list_programs
from tests.optimize.problems import fastest, problem

TIMES = st.integers(0, 8).map(lambda n: n / 2)


@pytest.mark.slow
@settings(max_examples=12)
@given(st.data())
def test_never_above_the_fastest_of_all_orders(data: st.DataObject) -> None:
    per_stage = st.lists(TIMES, min_size=2, max_size=2)
    asked = problem(
        2, 2, data.draw(st.sampled_from([1, 1.5, 2])), chunks=1,
        F=data.draw(per_stage), I=data.draw(per_stage), W=data.draw(per_stage),
        p2p=data.draw(TIMES), kept_for_weight=data.draw(st.sampled_from([0.0, 0.5, 1.0])),
    )  # fmt: skip
    best = fastest(asked)
    assert lower_bound(asked) <= best + 1e-9
    model = ExactModel(asked, list_programs(asked, ()), lower_bound(asked))
    solution = model.solve(20, 20, 1, 0)
    assert solution.proven
    assert solution.programs is not None
    assert solution.bound == pytest.approx(best)
    assert asked.timeline(asked.schedule(solution.programs)).makespan == pytest.approx(best)


@pytest.mark.slow
@settings(max_examples=8)
@given(st.data())
def test_fused_backwards_relax_to_a_bound(data: st.DataObject) -> None:
    asked = problem(
        2, 2, 2, chunks=1, backward="free", F=data.draw(TIMES), I=data.draw(TIMES),
        W=data.draw(TIMES), B=data.draw(TIMES),
    )  # fmt: skip
    fused, split = (replace(asked, backward=how) for how in ("fused", "split"))
    assert lower_bound(relaxed(asked)) <= min(fastest(fused), fastest(split)) + 1e-9


@pytest.mark.slow
@settings(max_examples=20)
@given(st.data())
def test_never_above_what_list_scheduling_finds(data: st.DataObject) -> None:
    p, v, m = (data.draw(st.integers(1, most)) for most in (4, 3, 9))
    per_stage = st.lists(TIMES, min_size=p * v, max_size=p * v)
    asked = problem(
        p, m, data.draw(st.floats(1, p + 1)), chunks=v, F=data.draw(per_stage),
        I=data.draw(per_stage), W=data.draw(per_stage), p2p=data.draw(TIMES),
    )  # fmt: skip
    order = asked.schedule(list_programs(asked, ()))
    assert lower_bound(asked) <= asked.timeline(order).makespan + 1e-9


SHAPES = ((2, 1, 2), (2, 1, 3), (2, 2, 1), (2, 2, 2), (3, 1, 2), (3, 2, 1))
"""Ranks, chunks and microbatches of problems with few orders."""


def fastest_of_few(asked: Problem) -> float:
    """The fastest of all orders, or where they are many of those in turn."""
    return fastest(asked, in_turn=asked.stages * asked.microbatches > 4)


@st.composite
def with_transfers(draw: st.DrawFn, mode: str) -> Problem:
    """A tiny problem whose transfers may take longer than its actions, fused where it has many."""
    p, v, m = draw(st.sampled_from(SHAPES))
    backward = draw(st.sampled_from(["split", "fused"])) if p * v * m == 4 else "fused"
    shape = draw(st.sampled_from([db.Placement.wave, db.Placement.loop]))
    per_stage = st.lists(TIMES, min_size=p * v, max_size=p * v)
    links = st.lists(st.lists(TIMES, min_size=p, max_size=p), min_size=p, max_size=p)
    asked = problem(
        p, m, draw(st.sampled_from([1, 1.5, 3])), mode=mode, backward=backward,
        placement=shape(p, v), F=draw(per_stage), I=draw(per_stage), W=draw(per_stage),
        R=draw(per_stage), p2p=draw(links | st.sampled_from([1, 2, 4, 8])),
    )  # fmt: skip
    chosen = draw(st.just([]) | st.lists(st.booleans(), min_size=p * v, max_size=p * v))
    return replace(asked, recompute=tuple(chosen) if any(chosen) else ())


@pytest.mark.slow
@pytest.mark.parametrize("mode", P2P_MODES)
@settings(max_examples=8)
@given(data=st.data())
def test_never_above_the_fastest_in_any_mode(mode: str, data: st.DataObject) -> None:
    asked = data.draw(with_transfers(mode))
    best, bound = fastest_of_few(asked), lower_bound(asked)
    assert lower_bound(replace(asked, mode="overlapped")) - 1e-9 <= bound <= best + 1e-9
    solution = ExactModel(asked, list_programs(asked, ()), bound).solve(20, 20, 1, 0)
    assert solution.proven
    assert solution.bound <= best + 1e-9
    free = replace(asked, backward="free", table=split_in_halves(asked))
    assert lower_bound(relaxed(free)) <= best + 1e-9


def split_in_halves(asked: Problem) -> CostTable:
    """Times with which a fused backward takes as long as the problem's."""
    duration = asked.table.duration.copy()
    if asked.fused:
        duration[Kind.I] = duration[Kind.W] = duration[Kind.B] * 0.75
    return replace(asked.table, duration=duration)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        # The second rank runs three F and I, then the last result goes back.
        ("overlapped", 1 + 4 + 3 * (1 + 1) + 4 + 1 + 1),
        # All transfers up, the work of the last microbatch, and its transfer down.
        ("channel", 1 + 3 * 4 + 1 + 1 + 4 + 1 + 1),
        # The second rank waits for a transfer, then works and sends what it has.
        ("blocking", 1 + 4 + 3 * (3 + 4)),
        # One queue for both directions.
        ("pair", 1 + 6 * 4 + 1 + 1),
        ("group", 1 + 6 * 4 + 1 + 1),
    ],
)
def test_slow_links(mode: str, expected: float) -> None:
    asked = problem(2, 3, 3, chunks=1, mode=mode, F=1, I=1, W=1, p2p=4)
    assert lower_bound(asked) == expected
    assert expected <= fastest_of_few(asked)


def test_a_queue_of_a_rank_holds_both_neighbours() -> None:
    # Rank 1 of three sends and receives four times per microbatch.
    asked = problem(3, 4, 4, chunks=1, mode="group", F=1, I=1, W=1, p2p=5)
    assert lower_bound(asked) == 1 + 4 * 4 * 5 + 1 + 1


def test_ranks_that_send_compute_nothing() -> None:
    # The rank in the middle sends twice per microbatch, and waits for its first and last.
    p2p, m = 3.0, 8
    asked = problem(3, m, 8, chunks=1, mode="blocking", backward="fused", F=2, B=4, p2p=p2p)
    bound = lower_bound(asked)
    assert bound == (2 + p2p) + m * (2 + 4 + 2 * p2p) + 4
    order = db.simulate(db.make("1f1b", ranks=3, microbatches=m), asked.table.costs, "blocking")
    assert bound <= order.makespan


@pytest.mark.slow
@pytest.mark.parametrize("mode", P2P_MODES)
@settings(max_examples=6)
@given(data=st.data())
def test_what_is_called_optimal_is(mode: Any, data: st.DataObject) -> None:
    asked = data.draw(with_transfers(mode))
    result = db.optimize(
        ranks=asked.ranks, microbatches=asked.microbatches, memory=asked.limits.tolist(),
        placement=asked.placement, backward=asked.backward, p2p_mode=mode,
        costs=asked.table.costs, cache=False, published=False, effort=0.02, workers=1,
        recompute=np.flatnonzero(asked.recomputed).tolist() or "none",
    )  # fmt: skip
    best = fastest_of_few(asked)
    assert result.lower_bound <= best + 1e-9
    if result.status == "optimal":
        assert result.makespan == pytest.approx(best)


def test_fill_and_drain() -> None:
    # One stage per rank: the last rank waits for p − 1 forwards, then works without a pause.
    assert lower_bound(problem(4, 8, 8, chunks=1)) == 3 + 8 * 3


def test_p2p_is_paid_on_the_way() -> None:
    assert lower_bound(problem(4, 1, 4, chunks=1, p2p=0.5)) == 4 + 4 + 1 + 6 * 0.5


def test_memory_limits_throughput() -> None:
    # One microbatch at a time on one rank of four: its round trip is all there is.
    alone = lower_bound(problem(4, 1, 4, chunks=1))
    assert lower_bound(problem(4, 8, [1, 4, 4, 4], chunks=1)) == 8 * alone
    assert lower_bound(problem(4, 8, 4, chunks=1)) < 4 * alone


def test_one_rank_runs_by_the_largest_tail() -> None:
    heads, times, tails = np.array([0.0, 1.0]), np.array([4.0, 1.0]), np.array([0.0, 9.0])
    assert one_rank(heads, times, tails) == 1 + 1 + 9
    assert one_rank(heads, times, tails[::-1]) == 4 + 9


def test_heads_and_tails_of_a_lone_microbatch() -> None:
    heads, tails, *_ = longest_paths(problem(2, 1, 2, chunks=1, F=1, I=2, W=3))
    assert heads[:, :, 0].tolist() == [[0, 1], [4, 2], [6, 4]]
    assert tails[:, :, 0].tolist() == [[8, 7], [3, 5], [0, 0]]


def test_stages_that_store_nothing_have_room_for_all_microbatches() -> None:
    from debubble.optimize.bounds.paths import memory_arcs

    asked = problem(2, 8, 8e10, activation=[0.0, 1e9, 1e9, 1e9])
    assert memory_arcs(asked).later[0] == 9


@pytest.mark.parametrize("mode", ["overlapped", "blocking"])
def test_reasons_add_up_to_their_bound(mode: str) -> None:
    asked = problem(4, 8, 4, chunks=1, F=1, I=1, W=1, p2p=0.0 if mode == "overlapped" else 0.1,
                    mode=mode)  # fmt: skip
    proof = prove(asked)
    parts = re.findall(r"(?:before|has|and|waits) ([\d.]+)", proof.why)
    assert sum(map(float, parts)) == pytest.approx(proof.bound), proof.why


def test_of_equal_bounds_the_one_without_waits_is_the_reason() -> None:
    assert prove(problem(4, 8, 4, chunks=1, F=1, I=1, W=1)).why == (
        "rank 3 cannot begin before 3, and has 24 to do, one after the other"
    )
