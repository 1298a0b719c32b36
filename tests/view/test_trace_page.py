"""Marks, differences and findings in a real browser."""

from __future__ import annotations

import pytest

import debubble as db
from debubble.view.page import page as page_of
from debubble.view.timeline_data import encode
from debubble.view.trace_view import MarkStyle, add_differences, add_marks, trace_page
from tests.diagnosis.diagnosed import of_planted
from tests.view.test_timeline_component import HOST, details, exported, place, shown

LATE = "#f57c00"
LOOKS = {"late": MarkStyle("late host", LATE), "peer": MarkStyle("peer", like="data"),
         "fill": MarkStyle("fill", like="fill")}  # fmt: skip
MARKS = {0: [(2, 3, "late"), (3, 4, "peer"), (5.2, 6, "late")], 1: [(0, 1, "fill")]}


def timelines():
    """1F1B whose last stage is slow, and as planned; rank 0 is idle from 2 to 5, planned to 4."""
    schedule = db.make("1f1b", ranks=2, microbatches=4)
    return [db.simulate(schedule, db.Costs(F=[1, 1], B=[2, slow])) for slow in (3, 2)]


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Addresses of a page with marks, of the same one without, and of a diagnosis."""
    folder = tmp_path_factory.mktemp("pages")
    drawn = timelines()
    payload = encode(drawn)
    add_marks(payload, 0, MARKS, LOOKS)
    add_differences(payload, 0, drawn, 1, 0.2)
    texts = {
        "marked": page_of(drawn, payload=payload),
        "plain": page_of(drawn),
        "diagnosis": trace_page(of_planted("slow stage", 0)),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: (folder / f"{name}.html").as_uri() for name in texts}


def colors(page, spots, panel=0):
    """Colors at (time, rank, share of the height) of the picture."""
    return page.evaluate(
        f"""([spots, panel]) => {{
          const {{ view, parts, painter }} = {HOST}, at = view.panels[panel], {{ scale }} = painter;
          const context = parts.base.getContext("2d");
          return spots.map(([time, rank, share]) => {{
            const x = Math.round(scale * view.x(at.run, time));
            const y = at.y + (rank * view.rows.pitch) + share * view.rows.bar - view.scroll;
            const [r, g, b] = context.getImageData(x, Math.floor(scale * y), 1, 1).data;
            return "#" + [r, g, b].map((c) => c.toString(16).padStart(2, "0")).join("");
          }});
        }}""",
        [spots, panel],
    )


def theme(page, expression):
    return page.evaluate(f"{HOST}.palette.{expression}")


def test_marks_are_drawn_in_idle_time(visit, pages):
    page = visit(pages["marked"])
    assert colors(page, [(2.5, 0, 0.2), (2.5, 0, 0.8)]) == [LATE, LATE]
    # What looks like a cause of idle time has its two tones, what has no mark a plain one.
    assert set(colors(page, [(3.4, 0, 0.3), (3.5, 0, 0.6), (3.6, 0, 0.7)])) <= set(
        theme(page, "causes[2]")
    )
    assert colors(page, [(0.5, 1, 0.5)]) == [theme(page, "causes[0][1]")]


def test_marks_over_actions_are_strips_at_their_foot(visit, pages):
    page = visit(pages["marked"])
    top, foot = colors(page, [(5.8, 0, 0.4), (5.8, 0, 0.9)])
    assert foot == LATE
    assert top == page.evaluate(f"{HOST}.data.kinds.find(({{ name }}) => name === 'B').color")


def test_what_is_longer_than_in_the_other_timeline_is_hatched(visit, pages):
    page = visit(pages["marked"])
    ink = theme(page, "ink")

    def inked(low, high, rank, panel=0):
        spots = [(low + (high - low) * k / 60, rank, 0.5) for k in range(1, 60)]
        return colors(page, spots, panel).count(ink) / 59

    # The last unit of 1B0, and the unit that rank 0 waits longer for it.
    assert 0.05 < inked(4.1, 4.9, 1) < 0.5
    assert 0.05 < inked(4.1, 4.9, 0) < 0.5
    assert inked(2.1, 3.9, 1) == 0
    assert inked(2.1, 3.9, 1, panel=1) == 0


def test_nothing_changes_without_marks(visit, pages):
    page = visit(pages["plain"])
    assert page.evaluate(f"{HOST}.data.runs.every((run) => !run.marks && !run.differs)")
    assert colors(page, [(2.5, 0, 0.5)])[0] in theme(page, "causes[2]")
    legend = page.locator("debubble-timeline .legend").inner_text()
    assert "late host" not in legend
    assert "longer than" not in legend
    # Another timeline of the same page is as it is without them.
    spots = [(k / 7, rank, 0.3) for k in range(80) for rank in (0, 1)]
    wanted = colors(page, spots, panel=1)
    assert colors(visit(pages["marked"]), spots, panel=1) == wanted


def test_the_legend_names_them_with_their_shares(visit, pages):
    page = visit(pages["marked"])
    legend = page.locator("debubble-timeline .legend").inner_text()
    makespan = timelines()[0].makespan
    assert f"late host {100 * 1.8 / (2 * makespan):.1f} %" in legend
    assert f"waiting for data (1f1b {100 / (2 * makespan):.1f} %" in legend
    assert "longer than 1f1b" in legend


def test_the_pointer_tells_cause_and_duration(visit, pages):
    page = visit(pages["marked"])
    page.evaluate("""() => {
      window.said = [];
      const { fillText } = CanvasRenderingContext2D.prototype;
      CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
        window.said.push(text);
        return fillText.call(this, text, ...rest);
      };
    }""")
    page.mouse.move(*place(page, 2.5, 0))
    page.wait_for_function("() => window.said.some((text) => text === 'late host: 1')")
    page.mouse.click(*place(page, 2.5, 0))
    text = details(page)
    assert "Idle on rank 0: late host, 1" in text
    assert "late host 1, peer 1" in text
    page.mouse.click(*place(page, 5.8, 0))
    text = details(page)
    assert "late host 0.8" in text
    assert "1 later, 0 longer" in text


def test_without_bubbles_there_are_no_marks(visit, pages):
    page = visit(pages["marked"])
    page.locator("debubble-timeline").get_by_label("Bubbles").uncheck()
    assert colors(page, [(2.5, 0, 0.5)]) == [theme(page, "idle")]
    assert "late host" not in page.locator("debubble-timeline .legend").inner_text()


def test_marks_are_seen_from_afar_and_never_in_place_of_work(visit, tmp_path):
    long = db.simulate(db.make("1f1b", ranks=2, microbatches=4000), db.Costs(F=1, B=[2, 3]))
    payload = encode([long])
    idle, share = {}, {}
    for rank in range(2):
        part = slice(*long.schedule.offsets[rank : rank + 2])
        ends = [0.0, *long.end[part][:-1].tolist()]
        starts = long.start[part].tolist()
        idle[rank] = [(a, b, "late") for a, b in zip(ends, starts, strict=True) if b > a]
        share[rank] = sum(b - a for a, b, _ in idle[rank]) / long.makespan
    add_marks(payload, 0, idle, LOOKS)
    path = tmp_path / "long.html"
    path.write_text(page_of([long], payload=payload), encoding="utf-8")
    page = visit(path.as_uri())
    count = page.evaluate(
        f"""(color) => {{
          const {{ view, painter }} = {HOST}, {{ scale, pixels, image }} = painter;
          const tone = (255 << 24 | parseInt(color.slice(5, 7) + color.slice(3, 5)
            + color.slice(1, 3), 16)) >>> 0;
          return [0, 1].map((rank) => {{
            const top = Math.round(scale * (view.panels[0].y + rank * view.rows.pitch));
            const bar = Math.round(scale * view.rows.bar), wide = scale * view.plot;
            let found = 0;
            for (let y = top; y < top + bar; y++) {{
              for (let x = 0; x < image.width; x++) found += pixels[y * image.width + x] === tone;
            }}
            return found / bar / wide;
          }});
        }}""",
        LATE,
    )
    assert count == pytest.approx([share[0], share[1]], abs=0.03)


@pytest.mark.parametrize("kind", ["svg", "pdf", "png"])
def test_pictures_of_the_view_have_them(visit, pages, tmp_path, kind):
    content = exported(visit(pages["marked"]), kind, tmp_path)
    if kind == "svg":
        assert LATE.encode() in content
        assert b"longer than 1f1b" in content
    assert len(content) > 5_000 * (kind == "png")


def test_a_finding_leads_to_where_it_happens(visit, pages):
    page = visit(pages["diagnosis"])
    found = of_planted("slow stage", 0)
    assert page.requests == [pages["diagnosis"]]
    assert found.findings[0].text in page.inner_text(".findings")
    before = shown(page)
    page.click("[data-reveal]")
    page.wait_for_function(f"() => {HOST}.area")
    area = page.evaluate(f"(({{ from, to, first }}) => [from, to, first])({HOST}.area)")
    low, high = shown(page)
    assert high - low < (before[1] - before[0]) / 2
    assert low < area[0] < area[1] < high
    assert area[2] == found.findings[0].where["rank"]
    assert "slow-stage" in details(page)


@pytest.mark.parametrize("width", [1280, 800, 390])
def test_the_page_fits(visit, pages, width):
    page = visit(pages["diagnosis"], viewport={"width": width, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    heads = page.locator("debubble-timeline .head b").all_inner_texts()
    assert heads == ["observed", "predicted"]
