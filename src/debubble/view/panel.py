"""One panel of a figure: a timeline in one pair of axes, with its axes and peaks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from debubble.core.kinds import OFFLOAD_KINDS, Kind
from debubble.core.units import number
from debubble.engine.memory import ROUNDING, memory_limits
from debubble.engine.timeline import Timeline
from debubble.view import words
from debubble.view.artists import (
    Labels,
    Written,
    add_bars,
    add_idle,
    add_image,
    add_outlines,
    add_paths,
    add_ribbon,
    add_transfers,
    step_areas,
)
from debubble.view.bars import Bars
from debubble.view.colors import FAINT, INK, LIMIT, MEMORY, text_color
from debubble.view.legend import moved_kind
from debubble.view.options import FigureOptions
from debubble.view.rows import Rows
from debubble.view.text import Sizes, text_width
from debubble.view.transfers import Transfers

DPI = 180
"""Pixels per inch of files and of the picture that stands for bars thinner than a pixel."""

_MOST_LABELLED = 48
"""Ranks up to which peaks are written beside the rows."""

_MANY = 12
"""Ranks from which peaks are written only where they differ from their neighbours'."""

_MOST_MOVED = 20_000
"""Ends of transfers up to which a panel draws them one by one."""


@dataclass(frozen=True)
class Panel:
    """Contents and layout of a panel."""

    bars: Bars
    moved: Transfers | None
    """Its transfers where they are drawn."""
    options: FigureOptions
    sizes: Sizes
    rows: Rows
    window: tuple[float, float]
    """First and last time of the axis, in the panel's unit."""
    fullest: float
    """Memory that a strip is as high as."""
    unit: float = 1.0
    """Divisor of times."""

    @property
    def scale(self) -> float:
        """Factor from times to the unit of the axis."""
        return 1.0 / self.unit

    @property
    def stretch(self) -> tuple[float, float]:
        """The part of the window in which the timeline runs, in time of the simulation."""
        begin, end = (place * self.unit for place in self.window)
        return begin, max(begin, min(end, self.bars.timeline.makespan))


def add_panel(ax: Axes, panel: Panel) -> None:
    """Rows, bars, transfers, memory and rank labels of one timeline."""
    bars, rows, options, scale = panel.bars, panel.rows, panel.options, panel.scale
    ranks, (left, right) = bars.ranks, panel.window
    limits = (left, right if right > left else left + 1.0)
    ax.set(xlim=limits, ylim=(ranks - 0.5, -0.5), facecolor="none")
    ax.set_autoscale_on(False)
    columns, row = _pixels(ax, ranks)
    begin, end = panel.stretch
    add_idle(ax, ranks, (begin * scale, end * scale), rows)
    if options.range is not None:
        bars = bars.within(begin, end)
    busiest = int(np.diff(bars.offsets).max(initial=0))
    # From afar when the average bar of the busiest rank is thinner than two pixels and a half.
    own = columns * (end - begin) * scale / (right - left) if right > left else 0.0
    if busiest * 2.5 > own > 0:
        pixels = (max(1, round(own)), max(2, round(row)))
        add_image(ax, bars, scale, rows, pixels, options.palette, (begin, end))
        ax.set(xlim=limits, ylim=(ranks - 0.5, -0.5))
    else:
        gaps = _gaps(bars, own, end - begin)
        add_bars(ax, bars, scale, rows, gaps, options.palette, clip=options.range is not None)
        if bars.timeline.schedule.iterations > 1:
            add_ribbon(ax, bars, scale, rows)
        if options.labels:
            Labels(ax, _written(panel, bars), panel.sizes.text)
    if panel.moved is not None and len(panel.moved) <= _MOST_MOVED:
        _transfers(ax, panel, panel.moved)
    if options.critical:
        _critical(ax, bars.timeline, scale, rows, thin=busiest * 4 > own)
    if rows.strip_height:
        _memory(ax, panel, columns, row / DPI)
    _rank_axis(ax, panel, row / DPI)


def _written(panel: Panel, bars: Bars) -> Written:
    """The microbatches of bars: on all bars of a kind on a rank that have room, or on none."""
    first, palette = panel.options.numbers_from, panel.options.palette
    top, bottom = panel.rows.extent(bars)
    colors = [text_color(palette.shade(*bars.shade_of(s))) for s in range(len(bars.styles))]
    return Written(
        bars.start * panel.scale, bars.end * panel.scale, top, bottom, bars.number,
        lambda unit: bars.text(unit, first), [colors[style] for style in bars.style.tolist()],
        (bars.rank * len(Kind) + bars.kind) * 3 + bars.half,
    )  # fmt: skip


def _transfers(ax: Axes, panel: Panel, moved: Transfers) -> None:
    bars, first, palette = panel.bars, panel.options.numbers_from, panel.options.palette
    kinds = (moved_kind([bars], False), moved_kind([bars], True))
    colors = (palette.shade(kinds[0]), palette.shade(kinds[1]))
    top, bottom = add_transfers(ax, moved, panel.scale, panel.rows, colors)
    if not panel.options.labels or not len(moved):
        return
    inks = [text_color(color) for color in colors]
    boxes = Written(
        moved.start * panel.scale, moved.end * panel.scale, top, bottom, moved.unit,
        lambda unit: bars.text(unit, first), [inks[back] for back in moved.backward.tolist()],
        moved.rank,
    )  # fmt: skip
    Labels(ax, boxes, panel.sizes.small)


def _gaps(bars: Bars, columns: float, time: float) -> list[float]:
    """Points of white between bars of every style, none where it would hide them.

    They are in proportion to the thin bars of the style. `columns` are the pixels that the time
    takes.
    """
    gaps = []
    for style in range(len(bars.styles)):
        lengths = (bars.end - bars.start)[bars.style == style]
        lengths = lengths[lengths > 0]
        thin = float(np.quantile(lengths, 0.1)) / time * columns if len(lengths) else 0.0
        gaps.append(min(0.6, 0.06 * thin * 72 / DPI) if thin >= 5 else 0.0)
    return gaps


def _critical(ax: Axes, timeline: Timeline, scale: float, rows: Rows, thin: bool) -> None:
    # Only what has a bar: copies of activations run beside them, and waits take no time.
    path = [item for item in timeline.critical_path() if item.action.kind not in OFFLOAD_KINDS]
    left, right, rank = (
        np.array([getattr(item, name) for item in path], dtype=np.float64)
        for name in ("start", "end", "rank")
    )
    add_outlines(ax, left * scale, right * scale, rank, rows, width=0.5 if thin else 1.3)


def _memory(ax: Axes, panel: Panel, columns: int, row: float) -> None:
    """A strip with the memory of every rank, all on one scale, and the peaks beside them."""
    timeline, ranks, rows = panel.bars.timeline, panel.bars.ranks, panel.rows
    limits = memory_limits(panel.options.limit, ranks)
    height = rows.strip_height / panel.fullest if panel.fullest > 0 else 0.0
    curves = (
        _thinned(*timeline.memory_curve(rank), timeline.makespan, columns, panel.scale)
        for rank in range(ranks)
    )
    baselines = np.arange(ranks) + rows.strip
    area = step_areas(curves, baselines, height)
    add_paths(ax, [area], "memory", facecolors=[MEMORY], linewidths=0, zorder=2)
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
    written = words.memory_scale([timeline])
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
    """Heading of the column of peaks, with their unit where it has a name."""
    unit = words.memory_scale([timeline]).unit
    return f"peak [{unit}]" if unit else "peak"


def peaks_width(timeline: Timeline, sizes: Sizes) -> float:
    """Inches right of the axes that the peaks take."""
    if timeline.schedule.ranks > _MOST_LABELLED:
        return 0.0
    written = words.memory_scale([timeline])
    texts = [peak_head(timeline), *map(written.text, timeline.peak_activation.tolist())]
    return max(text_width(text, sizes.small) for text in texts) + 7 / 72


def _thinned(
    times: NDArray[np.float64],
    values: NDArray[np.float64],
    makespan: float,
    columns: int,
    scale: float,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The curve, or with more changes than can be seen its largest value in every two columns."""
    if len(times) <= columns or makespan <= 0:
        return times * scale, values
    parts = columns // 2 + 1
    column = np.minimum((times * (parts / makespan)).astype(np.int64), parts - 1)
    first = np.flatnonzero(np.diff(column, prepend=-1))
    return times[first] * scale, np.maximum.reduceat(values, first)


def rank_spacing(ranks: int, row: float, size: float) -> int:
    """Every how many ranks something can be written beside rows `row` inches high."""
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
    """Ticks and label of the time axis, `width` inches, or none where another panel has them."""
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


def setting(timeline: Timeline) -> str:
    """Sizes of the schedule, and the meaning of shades."""
    note = words.shades_note(timeline)
    return words.setting(timeline) + (f" ({note})" if note else "")


def _pixels(ax: Axes, ranks: int) -> tuple[int, float]:
    """Columns of the axes and height of a row in pixels, as a file has them."""
    box = ax.get_window_extent()
    dpi = ax.figure.dpi
    return max(1, round(box.width / dpi * DPI)), box.height / dpi * DPI / ranks
