"""What more GPUs bring, beside a search on as many."""

from __future__ import annotations

from dataclasses import replace

import pytest

from debubble.planner.answer.more_gpus import SLACK, enough_gpus, one_more_node
from debubble.planner.request import Fixed, PlanRequest, plan_request
from debubble.planner.search.best_plans import search
from debubble.planner.search.groups import groups
from tests.planner.cases import evaluate

HELD = Fixed(schedules=("1f1b",), zero=1, cp=1, microbatch_size=1)


def with_gpus(asked: PlanRequest, gpus: int) -> PlanRequest:
    return replace(asked, cluster=replace(asked.cluster, gpus=gpus))


def test_one_more_node_is_a_search_with_it() -> None:
    asked = plan_request("llama-3.1-8b", "h100", 8, 16, 4096)
    more = with_gpus(asked, 16)
    best, wanted = (
        search(one, groups(replace(one, fixed=HELD)), 1).plans[0] for one in (asked, more)
    )
    found = one_more_node(replace(best, request=replace(asked, fixed=HELD)))
    assert found is not None
    assert found.candidate.degrees.gpus == 16
    assert (1 - SLACK) * found.step_time <= wanted.step_time <= found.step_time < best.step_time


def test_a_node_is_filled_first() -> None:
    asked = plan_request("llama-3.1-8b", "h100", 4, 16, 4096)
    slow = replace(evaluate(replace(asked, fixed=HELD), _any(asked)), step_time=1e9)
    found = one_more_node(slow)
    assert found is not None
    assert found.candidate.degrees.gpus == 8


def _any(asked):  # type: ignore[no-untyped-def]
    found = groups(replace(asked, fixed=HELD))
    return next(next(found).candidates())


def test_a_node_that_no_degrees_use_buys_nothing() -> None:
    asked = plan_request("llama-3.1-8b", "h100", 8, 16, 4096)
    held = replace(HELD, tp=8, dp=1, pp=1)
    asked = replace(asked, fixed=held)
    best = search(asked, groups(asked), 1).plans[0]
    assert one_more_node(best) is None


def test_enough_gpus_fit_and_half_of_them_do_not() -> None:
    asked = plan_request("llama-3.1-70b", "h100", 8, 64, 4096)
    held = Fixed(zero=1, cp=1)
    found = enough_gpus([replace(asked, fixed=held)])
    assert found is not None
    assert found.fits
    half = with_gpus(asked, found.candidate.degrees.gpus // 2)
    small = replace(held, schedules=("1f1b",), recompute="full", microbatch_size=1)
    assert not search(half, groups(replace(half, fixed=small)), 1).plans


@pytest.mark.slow
def test_no_number_of_gpus_is_enough_for_a_sequence_that_nothing_splits() -> None:
    asked = plan_request("llama-3.1-8b", "h100", 8, 8, 10_000_000)
    assert enough_gpus([replace(asked, fixed=Fixed(cp=1, tp=8))]) is None
