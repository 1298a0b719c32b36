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
from debubble.core.actions import Kind, kinds_of
from debubble.core.errors import ParameterError
from debubble.engine.timeline import simulate
from debubble.lowering.chain import lower
from debubble.view.artists import TONES, Labels, Swatch
from debubble.view.bars import row_layout
from debubble.view.colors import COLOR, IDLE, LIMIT, shade
from debubble.view.figure import figure, plot, render, style
from debubble.view.transfers import transfer_ends
from tests.conftest import EXPLORES
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


def test_normalized_panels_count_in_their_ideal():
    fast, slow = run("1f1b", 4, 8), run("gpipe", 1, 3)
    drawing = figure([fast, slow], normalize=True)
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


@pytest.mark.slow
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


def test_an_optimizer_step_without_duration_has_an_edge_of_its_color():
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
    assert Swatch.of(Kind.F, 2, COLOR) != Swatch.of(Kind.F, 1, COLOR)


STRIP = row_layout(iterations=False, transfers=0, memory=True)


def test_a_memory_strip_is_nearer_to_its_own_bars_than_to_the_next():
    for transfers in (False, True):
        rows = row_layout(iterations=False, transfers=transfers, memory=True)
        above = rows.strip - rows.strip_height - (rows.top + rows.height) - rows.transfers_height
        assert above < 1 + rows.top - rows.strip


def test_memory_strips_have_one_scale():
    small, large = run("1f1b", 2, 4), run("gpipe", 2, 4)
    first, second = figure([small, large]).axes
    # Rank 0 of 1F1B holds 2, of GPipe 4, the fullest of all.
    for ax, peak in ((first, 2), (second, 4)):
        vertices = collection(ax, "memory").get_paths()[0].vertices
        rank0 = vertices[vertices[:, 1] < 0.5]
        height = STRIP.strip - rank0[:, 1].min()
        assert height == pytest.approx(STRIP.strip_height * peak / 4)


def test_the_memory_strip_is_the_memory_curve():
    timeline = run("1f1b", 1, 2)
    vertices = collection(plot(timeline, memory=True), "memory").get_paths()[0].vertices
    # F0 from 0, freed at 3; F1 from 3, freed at 6: one unit throughout.
    assert vertices[:, 0].min() == 0
    assert vertices[:, 0].max() == 6
    heights = (STRIP.strip - vertices[:, 1]) / STRIP.strip_height
    assert set(np.round(heights, 6).tolist()) == {0.0, 1.0}


def test_a_limit_is_a_line_across_every_strip_and_peaks_above_it_stand_out():
    ax = plot(run("gpipe", 2, 4), memory=True, limit=3.0)
    (line,) = [c for c in ax.collections if c.get_gid() == "limit"]
    heights = [segment[0][1] for segment in line.get_segments()]
    line = STRIP.strip - STRIP.strip_height * 3 / 4
    assert heights == pytest.approx([line, 1 + line])
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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["$\\frac{$", "<b>&amp;", "漢字", "a\x00b\x1b[0m", "x" * 500])
def test_any_name_and_title_can_be_drawn(name):
    timeline = simulate(replace(db.make("1f1b", ranks=2, microbatches=2), name=name))
    for format in ("png", "svg", "pdf"):
        assert len(render(figure([timeline], title=name), format)) > 1000


def test_a_long_title_is_wrapped():
    short, long = (figure([run("1f1b", 2, 2)], title="word " * n) for n in (1, 60))
    assert long.texts[0].get_text().count("\n") >= 2
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


@pytest.mark.processes
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
        assert render(figure([timeline], critical=True, limit=1e-9), "png")


def test_a_rank_without_work_is_idle():
    from debubble.core.schedule import Schedule

    schedule = Schedule.from_text([["0F0", "0B0"], []], db.Placement.explicit([0], ranks=2), 1)
    ax = plot(simulate(schedule), memory=True)
    assert len(boxes(collection(ax, "idle").get_paths()[0])) == 2
    assert isinstance(collection(ax, "actions"), PathCollection)


def texts_of(drawing):
    """Every text of a figure that shows; numbers of an axis beyond its ends do not."""
    found = set(drawing.findobj(matplotlib.text.Text))
    for ax in drawing.axes:
        for axis in (ax.xaxis, ax.yaxis):
            low, high = sorted(axis.get_view_interval())
            for label in axis.get_ticklabels():
                place = label.get_position()[axis is ax.yaxis]
                if not low <= place <= high:
                    found.discard(label)
    return [text for text in found if text.get_text() and text.get_visible()]


WIDTHS = (2, 3.3, 5, 7, 11)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "width"),
    [
        (name, width)
        for turn, name in enumerate(["1f1b", "dualpipe", "interleaved-1f1b", "zb-h1"])
        # The narrowest is the hardest; of the others each comes with one schedule.
        for width in (WIDTHS if EXPLORES else [WIDTHS[0], WIDTHS[1 + turn]])
    ],
)
def test_text_is_readable_and_inside_at_any_width(name, width):
    schedule = db.make(name, ranks=4, microbatches=8)
    timeline = simulate(schedule, db.Costs(F=1, I=1, W=1, p2p=0.3))
    drawing = figure([timeline, run("gpipe", 4, 4)], width=width, title="A title of some words")
    drawing.set_dpi(180)
    sizes = [size for size, texts in written(drawing) if texts]
    canvas = FigureCanvasAgg(drawing)
    with style():
        drawing.draw_without_rendering()
    renderer = canvas.get_renderer()
    shown = texts_of(drawing)
    assert min([*sizes, *(text.get_fontsize() for text in shown)]) >= 6
    assert drawing.get_figwidth() == width
    for text in shown:
        box = text.get_window_extent(renderer)
        assert box.x0 >= -1, text
        assert box.x1 <= drawing.bbox.width + 1, text
        assert box.y0 >= -1, text
        assert box.y1 <= drawing.bbox.height + 1, text


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
def test_captions_legend_and_peaks_do_not_meet(width):
    costs = db.Costs(F=1, B=2, p2p=0.3, activation=123_456_789.0)
    timeline = simulate(db.make("1f1b", ranks=4, microbatches=8), costs)
    drawing = figure([timeline], width=width, title="Title")
    drawing.set_dpi(180)
    canvas = FigureCanvasAgg(drawing)
    with style():
        drawing.draw_without_rendering()
    renderer = canvas.get_renderer()
    legend = set(drawing.legends[0].get_texts())
    shown = [text for text in texts_of(drawing) if text not in legend]
    boxes = [(t.get_text(), t.get_window_extent(renderer).padded(-0.5)) for t in shown]
    boxes.append(("legend", drawing.legends[0].get_window_extent(renderer)))
    for index, (one, box) in enumerate(boxes):
        for other, second in boxes[:index]:
            assert not box.overlaps(second), (one, other)


def test_sizes_may_be_lengths_of_any_unit():
    drawing = figure([run("1f1b", 2, 2)], width="84mm", height="6cm")
    assert drawing.get_size_inches() == pytest.approx([84 / 25.4, 6 / 2.54])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": "wide"}, "width is 'wide'; give inches, or a length such as 3.3in, 84mm"),
        ({"width": 0.2}, "width is '0.2'; the limits are 2 and 200 inches"),
        ({"font_size": 5}, "font size is '5'; text is readable from 6 points on"),
        ({"height": 1}, "height 1 inches leaves no room for 2 rows"),
        ({"range": "5"}, "range is '5'; give two times such as 10:20"),
        ({"range": (9, 12)}, "range begins at 9; the timeline ends at 9"),
        ({"numbers_from": -1}, "numbers from is '-1'; give a whole number"),
        ({"palette": "sepia"}, "palette is 'sepia'"),
        ({"palette": 3}, "palette is 3; give 'color', 'grey'"),
    ],
)
def test_options_that_cannot_be_used(options, message):
    with pytest.raises(ParameterError) as caught:
        figure([run("1f1b", 2, 2)], **options)
    assert message in str(caught.value)


def test_numbers_begin_where_they_are_told_and_go_on_through_iterations():
    timeline = run("1f1b", 1, 2, iterations=2)
    ((_, texts),) = written(figure([timeline], numbers_from=1))
    assert texts == ["1", "1", "2", "2", "3", "3", "4", "4"]
    slices = simulate(db.make("seq1f1b", ranks=1, microbatches=1, slices=2))
    ((_, texts),) = written(figure([slices], numbers_from=1))
    assert texts == ["1.0", "1.1", "1.1", "1.0"]


def test_iterations_have_a_ribbon_of_their_own_tone():
    ax = figure([run("pipedream-2bw", 2, 2, iterations=3)], numbers_from=1).axes[0]
    ribbon = collection(ax, "iterations")
    assert hexes(ribbon.get_facecolors()) == list(TONES)
    assert [len(boxes(path)) for path in ribbon.get_paths()] == [8, 8, 8]
    assert collection(figure([run("1f1b", 2, 2)]).axes[0], "iterations") is None


def test_transfers_are_rows_with_numbers():
    timeline = simulate(db.make("1f1b", ranks=2, microbatches=2), db.Costs(F=2, B=4, p2p=2))
    drawing = figure([timeline], numbers_from=1, memory=False)
    forward, backward = (
        boxes(path) for path in collection(drawing.axes[0], "transfers").get_paths()
    )
    # F0 ends at 2 and is on its way until 4: rank 0 sends above, rank 1 receives below.
    assert forward[:, :2].tolist() == [[2, 4], [4, 6], [2, 4], [4, 6]]
    assert np.rint(forward[:, 2:].mean(axis=1) - 0.1).tolist() == [0, 0, 1, 1]
    assert forward[0, 2] < forward[2, 2] - 1
    assert len(backward) == 4
    labels = written(drawing)
    assert sorted(labels[1][1]) == ["1"] * 4 + ["2"] * 4
    legend = [text.get_text() for text in drawing.legends[0].get_texts()]
    assert "activation sent, received" in legend
    off = figure([timeline], transfers=False)
    assert collection(off.axes[0], "transfers") is None
    assert not [t for t in off.legends[0].get_texts() if "sent" in t.get_text()]


def test_what_is_carried_has_lanes_a_shade_and_entries_of_its_own():
    schedule = db.make("1f1b", ranks=3, microbatches=4, carry=[(0, 2)])
    timeline = simulate(schedule, db.Costs(F=1, B=2, p2p=0.3, p2p_carry=2))
    drawing = figure([timeline], memory=False)
    bars = collection(drawing.axes[0], "transfers")
    forward, backward, carried, back = (boxes(path) for path in bars.get_paths())
    assert len(set(hexes(bars.get_facecolors()))) == 4
    for near, far in ((forward, carried), (backward, back)):
        assert len(far) == 8
        np.testing.assert_allclose(far[:, 1] - far[:, 0], 2)
        np.testing.assert_allclose(near[:, 1] - near[:, 0], 0.3)
        # Of no lane have both any part.
        assert all(low[3] <= high[2] or high[3] <= low[2] for low in near for high in far)
    legend = [text.get_text() for text in drawing.legends[0].get_texts()]
    assert [text for text in legend if "sent" in text] == [
        "activation sent, received", "gradient sent, received",
        "carried activation sent, received", "carried gradient sent, received",
    ]  # fmt: skip


def test_carried_transfers_alone_leave_no_empty_lane():
    schedule = db.make("1f1b", ranks=3, microbatches=4, carry=[(0, 2)])
    moved = transfer_ends(simulate(schedule, db.Costs(F=1, B=2, p2p_carry=2)))
    assert moved.carried.all()
    assert moved.lane.tolist() == moved.received.tolist()


def test_transfers_that_are_actions_are_drawn_at_their_times():
    schedule = lower(db.make("1f1b", ranks=2, microbatches=2), transfers="eager")
    timeline = simulate(schedule, db.Costs(F=2, B=4, p2p=2))
    forward, backward = collection(plot(timeline), "transfers").get_paths()
    kinds = kinds_of(schedule.actions)
    for path, pair in (
        (forward, (Kind.SEND_F, Kind.RECV_F)),
        (backward, (Kind.SEND_B, Kind.RECV_B)),
    ):
        here = np.isin(kinds, pair)
        assert boxes(path)[:, 0].tolist() == timeline.start[here].tolist()
        assert boxes(path)[:, 1].tolist() == timeline.end[here].tolist()


def test_no_transfers_are_drawn_where_none_take_time():
    assert collection(plot(run("1f1b", 2, 2)), "transfers") is None


def test_a_range_cuts_bars_at_its_ends():
    drawing = figure([run("1f1b", 2, 4)], range="4:8")
    ax = drawing.axes[0]
    assert ax.get_xlim() == (4, 8)
    every = np.concatenate([boxes(path) for path in collection(ax, "actions").get_paths()])
    assert every[:, 0].min() >= 4
    assert every[:, 1].max() <= 8
    wide = figure([run("1f1b", 2, 5000)], range=(100, 120), memory=False).axes[0]
    assert not wide.images
    far = figure([run("1f1b", 2, 50_000)], range=(30_000, 90_000), memory=False).axes[0]
    assert far.images[0].get_extent() == [30_000, 90_000, 1.5, -0.5]


def test_everything_around_the_bars_can_be_left_out():
    drawing = figure([run("1f1b", 2, 2)], title="", notes=False, legend=False, memory=False)
    assert not drawing.legends
    assert not [t for t in drawing.texts if t.get_text()]
    assert not [t for t in drawing.axes[0].texts if t.get_text()]
    assert drawing.get_figheight() < 1.2


def test_a_palette_reaches_bars_and_legend():
    ax = plot(run("1f1b", 2, 2), palette={"F": "#4169e1"})
    assert hexes(collection(ax, "actions").get_facecolors())[0] == "#4169e1"
    patches = ax.get_legend().findobj(matplotlib.patches.Rectangle)
    assert hexes([patches[0].get_facecolor()]) == ["#4169e1"]


@pytest.mark.slow
@pytest.mark.parametrize("memory", [False, True])
def test_plot_lives_in_any_axes(memory):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawing = Figure(figsize=(3.3, 2.2), layout="constrained")
        ax = drawing.add_subplot()
        plot(run("1f1b", 4, 8), ax, memory=memory)
        grid = Figure(figsize=(7, 5), layout="constrained")
        axes = grid.subplots(2, 2)
        for place in axes.flat:
            plot(run("zb-h1", 4, 8), place, memory=memory)
        for figures in (drawing, grid):
            figures.set_dpi(180)
            canvas = FigureCanvasAgg(figures)
            canvas.draw()
            renderer = canvas.get_renderer()
            for text in texts_of(figures):
                box = text.get_window_extent(renderer)
                assert box.x0 >= -1, text
                assert box.x1 <= figures.bbox.width + 1, text
                assert text.get_fontsize() >= 6
    assert ax.get_window_extent().height > 60
    assert len(drawing.axes) == 1


def test_plot_leaves_everything_else_alone():
    drawing = Figure()
    first, second = drawing.subplots(1, 2)
    second.plot([1, 2], [3, 4])
    before = dict(matplotlib.rcParams)
    plot(run("1f1b", 2, 2), first, title="")
    assert first.get_title(loc="left") == ""
    assert dict(matplotlib.rcParams) == before
    assert second.get_xlim() != first.get_xlim()
    assert not drawing.texts
    assert not drawing.legends
    with pytest.raises(ParameterError, match="axes have their size already"):
        plot(run("1f1b", 2, 2), first, width=3)


def test_panels_stand_in_columns():
    timelines = [run("gpipe", 4, 4), run("1f1b", 2, 4), run("zb-h1", 4, 4)]
    drawing = figure(timelines, columns=2, width=7)
    first, second, third = (ax.get_position() for ax in drawing.axes)
    assert first.y1 == pytest.approx(second.y1)
    assert first.x0 == pytest.approx(third.x0)
    assert third.y1 < min(first.y0, second.y0)
    assert first.width == pytest.approx(second.width)
    # The last panel of every column has the axis.
    assert [bool(ax.get_xlabel()) for ax in drawing.axes] == [False, True, True]


def texts(drawing):
    """All words of the annotations of a figure's panels."""
    found = [a for ax in drawing.axes for a in ax.texts]
    return [note.get_text() for note in found]


@pytest.mark.parametrize(
    ("caption", "wanted"),
    [
        ("none", []),
        ("name", ["1f1b"]),
        ("short", ["1f1b", "bubble 27.27 %, peak 4"]),
        ("full", ["1f1b", "4 ranks, 8 microbatches",
                  "makespan 33, bubble ratio 27.27 %, peak activation 4"]),
    ],
)  # fmt: skip
def test_a_caption_is_as_long_as_wanted(caption, wanted):
    assert [t for t in texts(figure([run("1f1b", 4, 8)], caption=caption, memory=False)) if t] == (
        wanted
    )


def test_a_wrapped_result_has_one_color():
    drawing = figure([run("1f1b", 4, 8)], width=2.6)
    notes = {note.get_text(): note.get_color() for note in drawing.axes[0].texts}
    result = {color for text, color in notes.items() if "bubble" in text or "peak act" in text}
    assert len([text for text in notes if "makespan" in text or "peak act" in text]) == 2
    assert len(result) == 1


def test_labels_stand_in_place_of_names():
    drawing = figure([run("1f1b", 2, 2), run("gpipe", 2, 2)], label={"gpipe": "GPipe (theirs)"})
    assert {"1f1b", "GPipe (theirs)"} <= set(texts(drawing))
    assert "gpipe" not in texts(drawing)
    with pytest.raises(ParameterError, match="label is for 'gpip'; did you mean 'gpipe'"):
        figure([run("gpipe", 2, 2)], label={"gpip": "x"})


@pytest.mark.slow
def test_numbers_are_in_all_panels_or_in_none():
    wide, narrow = (
        written(figure([run("1f1b", 4, 8), run("interleaved-1f1b", 4, 8)], width=width))
        for width in (11, 3.3)
    )
    assert all(marks for _, marks in wide)
    assert len({size for size, _ in wide}) == 1
    assert not any(marks for _, marks in narrow)
    assert all(marks for _, marks in written(figure([run("1f1b", 4, 8)], width=3.3)))


def test_text_is_in_the_font_that_is_asked_for():
    drawing = figure([run("1f1b", 2, 2)], font="DejaVu Serif")
    assert b"DejaVu Serif" in render(drawing, "svg")
    with pytest.raises(ParameterError, match="font is 'DejaVu Serf'; did you mean 'DejaVu Serif'"):
        figure([run("1f1b", 2, 2)], font="DejaVu Serf")


def test_a_former_name_of_an_option_still_works():
    with pytest.warns(db.DebubbleDeprecationWarning, match="use normalize="):
        figure([run("1f1b", 2, 2)], normalise=True)
