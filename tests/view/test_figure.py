"""What figures consist of: few artists however many actions, one axis, labels that fit."""

from __future__ import annotations

import subprocess
import sys
import warnings
from dataclasses import replace

import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure

import debubble as db
from debubble.core.actions import Kind
from debubble.core.errors import ParameterError
from debubble.engine.timeline import simulate
from debubble.view.artists import Labels, Swatch
from debubble.view.colors import COLOR, IDLE, LIMIT, shade
from debubble.view.figure import figure, plot, render, style
from tests.view.timelines import pairs, run, two_copies, zero_bubble


def collection(ax, gid):
    """The collection with this name, or None."""
    found = [c for c in ax.collections if c.get_gid() == gid]
    assert len(found) <= 1
    return found[0] if found else None


def boxes(path):
    """The rectangles of a path: left, right, top, bottom."""
    corners = path.vertices.reshape(-1, 5, 2)
    x, y = corners[:, :, 0], corners[:, :, 1]
    return np.stack([x.min(1), x.max(1), y.min(1), y.max(1)], axis=1)


def written(drawing):
    """Size and texts of the labels of every panel, as they are drawn."""
    canvas = FigureCanvasAgg(drawing)
    with style():
        canvas.draw()
    renderer = canvas.get_renderer()
    out = []
    for ax in drawing.axes:
        for labels in (a for a in ax.get_children() if isinstance(a, Labels)):
            size, marks = labels.placed(renderer)
            out.append((size, [text for _, _, text, _ in marks]))
    return out


def hexes(colors):
    return [matplotlib.colors.to_hex(color) for color in colors]


def test_all_actions_are_one_collection_with_a_path_per_style():
    timeline = run("1f1b", 4, 8)
    ax = figure([timeline], memory=False).axes[0]
    assert [c.get_gid() for c in ax.collections] == ["idle", "actions"]
    forward, backward = collection(ax, "actions").get_paths()
    assert len(boxes(forward)) == len(boxes(backward)) == 32
    assert hexes(collection(ax, "actions").get_facecolors()) == [shade(Kind.F), shade(Kind.B)]
    left, right, _, _ = boxes(forward)[0]
    assert (left, right) == (0, 1)


@pytest.mark.parametrize("microbatches", [2, 50, 400])
def test_the_number_of_artists_does_not_grow_with_the_actions(microbatches):
    small = plot(run("1f1b", 4, 2), memory=True, critical=True)
    large = plot(run("1f1b", 4, microbatches), memory=True, critical=True)
    kept = [a for a in large.get_children() if not isinstance(a, matplotlib.image.AxesImage)]
    assert len(kept) <= len(small.get_children())


def test_a_bar_is_where_and_as_long_as_its_action():
    timeline = run("gpipe", 2, 3)
    ax = plot(timeline)
    for kind, path in zip((Kind.F, Kind.B), collection(ax, "actions").get_paths(), strict=True):
        here = np.flatnonzero((timeline.schedule.actions & 31) == kind)
        assert boxes(path)[:, 0].tolist() == timeline.start[here].tolist()
        assert boxes(path)[:, 1].tolist() == timeline.end[here].tolist()
        assert np.rint(boxes(path)[:, 2:].mean(axis=1)).tolist() == [0, 0, 0, 1, 1, 1]


def test_rank_0_is_on_top():
    ax = plot(run("1f1b", 3, 3))
    assert ax.get_ylim() == (2.5, -0.5)
    assert [t.get_text() for t in ax.get_yticklabels()] == ["0", "1", "2"]


@pytest.mark.parametrize("memory", [False, True])
def test_halves_of_a_pair_share_the_row(memory):
    ax = plot(pairs(), memory=memory)
    forward, backward = (boxes(path) for path in collection(ax, "actions").get_paths())
    whole = forward[0]
    upper = [box for box in forward if box[3] - box[2] < 0.9 * (whole[3] - whole[2])]
    lower = [box for box in backward if box[3] - box[2] < 0.9 * (whole[3] - whole[2])]
    assert len(upper) == len(lower) == 3
    for above, below in zip(upper, lower, strict=True):
        assert above[:2].tolist() == below[:2].tolist()
        assert above[3] == pytest.approx(below[2])
        assert below[3] - above[2] == pytest.approx(whole[3] - whole[2])


def test_panels_have_one_time_axis():
    drawing = figure([run("gpipe", 4, 4), run("1f1b", 4, 8), run("1f1b", 2, 2)])
    assert [ax.get_xlim() for ax in drawing.axes] == [(0, 33)] * 3
    assert [ax.get_position().x0 for ax in drawing.axes] == [drawing.axes[0].get_position().x0] * 3
    assert len({ax.get_position().width for ax in drawing.axes}) == 1
    assert [bool(ax.get_xlabel()) for ax in drawing.axes] == [False, False, True]


def test_rows_of_all_panels_are_equally_high():
    drawing = figure([run("gpipe", 4, 4), run("1f1b", 2, 2)])
    four, two = (ax.get_position().height for ax in drawing.axes)
    assert four == pytest.approx(2 * two)


def test_normalised_panels_count_in_their_ideal():
    fast, slow = run("1f1b", 4, 8), run("gpipe", 1, 3)
    drawing = figure([fast, slow], normalise=True)
    assert drawing.axes[0].get_xlim() == (0, 33 / 24)
    left_right = [boxes(collection(ax, "idle").get_paths()[0])[0, :2] for ax in drawing.axes]
    assert left_right[0].tolist() == [0, 33 / 24]
    assert left_right[1].tolist() == [0, 1]
    assert "ideal" in drawing.axes[1].get_xlabel()


def test_the_idle_background_ends_with_the_makespan():
    ax = figure([run("gpipe", 2, 2), run("1f1b", 2, 8)]).axes[0]
    idle = collection(ax, "idle")
    assert boxes(idle.get_paths()[0])[:, :2].tolist() == [[0, 9], [0, 9]]
    assert hexes(idle.get_facecolors()) == [IDLE]


def test_all_labels_are_written_where_they_fit():
    ((size, texts),) = written(figure([run("1f1b", 4, 8)]))
    assert size == 9
    assert sorted(texts) == sorted(list("01234567") * 8)


def test_labels_that_fit_only_on_long_actions_are_left_out_on_short_ones():
    timeline = simulate(db.make("1f1b", ranks=2, microbatches=30), db.Costs(F=1, B=20))
    ((_, texts),) = written(figure([timeline]))
    assert sorted(texts) == sorted([str(number) for number in range(30)] * 2)


def test_no_label_is_written_when_none_fits():
    timeline = run("1f1b", 16, 64)
    assert written(figure([timeline]))[0][1] == []
    assert written(figure([run("1f1b", 4, 8)], labels=False)) == []


def test_labels_are_inside_their_bars():
    timeline = run("1f1b", 4, 12)
    drawing = figure([timeline])
    canvas = FigureCanvasAgg(drawing)
    with style():
        canvas.draw()
    renderer = canvas.get_renderer()
    ax = drawing.axes[0]
    (labels,) = (a for a in ax.get_children() if isinstance(a, Labels))
    size, marks = labels.placed(renderer)
    font = matplotlib.font_manager.FontProperties(size=size)
    every = np.concatenate([boxes(path) for path in collection(ax, "actions").get_paths()])
    low = ax.transData.transform(every[:, [0, 3]])
    high = ax.transData.transform(every[:, [1, 2]])
    assert len(marks) == 96
    for x, y, text, _ in marks:
        width, height, _ = renderer.get_text_width_height_descent(text, font, ismath=False)
        inside = (
            (low[:, 0] <= x) & (x + width <= high[:, 0])
            & (low[:, 1] <= y) & (y + height <= high[:, 1])
        )  # fmt: skip
        assert inside.sum() == 1


def test_labels_on_dark_bars_are_white():
    drawing = figure([run("1f1b", 2, 2)])
    canvas = FigureCanvasAgg(drawing)
    (labels,) = (a for a in drawing.axes[0].get_children() if isinstance(a, Labels))
    _, marks = labels.placed(canvas.get_renderer())
    assert {color for _, _, _, color in marks} == {"#000000", "#ffffff"}


def test_kinds_with_a_stripe_carry_one_along_their_edge():
    ax = plot(zero_bubble())
    (stripes,) = collection(ax, "stripes").get_paths()
    weights = collection(ax, "actions").get_paths()[2]
    assert boxes(stripes)[:, :2].tolist() == boxes(weights)[:, :2].tolist()
    assert boxes(stripes)[:, 3] == pytest.approx(boxes(weights)[:, 3])
    assert collection(plot(run("1f1b", 2, 2)), "stripes") is None


def test_an_optimizer_step_without_duration_has_an_edge_of_its_colour():
    actions = collection(plot(run("1f1b", 2, 2, iterations=2)), "actions")
    steps = actions.get_paths()[-1]
    assert len(boxes(steps)) == 4
    assert hexes(actions.get_edgecolors())[-1] == shade(Kind.OPT)
    assert actions.get_linewidths()[-1] > 1


def test_directions_of_two_copies_are_two_shades():
    actions = collection(plot(two_copies()), "actions")
    assert hexes(actions.get_facecolors()) == [
        shade(Kind.F, 0, 2), shade(Kind.F, 1, 2), shade(Kind.B, 0, 2), shade(Kind.B, 1, 2),
    ]  # fmt: skip


def test_the_legend_names_the_kinds_that_are_there():
    drawing = figure([run("1f1b", 2, 2), zero_bubble()], limit=3.0, critical=True)
    texts = [text.get_text() for text in drawing.legends[0].get_texts()]
    assert texts == [
        "F forward", "I backward for input", "W backward for weights", "B full backward",
        "OPT optimizer step", "idle", "activation memory", "limit 3", "critical path",
    ]  # fmt: skip
    texts = [t.get_text() for t in figure([run("1f1b", 2, 2)], memory=False).legends[0].get_texts()]
    assert texts == ["F forward", "B full backward", "idle"]


def test_a_swatch_shows_its_shades():
    ax = plot(two_copies())
    patches = ax.get_legend().findobj(matplotlib.patches.Rectangle)
    faces = hexes(patch.get_facecolor() for patch in patches)
    assert faces[:2] == [shade(Kind.F, 0, 2), shade(Kind.F, 1, 2)]
    assert Swatch(Kind.F, 2, COLOR) != Swatch(Kind.F, 1, COLOR)


def test_memory_strips_have_one_scale():
    small, large = run("1f1b", 2, 4), run("gpipe", 2, 4)
    first, second = figure([small, large]).axes
    # Rank 0 of 1F1B holds 2, of GPipe 4, the fullest of all.
    for ax, peak in ((first, 2), (second, 4)):
        vertices = collection(ax, "memory").get_paths()[0].vertices
        rank0 = vertices[vertices[:, 1] < 0.5]
        assert 0.46 - rank0[:, 1].min() == pytest.approx(0.28 * peak / 4)


def test_the_memory_strip_is_the_memory_curve():
    timeline = run("1f1b", 1, 2)
    vertices = collection(plot(timeline, memory=True), "memory").get_paths()[0].vertices
    # F0 from 0, freed at 3; F1 from 3, freed at 6: one unit throughout.
    assert vertices[:, 0].min() == 0
    assert vertices[:, 0].max() == 6
    assert set(np.round(0.46 - vertices[:, 1], 6).tolist()) == {0.0, 0.28}


def test_a_limit_is_a_line_across_every_strip_and_peaks_above_it_stand_out():
    ax = plot(run("gpipe", 2, 4), memory=True, limit=3.0)
    (line,) = [c for c in ax.collections if c.get_gid() == "limit"]
    heights = [segment[0][1] for segment in line.get_segments()]
    assert heights == pytest.approx([0.46 - 0.28 * 3 / 4, 1.46 - 0.28 * 3 / 4])
    peaks = [t for t in ax.texts if t.get_text() == "4"]
    assert len(peaks) == 2
    assert {t.get_color() for t in peaks} == {LIMIT}


def test_no_strip_and_no_peaks_without_memory():
    ax = plot(run("gpipe", 2, 4))
    assert collection(ax, "memory") is None
    assert not [t for t in ax.texts if t.get_text() == "peak"]


def test_the_critical_path_is_outlined_from_start_to_end():
    timeline = run("1f1b", 3, 4)
    outlines = boxes(collection(plot(timeline, critical=True), "critical").get_paths()[0])
    assert len(outlines) == len(timeline.critical_path())
    assert outlines[0, 0] == 0
    assert outlines[-1, 1] == timeline.makespan
    assert (outlines[:, 1] - outlines[:, 0]).sum() == timeline.makespan
    assert collection(plot(timeline), "critical") is None


def test_bars_thinner_than_pixels_become_a_picture_of_what_fills_each_column():
    timeline = run("1f1b", 2, 5000)
    ax = figure([timeline], memory=False).axes[0]
    assert collection(ax, "actions") is None
    (image,) = ax.images
    pixels = np.asarray(image.get_array())
    assert image.get_extent() == [0, timeline.makespan, 1.5, -0.5]
    assert ax.get_ylim() == (1.5, -0.5)
    column = pixels[: len(pixels) // 2, pixels.shape[1] // 2]
    colors = ["#{:02x}{:02x}{:02x}".format(*pixel[:3]) for pixel in column if pixel[3]]
    forward, backward = colors.count(shade(Kind.F)), colors.count(shade(Kind.B))
    assert colors[0] == shade(Kind.F)
    assert colors[-1] == shade(Kind.B)
    assert forward / len(colors) == pytest.approx(1 / 3, abs=0.1)
    assert backward / len(colors) == pytest.approx(2 / 3, abs=0.1)


def test_a_picture_from_afar_has_no_labels_and_a_thinned_memory_curve():
    ax = figure([run("1f1b", 2, 5000)]).axes[0]
    assert not [a for a in ax.get_children() if isinstance(a, Labels)]
    assert len(collection(ax, "memory").get_paths()[0].vertices) < 2 * 2 * 2 * 2000


def test_pairs_from_afar_keep_their_halves():
    schedule = db.make("dualpipe-v", ranks=2, microbatches=4000)
    ax = figure([simulate(schedule, db.Costs(F=1))], memory=False).axes[0]
    pixels = np.asarray(ax.images[0].get_array())
    column = pixels[: len(pixels) // 2, pixels.shape[1] // 2]
    colors = ["#{:02x}{:02x}{:02x}".format(*pixel[:3]) for pixel in column if pixel[3]]
    half = len(colors) // 2
    assert set(colors[:half]) <= {shade(Kind.F, 0, 2), shade(Kind.F, 1, 2)}
    assert set(colors[half:]) <= {shade(Kind.B, 0, 2), shade(Kind.B, 1, 2)}


def test_many_ranks_have_fewer_tick_labels_than_ranks():
    ax = figure([run("1f1b", 1024, 1)]).axes[0]
    assert len(ax.get_yticks()) == 256
    assert [label.get_text() for label in ax.get_yticklabels()[:3]] == ["0", "4", "8"]


def test_captions_say_the_setting_the_result_and_the_conventions():
    drawing = figure([run("1f1b", 4, 8)], title="A title", time_unit="ms")
    texts = [t.get_text() for t in drawing.texts + drawing.axes[0].texts]
    assert texts[0] == "A title"
    assert "p2p: transfers take no time" in texts[1]
    assert "1f1b" in texts
    assert "4 ranks, 8 microbatches" in texts
    assert "makespan 33 ms, bubble ratio 27.27 %, peak activation 4" in texts
    assert drawing.axes[0].get_xlabel() == "time (ms)"


def test_notes_can_be_left_out():
    drawing = figure([run("1f1b", 2, 2)], notes=False)
    assert not any("p2p" in t.get_text() for t in drawing.texts)


@pytest.mark.parametrize("name", ["$\\frac{$", "<b>&amp;", "漢字", "a\x00b\x1b[0m", "x" * 500])
def test_any_name_and_title_can_be_drawn(name):
    timeline = simulate(replace(db.make("1f1b", ranks=2, microbatches=2), name=name))
    for format in ("png", "svg", "pdf"):
        assert len(render(figure([timeline], title=name), format)) > 1000


def test_a_long_title_is_wrapped():
    short, long = (figure([run("1f1b", 2, 2)], title="word " * n) for n in (1, 60))
    assert long.texts[0].get_text().count("\n") == 2
    assert long.get_figheight() > short.get_figheight()


def test_plot_draws_into_given_axes_and_returns_them():
    drawing = Figure()
    ax = drawing.add_subplot()
    assert plot(run("1f1b", 2, 2), ax, title="mine") is ax
    assert len(drawing.axes) == 1
    assert ax.get_title(loc="left").splitlines()[0] == "mine"
    assert collection(ax, "actions") is not None
    assert plot(run("1f1b", 2, 2), Figure().add_subplot(), legend=False).get_legend() is None


def test_the_user_settings_neither_show_nor_change():
    with matplotlib.rc_context({"axes.grid": True, "font.size": 30, "svg.fonttype": "path"}):
        before = dict(matplotlib.rcParams)
        svg = render(figure([run("1f1b", 2, 2)]), "svg").decode()
        assert dict(matplotlib.rcParams) == before
    assert "<text" in svg
    assert "font-size: 30" not in svg


def test_no_window_system_is_touched():
    code = (
        "import sys, debubble as db\n"
        "from debubble.view.figure import figure, plot, render\n"
        "timeline = db.simulate(db.make('1f1b', ranks=2, microbatches=2))\n"
        "plot(timeline)\n"
        "render(figure([timeline]), 'png')\n"
        "print([m for m in ('matplotlib.pyplot', 'tkinter') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_nothing_to_draw_is_refused():
    with pytest.raises(ParameterError, match="no timeline"):
        figure([])


@pytest.mark.parametrize(
    "costs", [{"F": 0, "B": 0}, {"F": 1e-9, "B": 2e-9}, {"F": 1e12, "B": 3e12}, {"activation": 0}]
)
def test_extreme_costs_are_drawn_without_warnings(costs):
    timeline = simulate(db.make("1f1b", ranks=2, microbatches=3), db.Costs(**costs))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert render(figure([timeline], critical=True, limit=0.0), "png")


def test_a_rank_without_work_is_idle():
    from debubble.core.schedule import Schedule

    schedule = Schedule.from_text([["0F0", "0B0"], []], db.Placement.explicit([0], ranks=2), 1)
    ax = plot(simulate(schedule), memory=True)
    assert len(boxes(collection(ax, "idle").get_paths()[0])) == 2
    assert isinstance(collection(ax, "actions"), PathCollection)
