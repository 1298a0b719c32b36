"""The text of an answer: a headline, one line of degrees, one table, and how sure it is."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from debubble.analysis.layout import text_table
from debubble.core.units import rough_percent
from debubble.planner.answer.explain import explanation
from debubble.planner.answer.plan import Plan, plan_for
from debubble.planner.answer.report import (
    columns,
    compared,
    faster,
    leaner,
    plan_line,
    reason,
    text,
)
from debubble.planner.answer.words import seconds, seconds_range, three_digits
from debubble.planner.search.evaluate import tied

pytestmark = pytest.mark.slow  # a search

WIDTH = 100
LINES = 24
"""Most lines of an answer without --why and warnings."""

ASKED = {
    "model": "llama-3.2-1b", "gpu": "h100", "gpus": 4, "batch": 16, "seq": 8192, "tp": 1, "cp": 1,
    "framework": "megatron", "memory": 30e9, "top": 5, "why": [],
}  # fmt: skip


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_for(ASKED)


def test_the_answer_fits_on_a_screen(plan: Plan) -> None:
    lines = text(plan.found, WIDTH).splitlines()
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= WIDTH


def test_the_first_lines_are_the_answer(plan: Plan) -> None:
    best = plan.best
    question, _, speed, memory, setup, *_ = text(plan.found, WIDTH).splitlines()
    assert question.startswith("llama-3.2-1b (1.236 B parameters) on 4 × h100")
    ends = seconds_range(plan.step_range)
    assert speed.startswith(f"{seconds(plan.step_seconds)} per step ({ends}), ")
    assert f"MFU {rough_percent(best.speed.mfu['causal'])}; for Megatron-LM" in speed
    fits = r"peak memory [\d.]+ GB of 30\.0 GB allowed: fits \(9 of 10 runs stay below "
    assert re.match(fits, memory)
    assert plan_line(best).startswith(setup.rstrip()[:40])


def test_the_recommended_plan_comes_first_in_the_table(plan: Plan) -> None:
    rows = [line for line in text(plan.found, WIDTH).splitlines() if " GB  " in line]
    assert "recommended" in rows[0]
    assert not any("recommended" in row for row in rows[1:])
    assert seconds(plan.step_seconds) in rows[0]


@pytest.mark.parametrize("width", [WIDTH, 80, 70, 60, 50])
def test_a_narrow_table_leaves_out_reasons_first_then_replicas(plan: Plan, width: int) -> None:
    heads = [line for line in text(plan.found, width).splitlines() if "  step  " in line]
    assert 1 <= len(heads) <= 2
    for head in heads:
        left = [name for name in ("compared", "dp", "because") if name in head.split()]
        assert left == ["compared", "dp", "because"][: len(left)]


def test_wide_plans_that_need_more_memory_take_no_columns_from_the_others(plan: Plan) -> None:
    shown = []
    for width in range(80, 120):
        heads = [line for line in text(plan.found, width).splitlines() if "  step  " in line]
        (alone, *_), _ = text_table(columns(plan.found, plan.found.plans), width)
        assert heads[0].split() == alone[0].split()
        shown.append(len(heads))
    assert set(shown) == {1, 2}


def test_plans_that_need_more_memory_stand_apart(plan: Plan) -> None:
    larger = faster(plan.found)
    assert larger
    said = text(plan.found, WIDTH)
    _, _, below = said.partition("faster, but would need more memory:")
    assert seconds(larger[0].step_time) in below
    assert all(one.step_time < plan.step_seconds for one in larger)
    assert [one.step_time for one in larger] == sorted(one.step_time for one in larger)
    assert reason(plan.found, larger[0]).endswith("too much")


def test_columns_say_what_differs(plan: Plan) -> None:
    head = text(plan.found, WIDTH)
    candidates = [one.candidate for one in (*plan.found.plans, *faster(plan.found))]
    for name, values in (
        ("ZeRO  ", {one.zero for one in candidates}),
        ("recompute  ", {one.recompute for one in candidates}),
        ("framework  ", {"Megatron-LM"}),
    ):
        assert (name in head) == (len(values) > 1), name


def test_leaner_plans_are_slower_and_hold_less(plan: Plan) -> None:
    found = plan.found
    peaks = [max(one.peaks) for one in (*found.plans, *leaner(found))]
    assert leaner(found)
    for one in leaner(found):
        assert one.fits
        assert one.step_time >= plan.step_seconds
        assert max(one.peaks) < min(max(other.peaks) for other in found.plans)
    assert peaks[-1] == min(peaks)


def test_ties_are_said(plan: Plan) -> None:
    found, best = plan.found, plan.best
    for other in found.plans[1:]:
        tie = tied(best, other) and abs(other.step_time / best.step_time - 1) > 5e-4
        assert compared(found, other).startswith("tie (") == tie
    slower = replace(best, step_time=best.step_time * 0.9)
    turned = replace(found, plans=[best, slower])
    assert "−10.0 %" in compared(turned, slower)
    assert "the recommended plan is simpler than" in text(turned, WIDTH)


def test_what_it_follows_from_is_explained_apart(plan: Plan) -> None:
    said, more = text(plan.found, WIDTH), explanation(plan.found, WIDTH)
    assert f"{plan.found.considered:,} considered" in more
    assert "considered" not in said
    for title in ("time by cause", "memory by rank at its peak", "efficiency", "candidates"):
        assert f"── {title} " in more
    assert max(map(len, more.splitlines())) <= WIDTH + 8  # the table of memory is as wide as it is
    assert all(f"{count:,}" in more for count in plan.found.left_out.values())


def test_an_early_end_is_said(plan: Plan) -> None:
    stopped = replace(plan.found, interrupted=True)
    assert "best so far (search stopped): " in text(stopped, WIDTH)
    assert "others may be better" in explanation(stopped, WIDTH)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0, "0"),
        (15, "15.0"),
        (6.2, "6.20"),
        (0.0431, "0.0431"),
        (99.96, "100"),
        (683118, "683,000"),
    ],
)
def test_numbers_have_three_digits(value: float, said: str) -> None:
    assert three_digits(value) == said
    assert three_digits(-value) == (f"-{said}" if value else said)
