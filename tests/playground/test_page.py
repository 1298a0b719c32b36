"""The playground in a real browser: choose, move, compare, upload, download, share."""

from __future__ import annotations

import json

import pytest

import debubble as db
from debubble.interchange.chrome_trace import trace_text

HOST = "document.querySelector('debubble-timeline')"


@pytest.fixture
def page(visit, server):
    return visit(server)


def settle(page, condition):
    """Wait until the page shows what a change asked for."""
    page.wait_for_function(f"() => {condition}", timeout=20_000)


def rows(page):
    return page.locator("#numbers tbody tr td:first-child").all_inner_texts()


def runs(page):
    return page.evaluate(f"{HOST}.data.runs.map(run => [run.name, run.ranks, run.microbatches])")


def test_it_begins_with_a_comparison(page):
    settle(page, "document.querySelectorAll('#numbers tbody tr').length === 4")
    assert set(rows(page)) == {"1f1b", "interleaved-1f1b", "zb-h1", "zb-v"}
    assert len(runs(page)) == 4
    assert "fastest" in page.locator("#headline").inner_text()
    assert page.locator("#plot circle").count() == 4
    assert page.locator(".card").count() == 4
    assert "(m + p − 1)(F + B)" in page.locator(".card").first.inner_text()


def test_schedules_are_chosen_and_left_out(page):
    page.fill("#filter", "gpipe")
    page.get_by_label("gpipe").check()
    settle(page, f"{HOST}.data.runs.length === 5")
    page.get_by_label("gpipe").uncheck()
    settle(page, f"{HOST}.data.runs.length === 4")


def test_numbers_follow_the_sliders(page):
    page.locator('[data-for="microbatches"]').fill("20")
    settle(page, f"{HOST}.data.runs[0].microbatches === 20")
    assert page.input_value("#microbatches") == "20"
    page.fill("#p2p", "0")
    page.fill("#F", "2")
    costs = db.Costs.per_rank(F=2, I=1, W=1)
    makespan = db.simulate(db.make("1f1b", ranks=4, microbatches=20), costs).makespan
    settle(page, f"{HOST}.data.runs[0].makespan === {makespan}")


def test_times_may_differ_from_rank_to_rank(page):
    page.fill("#F", "1/1/1/2")
    page.fill("#p2p", "0")
    costs = db.Costs.per_rank(F=[1, 1, 1, 2], I=1, W=1)
    makespan = db.simulate(db.make("1f1b", ranks=4, microbatches=8), costs).makespan
    settle(page, f"{HOST}.data.runs[0].makespan === {makespan}")
    page.fill("#F", "1/1/1")
    settle(page, "document.querySelector('[data-field=F] .problem')")
    assert "3 values for 4 ranks" in page.locator("[data-field=F]").inner_text()


def test_a_problem_stands_beside_its_field_with_a_value_that_works(page):
    page.fill("#microbatches", "7")
    settle(page, "document.querySelector('[data-field=microbatches] .problem button')")
    text = page.locator("[data-field=microbatches] .problem").inner_text()
    assert "interleaved-1f1b needs" in text
    assert "microbatches is 7" in text
    assert "interleaved-1f1b" not in rows(page)
    page.locator("[data-field=microbatches] .problem button").click()
    settle(page, f"{HOST}.data.runs.length === 4")
    assert page.locator(".field .problem").count() == 0
    page.fill("#ranks", "")
    settle(page, "document.querySelector('[data-field=ranks] .problem')")


def test_a_memory_limit_splits_the_table(page):
    page.fill("#memory", "3")
    settle(page, f"{HOST}.data.limit === 3")
    assert "within 3 activation units" in page.locator("#headline").inner_text()
    assert page.locator("#numbers tr.over").count() >= 1
    assert "waiting for memory" in page.locator("debubble-timeline .legend").inner_text()


def test_a_link_brings_the_state_back(page, visit, server):
    page.fill("#microbatches", "12")
    page.fill("#memory", "6")
    page.get_by_role("checkbox", name="zb-v").uncheck()
    settle(page, f"{HOST}.data.runs.length === 3 && {HOST}.data.runs[0].microbatches === 12")
    page.locator("debubble-timeline").get_by_label("Critical path").check()
    page.locator("debubble-timeline [data-do=in]").click()
    settle(page, f"decodeURIComponent(location.hash).endsWith('view=' + {HOST}.state)")
    address = page.evaluate("location.href")
    state = page.evaluate(f"{HOST}.state")
    assert address.startswith(server)
    other = visit(address)
    settle(other, f"{HOST}.state === {json.dumps(state)}")
    assert runs(other) == runs(page)
    assert other.input_value("#memory") == "6"


def upload(page, name, text):
    page.set_input_files(
        "#upload", {"name": name, "mimeType": "text/plain", "buffer": text.encode()}
    )


def test_a_cost_file_is_opened_and_closed(page):
    text = "ranks: 4\nmicrobatches: 10\nbasis: rank\ntime_unit: ms\ntimes: {F: 3, I: 3, W: 2}\n"
    upload(page, "costs.yaml", text)
    settle(page, f"{HOST}.data.unit === 'ms'")
    assert page.input_value("#microbatches") == "10"
    assert page.locator("#F").is_disabled()
    page.get_by_label("Remove costs: costs.yaml").click()
    settle(page, f"{HOST}.data.unit === ''")
    assert page.locator("#F").is_enabled()


def test_schedules_and_traces_are_opened(page):
    upload(page, "mine.csv", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")
    settle(page, f"{HOST}.data.runs.some(run => run.name === 'mine.csv')")
    timeline = db.simulate(db.make("zb-h1", ranks=2, microbatches=3), db.Costs(F=1, I=2, W=0.5))
    upload(page, "real.json", "".join(trace_text(timeline)))
    settle(page, f"{HOST}.data.runs.some(run => run.name === 'real.csv')")
    makespan = page.evaluate(f"{HOST}.data.runs.find(run => run.name === 'real.csv').makespan")
    assert makespan == pytest.approx(timeline.makespan)


def test_a_file_that_cannot_be_read_says_why(page):
    upload(page, "notes.txt", "hello")
    settle(page, "document.querySelector('[data-field=file] .problem')")
    assert "notes.txt" in page.locator("[data-field=file] .problem").inner_text()


@pytest.mark.parametrize(
    ("button", "ending", "start"),
    [("CSV", ".csv", b"0F0"), ("JSON", ".json", b"{"), ("Trace", ".json", b"{"),
     ("Page", ".html", b"<!doctype")],
)  # fmt: skip
def test_files_are_downloaded(page, tmp_path, button, ending, start):
    card = page.locator(".card").first
    with page.expect_download() as begun:
        card.get_by_role("button", name=button, exact=True).click()
    path = tmp_path / begun.value.suggested_filename
    begun.value.save_as(path)
    assert path.suffix == ending
    assert path.read_bytes().startswith(start)


def test_it_asks_only_its_own_server(page, server):
    page.wait_for_timeout(300)
    assert all(url.startswith((server, "data:")) for url in page.requests)


def test_it_fits_a_phone(visit, server):
    page = visit(server, viewport={"width": 400, "height": 800}, has_touch=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_the_theme_is_switched(page):
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    page.locator("#theme").click()
    page.locator("#theme").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.evaluate(f"{HOST}.parts.root.dataset.theme") == "dark"
