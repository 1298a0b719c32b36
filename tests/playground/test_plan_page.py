"""The tab of plans in a real browser, and the search for a faster order."""

from __future__ import annotations

from importlib import resources

import pytest

HOST = "document.querySelector('debubble-timeline')"
PLANS = ".plan-result table"


@pytest.fixture
def page(visit, server):
    return visit(server)


def fill(page, **values):
    for name, value in values.items():
        page.fill(f"#plan-{name}", str(value))


def small(page):
    """Ask for plans of a small model on four GPUs, in a schedule that no framework has for it."""
    page.select_option("#plan-model", "llama-3.2-1b")
    page.select_option("#plan-framework", "any")
    fill(page, gpus=4, batch=8, sequence=2048, tp=1, pp=2)
    page.select_option("#plan-schedule", "zb-h1")


def test_a_plan_is_found_and_shown(page):
    assert not any("/plan.js" in address for address in page.requests)
    page.click("#plan-tab")
    page.wait_for_selector("#plan-gpus")
    assert not page.locator("#bench").is_visible()
    small(page)
    page.click(".go")
    page.wait_for_selector("#plan debubble-timeline[ready]")
    assert "llama-3.2-1b: 1.236 B parameters" in page.inner_text("#plan .status")
    assert "the fastest that fits" in page.locator(PLANS).first.inner_text()
    assert page.locator(PLANS).nth(1).locator("tbody tr").count() == 2
    assert page.evaluate("document.querySelector('.plan-front').naturalWidth") > 100
    assert "tied embeddings with pp 2" in page.inner_text(".plan-result details >> nth=1")
    # The best plan's schedule, sizes and costs go to the other tab.
    page.get_by_role("button", name="Compare its schedule with others").click()
    page.wait_for_function(f"() => {HOST}.data?.runs.length === 1")
    assert page.evaluate(f"{HOST}.data.runs[0].name") == "zb-h1"
    assert page.input_value("#ranks") == "2"
    assert "plan.yaml" in page.inner_text("#costs")


def test_a_link_brings_the_question_back(page):
    page.click("#plan-tab")
    page.wait_for_selector("#plan-gpus")
    small(page)
    assert "model=llama-3.2-1b" in page.url
    page.reload()
    page.wait_for_selector("#plan-gpus")
    assert page.input_value("#plan-model") == "llama-3.2-1b"
    assert page.input_value("#plan-pp") == "2"
    # The other tab begins as ever.
    page.click("#schedules-tab")
    page.wait_for_function(f"() => {HOST}.data?.runs.length === 4")
    assert "#plan" not in page.url


def test_a_long_search_tells_how_far_it_is_and_can_be_cancelled(page):
    page.click("#plan-tab")
    page.wait_for_selector("#plan-gpus")
    fill(page, gpus=512, batch=1024)
    page.click(".go")
    page.wait_for_function(
        "() => document.querySelector('#plan .status').innerText.includes('plans decided')"
    )
    page.get_by_role("button", name="Cancel, keep the best").click()
    page.wait_for_selector(".plan-result:not([hidden])")
    assert "Ended early" in page.inner_text(".plan-result")


def test_what_is_wrong_is_said_beside_the_form(page):
    page.click("#plan-tab")
    page.wait_for_selector("#plan-gpus")
    small(page)
    fill(page, gpus=0)
    page.click(".go")
    page.wait_for_selector(".status[data-how=bad]")
    assert "gpus is 0" in page.inner_text("#plan .status")
    assert page.locator("[data-field=plan-gpus].wrong").count() == 1
    fill(page, gpus=4)
    # A model of one's own, pasted.
    page.select_option("#plan-model", label="from a config.json")
    folder = resources.files("debubble.planner.model") / "shipped"
    text = (folder / "llama-3.2-1b.json").read_text(encoding="utf-8")
    page.fill("#plan textarea", text)
    page.click(".go")
    page.wait_for_selector(PLANS)
    assert "1.236 B parameters" in page.inner_text("#plan .status")


def test_some_layers_of_every_stage_can_be_recomputed(page):
    page.click("#plan-tab")
    page.wait_for_selector("#plan-gpus")
    small(page)
    offered = page.locator("#plan-recomputes option")
    assert [offered.nth(k).get_attribute("value") for k in range(4)] == [
        "none", "selective", "full", "full:1",
    ]  # fmt: skip
    page.fill("#plan-recompute", "full:x")
    page.click(".go")
    page.wait_for_selector(".status[data-how=bad]")
    assert "give a number of layers, such as full:1" in page.inner_text("#plan .status")
    assert page.locator("[data-field=plan-recompute].wrong").count() == 1
    page.fill("#plan-recompute", "full:3")
    page.click(".go")
    page.wait_for_selector("#plan debubble-timeline[ready]")
    assert "recompute full:3" in page.inner_text(".plan-result")


def test_a_measured_step_calibrates_and_why_not_is_answered(page):
    page.click("#plan-tab")
    page.wait_for_selector("#plan-gpus")
    small(page)
    fill(page, cp=1, microbatch_size=1, why="schedule=1f1b pp=4")
    page.select_option("#plan-zero", "1")
    page.fill("#plan-recompute", "none")
    page.fill("#plan-measured", "iteration 9 | elapsed time per iteration (ms): 200.0 |")
    page.click(".go")
    page.wait_for_selector("#plan debubble-timeline[ready]")
    text = page.inner_text(".plan-result")
    assert ", measured; 9 of 10 such steps" in text
    answers = page.locator(".plan-result .why").all_inner_texts()
    assert len(answers) == 2
    assert answers[0].startswith("schedule=1f1b: ")
    assert " slower" in answers[0]
    assert answers[1].startswith("pp=4: ")
    assert "why=schedule" in page.url
    # A log of a plan that is not said, and conditions that are none.
    fill(page, microbatch_size="")
    page.click(".go")
    page.wait_for_selector(".status[data-how=bad]")
    assert "says seconds, not how they came about" in page.inner_text("#plan .status")
    assert page.locator("[data-field=plan-measured].wrong").count() == 1
    page.set_input_files("#plan fieldset >> nth=2 >> input[type=file]", files=[{
        "name": "steps.yaml", "mimeType": "text/plain",
        "buffer": b"steps: [{pp: 2, microbatch_size: 1, seconds: 0.2}]",
    }])  # fmt: skip
    fill(page, why="")
    page.click(".go")
    page.wait_for_function(
        "() => document.querySelector('.plan-result:not(.old)')?.innerText.includes(', measured')"
    )
    fill(page, why="x=3")
    page.click(".go")
    page.wait_for_selector(".status[data-how=bad]")
    assert "give a key and a value" in page.inner_text("#plan .status")


def test_a_faster_order_is_found_and_compared(page):
    # Large enough not to be proven at once.
    page.fill("#ranks", "8")
    page.fill("#microbatches", "40")
    page.fill("#p2p", "0.3")
    page.fill("#memory", "6")
    page.wait_for_function(f"() => {HOST}.data.limit === 6")
    page.click("#faster")
    page.wait_for_function(
        "() => document.querySelector('#faster-note').innerText.includes(' by ')"
    )
    page.click("#faster")
    page.wait_for_function(f"() => {HOST}.data.runs.some(run => run.name === 'optimized')")
    assert page.inner_text("#faster-note").startswith("optimized.json: ")
    page.fill("#iterations", "2")
    page.click("#faster")
    page.wait_for_selector("#faster-note.problem")
    assert "leave iterations empty" in page.inner_text("#faster-note")
