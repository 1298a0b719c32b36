"""The tab of traces in a real browser: a folder or files are opened, and looked at."""

from __future__ import annotations

import re

import pytest

from tests.cli.test_trace import written
from tests.diagnosis.planted import PLANTED

HOST = "document.querySelector('#trace debubble-timeline')"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The traces of a run with a slow stage."""
    return written(PLANTED["slow stage"](0).made, tmp_path_factory.mktemp("slow") / "traces")


@pytest.fixture
def page(visit, server):
    found = visit(server)
    assert not any("/trace.js" in address for address in found.requests)
    found.click("#trace-tab")
    found.wait_for_selector("#trace [data-of=example] debubble-timeline[ready]")
    return found


def shown(page):
    """Wait for a diagnosis."""
    page.wait_for_selector("#trace [data-of=files] debubble-timeline[ready]")
    return page.evaluate(f"{HOST}.data.runs.map((run) => run.name)")


def test_a_folder_is_opened_after_an_example(page, folder):
    # There is a report to look at from the start.
    example = page.inner_text("#trace .status")
    assert example.startswith("Stage 2 on rank 2 is slow: without that, ")
    tiles = page.locator("#trace .tile").all_inner_texts()
    assert [re.split(r"\n+", text) for text in tiles] == [
        ["Step time", "1,789 ms", "one step"],
        ["Idle time", "39 %", "39 % by the schedule"],
        ["Largest loss", "23 %", "Stage 2 on rank 2 is slow"],
        ["Fastest schedule at these times", "zb-v −25 %", "1,339 ms"],
    ]
    assert "debubble trace --example --set" in page.inner_text(".trace-result code")
    page.set_input_files("#trace-folder", folder)
    assert shown(page) == ["observed", "predicted"]
    assert "is slow: without that, a " in page.inner_text("#trace .status")
    assert "1f1b: 4 ranks" in page.inner_text(".trace-result")
    assert "debubble trace traces --set 'stage" in page.inner_text(".trace-result code")
    assert "slow-stage: " in page.locator(".trace-result li").first.inner_text()
    account, machines = page.locator(".trace-result tbody").all()
    assert account.locator("tr").count() == 4
    assert "copy1-rank3.csv" in machines.inner_text()
    page.locator(".trace-result li button").first.click()
    page.wait_for_function(f"() => {HOST}.area")
    assert "slow-stage" in page.locator("#trace debubble-timeline .legend").inner_text()
    # Undo brings the example back; it is also one click away.
    page.click("#undo")
    assert page.inner_text("#trace .status") == example
    page.keyboard.press("Control+Shift+Z")
    assert page.inner_text("#trace .status") != example
    page.get_by_role("button", name="Example").click()
    page.wait_for_selector("#trace [data-of=example]")
    # The other tabs are as they were.
    page.click("#schedules-tab")
    assert page.locator("#bench").is_visible()
    assert not page.locator("#trace").is_visible()
    page.click("#plan-tab")
    page.wait_for_selector("#plan-gpus")
    page.click("#trace-tab")
    assert page.evaluate("location.hash") == "#trace"
    assert page.locator(".trace-result").is_visible()
    assert not page.locator("#plan").is_visible()


def test_files_are_opened(page, folder):
    page.set_input_files("#trace-files", sorted(folder.iterdir()))
    assert shown(page) == ["observed", "predicted"]


def test_a_folder_that_is_dropped_has_traces(visit, server, folder):
    page = visit(server)
    page.evaluate(
        """(files) => {
          const entry = ([name, text]) => ({ isFile: true, name,
            file: (done) => done(new File([text], name)) });
          const lists = [files.map(entry), []];
          const folder = { isFile: false, isDirectory: true, name: "run",
            createReader: () => ({ readEntries: (done) => done(lists.shift()) }) };
          const drop = new Event("drop", { cancelable: true });
          drop.dataTransfer = { files: [new File([""], "run")],
            items: [{ webkitGetAsEntry: () => folder }] };
          dispatchEvent(drop);
        }""",
        [[path.name, path.read_text()] for path in sorted(folder.iterdir())],
    )
    assert shown(page) == ["observed", "predicted"]
    assert page.locator("#trace").is_visible()


def test_what_is_wrong_is_said_in_words(page, tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    page.set_input_files("#trace-files", tmp_path / "notes.txt")
    page.wait_for_selector("#trace .status[data-how=bad]")
    assert "notes.txt: no trace in 1 file" in page.inner_text("#trace .status")
    assert "/tmp" not in page.inner_text("#trace .status")


def test_a_diagnosis_is_cancelled(page, folder):
    # The server never says that it is done, but to one who cancels.
    running = '{"done": false, "seconds": 7, "doing": "replaying 768 actions"}'
    cancelled = '{"message": "cancelled; open the traces again to see them"}'

    def answer(route):
        cancels = "true" in (route.request.post_data or "")
        if cancels:
            # It ends what it works on, and takes no second trace before.
            route.fetch()
        route.fulfill(
            status=422 if cancels else 200, content_type="application/json",
            body=cancelled if cancels else running,
        )  # fmt: skip

    page.route("**/api/search", answer)
    page.set_input_files("#trace-folder", folder)
    page.wait_for_selector("#trace .status:text-is('7 s: replaying 768 actions')")
    page.get_by_role("button", name="Cancel").click()
    page.wait_for_selector("#trace .status[data-how=bad]")
    assert page.inner_text("#trace .status") == "cancelled; open the traces again to see them"
    assert not page.get_by_role("button", name="Cancel").is_visible()
    page.unroute("**/api/search")
    page.set_input_files("#trace-folder", folder)
    assert shown(page) == ["observed", "predicted"]


def test_it_fits_a_phone(visit, server, folder):
    page = visit(server, viewport={"width": 390, "height": 844}, has_touch=True)
    page.click("#trace-tab")
    page.set_input_files("#trace-folder", folder)
    shown(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_link_leads_to_the_tab(visit, server):
    page = visit(server)
    page.goto(f"{server}#trace")
    page.reload()
    page.wait_for_selector("#trace-folder", state="attached")
    assert not page.locator("#bench").is_visible()
