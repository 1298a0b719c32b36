"""The timeline in a real browser: what it reads, shows, and does with keys, pointers and touch."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
import zlib
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import debubble as db
from debubble.analysis.bubbles import CAUSES, bubbles
from debubble.core.actions import Kind
from debubble.interchange.trace_events import trace_text
from debubble.lowering.chain import lower
from debubble.view.colors import rgb, shade
from debubble.view.files import save
from debubble.view.page import asset, cell
from tests.view.timelines import run

HOST = "document.querySelector('debubble-timeline')"


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Addresses of a small page with two timelines, and of one with a hundred thousand actions."""
    folder = tmp_path_factory.mktemp("pages")
    save([run("1f1b", 4, 8), split()], folder / "small.html", limit=3)
    save([large()], folder / "large.html")
    return {name: (folder / f"{name}.html").as_uri() for name in ("small", "large")}


def split():
    return db.simulate(db.make("zb-h1", ranks=4, microbatches=8), db.Costs(F=1, I=1, W=1, p2p=0.2))


@cache
def large():
    costs = db.Costs(F=[1, 1.2, 0.9, 1.1] * 4, B=2.03, p2p=0.07)
    return db.simulate(db.make("1f1b", ranks=16, microbatches=3200), costs)


def place(page, time, rank, panel=0, share=0.5):
    """Where on the screen a time of a rank is."""
    return page.evaluate(
        f"""([time, rank, panel, share]) => {{
          const {{ view, parts }} = {HOST}, box = parts.surface.getBoundingClientRect();
          const at = view.panels[panel];
          return [box.left + view.x(at.run, time),
                  box.top + at.y + rank * view.rows.pitch + share * view.rows.bar - view.scroll];
        }}""",
        [time, rank, panel, share],
    )


def details(page):
    return page.locator("debubble-timeline .details").inner_text()


def shown(page):
    return page.evaluate(f"[{HOST}.view.from, {HOST}.view.to]")


def painted(page):
    """Wait until what was asked for is drawn, in the next frame or the one after it."""
    frame = "new Promise(requestAnimationFrame)"
    page.evaluate(f"async () => {{ await {frame}; await {frame}; await {frame}; }}")


def selected(page):
    return page.evaluate(
        f"(() => {{ const {{ selected }} = {HOST}.view;"
        f"return selected && {HOST}.data.runs[selected.panel].actionName(selected.index); }})()"
    )


@pytest.mark.parametrize("name", ["small", "large"])
def test_a_page_asks_for_nothing_else(visit, pages, name):
    page = visit(pages[name])
    assert page.requests == [pages[name]]


NUMBERS = f"""(panel) => {{
  const run = {HOST}.data.runs[panel], starts = Array.from(run.start), peaks = [], sums = [];
  for (let rank = 0; rank < run.ranks; rank++) {{
    const [low, high] = run.row(rank), out = new Float64Array(run.width);
    run.sumsAt(high - 1, low, high, run.makespan, out);
    sums.push(Array.from(out));
    peaks.push(run.highest(low, high - 1));
  }}
  const ends = starts.map((_, i) => run.end(i));
  const names = starts.slice(0, 2000).map((_, i) => run.actionName(i));
  return JSON.stringify({{ starts, ends, names, sums, peaks, kinds: run.classes.length }});
}}"""


@pytest.mark.parametrize(
    ("name", "panel", "timeline"),
    [("small", 0, lambda: run("1f1b", 4, 8)), ("small", 1, split), ("large", 0, large)],
    ids=["1f1b", "zb-h1", "large"],
)
def test_the_browser_has_the_numbers_of_the_simulation(visit, pages, name, panel, timeline):
    timeline = timeline()
    page = visit(pages[name])
    data = json.loads(page.evaluate(NUMBERS, panel))
    tick = timeline.makespan / 2**32
    np.testing.assert_allclose(data["starts"], timeline.start, atol=tick)
    np.testing.assert_allclose(data["ends"], timeline.end, atol=tick)
    assert data["names"] == [cell for row in timeline.schedule.rows() for cell in row][:2000]
    np.testing.assert_allclose(data["peaks"], timeline.peak_activation)
    sums = np.array(data["sums"])
    rounding = 2 * len(timeline.schedule) * tick
    busy, waits = sums[:, : data["kinds"]], sums[:, data["kinds"] :]
    np.testing.assert_allclose(busy.sum(axis=1), timeline.busy, atol=rounding)
    causes = [CAUSES.index(cause) for cause in ("data", "memory", "p2p")]
    totals = bubbles(timeline).totals[:, causes]
    np.testing.assert_allclose(waits, totals, atol=rounding)


def test_a_click_selects_and_explains(visit, pages):
    page = visit(pages["small"])
    # 1F3 of the first timeline: it waits for 0F3, and 1B0 runs before it.
    page.mouse.click(*place(page, 10.5, 1))
    text = details(page)
    assert "1F3 on rank 1 of 1f1b" in text
    for part in ("F, forward", "0F3 (rank 0)", "1B0 (rank 1)", "2F3 (rank 2)", "1B3 (rank 1)"):
        assert part in text
    page.locator("debubble-timeline .details button", has_text="2F3").click()
    assert selected(page) == "2F3"
    page.wait_for_function("() => location.hash.includes('a=0.2F3')")
    page.keyboard.press("Escape")
    assert selected(page) is None


def test_a_click_on_idle_time_says_why(visit, pages):
    page = visit(pages["small"])
    page.mouse.click(*place(page, 0.5, 3))
    assert "Idle on rank 3: not begun (fill)" in details(page)
    page.mouse.click(*place(page, 8, 0))
    assert "Idle on rank 0: waiting for data" in details(page)
    page.mouse.click(*place(page, 4.5, 2, panel=1))
    assert "Idle on rank 2: waiting for data" in details(page)


def test_a_rank_that_only_lacks_memory_says_so(visit, tmp_path):
    costs = db.Costs(F=1, I=1, W=1)
    schedule = db.make("zb-auto", ranks=4, microbatches=8, costs=costs, memory=2)
    timeline = db.simulate(schedule, costs)
    save([timeline], tmp_path / "x.html", limit=2)
    page = visit((tmp_path / "x.html").as_uri())
    assert "waiting for memory" in page.locator("debubble-timeline .legend").inner_text()
    found = bubbles(timeline)
    longest = np.argmax(np.where(found.cause == CAUSES.index("memory"), found.end - found.start, 0))
    middle = (found.start[longest] + found.end[longest]) / 2
    page.mouse.click(*place(page, float(middle), int(found.rank[longest])))
    assert f"Idle on rank {found.rank[longest]}: waiting for memory" in details(page)


def test_hovering_lights_the_way_of_a_microbatch(visit, pages):
    page = visit(pages["small"])

    def inked():
        return page.evaluate(f"""(() => {{
          const c = {HOST}.parts.surface, d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
          let n = 0; for (let i = 3; i < d.length; i += 4) n += d[i] > 0; return n; }})()""")  # noqa: E501

    assert inked() == 0
    page.mouse.move(*place(page, 10.5, 1))
    painted(page)
    assert inked() > 20_000
    lit = page.evaluate(
        f"Array.from({HOST}.data.runs[0].ofUnit(3), i => {HOST}.data.runs[0].actionName(i))"
    )
    assert sorted(lit) == sorted(f"{s}{k}3" for s in range(4) for k in "FB")


def test_keys_zoom_pan_and_step(visit, pages):
    page = visit(pages["small"])
    whole = shown(page)
    page.mouse.move(5, 5)
    page.keyboard.press("KeyW")
    near = shown(page)
    assert near[1] - near[0] < 0.9 * (whole[1] - whole[0])
    page.keyboard.press("KeyD")
    assert shown(page)[0] > near[0]
    page.keyboard.press("KeyA")
    page.keyboard.press("KeyS")
    page.keyboard.press("Digit0")
    assert shown(page) == whole
    names = []
    for key in ("Period", "Period", "Comma", "ArrowDown"):
        page.keyboard.press(key)
        names.append(selected(page))
    assert names == ["0F0", "0F1", "0F0", "1F0"]
    page.keyboard.press("KeyF")
    begin, end = shown(page)
    assert begin < 1 < end
    assert end - begin < 13


def test_holding_a_key_keeps_zooming(visit, pages):
    page = visit(pages["small"])
    page.keyboard.down("KeyW")
    page.wait_for_function(f"() => {HOST}.view.span < 0.3 * {HOST}.view.total")
    page.keyboard.up("KeyW")
    painted(page)
    at = shown(page)
    page.wait_for_timeout(100)
    assert shown(page) == at


def test_ctrl_wheel_zooms_about_the_pointer_and_shift_drag_pans(visit, pages):
    page = visit(pages["small"])
    x, y = place(page, 10, 1)
    page.mouse.move(x, y)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -400)
    page.keyboard.up("Control")
    page.wait_for_function(f"() => {HOST}.view.span < 28")
    assert place(page, 10, 1)[0] == pytest.approx(x, abs=1.5)
    page.keyboard.down("Shift")
    page.mouse.down()
    page.mouse.move(x - 100, y, steps=3)
    page.mouse.up()
    page.keyboard.up("Shift")
    assert place(page, 10, 1)[0] == pytest.approx(x - 100, abs=1.5)
    # The wheel alone scrolls, and leaves time as it is.
    before = page.evaluate(f"[{HOST}.view.from, {HOST}.view.to]")
    page.mouse.wheel(0, 300)
    page.wait_for_timeout(50)
    assert page.evaluate(f"[{HOST}.view.from, {HOST}.view.to]") == before


def test_the_docs_and_the_help_list_the_same_gestures():
    listed = dict(re.findall(r'\["([^"]+)", "([^"]+)"\]', asset("timeline/input.js")))
    docs = (Path(__file__).parents[2] / "docs" / "playground.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", docs, re.MULTILINE)
    gestures = {name.lower(): text for name, text in rows if "drag" in name or "wheel" in name}
    assert len(gestures) == 4
    for name, text in gestures.items():
        short = ", ".join(part for part in name.split(", ") if len(part) > 1)
        assert short in listed, name
        assert text.split()[0] in ("sum", listed[short].split()[0]), name


def test_dragging_an_area_sums_it_up(visit, pages):
    page = visit(pages["small"])
    page.mouse.move(*place(page, 0, 0))
    page.mouse.down()
    page.mouse.move(*place(page, 3, 1), steps=4)
    page.mouse.up()
    text = details(page)
    # Ranks 0 and 1 up to time 3: three and two forwards, rank 1 begins at 1.
    assert "3 on ranks 0–1 of 1f1b" in text.replace("2.99", "3")
    assert "F 5 (83.3 %)" in text
    assert "fill 1 (16.7 %)" in text


def test_a_key_sums_up_what_is_in_view(visit, pages):
    page = visit(pages["small"])
    page.keyboard.press("KeyX")
    text = details(page)
    assert "33 on ranks 0–3 of 1f1b" in text
    assert "F 32 (24.2 %), B 64 (48.5 %)" in text
    assert "fill 6 (4.5 %), drain 12 (9.1 %)" in text
    assert "actions\n64" in text


def test_a_selection_takes_the_place_of_an_area(visit, pages):
    page = visit(pages["small"])
    page.keyboard.press("KeyX")
    page.keyboard.press("Period")
    assert "0F0 on rank 0" in details(page)
    page.keyboard.press("KeyX")
    assert "33 on ranks 0–3" in details(page)


def test_search_finds_actions_and_goes_round(visit, pages):
    page = visit(pages["small"])
    page.keyboard.press("Slash")
    page.keyboard.type("2f5")
    assert selected(page) == "2F5"
    said = page.locator("debubble-timeline .search output")
    assert said.inner_text() == "1 of 2"
    page.keyboard.press("Enter")
    assert page.evaluate(f"{HOST}.view.selected.panel") in (0, 1)
    assert said.inner_text() == "2 of 2"
    field = page.locator("debubble-timeline .search input")
    for text, count in (("m3", "20"), ("r1", "40"), ("W", "32"), ("9F9", None), ("x", None)):
        field.fill(text)
        assert said.inner_text() == (f"1 of {count}" if count else "none")


def test_the_address_brings_a_view_back(visit, pages):
    page = visit(f"{pages['small']}#t=0.25_0.5&a=1.3W2&l=bubbles,critical,normalize")
    begin, end = shown(page)
    assert (begin, end) == pytest.approx((0.25, 0.5))
    assert selected(page) == "3W2"
    state = page.evaluate(f"{HOST}.state")
    assert set(state.split("&")) == {"t=0.25_0.5", "a=1.3W2", "l=bubbles,critical,normalize"}


def test_layers_change_the_picture(visit, pages):
    page = visit(pages["small"])

    def picture():
        return page.evaluate(f"{HOST}.parts.base.toDataURL()")

    seen = {picture()}
    for key in ("KeyB", "KeyM", "KeyP", "KeyC", "KeyN"):
        page.keyboard.press(key)
        painted(page)
        seen.add(picture())
    assert len(seen) == 6
    assert not page.get_by_label("Bubbles").is_checked()
    assert page.get_by_label("Normalize").is_checked()


def test_causes_of_idle_time_are_in_the_legend(visit, pages):
    legend = visit(pages["small"]).locator("debubble-timeline .legend").inner_text()
    for words in ("not begun (fill)", "waiting for data", "waiting for p2p"):
        assert words in legend


def test_help_lists_the_keys(visit, pages):
    page = visit(pages["small"])
    page.keyboard.press("?")
    assert "zoom to the selection" in page.locator("debubble-timeline dialog").inner_text()
    page.keyboard.press("Escape")
    assert page.locator("debubble-timeline dialog").is_hidden()


def test_the_keyboard_alone_reaches_everything(visit, pages):
    page = visit(pages["small"])
    reached = []
    for _ in range(20):
        page.keyboard.press("Tab")
        reached.append(page.evaluate(
            f"(() => {{ const e = {HOST}.shadowRoot.activeElement;"
            "return e && (e.dataset.do ?? e.dataset.layer ?? e.type ?? e.localName); })()"
        ))  # fmt: skip
    assert {"fit", "in", "out", "bubbles", "memory", "search", "area", "summary", "help"} <= set(
        reached
    )
    assert {"perfetto", "critical", "p2p"} <= set(reached)


def test_touch_selects_and_pans(visit, pages):
    page = visit(pages["small"], has_touch=True, viewport={"width": 400, "height": 800})
    page.touchscreen.tap(*place(page, 0.5, 0))
    assert selected(page) == "0F0"
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_two_fingers_zoom(visit, pages):
    page = visit(pages["small"], has_touch=True)
    x, y = place(page, 18, 1)
    touch = page.context.new_cdp_session(page)

    def send(kind, *apart):
        points = [{"x": x - apart[0], "y": y}, {"x": x + apart[0], "y": y}] if apart else []
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    send("touchStart", 50)
    send("touchMove", 80)
    send("touchMove", 100)
    send("touchEnd")
    page.wait_for_function(f"() => Math.abs({HOST}.view.span / 16.5 - 1) <= 0.05")
    assert place(page, 18, 1)[0] == pytest.approx(x, abs=3)


def test_a_dark_page_is_dark(visit, pages):
    page = visit(pages["small"], color_scheme="dark")
    corner = page.evaluate(
        f"Array.from({HOST}.parts.base.getContext('2d').getImageData(2, 2, 1, 1).data)"
    )
    assert corner == [0x14, 0x17, 0x1C, 255]


def exported(page, kind, folder):
    """A file of the export menu."""
    page.locator("debubble-timeline summary", has_text="Export").click()
    with page.expect_download() as started:
        page.locator(f"debubble-timeline [data-do={kind}]").click()
    started.value.save_as(folder / f"out.{kind}")
    return (folder / f"out.{kind}").read_bytes()


SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("name", ["small", "large"])
def test_the_view_becomes_svg_without_a_picture_inside(visit, pages, tmp_path, name):
    page = visit(pages[name])
    for layer in ("p2p", "critical"):
        page.evaluate(f"{HOST}.toggle('{layer}')")
    content = exported(page, "svg", tmp_path)
    assert len(content) < 6_000_000
    root = ElementTree.fromstring(content)
    tags = {node.tag.removeprefix(SVG) for node in root.iter()}
    assert tags == {"svg", "rect", "path", "text"}
    texts = [node.text for node in root.iter(f"{SVG}text")]
    assert {"1f1b", "idle", "peak", "F forward", "activation memory"} <= set(texts)
    if name == "small":
        assert texts.count("3") >= 20
        # Idle time keeps its pattern, as lines.
        assert [node for node in root.iter(f"{SVG}path") if node.get("stroke")]
        # So it does in the legend, as stripes.
        tone = page.evaluate(f"{HOST}.theme.causes[2][1]")
        assert [node for node in root.iter(f"{SVG}path") if node.get("fill") == tone]


def test_shapes_of_the_svg_are_where_actions_are(visit, pages, tmp_path):
    page = visit(pages["small"])
    root = ElementTree.fromstring(exported(page, "svg", tmp_path))
    color = page.evaluate(f"{HOST}.data.runs[0].palette[3][0][0]")
    paths = [n.get("d") for n in root.iter(f"{SVG}path") if n.get("fill") == color]
    found = {float(x) for path in paths for x in re.findall(r"M([-0-9.]+) ", path)}
    timeline = run("1f1b", 4, 8)
    backward = (timeline.schedule.actions & 31) == 3
    wanted = page.evaluate(
        f"(times) => times.map((time) => {HOST}.view.x({HOST}.data.runs[0], time))",
        timeline.start[backward].tolist(),
    )
    assert all(min(abs(x - place) for place in found) < 0.02 for x in wanted)


@pytest.mark.parametrize("name", ["small", "large"])
def test_the_view_becomes_pdf_of_paths_and_text(visit, pages, tmp_path, name):
    content = exported(visit(pages[name]), "pdf", tmp_path)
    assert content.startswith(b"%PDF-1.4")
    assert b"/Image" not in content
    table = int(re.search(rb"startxref\n(\d+)\n%%EOF", content)[1])
    offsets = [int(line[:10]) for line in content[table:].splitlines()[3:9]]
    for number, offset in enumerate(offsets, 1):
        assert content[offset:].startswith(b"%d 0 obj" % number)
    begin = content.index(b"stream\n") + len(b"stream\n")
    size = int(re.search(rb"/Length (\d+)", content)[1])
    assert content[begin + size :].startswith(b"\nendstream")
    drawn = zlib.decompress(content[begin : begin + size]).decode("latin-1")
    assert drawn.count(" re") > 100
    texts = re.findall(r"\((.*?)\) Tj", drawn)
    assert {"1f1b", "idle", "peak", "F forward"} <= set(texts)


def test_the_view_becomes_png(visit, pages, tmp_path):
    content = exported(visit(pages["small"]), "png", tmp_path)
    assert content.startswith(b"\x89PNG\r\n\x1a\n")


def test_iterations_and_their_steps_are_seen(visit, tmp_path):
    timeline = run("pipedream-2bw", 2, 3, iterations=3)
    save([timeline], tmp_path / "x.html", numbers_from=1)
    page = visit((tmp_path / "x.html").as_uri())
    legend = page.locator("debubble-timeline .legend").inner_text()
    for index in range(3):
        assert f"line below: iteration {index}" in legend
    labels = page.evaluate(
        f"(() => {{ const run = {HOST}.data.runs[0];"
        "return Array.from({ length: run.count }, (_, i) => run.label(i)); })()"
    )
    assert [text for text in labels if text][-1] == "9"
    # A step that takes no time is a line in its own color.
    steps = (timeline.schedule.actions & 31) == 5
    end = float(timeline.end[steps][0])
    x, y = page.evaluate(
        f"(time) => {{ const {{ view, painter }} = {HOST}, panel = view.panels[0];"
        "return [Math.round(view.x(panel.run, time) * painter.scale) - 2,"
        "  Math.round((panel.y + view.rows.bar / 2) * painter.scale)]; }",
        end,
    )
    seen = page.evaluate(
        "([x, y]) => Array.from("
        f"{HOST}.parts.base.getContext('2d').getImageData(x, y, 1, 1).data).slice(0, 3)",
        [x, y],
    )
    assert tuple(seen) == rgb(shade(Kind.OPT))


def test_the_legend_says_what_shades_are_and_whose_the_shares_are(visit, pages, tmp_path):
    costs = db.Costs(F=1, I=1, W=1, p2p=0.2)
    schedules = [
        db.make("1f1b", ranks=4, microbatches=8),
        db.make("zb-v", ranks=4, microbatches=8, costs=costs),
    ]
    timelines = [db.simulate(schedule, costs) for schedule in schedules]
    save(timelines, tmp_path / "x.html")
    legend = visit((tmp_path / "x.html").as_uri()).locator("debubble-timeline .legend").inner_text()
    assert "light to dark: chunks 0–1 (zb-v)" in legend
    assert re.search(r"waiting for data \(1f1b [0-9.]+ %, zb-v [0-9.]+ %\)", legend)
    lowered = lower(db.make("1f1b", ranks=2, microbatches=2), transfers="eager")
    save([db.simulate(lowered, costs)], tmp_path / "y.html")
    page = visit((tmp_path / "y.html").as_uri())
    assert "SEND" not in page.locator("debubble-timeline .legend").inner_text()
    page.evaluate(f"{HOST}.toggle('p2p')")
    assert "SEND_F" in page.locator("debubble-timeline .legend").inner_text()


def test_columns_beside_the_rows_have_room_for_any_number(visit, tmp_path):
    costs = db.Costs(F=1, B=2, activation=123_456_789_012.0)
    dense = db.simulate(db.make("zb-h1", ranks=32, microbatches=32), costs)
    few = db.simulate(db.make("1f1b", ranks=4, microbatches=8), costs)
    save([few, dense], tmp_path / "x.html")
    page = visit((tmp_path / "x.html").as_uri())
    boxes = page.evaluate(
        f"Array.from({HOST}.parts.labels.querySelectorAll('.side span'), (node) => {{"
        "const range = document.createRange(); range.selectNodeContents(node);"
        "const { left, right, top, bottom } = range.getBoundingClientRect();"
        "return [left, right, top, bottom]; })"
    )
    plot = page.evaluate(
        f"{HOST}.parts.root.getBoundingClientRect().left + {HOST}.view.left + {HOST}.view.plot"
    )
    edge = page.evaluate(f"{HOST}.parts.root.getBoundingClientRect().right")
    assert len(boxes) < 2 * (4 + 32)
    for index, (left, right, top, bottom) in enumerate(boxes):
        assert plot <= left < right <= edge
        for a, b, c, d in boxes[:index]:
            assert right <= a + 0.5 or b <= left + 0.5 or bottom <= c + 4 or d <= top + 4


def test_a_trace_goes_to_perfetto_when_its_button_is_clicked(visit, pages):
    page = visit(pages["small"])
    stub = """<script>addEventListener("message", (event) => {
      if (event.data === "PING") event.source.postMessage("PONG", event.origin === "null" ? "*" : event.origin);
      else window.received = event.data.perfetto; });</script>"""  # noqa: E501
    page.context.route("https://ui.perfetto.dev/**", lambda route: route.fulfill(
        body=stub, content_type="text/html"))  # fmt: skip
    # A page from a file has no origin a message could come back to, so it is served here.
    page.context.route("http://page.test/", lambda route: route.fulfill(
        path=pages["small"].removeprefix("file://"), content_type="text/html"))  # fmt: skip
    page.goto("http://page.test/")
    page.wait_for_selector("debubble-timeline[ready]")
    with page.context.expect_page() as opened:
        page.locator("debubble-timeline [data-do=perfetto]").click()
    tab = opened.value
    tab.wait_for_function("window.received")
    trace = json.loads(
        tab.evaluate("new TextDecoder().decode(new Uint8Array(window.received.buffer))")
    )
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len(slices) == 64
    assert tab.evaluate("window.received.title") == "1f1b"


def test_a_trace_has_tracks_arrows_and_memory_that_perfetto_keeps(visit, tmp_path):
    costs = db.Costs(F=1 / 3, I=1.123456789, W=0.7654321, O=1.4, p2p=0.0123456)
    timeline = db.simulate(db.make("dualpipe", ranks=4, microbatches=40), costs)
    save([timeline], tmp_path / "x.html", time_unit="ms")
    page = visit((tmp_path / "x.html").as_uri())
    page.locator("debubble-timeline summary", has_text="Export").click()
    with page.expect_download() as started:
        page.locator("debubble-timeline [data-do=trace]").click()
    started.value.save_as(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    wanted = json.loads("".join(trace_text(timeline, "ms")))["traceEvents"]

    def named(events):
        names = [e for e in events if e["name"] == "thread_name"]
        return {(e["pid"], e["tid"]): e["args"]["name"] for e in names}

    def slices(events):
        return {
            (e["name"], e["cat"], e["pid"], e["tid"]): (e["ts"], e["dur"])
            for e in events
            if e["ph"] == "X"
        }

    assert named(events) == named(wanted)
    drawn = slices(events)
    assert drawn.keys() == slices(wanted).keys()
    for key, times in slices(wanted).items():
        assert drawn[key] == pytest.approx(times, abs=0.0011)
    for phase in "sf":
        assert sum(e["ph"] == phase for e in events) == sum(e["ph"] == phase for e in wanted)
    for rank in range(4):
        levels = [e["args"]["memory"] for e in events if e["ph"] == "C" and e["pid"] == rank]
        assert max(levels) == timeline.peak_activation[rank]
        assert levels[-1] == 0
    tracks = {}
    for (_, _, rank, thread), (begin, length) in drawn.items():
        spans = tracks.setdefault((rank, thread or rank), [])
        spans.append((round(1000 * begin), round(1000 * begin) + round(1000 * length)))
    assert len(tracks) == 8
    for spans in tracks.values():
        assert all(a[1] <= b[0] for a, b in pairwise(sorted(spans)))


def test_cells_of_one_notebook_do_not_meet(visit, tmp_path):
    cells = [cell([run("1f1b", 2, 4)]), cell([run("gpipe", 2, 6)]), cell([run("1f1b", 2, 4)])]
    text = "<!doctype html><meta charset=utf-8><body>" + "\n".join(cells)
    (tmp_path / "notebook.html").write_text(text, encoding="utf-8")
    page = visit((tmp_path / "notebook.html").as_uri())
    page.wait_for_function("document.querySelectorAll('debubble-timeline[ready]').length === 3")
    names = page.evaluate(
        "Array.from(document.querySelectorAll('debubble-timeline'), t => t.data.runs[0].name)"
    )
    assert names == ["1f1b", "gpipe", "1f1b"]
    # Keys belong to the notebook until a timeline is clicked.
    page.keyboard.press("KeyW")
    spans = "Array.from(document.querySelectorAll('debubble-timeline'), t => t.view.span)"
    before = page.evaluate(spans)
    page.locator("debubble-timeline").nth(1).locator("canvas.surface").click()
    page.keyboard.press("KeyW")
    after = page.evaluate(spans)
    assert after[1] < before[1]
    assert [after[0], after[2]] == [before[0], before[2]]
    # The notebook sees neither the component's keys nor others while one has the focus.
    page.evaluate("() => { document.onkeydown = (event) => { document.title += event.key; }; }")
    for key in ("b", "y", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    assert page.title() == ""
    page.keyboard.press("Control+s")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("b")
    assert page.title() == "Controlsb"


def test_a_cell_follows_the_theme_of_its_notebook(visit, tmp_path):
    text = "<!doctype html><meta charset=utf-8><body data-jp-theme-light=true>" + cell([split()])
    (tmp_path / "notebook.html").write_text(text, encoding="utf-8")
    page = visit((tmp_path / "notebook.html").as_uri(), color_scheme="dark")
    corner = f"Array.from({HOST}.parts.base.getContext('2d').getImageData(2, 2, 1, 1).data)"
    assert page.evaluate(corner) == [255, 255, 255, 255]
    for light, paper in (("false", [0x14, 0x17, 0x1C, 255]), ("true", [255, 255, 255, 255])):
        page.evaluate(f"document.body.dataset.jpThemeLight = '{light}'")
        page.wait_for_function(f"{corner}.join() === '{','.join(map(str, paper))}'")


@pytest.mark.parametrize("share", [1.0, 0.4, 0.2, 0.1, 0.02])
def test_crowded_columns_show_the_share_of_every_kind(visit, pages, share):
    page = visit(pages["large"])
    counts = page.evaluate(
        f"""(share) => {{
          const t = {HOST}, {{ view }} = t, run = t.data.runs[0], counts = {{}};
          view.show(0.3 * view.total, (0.3 + share) * view.total);
          if (share === 1) view.fit();
          t.draw();
          const {{ canvas, image }} = t.painter, top = view.panels[0].y + 3 * view.rows.pitch;
          const pixels = new Uint32Array(image.data.buffer);
          const [left, right] = [Math.ceil(view.left), Math.floor(view.left + view.plot)];
          for (let y = top; y < top + view.rows.bar; y++) {{
            for (let x = left; x < right; x++) {{
              const p = pixels[y * canvas.width + x];
              counts[p] = (counts[p] ?? 0) + 1;
            }}
          }}
          const area = (right - left) * view.rows.bar;
          return run.classes.map((k) => (counts[run.colors.kinds[k]] ?? 0) / area);
        }}""",
        share,
    )
    timeline = large()
    begin, end = (
        (0, timeline.makespan) if share == 1 else np.array([0.3, 0.3 + share]) * (timeline.makespan)
    )
    rank = slice(*timeline.schedule.offsets[3:5])
    inside = np.clip(timeline.end[rank], begin, end) - np.clip(timeline.start[rank], begin, end)
    forward = np.array([action.kind == db.Kind.F for action in list(timeline.schedule)[3]])
    # Columns round to whole pixels of their row, and lines between actions take some of both.
    wanted = inside[forward].sum() / inside.sum()
    assert counts[0] / sum(counts) == pytest.approx(wanted, abs=0.03)
    assert 0.85 < sum(counts) < 1


def test_nothing_is_drawn_outside_of_a_run(visit, tmp_path):
    # Both are crowded, the second ends where the first is half done.
    costs = db.Costs(F=[40, 0.01], B=0.01)
    late = db.simulate(db.make("gpipe", ranks=2, microbatches=3000), db.Costs(F=0.02, B=0.03))
    save([db.simulate(db.make("gpipe", ranks=2, microbatches=9), costs), late], tmp_path / "x.html")
    page = visit((tmp_path / "x.html").as_uri())
    colors = page.evaluate(f"""(() => {{
      const t = {HOST}, {{ view }} = t, {{ canvas, image }} = t.painter;
      view.show(-0.02 * view.total, 1.02 * view.total);
      t.draw();
      const pixels = new Uint32Array(image.data.buffer);
      const at = (panel, rank, time) => {{
        const {{ run, y }} = view.panels[panel];
        const row = Math.round(y + (rank + 0.3) * view.rows.pitch);
        return pixels[row * canvas.width + Math.round(view.x(run, time))];
      }};
      const {{ paper, causes }} = t.painter, [first, second] = t.data.runs;
      return [
        at(1, 0, -2) === paper, at(1, 1, second.makespan + 3) === paper,
        at(0, 1, -2) === paper, at(0, 1, first.makespan + 3) === paper,
        at(0, 1, 5) === causes[0][0], at(0, 1, 300) === paper,
      ]; }})()""")
    assert colors == [True, True, True, True, True, False]


def test_memory_stands_below_its_actions_on_a_screen_at_150_percent(visit, pages):
    page = visit(pages["small"], device_scale_factor=1.5)
    columns = page.evaluate(f"""(() => {{
      const {{ view, painter }} = {HOST}, {{ canvas, image, memory, scale }} = painter;
      const run = view.panels[0].run, ends = [canvas.width, 0];
      new Uint32Array(image.data.buffer).forEach((tone, at) => {{
        const column = at % canvas.width;
        if (tone !== memory) return;
        ends.push(Math.min(ends.shift(), column), Math.max(ends.shift(), column));
      }});
      return [scale, ends[0], view.x(run, 0) * scale, ends[1], view.x(run, run.makespan) * scale];
    }})()""")
    scale, first, start, last, end = columns
    assert scale == 1.5
    assert first == pytest.approx(start, abs=2)
    assert last <= end


def test_a_hundred_thousand_actions_are_drawn_at_every_zoom(visit, pages):
    page = visit(pages["large"])
    painted = page.evaluate(f"""(() => {{
      const t = {HOST}, {{ view }} = t, seen = new Set();
      for (let k = 0; k < 24; k++) {{
        t.draw();
        seen.add(t.parts.base.toDataURL().length);
        view.zoom(0.6, 0.37);
      }}
      return [seen.size, view.span / view.total]; }})()""")
    assert painted[0] > 15
    assert painted[1] < 1e-4
