"""Lower bounds are bounds, and tight where they should be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from debubble.optimize.backward import relaxed
from debubble.optimize.bounds import heads_and_tails, lower_bound, one_rank
from debubble.optimize.exact import Model
from debubble.optimize.portfolio import listed
from tests.optimize.problems import fastest, problem

TIMES = st.integers(0, 8).map(lambda n: n / 2)


@settings(max_examples=25)
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
    model = Model(asked, listed(asked, ()), lower_bound(asked))
    solution = model.solve(20, 20, 1, 0)
    assert solution.proven
    assert solution.programs is not None
    assert solution.bound == pytest.approx(best)
    assert asked.timeline(asked.schedule(solution.programs)).makespan == pytest.approx(best)


@settings(max_examples=15)
@given(st.data())
def test_fused_backwards_relax_to_a_bound(data: st.DataObject) -> None:
    asked = problem(
        2, 2, 2, chunks=1, backward="free", F=data.draw(TIMES), I=data.draw(TIMES),
        W=data.draw(TIMES), B=data.draw(TIMES),
    )  # fmt: skip
    fused, split = (replace(asked, backward=how) for how in ("fused", "split"))
    assert lower_bound(relaxed(asked)) <= min(fastest(fused), fastest(split)) + 1e-9


@settings(max_examples=20)
@given(st.data())
def test_never_above_what_list_scheduling_finds(data: st.DataObject) -> None:
    p, v, m = (data.draw(st.integers(1, most)) for most in (4, 3, 9))
    per_stage = st.lists(TIMES, min_size=p * v, max_size=p * v)
    asked = problem(
        p, m, data.draw(st.floats(1, p + 1)), chunks=v, F=data.draw(per_stage),
        I=data.draw(per_stage), W=data.draw(per_stage), p2p=data.draw(TIMES),
    )  # fmt: skip
    order = asked.schedule(listed(asked, ()))
    assert lower_bound(asked) <= asked.timeline(order).makespan + 1e-9


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
    heads, tails = heads_and_tails(problem(2, 1, 2, chunks=1, F=1, I=2, W=3))
    assert heads[:, :, 0].tolist() == [[0, 1], [4, 2], [6, 4]]
    assert tails[:, :, 0].tolist() == [[8, 7], [3, 5], [0, 0]]
