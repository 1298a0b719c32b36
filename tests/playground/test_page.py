"""The playground in a real browser: choose, move, compare, upload, download, share."""

from __future__ import annotations

import gzip
import json
import re

import numpy as np
import pytest

import debubble as db
from debubble.interchange.trace_events import run_trace as write_run
from debubble.interchange.trace_events import trace_text

HOST = "document.querySelector('debubble-timeline')"


@pytest.fixture
def page(visit, server):
    return visit(server)


@pytest.fixture(scope="module")
def begun(kept_pages, server):
    """The page as it begins, for tests that leave it so."""
    with kept_pages.opened() as visit:
        page = visit(server)
        settle(page, "document.querySelectorAll('#numbers tbody tr').length === 4")
        settle(page, "document.querySelectorAll('.card').length === 4")
        yield page


def settle(page, condition):
    """Wait until the page shows what a change asked for."""
    page.wait_for_function(f"() => {condition}")


def rows(page):
    return page.locator("#numbers tbody tr td:first-child").all_inner_texts()


def runs(page):
    return page.evaluate(f"{HOST}.data.runs.map(run => [run.name, run.ranks, run.microbatches])")


def card(page, name):
    return page.locator(".card").filter(has=page.get_by_role("heading", name=name, exact=True))


def option(page, name):
    return page.get_by_role("option", name=re.compile(rf"^{re.escape(name)} *\d{{4}}$"))


def of(name):
    """JavaScript for the run of a schedule."""
    return f"{HOST}.data.runs.find(run => run.name === {json.dumps(name)})"


def shown(page):
    return page.evaluate("document.body.dataset.shown")


def test_it_begins_with_a_comparison(begun):
    assert set(rows(begun)) == {"1f1b", "interleaved-1f1b", "zb-h1", "zb-v"}
    assert len(runs(begun)) == 4
    assert "fastest" in begun.locator("#headline").inner_text()
    assert begun.locator("#plot circle").count() == 4
    assert begun.locator(".card").count() == 4
    assert "(m + p − 1)(F + B)" in card(begun, "1f1b").inner_text()
    # The winner is on top of the timelines, of the table and of the cards.
    assert runs(begun)[0][0] == rows(begun)[0] == begun.locator(".card h3").first.inner_text()
    assert begun.locator("#headline").inner_text().startswith(rows(begun)[0])


def test_tiles_have_the_numbers_of_a_schedule_against_the_best(begun):
    tiles = begun.locator("#tiles .tile")
    assert [re.split(r"\n+", text) for text in tiles.all_inner_texts()] == [
        ["Schedule", "zb-v", "fastest of 4"],
        ["Time", "25.5", "22.7 % less than 1f1b (33)"],
        ["Bubble", "5.9 %", "lowest; 1f1b: 27.3 %"],
        ["Peak activation memory", "4", "lowest; interleaved-1f1b: 5.5"],
    ]
    begun.locator("#numbers").get_by_role("button", name="interleaved-1f1b").click()
    assert tiles.nth(1).inner_text().splitlines()[-1] == "+11.8 % against zb-v (25.5)"
    assert tiles.nth(3).inner_text().splitlines()[-1] == "zb-v: 4"
    begun.locator("#numbers").get_by_role("button", name="interleaved-1f1b").click()
    assert "zb-v" in tiles.first.inner_text()


def test_idle_time_has_a_column_for_every_cause(begun):
    heads = begun.locator("#numbers th").all_inner_texts()
    assert heads[3:7] == ["bubble ratio", "fill", "drain", "waits for data"]
    assert "%" not in begun.locator("debubble-timeline .legend").inner_text()


def test_schedules_are_chosen_and_left_out(begun):
    begun.fill("#filter", "gpipe")
    option(begun, "gpipe").click()
    settle(begun, f"{HOST}.data.runs.length === 5")
    assert option(begun, "gpipe").get_attribute("aria-selected") == "true"
    option(begun, "gpipe").click()
    settle(begun, f"{HOST}.data.runs.length === 4")
    begun.fill("#filter", "")


def test_the_list_of_schedules_is_one_tab_stop_with_keys(begun):
    begun.focus("#filter")
    stops = []
    for _ in range(2):
        begun.keyboard.press("Tab")
        stops.append(
            begun.evaluate("document.activeElement.id || document.activeElement.ariaLabel")
        )
    assert stops == ["schedules", "ranks, slider"]
    begun.focus("#schedules")
    # Letters lead to a name, and are no keys of the timeline.
    for letter in "bp":
        begun.keyboard.press(letter)
    assert begun.inner_text("#schedules .current").startswith("bpipe")
    assert begun.evaluate(f"{HOST}.layers.bubbles")
    begun.keyboard.press("ArrowUp")
    begun.keyboard.press("Enter")
    settle(begun, f"{HOST}.data.runs.length === 5")
    name = begun.inner_text("#schedules .current span:first-of-type")
    assert name in rows(begun)
    assert begun.evaluate("document.activeElement.id") == "schedules"
    begun.keyboard.press("Enter")
    settle(begun, f"{HOST}.data.runs.length === 4")


def test_changes_are_undone_and_redone(page):
    settle(page, f"{HOST}.data.runs.length === 4")
    assert page.locator("#undo").is_disabled()
    page.locator('[data-for="microbatches"]').fill("20")
    settle(page, f"{HOST}.data.runs[0].microbatches === 20")
    option(page, "gpipe").click()
    settle(page, f"{HOST}.data.runs.length === 5")
    upload(page, "costs.yaml", "basis: rank\ntime_unit: ms\ntimes: {F: 3, I: 5, W: 2}\n")
    settle(page, f"{HOST}.data.unit === 'ms'")
    page.click("#undo")
    settle(page, f"{HOST}.data.unit === '' && {HOST}.data.runs.length === 5")
    page.keyboard.press("Control+z")
    settle(page, f"{HOST}.data.runs.length === 4 && {HOST}.data.runs[0].microbatches === 20")
    page.keyboard.press("Control+z")
    settle(page, f"{HOST}.data.runs[0].microbatches === 8")
    assert page.locator("#undo").is_disabled()
    page.keyboard.press("Control+Shift+z")
    settle(page, f"{HOST}.data.runs[0].microbatches === 20")
    # A text field undoes its own typing.
    page.fill("#microbatches", "12")
    settle(page, f"{HOST}.data.runs[0].microbatches === 12")
    page.keyboard.press("Control+z")
    settle(page, f"{HOST}.data.runs[0].microbatches === 20")


def test_what_was_typed_just_before_an_undo_is_kept(page):
    settle(page, f"{HOST}.data.runs.length === 4")
    # All before the server answers the first.
    page.evaluate(
        """() => {
          const field = document.getElementById("microbatches");
          for (const text of ["12", "16"]) {
            field.value = text;
            field.dispatchEvent(new Event("input", { bubbles: true }));
          }
          document.getElementById("undo").click();
        }"""
    )
    settle(page, f"{HOST}.data.runs[0].microbatches === 12")
    page.keyboard.press("Control+Shift+z")
    settle(page, f"{HOST}.data.runs[0].microbatches === 16")
    page.click("#undo")
    page.click("#undo")
    settle(page, f"{HOST}.data.runs[0].microbatches === 8")


def test_the_focus_stays_in_the_list_that_a_schedule_leaves(page):
    settle(page, f"{HOST}.data.runs.length === 4")
    focused = []
    page.get_by_label("Remove zb-h1").focus()
    for _ in range(4):
        page.keyboard.press("Enter")
        focused.append(
            page.evaluate("document.activeElement.ariaLabel ?? document.activeElement.id")
        )
    removed = ["Remove zb-v", "Remove interleaved-1f1b", "Remove 1f1b"]
    assert focused == [*removed, "Find schedules"]


def test_words_are_explained(begun):
    for name in ("ranks p", "iterations", "F", "O pair", "p2p", "transfers", "limit", "recompute",
                 "objective", "published", "group size"):  # fmt: skip
        dot = begun.get_by_role("button", name=f"About {name}", exact=True)
        assert len(dot.get_attribute("title")) > len(name) + 10, name
    begun.get_by_role("button", name="About O pair").click()
    assert "pair" in begun.locator(".hint-note").inner_text()
    begun.keyboard.press("Escape")
    assert begun.locator(".hint-note").count() == 0
    assert "overlapped" in begun.get_attribute("#O", "aria-description")
    area = begun.locator("debubble-timeline [data-do=area]")
    assert "busy and idle time" in area.get_attribute("title")
    # One word for one thing: traces are of runs, schedules are in the tab.
    texts = begun.locator(":is(h2, legend, button, summary)").all_inner_texts()
    assert [text for text in texts if text in ("Trace", "Schedules")] == ["Schedules", "Trace"]


def test_numbers_follow_the_sliders(page):
    page.locator('[data-for="microbatches"]').fill("20")
    settle(page, f"{HOST}.data.runs[0].microbatches === 20")
    assert page.input_value("#microbatches") == "20"
    page.fill("#p2p", "0")
    page.fill("#F", "2")
    costs = db.Costs.per_rank(F=2, I=1, W=1)
    makespan = db.simulate(db.make("1f1b", ranks=4, microbatches=20), costs).makespan
    settle(page, f"{of('1f1b')}?.makespan === {makespan}")


def test_times_may_differ_from_rank_to_rank(page):
    page.fill("#F", "1/1/1/2")
    page.fill("#p2p", "0")
    costs = db.Costs.per_rank(F=[1, 1, 1, 2], I=1, W=1)
    makespan = db.simulate(db.make("1f1b", ranks=4, microbatches=8), costs).makespan
    settle(page, f"{of('1f1b')}?.makespan === {makespan}")
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
    refused = {"field": "memory", "message": "not within 1"}
    page.route("**/api/export", lambda route: route.fulfill(status=422, json=refused))
    for _ in range(2):
        with page.expect_response("**/api/export"):
            card(page, "zb-v").get_by_role("button", name="CSV", exact=True).click()
    settle(page, "document.querySelector('[data-field=memory] .problem')")
    assert page.locator(".problem").all_inner_texts() == ["not within 1"]
    page.fill("#ranks", "")
    settle(page, "document.querySelector('[data-field=ranks] .problem')")


def test_a_memory_limit_splits_the_table(page):
    page.fill("#memory", "2.5")
    settle(page, f"{HOST}.data.limit === 2.5")
    assert "within 2.5 activation units" in page.locator("#headline").inner_text()
    assert page.locator("#numbers tr.over").count() >= 1
    assert "waiting for memory" in page.locator("debubble-timeline .legend").inner_text()


def test_a_link_brings_the_state_back(page, visit, server):
    page.fill("#microbatches", "12")
    page.fill("#memory", "6")
    option(page, "zb-v").click()
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
    settle(page, f"{HOST}.data.runs.some(run => run.name === 'zb-h1 (trace)')")
    makespan = page.evaluate(f"{HOST}.data.runs.find(run => run.name === 'zb-h1 (trace)').makespan")
    assert makespan == pytest.approx(timeline.makespan)


def test_a_file_that_cannot_be_read_says_why(page):
    upload(page, "notes.txt", "hello")
    settle(page, "document.querySelector('#problems .problem')")
    assert "'notes.txt' is no file to read" in page.locator("#problems").inner_text()
    # Above the picture, where it is seen.
    assert page.locator("#problems").bounding_box()["y"] < 200


@pytest.mark.parametrize(
    ("button", "name", "start"),
    [("CSV", "zb-v.csv", b"0F0"), ("CSV with transfers", "zb-v-with-transfers.csv", b"0F0"),
     ("JSON", "zb-v.json", b"{"), ("Perfetto", "zb-v.trace.json", b"{"),
     ("Page", "zb-v.html", b"<!doctype")],
)  # fmt: skip
def test_files_are_downloaded(begun, tmp_path, button, name, start):
    with begun.expect_download() as started:
        card(begun, "zb-v").get_by_role("button", name=button, exact=True).click()
    path = tmp_path / started.value.suggested_filename
    started.value.save_as(path)
    assert path.name == name
    assert path.read_bytes().startswith(start)


def test_it_asks_only_its_own_server(begun, server):
    begun.wait_for_timeout(300)
    assert all(url.startswith((server, "data:")) for url in begun.requests)


def test_it_fits_a_phone(visit, server):
    page = visit(server, viewport={"width": 390, "height": 844}, has_touch=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    # The picture comes first: rows of the winner are seen without scrolling, before any control.
    top = page.evaluate(f"{HOST}.parts.scroll.getBoundingClientRect().top")
    assert top < 400
    assert page.locator("#controls").bounding_box()["y"] > top + 300


def test_the_theme_is_switched(page):
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    page.locator("#theme").click()
    page.locator("#theme").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.evaluate(f"{HOST}.parts.root.dataset.theme") == "dark"


def run_trace():
    """A trace as 'debubble run' writes it, and its measured makespan in milliseconds."""
    schedule = db.make("1f1b", ranks=4, microbatches=8)
    timeline = db.simulate(schedule, db.Costs(F=0.004, B=0.008))
    measured = (timeline.start * 1.25, timeline.start * 1.25 + timeline.duration)
    times = {"predicted": (timeline.start, timeline.end), "measured": measured}
    text = "".join(write_run(schedule, times))
    return text, float(measured[1].max() * 1e3), timeline.makespan * 1e3


def test_a_run_shows_predicted_above_measured_and_a_link_brings_it_back(page, visit):
    text, measured, predicted = run_trace()
    page.set_input_files(
        "#upload",
        {
            "name": "run.json.gz",
            "mimeType": "application/gzip",
            "buffer": gzip.compress(text.encode()),
        },
    )
    settle(page, f"{of('1f1b, measured')}")
    # What was chosen stays, compared at the measured times; a prediction is never the winner.
    names = [name for name, *_ in runs(page)]
    assert names[:2] == ["1f1b, predicted", "1f1b, measured"]
    assert set(names[2:]) == {"1f1b", "interleaved-1f1b", "zb-h1", "zb-v"}
    assert rows(page)[2] == page.locator("#headline").inner_text().split(" is fastest")[0]
    assert page.locator("#numbers tr.best").inner_text().startswith(rows(page)[2])
    for name in names[2:]:
        page.get_by_label(f"Remove {name}", exact=True).click()
    settle(page, f"{HOST}.data.runs.length === 2")
    assert page.evaluate(f"{of('1f1b, measured')}.makespan") == pytest.approx(measured, rel=1e-5)
    assert page.evaluate(f"{of('1f1b, predicted')}.makespan") == pytest.approx(predicted, rel=1e-5)
    assert page.evaluate(f"{HOST}.data.unit") == "ms"
    headline = page.locator("#headline").inner_text()
    assert headline.startswith("1f1b took ")
    assert "longer than predicted" in headline
    settle(page, "location.hash.includes('files=')")
    other = visit(page.evaluate("location.href"))
    settle(other, f"{of('1f1b, measured')}")
    assert runs(other) == runs(page)
    assert other.locator("#headline").inner_text() == headline
    # Times of a cost file stay when another trace is opened.
    upload(other, "costs.yaml", "basis: rank\ntime_unit: ms\ntimes: {F: 3, I: 5, W: 2}\n")
    settle(other, "document.getElementById('costs').textContent.includes('costs.yaml')")
    upload(other, "again.json", text)
    settle(other, f"{HOST}.data.runs.length === 4")
    assert "costs.yaml" in other.inner_text("#costs")


def test_a_link_brings_costs_back(page, visit):
    text = "ranks: 4\nmicrobatches: 12\nbasis: rank\ntime_unit: ms\ntimes: {F: 3, I: 3, W: 2}\n"
    upload(page, "costs.yaml", text)
    settle(page, f"{HOST}.data.unit === 'ms'")
    settle(page, "location.hash.includes('files=')")
    headline = page.locator("#headline").inner_text()
    other = visit(page.evaluate("location.href"))
    settle(other, f"{HOST}.data.unit === 'ms'")
    assert other.locator("#headline").inner_text() == headline
    assert "costs.yaml" in other.locator("#costs").inner_text()


def test_a_link_says_which_files_it_has_no_room_for(page, visit):
    rng = np.random.default_rng(1)
    noise = "".join(chr(97 + int(letter)) for letter in rng.integers(0, 26, 80_000))
    upload(page, "large.yaml", f"# {noise}\nbasis: rank\ntime_unit: ms\ntimes: {{F: 3, B: 3}}\n")
    settle(page, f"{HOST}.data.unit === 'ms'")
    settle(page, "location.hash.includes('missing=large.yaml')")
    page.locator("#copy").click()
    settle(page, "document.getElementById('copy').textContent.includes('without large.yaml')")
    other = visit(page.evaluate("location.href"))
    settle(other, "document.getElementById('problems').textContent.includes('large.yaml')")


def test_damaged_links_open_what_can_be_read(visit, server):
    page = visit(f"{server}#s=1f1b&files=AAAA&view=l%3Dbubbles")
    settle(page, f"{HOST}.data.runs.length === 1")
    assert "damaged" in page.locator("#problems").inner_text()


def test_what_is_computed_is_shown_with_a_cost_file(page):
    upload(page, "costs.yaml", "basis: rank\ntime_unit: ms\ntimes: {F: 3, I: 5, W: 2, p2p: 0.25}\n")
    settle(page, f"{HOST}.data.unit === 'ms'")
    assert not page.locator("#F").is_visible()
    text = page.locator("#costs").inner_text().split()
    for wanted in ("F", "3", "I", "5", "W", "2", "p2p", "0.25", "ms"):
        assert wanted in text


def test_no_stale_result_looks_fresh(page):
    settle(page, f"{HOST}.data.runs.length === 4")
    page.fill("#microbatches", "60000")
    page.fill("#ranks", "100")
    settle(page, "document.body.dataset.shown === 'stale'")
    assert "fastest" not in page.locator("#headline").inner_text()
    assert "Not computed" in page.locator("#headline").inner_text()
    assert float(page.evaluate("getComputedStyle(document.querySelector('.result')).opacity")) < 0.5
    page.fill("#ranks", "4")
    page.fill("#microbatches", "8")
    settle(page, "document.body.dataset.shown === ''")
    assert "fastest" in page.locator("#headline").inner_text()
    for name in ("1f1b", "interleaved-1f1b", "zb-h1", "zb-v"):
        page.get_by_label(f"Remove {name}", exact=True).click()
    settle(page, "document.body.dataset.shown === 'stale'")
    assert page.locator("#headline").inner_text() == "Choose at least one schedule."
    assert not page.locator("debubble-timeline").is_visible()
    assert page.locator("#numbers").is_hidden()


@pytest.mark.parametrize(
    ("text", "name"), [("vpp", "interleaved-1f1b"), ("zero bubble", "zb-h1"), ("ZB1P", "zb-h1")]
)
def test_schedules_are_found_by_alias_and_title(begun, text, name):
    begun.fill("#filter", text)
    found = begun.locator("#schedules [role=option] span:first-of-type").all_inner_texts()
    begun.fill("#filter", "")
    assert name in found
    assert found == sorted(found)
    assert len(found) < 20


def test_one_schedule_is_compared_with_several_chunks(page):
    page.get_by_label("Add interleaved-1f1b again").click()
    page.get_by_label("chunks of interleaved-1f1b").nth(1).fill("4")
    settle(page, f"{of('interleaved-1f1b (chunks=4)')}")
    assert page.evaluate(f"{of('interleaved-1f1b (chunks=4)')}.stages") == 16
    assert page.evaluate(f"{of('interleaved-1f1b')}.stages") == 8
    settle(page, "decodeURIComponent(location.hash).includes('interleaved-1f1b(chunks=4)')")


def test_options_are_inputs_of_their_kind(begun):
    objective = begun.get_by_label("objective of zb-v")
    assert objective.evaluate("field => field.tagName") == "SELECT"
    assert objective.locator("option").all_inner_texts() == ["makespan", "stage-time"]
    tick = begun.get_by_label("published of zb-v")
    assert tick.get_attribute("type") == "checkbox"
    assert "published schedule" in tick.evaluate("field => field.parentElement.title")
    tick.check()
    settle(begun, f"{of('zb-v (published=True)')}")
    tick.uncheck()
    settle(begun, of("zb-v"))


def test_iterations_recompute_and_replicas(page):
    assert not page.locator("#OPT").is_visible()
    page.fill("#iterations", "2")
    settle(page, f"{HOST}.data.runs[0].iterations === 2")
    assert page.locator("#OPT").is_visible()
    page.select_option("#recompute", "full")
    settle(page, f"{HOST}.data.runs[0].setting.includes('full recompute')")
    page.select_option("#sharding", "fsdp")
    page.fill("#unshard", "0.25")
    gathers = f"{HOST}.data.kinds.findIndex(kind => kind.name === 'UNSHARD')"
    settle(page, f"{HOST}.data.runs[0].kindOf.includes({gathers})")


def test_sliders_grow_with_their_values(page):
    page.fill("#microbatches", "2000")
    settle(page, f"{HOST}.data.runs[0].microbatches === 2000")
    assert page.locator('[data-for="microbatches"]').input_value() == "2000"


def test_the_server_says_what_broke(page):
    page.route("**/api/simulate", lambda route: route.fulfill(status=422, body="?"))
    page.fill("#microbatches", "9")
    settle(page, "document.querySelector('#problems .problem')")
    assert "answered 422" in page.locator("#problems").inner_text()
    page.unroute("**/api/simulate")


@pytest.mark.parametrize("how", ["escape", "outside", "choice"])
def test_menus_close(begun, how):
    menu = begun.locator("debubble-timeline details.menu")
    menu.locator("summary").click()
    assert menu.get_attribute("open") is not None
    menu.get_by_text("Perfetto file of zb-v").wait_for()
    if how == "escape":
        begun.keyboard.press("Escape")
    elif how == "outside":
        begun.locator("#headline").click()
    else:
        begun.locator("debubble-timeline [data-do=area]").click()
    assert menu.get_attribute("open") is None


def test_no_column_is_cut_and_five_schedules_fit(visit, server):
    five = "#s=1f1b&s=interleaved-1f1b&s=zb-h1&s=zb-v&s=dualpipe"
    page = visit(f"{server}{five}", viewport={"width": 1366, "height": 900})
    settle(page, f"{HOST}.data.runs.length === 5")
    for width in (1366, 1440, 1920):
        page.set_viewport_size({"width": width, "height": 900})
        settle(page, f"{HOST}.view.plot > {0.6 * width}")
        wide, seen = page.evaluate(
            "(({ scrollWidth, clientWidth }) => [scrollWidth, clientWidth])("
            "document.querySelector('.numbers .scroll'))"
        )
        assert wide <= seen
        # To the last rank.
        assert page.evaluate(f"{HOST}.view.height <= {HOST}.tall")
        assert page.evaluate(f"{HOST}.parts.scroll.getBoundingClientRect().bottom") <= 900


def test_details_of_a_click_are_in_view(visit, server):
    page = visit(server, viewport={"width": 1440, "height": 900})
    settle(page, f"{HOST}.data.runs.length === 4")
    box = page.locator("debubble-timeline").bounding_box()
    page.mouse.click(box["x"] + 400, box["y"] + 180)
    details = page.locator("debubble-timeline .details")
    settle(page, f"!{HOST}.parts.details.hidden")
    place = details.bounding_box()
    assert place["y"] > 300
    assert place["y"] + place["height"] <= 900
    # All four schedules have rows in view.
    assert page.evaluate(f"{HOST}.view.panels[3].y < {HOST}.tall")
    # A pointer that rests does not hide what the keys select.
    page.mouse.move(box["x"] + 401, box["y"] + 180)
    settle(page, f"{HOST}.hovered?.bar != null")
    before = page.evaluate(f"{HOST}.view.selected.index")
    page.keyboard.press("ArrowRight")
    assert page.evaluate(f"{HOST}.view.selected.index") == before + 1
    assert page.evaluate(f"{HOST}.hovered") is None


def test_ideas_are_read_as_text_and_figure(begun):
    begun.locator(".card summary").first.click()
    first = begun.locator(".card").first
    text = first.inner_text()
    assert "``" not in text
    assert "::" not in text
    assert "Parameters" not in text
    assert "F0" in first.locator("pre").first.inner_text()


def test_costs_per_action_of_different_models_have_no_ratio(page):
    page.get_by_label("per action").check()
    settle(page, "document.getElementById('headline').textContent.includes('so none is fastest')")
    assert page.locator("#numbers tbody tr td:nth-child(3)").all_inner_texts() == ["–"] * 4


def test_a_cost_file_with_a_limit_per_rank_fills_the_field_as_one_types_it(page):
    text = (
        "{ranks: 4, microbatches: 8, times: {F: {default: 1, 2: 1.5}, B: 2, O: [3, 3, 3, 3]},"
        " memory: {unit: bytes, activation: 1048576, limit: [4194304, 4194304, 3145728, 3145728]}}"
    )
    upload(page, "mine.yaml", text)
    settle(page, "document.getElementById('headline').textContent.includes('4/4/3/3 MiB')")
    assert page.locator("#memory").input_value() == "4194304/4194304/3145728/3145728"
    assert "1 MiB" in page.locator("#costs").inner_text()
    # The field of O is hidden behind the file: what is wrong stands above the timelines.
    problem = "zb-v cannot use mine.yaml: O has 4 values for 8 stages"
    assert problem in page.locator("#problems").inner_text()


def test_an_order_that_cannot_run_changes_nothing(page):
    settle(page, "document.querySelectorAll('#numbers tbody tr').length === 4")
    upload(page, "bad.csv", "0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,1F1,1B0,1B1\n")
    settle(page, "document.querySelector('#problems .problem')")
    assert "0F1 (rank 0) runs together with 0B0" in page.locator("#problems").inner_text()
    assert (page.locator("#ranks").input_value(), len(runs(page))) == ("4", 4)
    page.locator("#microbatches").fill("6")
    settle(page, f"{HOST}.data.runs.every(run => run.microbatches === 6)")
    assert "bad.csv" not in page.locator("#controls").inner_text()
