"""The page of a plan in a real browser: its numbers, chart, bars and flags."""

from __future__ import annotations

import pytest

from debubble.core.units import rough_percent
from debubble.planner.answer.explain import PARTS
from debubble.planner.answer.plan import plan_for
from debubble.planner.answer.report import compared, faster, leaner
from debubble.planner.answer.words import gigabytes, seconds, seconds_range, three_digits
from debubble.view.page import asset
from debubble.view.plan_page import plan_page, plan_view, plans_of

ASKED = {
    "model": "llama-3.2-1b", "gpu": "h100", "gpus": 4, "batch": 16, "seq": 8192, "tp": 1, "cp": 1,
    "framework": "megatron", "memory": 30e9, "top": 3, "why": ["zero=1"],
}  # fmt: skip


@pytest.fixture(scope="module")
def plan():
    return plan_for(ASKED)


@pytest.fixture(scope="module")
def address(plan, tmp_path_factory):
    path = tmp_path_factory.mktemp("pages") / "plan.html"
    path.write_text(plan_page(plan), encoding="utf-8")
    return path.as_uri()


def texts(page, selector):
    return page.locator(selector).all_inner_texts()


def test_the_page_shows_what_the_terminal_says(visit, plan, address):
    page = visit(address)
    best = plan.best
    step, tokens, mfu, memory = texts(page, ".tile")
    assert " ".join(step.split()[2:4]) == seconds(plan.step_seconds)
    assert f"9 of 10 steps take {seconds_range(plan.step_range)}" in step
    assert three_digits(best.speed.tokens_per_second) in tokens
    assert rough_percent(best.speed.mfu["causal"]) in " ".join(mfu.split())
    assert f"{gigabytes(max(best.peaks))[:-3]} of 30.0 GB" in " ".join(memory.split())
    rows = [row.split("\t") for row in texts(page, "tr[data-plan]")]
    plans = plans_of(plan.found)
    assert [row[1] for row in rows] == [seconds(one.step_time) for one in plans]
    assert [row[2] for row in rows] == [compared(plan.found, one) for one in plans]
    assert texts(page, "tr.group") == ["slower, with less memory", "would need more memory"]
    assert any(text.startswith("zero=1: ") for text in texts(page, ".plan-pair li"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_chart_and_the_bars_are_to_scale(visit, plan, address, scheme):
    page = visit(address, color_scheme=scheme)
    dots = page.evaluate("""() => [...document.querySelectorAll("g.dot")].map((dot) => {
        const circle = dot.lastElementChild;
        return [Number(dot.dataset.plan), Number(circle.getAttribute("cx")),
                Number(circle.getAttribute("cy"))];
    })""")
    plans = plans_of(plan.found)
    assert len(dots) == len(plans) == 3 + len(leaner(plan.found)) + len(faster(plan.found))
    where = {number: (x, y) for number, x, y in dots}
    by_time = sorted(where, key=lambda number: -where[number][1])
    assert by_time == sorted(where, key=lambda number: plans[number].step_time)
    by_memory = sorted(where, key=lambda number: where[number][0])
    peaks = [max(plans[number].peaks) for number in by_memory]
    assert peaks == sorted(peaks)
    # The parts of a rank's bar are in the ratio of their bytes.
    widths = page.evaluate("""() => Object.fromEntries(
        [...document.querySelector(".memory-bars .bar").querySelectorAll("i")].map(
            (part) => [part.className, part.getBoundingClientRect().width]))""")
    rank = plan.memory[0]
    largest = max(PARTS, key=lambda part: getattr(rank, part))
    one = widths[f"part-{largest}"] / getattr(rank, largest)  # rounded least
    for part in PARTS:
        if f"part-{part}" in widths:
            assert widths[f"part-{part}"] == pytest.approx(one * getattr(rank, part), abs=0.1)


def test_texts_of_numbers_are_the_same_in_both_languages(visit, address):
    page = visit(address)
    numbers = [15, 0.0431, 6.2e-5, 1234.5, 0.99996, 0.6149, 99.96, 683118.0]
    words = asset("plan/plan_words.js").replace("export ", "")
    found = page.evaluate(
        f"""(numbers) => {{ {words}
        return numbers.map((one) => [digits(one), seconds(one), roughPercent(one)]); }}""",
        numbers,
    )
    assert found == [[three_digits(one), seconds(one), rough_percent(one)] for one in numbers]


@pytest.mark.slow
def test_readers_without_scripts_have_the_text(plan):
    text = plan_page(plan)
    noscript = text.partition("<noscript>")[2].partition("</noscript>")[0]
    assert seconds_range(plan.step_range) in noscript
    assert "── memory by rank" in noscript


@pytest.mark.slow
def test_long_answers_have_fewer_timelines(plan, monkeypatch):
    monkeypatch.setattr("debubble.view.plan_page.MOST_ACTIONS", 0)
    assert not any(one["timeline"] for one in plan_view(plan)["plans"])
