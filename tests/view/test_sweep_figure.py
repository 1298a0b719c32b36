"""Pictures of sweeps: what is drawn, and that it is where it belongs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

import debubble as db
from debubble.sweeps import Results, run, spec_of
from debubble.sweeps.chart import Chart
from debubble.view.sweep_figure import chart_figure, save_chart

DATA: dict[str, Any] = {
    "command": "simulate",
    "options": {"microbatches": 8},
    "grid": {"schedule": ["1f1b", "zb-h1", "dualpipe"], "ranks": [2, 3, 4], "costs.p2p": [0, 0.5]},
}


def swept(folder: Path, data: dict[str, Any]) -> Results:
    path = folder / "x.sqlite"
    run(spec_of(data), path, jobs=1)
    return Results.read(path)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return swept(tmp_path_factory.mktemp("sweep"), DATA)


def bubble(name: str, ranks: int, p2p: float) -> float:
    costs = db.Costs(p2p=p2p)
    schedule = db.make(name, ranks=ranks, microbatches=8, costs=costs)
    return db.simulate(schedule, costs).bubble_ratio


def test_a_chart_has_a_line_for_each_group(results: Results) -> None:
    chart = Chart.read(results, "x=ranks y=bubble_ratio by=schedule costs.p2p=0")
    assert [line.name for line in chart.lines] == ["1f1b", "zb-h1", "dualpipe"]
    assert [line.x for line in chart.lines] == [(2, 3, 4), (2, 3, 4), (2, 4)]
    for line in chart.lines:
        assert line.middle == [bubble(line.name, int(ranks), 0.0) for ranks in line.x]
    assert chart.title == "bubble ratio by ranks"
    assert chart.notes[1:] == (
        "microbatches 8, costs.p2p 0", "1 of 9 points have no such result"
    )  # fmt: skip


def test_several_values_at_a_place_have_their_spread(results: Results) -> None:
    chart = Chart.read(results, "x=ranks y=bubble_ratio by=schedule")
    wanted = tuple(bubble("1f1b", 4, p2p) for p2p in (0.0, 0.5))
    assert chart.lines[0].y[2] == wanted
    assert chart.lines[0].middle[2] == pytest.approx(sum(wanted) / 2)
    assert "line: median over costs.p2p; area: least to greatest" in chart.notes
    heads = [" ".join(column.head) for column in chart.table()]
    assert heads == [
        "schedule", "ranks", "bubble_ratio median", "bubble_ratio least", "bubble_ratio greatest"
    ]  # fmt: skip


def test_texts_are_places_beside_each_other(results: Results) -> None:
    chart = Chart.read(results, "x=schedule y=makespan by=ranks")
    assert chart.texts == ("1f1b", "zb-h1", "dualpipe")
    assert [line.name for line in chart.lines] == ["2", "3", "4"]
    labels = [label.get_text() for label in chart_figure(chart).axes[0].get_xticklabels()]
    assert labels == ["1f1b", "zb-h1", "dualpipe"]


def test_random_draws_are_dots(tmp_path: Path) -> None:
    data = {
        "command": "simulate", "options": {"schedule": "1f1b", "ranks": 4, "microbatches": 8},
        "samples": {"count": 60, "draw": {"costs.p2p": {"from": 0.001, "to": 1, "scale": "log"}}},
    }  # fmt: skip
    chart = Chart.read(swept(tmp_path, data), "x=costs.p2p y=makespan")
    assert chart.scattered
    (ax,) = chart_figure(chart).axes
    assert ax.get_xscale() == "log"
    assert len(ax.lines[0].get_xdata()) == 60


@pytest.mark.parametrize(
    "words",
    [
        "x=ranks y=bubble_ratio by=schedule",
        "x=schedule y=makespan by=ranks",
        "x=costs.p2p y=peak_activation",
    ],
)
def test_all_text_is_within_the_picture(results: Results, words: str) -> None:
    drawing = chart_figure(Chart.read(results, words, "A title " * 12))
    canvas = FigureCanvasAgg(drawing)
    canvas.draw()
    page, renderer = drawing.bbox, canvas.get_renderer()
    boxes = [
        text.get_window_extent(renderer) for text in drawing.findobj(Text)
        if text.get_text() and text.get_visible()
    ]  # fmt: skip
    assert len(boxes) > 8
    for box in boxes:
        assert page.x0 - 1 <= box.x0 <= box.x1 <= page.x1 + 1
        assert page.y0 - 1 <= box.y0 <= box.y1 <= page.y1 + 1


def test_a_page_stands_alone_and_escapes(results: Results, tmp_path: Path) -> None:
    path = tmp_path / "x.html"
    save_chart(Chart.read(results, "x=ranks y=makespan by=schedule", "<b>&"), path)
    page = path.read_text(encoding="utf-8")
    assert "<h1>&lt;b&gt;&amp;</h1>" in page
    assert "<svg" in page
    assert page.count("<tr") >= 8
    assert not re.search(r"(src|href)=\"(?!#|data:)", page)


def test_too_many_lines_are_refused(tmp_path: Path) -> None:
    data = {
        "command": "simulate", "options": {"schedule": "1f1b", "ranks": 2},
        "grid": {"microbatches": list(range(4, 20)), "costs.p2p": [0, 1]},
    }  # fmt: skip
    found = swept(tmp_path, data)
    with pytest.raises(db.ParameterError, match="microbatches has 16 values, and the limit is 12"):
        Chart.read(found, "x=costs.p2p y=makespan by=microbatches")
