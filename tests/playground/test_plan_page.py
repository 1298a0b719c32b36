"""The tab of plans in a real browser, and the search for a faster order."""

from __future__ import annotations

from importlib import resources

import pytest

HOST = "document.querySelector('debubble-timeline')"
PLAN = "#plan debubble-timeline"
SMALL = "#plan&model=llama-3.2-1b&gpus=4&batch=8&sequence=2048&tp=1&pp=2&schedule=1f1b&zero=1"
"""A link to plans of a small model on four GPUs."""


@pytest.fixture
def page(visit, server):
    return visit(server)


@pytest.fixture
def planned(visit, server):
    """What opens the answer to a link."""

    def call(link=SMALL, **options):
        page = visit(f"{server}{link}", wait="#plan [aria-label='Frameworks']", **options)
        page.wait_for_selector(f"{PLAN}[ready]")
        return page

    return call


def fill(page, **values):
    for name, value in values.items():
        page.fill(f"#plan-{name}", str(value))


def texts(page, selector):
    return page.locator(selector).all_inner_texts()


def test_the_tab_begins_with_an_example(page):
    assert not any("/plan.js" in address for address in page.requests)
    page.click("#plan-tab")
    # The whole answer is there without a search, with the button in view.
    page.wait_for_selector(f"{PLAN}[ready]")
    assert not any(address.endswith("/api/plan") for address in page.requests)
    assert page.inner_text("#plan .status").startswith("An example, planned in advance.")
    question = page.inner_text(".question")
    assert question.startswith("llama-3.1-8b (8.03 B parameters) on 64 × h100, 512 sequences")
    assert not page.locator("#bench").is_visible()
    assert texts(page, "#plan .tile h3")[:3] == ["Step time", "Tokens per second", "MFU"]
    assert page.locator("#undo").is_disabled()
    assert page.evaluate("document.querySelector('.go').getBoundingClientRect().bottom") < 500
    assert page.locator(".field:visible").count() == 5
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.querySelector('.go').getBoundingClientRect().bottom") < 500
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    # Another question takes its place.
    page.select_option("#plan-model", "llama-3.2-1b")
    page.click(".go")
    page.wait_for_function(
        "() => document.querySelector('.question')?.innerText.startsWith('llama-3.2-1b')"
    )
    page.get_by_role("button", name="Stop, keep the best").click()
    page.wait_for_selector(f"{PLAN}[ready]")
    assert "llama-3.2-1b (1.236 B parameters) on 64" in page.inner_text(".question")
    # Undo brings the question before back, with its answer.
    page.click("#undo")
    assert page.inner_text(".question") == question
    assert page.input_value("#plan-model") == "llama-3.1-8b"
    page.keyboard.press("Control+Shift+Z")
    assert page.inner_text(".question").startswith("llama-3.2-1b")
    page.get_by_role("button", name="Example").click()
    page.wait_for_selector("#plan .status[data-how=note]")
    assert page.inner_text(".question") == question


def test_any_plan_is_looked_at_and_opened_elsewhere(planned):
    page = planned()
    rows = page.locator("tr[data-plan]")
    assert "recommended" in rows.first.inner_text()
    assert page.inner_text(".plan-panel h2").lower() == "where the time goes"
    assert page.locator(".memory-bars .bar").count() == 2
    first = page.inner_text("#plan .tile .value")
    # A click on a dot picks its plan, and says why it is not the recommended one.
    page.locator("g[data-plan='1'] circle").last.hover(force=True)
    assert page.locator(".plan-tip").is_visible()
    page.locator("g[data-plan='1'] circle").last.click(force=True)
    assert page.inner_text(".plan-panel h2").lower() == "why not this one"
    assert " slower than the recommended plan" in page.inner_text(".plan-panel")
    assert page.get_attribute("tr[data-plan='1']", "class") == "marked"
    assert page.inner_text("#plan .tile .value") != first
    # So does a key on its row; and there is a way back.
    rows.nth(2).locator("button").press("Enter")
    assert page.get_attribute("g[data-plan='2']", "aria-pressed") == "true"
    page.get_by_role("button", name="Back to the recommended plan").click()
    assert page.inner_text("#plan .tile .value") == first
    # Flags, as they are and as a file.
    assert "--pipeline-model-parallel-size 2" in page.inner_text(".flags pre")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download plan.sh").click()
    assert "--pipeline-model-parallel-size 2" in download.value.path().read_text()
    page.get_by_role("tab", name="torchtitan").click()
    assert "tied embeddings with pp 2" in page.inner_text(".flags pre")
    # Its schedule, sizes and costs go to the other tab.
    page.get_by_role("button", name="Open its timeline in Schedules").click()
    page.wait_for_function(f"() => {HOST}.data?.runs.length === 1")
    assert page.evaluate(f"{HOST}.data.runs[0].name") == "1f1b"
    assert page.input_value("#ranks") == "2"
    assert "plan.yaml" in page.inner_text("#costs")


def test_a_link_brings_the_question_and_its_answer(planned):
    page = planned()
    assert page.input_value("#plan-model") == "llama-3.2-1b"
    assert page.input_value("#plan-pp") == "2"
    # Options that are in the link are not folded.
    assert page.locator("#plan-pp").is_visible()
    # The other tab begins as ever.
    page.click("#schedules-tab")
    page.wait_for_function(f"() => {HOST}.data?.runs.length === 4")
    assert "#plan" not in page.url


def test_what_is_wrong_is_said_beside_the_form(planned):
    page = planned()
    fill(page, gpus=0)
    page.click(".go")
    page.wait_for_selector(".status[data-how=bad]")
    assert "gpus is 0" in page.inner_text("#plan .status")
    assert page.locator("[data-field=plan-gpus].wrong").count() == 1
    fill(page, gpus=4)
    offered = page.locator("#plan-recomputes option")
    assert [offered.nth(k).get_attribute("value") for k in range(4)] == [
        "none", "selective", "full", "full:1",
    ]  # fmt: skip
    fill(page, recompute="full:x")
    page.click(".go")
    page.wait_for_selector("[data-field=plan-recompute].wrong")
    assert "give a number of layers, such as full:1" in page.inner_text("#plan .status")
    fill(page, recompute="full:3")
    # A model of one's own, pasted.
    page.select_option("#plan-model", label="from a config.json")
    folder = resources.files("debubble.planner.model") / "shipped"
    text = (folder / "llama-3.2-1b.json").read_text(encoding="utf-8")
    page.fill("#plan textarea", text)
    page.click(".go")
    page.wait_for_function(
        "() => document.querySelector('.plan-title')?.innerText.includes('recompute full:3')"
    )
    assert page.inner_text(".question").startswith("the model (1.236 B parameters)")
    # Nothing fits.
    fill(page, memory="2GB")
    page.click(".go")
    page.wait_for_selector(".alert")
    assert "no plan fits into 2.0 GB" in page.inner_text(".alert")


def test_a_measured_step_calibrates_and_why_not_is_answered(planned):
    page = planned(f"{SMALL}&framework=megatron&why=pp=4")
    (answer,) = texts(page, ".plan-pair li >> text=/^pp=4/")
    assert " slower" in answer
    fill(page, cp=1, microbatch_size=1, why="")
    fill(page, recompute="none")
    page.fill("#plan-measured", "iteration 9 | elapsed time per iteration (ms): 200.0 |")
    page.click(".go")
    page.wait_for_function(
        "() => document.querySelector('.plan-panel')?.innerText.includes(', measured;')"
    )
    # A log of a plan that is not said, and conditions that are none.
    fill(page, microbatch_size="")
    page.click(".go")
    page.wait_for_selector(".status[data-how=bad]")
    assert "says seconds, not how they came about" in page.inner_text("#plan .status")
    assert page.locator("[data-field=plan-measured].wrong").count() == 1
    page.set_input_files("#plan [data-field=plan-measured] input[type=file]", files=[{
        "name": "steps.yaml", "mimeType": "text/plain",
        "buffer": b"steps: [{pp: 2, microbatch_size: 1, seconds: 0.2}]",
    }])  # fmt: skip
    fill(page, why="x=3")
    page.click(".go")
    page.wait_for_selector(".status[data-how=bad] >> text=give a key and a value")


def test_an_optimal_schedule_is_named_and_nothing_is_added(page):
    page.fill("#memory", "4")
    page.wait_for_function(f"() => {HOST}.data.limit === 4")
    page.click("#faster")
    page.wait_for_selector("#faster-note >> text=zb-v is already optimal (25.5, proven)")
    page.get_by_role("button", name="Find a faster schedule").wait_for()
    assert page.evaluate(f"{HOST}.data.runs.length") == 4


def test_a_faster_schedule_is_found_and_compared(visit, server):
    # Large enough not to be proven at once, with less memory than 1f1b needs.
    page = visit(f"{server}#s=1f1b&ranks=8&microbatches=40&p2p=0.3&memory=6")
    page.wait_for_function(f"() => {HOST}.data.limit === 6")
    page.click("#faster")
    page.wait_for_function(
        "() => document.querySelector('#faster-note').innerText.includes(' by ')"
    )
    page.click("#faster")
    page.wait_for_function(f"() => {HOST}.data.runs.some(run => run.name === 'optimized')")
    assert page.inner_text("#faster-note").startswith("optimized: ")
    # A search is a change like others, which can be undone.
    page.click("#undo")
    page.wait_for_function(f"() => {HOST}.data.runs.length === 1")
    assert page.inner_text("#faster-note") == ""
    page.fill("#iterations", "2")
    page.click("#faster")
    page.wait_for_selector("#faster-note.problem")
    assert "leave iterations empty" in page.inner_text("#faster-note")
