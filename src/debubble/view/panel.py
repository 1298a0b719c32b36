"""One panel of a figure: a timeline in one pair of axes, with its axes and peaks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from debubble.core.kinds import OFFLOAD_KINDS, STEP_KINDS, Kind
from debubble.core.units import number
from debubble.engine.memory import ROUNDING, memory_limits
from debubble.engine.timeline import Timeline
from debubble.view import captions
from debubble.view.artists import (
    STRIPE_SHARE,
    TONES,
    Boxes,
    LabelBoxes,
    Labels,
    add_paths,
    moved_color,
    step_areas,
)
from debubble.view.bars import LOWER, UPPER, WHOLE, Bars, RowLayout
from debubble.view.colors import FAINT, IDLE, INK, LIMIT, MEMORY, PAPER, STRIPES, rgb, text_color
from debubble.view.options import FigureOptions
from debubble.view.text import TextSizes, text_width
from debubble.view.transfers import TransferEnds

STEP_WIDTH = 1.8
"""Points of the line that stands for an optimizer step that takes no time."""

_MOST_LABELLED = 48
"""Ranks up to which peaks are written next to the rows."""

_MANY = 12
"""Ranks from which peaks are written only where they differ from their neighbors'."""

_MOST_MOVED = 20_000
"""Ends of transfers up to which a panel draws them one by one."""


@dataclass(frozen=True)
class Panel:
    """Contents and layout of a panel."""

    bars: Bars
    moved: TransferEnds | None
    """Its transfers where they are drawn."""
    options: FigureOptions
    sizes: TextSizes
    rows: RowLayout
    window: tuple[float, float]
    """First and last time of the axis, in the panel's unit."""
    fullest: float
    """Memory at which a strip is full."""
    unit: float = 1.0
    """Divisor of times."""

    @property
    def scale(self) -> float:
        """Factor from times to the unit of the axis."""
        return 1.0 / self.unit

    def boxes(self, bars: Bars) -> Boxes:
        """Return the rectangles of bars."""
        top, bottom = self.rows.extent(bars)
        return Boxes(bars.start * self.scale, bars.end * self.scale, top, bottom)

    @property
    def stretch(self) -> tuple[float, float]:
        """Part of the window in which the timeline runs, in time of the simulation."""
        begin, end = (place * self.unit for place in self.window)
        return begin, max(begin, min(end, self.bars.timeline.makespan))


def add_panel(ax: Axes, panel: Panel) -> Labels | None:
    """Add rows, bars, transfers, memory and rank labels of one timeline; return its numbers."""
    found: Labels | None = None
    bars, rows, options, scale = panel.bars, panel.rows, panel.options, panel.scale
    ranks, (left, right) = bars.ranks, panel.window
    limits = (left, right if right > left else left + 1.0)
    ax.set(xlim=limits, ylim=(ranks - 0.5, -0.5), facecolor="none")
    ax.set_autoscale_on(False)
    # Columns of the axes and height of a row in pixels, as a file has them.
    box, dpi = ax.get_window_extent(), ax.figure.dpi
    columns = max(1, round(box.width / dpi * options.dpi))
    row = box.height / dpi * options.dpi / ranks
    begin, end = panel.stretch
    # The background of all rows: what stays visible of it is idle.
    top, first, last = np.arange(ranks) + rows.top, np.full(ranks, begin), np.full(ranks, end)
    idle = Boxes(first * scale, last * scale, top, top + rows.height)
    add_paths(ax, [idle.path()], "idle", facecolors=[IDLE], zorder=1)
    if options.range is not None:
        bars = bars.within(begin, end)
    busiest = int(np.diff(bars.offsets).max(initial=0))
    # From afar when the average bar of the busiest rank is thinner than two pixels and a half.
    own = columns * (end - begin) * scale / (right - left) if right > left else 0.0
    if busiest * 2.5 > own > 0:
        _add_image(ax, panel, bars, max(1, round(own)), max(2, round(row)))
        ax.set(xlim=limits, ylim=(ranks - 0.5, -0.5))
    else:
        _add_bars(ax, panel, bars, _gaps(bars, own / options.dpi * 72, end - begin))
        if bars.timeline.schedule.iterations > 1:
            _add_ribbon(ax, panel, bars)
        if options.labels:
            found = Labels(ax, _bar_labels(panel, bars), panel.sizes.text)
    if panel.moved is not None and len(panel.moved) <= _MOST_MOVED:
        _add_transfers(ax, panel, panel.moved)
    if options.critical:
        _add_critical(ax, panel, thin=busiest * 4 > own)
    if rows.strip_height:
        _add_memory(ax, panel, columns, row / options.dpi)
    _rank_axis(ax, panel, row / options.dpi)
    return found


def _add_bars(ax: Axes, panel: Panel, bars: Bars, gaps: list[float]) -> None:
    """Add all bars in one collection with a path per style, and the stripes in another.

    `gaps` are the points of the white line around bars of every style.
    """
    palette, clip = panel.options.palette, panel.options.range is not None
    boxes = panel.boxes(bars)
    paths, colors, edges, stripes, stripe_colors = [], [], [], [], []
    for style in range(len(bars.styles)):
        here = boxes.only(bars.style == style)
        kind, index, count = bars.shade_of(style)
        paths.append(here.path())
        colors.append(palette.shade(kind, index, count))
        # An optimizer step may take no time: its edge is what is seen of it.
        edges.append(colors[-1] if kind in STEP_KINDS else PAPER)
        if kind in STRIPES:
            thickness = STRIPE_SHARE * (here.bottom - here.top)
            upper = here.top if STRIPES[kind] == "top" else here.bottom - thickness
            stripes.append(here._replace(top=upper, bottom=upper + thickness).path())
            stripe_colors.append(palette.stripes[kind])
    widths = [STEP_WIDTH if color != PAPER else gap for color, gap in zip(edges, gaps, strict=True)]
    # Without a range an optimizer step at the very end is seen as a whole.
    if paths:
        add_paths(
            ax, paths, "actions", facecolors=colors, edgecolors=edges, linewidths=widths,
            joinstyle="miter", zorder=2, clip_on=clip,
        )  # fmt: skip
    if stripes:
        add_paths(ax, stripes, "stripes", facecolors=stripe_colors, zorder=2.1)


def _add_image(ax: Axes, panel: Panel, bars: Bars, width: int, height: int) -> None:
    """Add the bars from afar: every column of a row is a stack of what fills that part of time.

    `width` are the pixels of the whole picture, `height` those of one row.
    """
    (begin, end), rows, palette = panel.stretch, panel.rows, panel.options.palette
    first = round((0.5 + rows.top) * height)
    halves = (UPPER, LOWER) if bars.paired else (WHOLE,)
    size = max(1, round(rows.height * height / len(halves)))
    colors = [palette.shade(*bars.shade_of(style)) for style in range(len(bars.styles))]
    table = np.array([(*rgb(color), 255) for color in (*colors, IDLE)], dtype=np.uint8)
    middles = (np.arange(size) + 0.5) / size
    image = np.zeros((bars.ranks, height, width, 4), dtype=np.uint8)
    for rank in range(bars.ranks):
        for place, half in enumerate(halves):
            stack = np.cumsum(bars.shares(rank, width, end - begin, half, begin), axis=1)
            style = (stack[None, :, :] <= middles[:, None, None]).sum(axis=2)
            line = first + place * size
            image[rank, line : line + size] = table[style][: height - line]
    picture = ax.imshow(
        image.reshape(-1, width, 4),
        extent=(begin * panel.scale, end * panel.scale, bars.ranks - 0.5, -0.5),
        aspect="auto",
        interpolation="nearest",
        zorder=2,
    )
    picture.set_gid("actions")


def _add_ribbon(ax: Axes, panel: Panel, bars: Bars) -> None:
    """Add a band below the bars whose tone changes with their iteration."""
    rows = panel.rows
    top = bars.rank + rows.top + rows.height
    middle = top + rows.ribbon / 2
    upper = np.where(bars.half == LOWER, middle, top)
    lower = np.where(bars.half == UPPER, middle, top + rows.ribbon)
    boxes = panel.boxes(bars)._replace(top=upper, bottom=lower)
    masks = [(bars.iteration % len(TONES) == tone) & ~bars.steps for tone in range(len(TONES))]
    used = [(mask, color) for mask, color in zip(masks, TONES, strict=True) if mask.any()]
    paths = [boxes.only(mask).path() for mask, _ in used]
    add_paths(ax, paths, "iterations", facecolors=[color for _, color in used], zorder=2)


def _bar_labels(panel: Panel, bars: Bars) -> LabelBoxes:
    """Return the microbatches of bars: on all bars of a kind on a rank that have room, or none."""
    first, palette = panel.options.numbers_from, panel.options.palette
    colors = [text_color(palette.shade(*bars.shade_of(s))) for s in range(len(bars.styles))]
    return LabelBoxes(
        panel.boxes(bars), bars.number, lambda unit: bars.text(unit, first),
        [colors[style] for style in bars.style.tolist()],
        (bars.rank * len(Kind) + bars.kind) * 3 + bars.half,
    )  # fmt: skip


def _add_transfers(ax: Axes, panel: Panel, moved: TransferEnds) -> None:
    """Add sends above receives in lanes, in the colors of an activation and of a gradient."""
    bars, rows, options, scale = panel.bars, panel.rows, panel.options, panel.scale
    styles = [(back, carried) for carried in (False, True) for back in (False, True)]
    colors = [moved_color([bars], options.palette, *style) for style in styles]
    style = moved.backward + 2 * moved.carried
    tall = rows.transfers_height / moved.lanes
    top = moved.rank + rows.transfers + tall * moved.lane
    boxes = Boxes(moved.start * scale, moved.end * scale, top, top + 0.94 * tall)
    masks = [style == number for number in range(len(styles) if moved.carried.any() else 2)]
    paths = [boxes.only(here).path() for here in masks]
    # An instant is seen by its edge.
    add_paths(
        ax, paths, "transfers", facecolors=colors[: len(paths)], edgecolors="face", linewidths=0.3,
        zorder=2,
    )  # fmt: skip
    if not options.labels or not len(moved):
        return
    inks = [text_color(color) for color in colors]
    labels = LabelBoxes(
        boxes, moved.unit, lambda unit: bars.text(unit, options.numbers_from),
        [inks[number] for number in style.tolist()], 2 * moved.rank + moved.carried,
    )  # fmt: skip
    Labels(ax, labels, panel.sizes.small)


def _gaps(bars: Bars, width: float, time: float) -> list[float]:
    """Return points of white between bars of every style, 0 where it would hide them.

    They are in proportion to the thin bars of the style. `width` are the points that the time
    takes.
    """
    gaps = []
    for style in range(len(bars.styles)):
        lengths = (bars.end - bars.start)[bars.style == style]
        lengths = lengths[lengths > 0]
        thin = float(np.quantile(lengths, 0.1)) / time * width if len(lengths) else 0.0
        gaps.append(min(0.6, 0.06 * thin) if thin >= 2 else 0.0)
    return gaps


def _add_critical(ax: Axes, panel: Panel, thin: bool) -> None:
    """Add dark frames around the bars of the critical path."""
    rows, path = panel.rows, panel.bars.timeline.critical_path()
    # Copies to and from the host have no bar.
    drawn = [item for item in path if item.action.kind not in OFFLOAD_KINDS]
    left, right, rank = (
        np.array([getattr(item, name) for item in drawn], dtype=np.float64)
        for name in ("start", "end", "rank")
    )
    top = rank + rows.top
    frames = Boxes(left * panel.scale, right * panel.scale, top, top + rows.height)
    add_paths(
        ax, [frames.path()], "critical", facecolors="none", edgecolors=[INK],
        linewidths=0.5 if thin else 1.3, zorder=3,
    )  # fmt: skip


def _add_memory(ax: Axes, panel: Panel, columns: int, row: float) -> None:
    """Add strips with the memory of all ranks, on one scale, and the peaks next to them.

    `row` is the height of a rank's row in inches.
    """
    timeline, ranks, rows = panel.bars.timeline, panel.bars.ranks, panel.rows
    limits = memory_limits(panel.options.limit, ranks)
    height = rows.strip_height / panel.fullest if panel.fullest > 0 else 0.0
    curves = (
        _thinned(*timeline.memory_curve(rank), timeline.makespan, columns, panel.scale)
        for rank in range(ranks)
    )
    baselines = np.arange(ranks) + rows.strip
    area = step_areas(curves, baselines, height)
    add_paths(ax, [area], "memory", facecolors=[MEMORY], zorder=2)
    if limits is not None and panel.fullest > 0:
        begin, end = (time * panel.scale for time in panel.stretch)
        ax.hlines(
            baselines - limits * height, begin, end, colors=LIMIT,
            linewidths=min(0.8, 2.2 * row), zorder=3, gid="limit",
        )  # fmt: skip
    if ranks > _MOST_LABELLED:
        return
    small = panel.sizes.small
    peaks = timeline.peak_activation.tolist()
    written = captions.memory_scale([timeline])
    for rank in range(0, ranks, rank_spacing(ranks, row, small)):
        peak = peaks[rank]
        # A column of many equal numbers says less than where they change.
        if ranks > _MANY and 0 < rank < ranks - 1 and peak == peaks[rank - 1] == peaks[rank + 1]:
            continue
        over = limits is not None and peak > limits[rank] * (1 + ROUNDING)
        ax.annotate(
            written.text(peak), (1.0, rank + rows.strip - rows.strip_height / 2), (5, 0),
            fontsize=small, xycoords=ax.get_yaxis_transform(), textcoords="offset points",
            va="center", color=LIMIT if over else FAINT, annotation_clip=False,
        )  # fmt: skip
    ax.annotate(
        peak_head(timeline), (1.0, 1.0), (5, 2), xycoords="axes fraction",
        textcoords="offset points",
        fontsize=small, color=FAINT, va="bottom", annotation_clip=False,
    )  # fmt: skip


def peak_head(timeline: Timeline) -> str:
    """Return the heading of the column of peaks, with their unit where it has a name."""
    unit = captions.memory_scale([timeline]).unit
    return f"peak [{unit}]" if unit else "peak"


def peaks_width(timeline: Timeline, sizes: TextSizes) -> float:
    """Return the inches right of the axes that the peaks take."""
    if timeline.schedule.ranks > _MOST_LABELLED:
        return 0.0
    written = captions.memory_scale([timeline])
    texts = [peak_head(timeline), *map(written.text, timeline.peak_activation.tolist())]
    return max(text_width(text, sizes.small) for text in texts) + 7 / 72


def _thinned(
    times: NDArray[np.float64],
    values: NDArray[np.float64],
    makespan: float,
    columns: int,
    scale: float,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the curve; with more changes than pixels, its largest value in every two columns."""
    if len(times) <= columns or makespan <= 0:
        return times * scale, values
    parts = columns // 2 + 1
    column = np.minimum((times * (parts / makespan)).astype(np.int64), parts - 1)
    first = np.flatnonzero(np.diff(column, prepend=-1))
    return times[first] * scale, np.maximum.reduceat(values, first)


def rank_spacing(ranks: int, row: float, size: float) -> int:
    """Return every how many ranks a text has room next to rows `row` inches high."""
    spacing = 1
    while spacing * row < 1.15 * size / 72 and spacing < ranks:
        spacing *= 2
    return spacing


def _rank_axis(ax: Axes, panel: Panel, row: float) -> None:
    ranks, rows, size = panel.bars.ranks, panel.rows, panel.sizes.text
    spacing = rank_spacing(ranks, row, size)
    middle = rows.top + rows.height / 2
    ax.yaxis.set_major_locator(FixedLocator([rank + middle for rank in range(0, ranks, spacing)]))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y - middle:.0f}"))
    ax.tick_params(axis="y", length=0, labelsize=size, labelcolor=INK, pad=3)
    # The word takes more height than a row or two may have.
    if ranks * row > 2.6 * size / 72:
        ax.set_ylabel("rank", fontsize=size, color=FAINT, labelpad=3)
    for side in ("left", "right", "top"):
        ax.spines[side].set_visible(False)


def add_time_axis(ax: Axes, label: str, size: float, width: float, shown: bool = True) -> None:
    """Add ticks and label of the time axis, `width` inches; none where another panel has them."""
    widest = max(text_width(number(limit), size) for limit in ax.get_xlim())
    marks = int(min(12, max(2, width / (2 * max(widest, 0.2)))))
    ax.xaxis.set_major_locator(MaxNLocator(marks, steps=[1, 2, 5, 10]))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda time, _: number(time)))
    ax.spines["bottom"].set(visible=shown, color=FAINT, linewidth=0.7)
    ax.tick_params(
        axis="x", bottom=shown, labelbottom=shown, labelsize=size, labelcolor=INK, color=FAINT,
        width=0.7, length=3,
    )  # fmt: skip
    if shown:
        ax.set_xlabel(label, fontsize=size, color=FAINT, parse_math=False)
