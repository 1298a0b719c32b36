"""One panel of a figure: a timeline in one pair of axes, with its axes, caption and legend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from debubble.analysis.metrics import limit_text
from debubble.core.actions import COPY_KINDS, Kind
from debubble.core.units import number
from debubble.engine.memory import Limit
from debubble.engine.timeline import Timeline
from debubble.view import words
from debubble.view.artists import (
    Labels,
    Rows,
    Swatch,
    SwatchHandler,
    add_bars,
    add_idle,
    add_image,
    add_outlines,
    add_paths,
    step_areas,
)
from debubble.view.bars import Bars
from debubble.view.colors import FAINT, IDLE, INK, LIMIT, MEMORY, NAMES

DPI = 180
"""Pixels per inch of files and of the picture that stands for bars thinner than a pixel."""

_PLAIN = Rows()
_WITH_MEMORY = Rows(top=-0.46, height=0.60, strip=0.46, strip_height=0.28)
_MOST_LABELLED = 48
"""Ranks up to which peaks are written beside the rows."""


def add_panel(
    ax: Axes,
    bars: Bars,
    *,
    span: float,
    memory: bool,
    labels: bool,
    critical: bool,
    limit: Limit | None,
    fullest: float,
    unit: float = 1.0,
) -> None:
    """Rows, bars, memory and rank labels of one timeline; `unit` is what time is divided by."""
    timeline, ranks, scale = bars.timeline, bars.ranks, 1.0 / unit
    rows = _WITH_MEMORY if memory else _PLAIN
    ax.set(xlim=(0.0, span if span > 0 else 1.0), ylim=(ranks - 0.5, -0.5), facecolor="none")
    ax.set_autoscale_on(False)
    columns, row = _pixels(ax, ranks)
    add_idle(ax, ranks, timeline.makespan * scale, rows)
    busiest = int(np.diff(bars.offsets).max(initial=0))
    # From afar when the average bar of the busiest rank is thinner than two pixels and a half.
    own = columns * timeline.makespan * scale / span if span > 0 else 0.0
    if busiest * 2.5 > own > 0:
        add_image(ax, bars, scale, rows, (max(1, round(own)), max(2, round(row))))
        ax.set(xlim=(0.0, span), ylim=(ranks - 0.5, -0.5))
    else:
        add_bars(ax, bars, scale, rows, _gap(bars, own))
        if labels:
            Labels(ax, bars, scale, rows)
    if critical:
        _critical(ax, timeline, scale, rows, thin=busiest * 4 > own)
    if memory:
        _memory(ax, bars, scale, rows, fullest, limit, columns)
    _rank_axis(ax, ranks, rows, row / DPI)


def _gap(bars: Bars, columns: float) -> float:
    """Points of white between bars: in proportion to the thin ones, none where it would hide them.

    `columns` are the pixels that the makespan takes.
    """
    lengths = (bars.end - bars.start)[bars.end > bars.start]
    if not len(lengths):
        return 0.0
    thin = float(np.quantile(lengths, 0.1)) / bars.timeline.makespan * columns
    return min(0.6, 0.06 * thin * 72 / DPI) if thin >= 5 else 0.0


def _critical(ax: Axes, timeline: Timeline, scale: float, rows: Rows, thin: bool) -> None:
    # Only what has a bar: copies of activations run beside them.
    steps = [step for step in timeline.critical_path() if step.action.kind not in COPY_KINDS]
    left, right, rank = (
        np.array([getattr(step, name) for step in steps], dtype=np.float64)
        for name in ("start", "end", "rank")
    )
    add_outlines(ax, left * scale, right * scale, rank, rows, width=0.5 if thin else 1.3)


def _memory(
    ax: Axes,
    bars: Bars,
    scale: float,
    rows: Rows,
    fullest: float,
    limit: Limit | None,
    columns: int,
) -> None:
    """A strip with the memory of every rank, all on one scale, and the peaks beside them."""
    timeline, ranks = bars.timeline, bars.ranks
    height = rows.strip_height / fullest if fullest > 0 else 0.0
    curves = (
        _thinned(*timeline.memory_curve(rank), timeline.makespan, columns, scale)
        for rank in range(ranks)
    )
    baselines = np.arange(ranks) + rows.strip
    area = step_areas(curves, baselines, height)
    add_paths(ax, [area], "memory", facecolors=[MEMORY], linewidths=0, zorder=2)
    limits = None if limit is None else np.broadcast_to(np.asarray(limit), ranks)
    if limits is not None and fullest > 0:
        ax.hlines(
            baselines - limits * height, 0, timeline.makespan * scale,
            colors=LIMIT, linewidths=0.8, zorder=3, gid="limit",
        )  # fmt: skip
    if ranks > _MOST_LABELLED:
        return
    written = words.memory_scale([timeline], limit)
    for rank, peak in enumerate(timeline.peak_activation.tolist()):
        over = limits is not None and peak > limits[rank] * (1 + 1e-9)
        ax.annotate(
            written.text(peak), (1.0, rank + 0.3), (5, 0), fontsize=7,
            xycoords=ax.get_yaxis_transform(), textcoords="offset points",
            va="center", color=LIMIT if over else FAINT, annotation_clip=False,
        )  # fmt: skip
    ax.annotate(
        f"peak [{written.unit}]" if written.unit else "peak", (1.0, 1.0), (5, 2),
        xycoords="axes fraction", textcoords="offset points", fontsize=7, color=FAINT, va="bottom",
        annotation_clip=False,
    )  # fmt: skip


def _thinned(
    times: NDArray[np.float64],
    values: NDArray[np.float64],
    makespan: float,
    columns: int,
    scale: float,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The curve, or with more steps than can be seen its largest value in every two columns."""
    if len(times) <= columns or makespan <= 0:
        return times * scale, values
    parts = columns // 2 + 1
    column = np.minimum((times * (parts / makespan)).astype(np.int64), parts - 1)
    first = np.flatnonzero(np.diff(column, prepend=-1))
    return times[first] * scale, np.maximum.reduceat(values, first)


def _rank_axis(ax: Axes, ranks: int, rows: Rows, row: float) -> None:
    step = 1
    while step * row < 0.13 and step < ranks:
        step *= 2
    middle = rows.top + rows.height / 2
    ax.yaxis.set_major_locator(FixedLocator([rank + middle for rank in range(0, ranks, step)]))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y - middle:.0f}"))
    ax.tick_params(axis="y", length=0, labelsize=8, labelcolor=INK, pad=3)
    ax.set_ylabel("rank", fontsize=8, color=FAINT, labelpad=3)
    for side in ("left", "right", "top"):
        ax.spines[side].set_visible(False)


def add_time_axis(ax: Axes, label: str, shown: bool = True) -> None:
    """Ticks and label of the time axis, or none where another panel below has them."""
    ax.xaxis.set_major_locator(MaxNLocator(12, steps=[1, 2, 5, 10]))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda time, _: number(time)))
    ax.spines["bottom"].set(visible=shown, color=FAINT, linewidth=0.7)
    ax.tick_params(
        axis="x", bottom=shown, labelbottom=shown, labelsize=8, labelcolor=INK, color=FAINT,
        width=0.7, length=3,
    )  # fmt: skip
    if shown:
        ax.set_xlabel(label, fontsize=8, color=FAINT, parse_math=False)


def add_caption(ax: Axes, timeline: Timeline, time_unit: str) -> None:
    """Name and setting in one line, the result in a second one."""
    name = ax.annotate(
        words.name(timeline), (0.0, 1.0), (0, 15), xycoords="axes fraction",
        textcoords="offset points", fontsize=10, fontweight="bold", color=INK, va="bottom",
        annotation_clip=False, parse_math=False,
    )  # fmt: skip
    ax.annotate(
        setting(timeline), (1.0, 0.0), (7, 0), xycoords=name, textcoords="offset points",
        fontsize=8.5, color=FAINT, va="bottom", annotation_clip=False, parse_math=False,
    )  # fmt: skip
    ax.annotate(
        words.result(timeline, time_unit), (0.0, 1.0), (0, 3), xycoords="axes fraction",
        textcoords="offset points", fontsize=8.5, color=INK, va="bottom", annotation_clip=False,
        parse_math=False,
    )  # fmt: skip


def setting(timeline: Timeline) -> str:
    """What was run, and what the shades mean."""
    note = words.shades_note(timeline)
    return words.setting(timeline) + (f" ({note})" if note else "")


def add_legend(
    where: Axes | Figure,
    panels: Sequence[Bars],
    memory: bool,
    limit: Limit | None,
    critical: bool,
    **place: Any,
) -> None:
    """What is in the picture: the kinds that occur in any of the panels, idle and memory."""
    shades: dict[Kind, int] = {}
    for bars in panels:
        for kind in bars.kinds:
            count = 1 if kind == Kind.OPT else min(bars.shades, 4)
            shades[kind] = max(shades.get(kind, 1), count)
    handles: list[Any] = [Swatch(kind, shades[kind]) for kind in NAMES if kind in shades]
    names = [f"{swatch.kind.name} {NAMES[swatch.kind]}" for swatch in handles]
    handles.append(Patch(facecolor=IDLE))
    names.append("idle")
    if memory:
        handles.append(Patch(facecolor=MEMORY))
        names.append("activation memory")
    if memory and limit is not None:
        handles.append(Line2D([], [], color=LIMIT, linewidth=1.0))
        names.append(f"limit {limit_text(limit, panels[0].timeline.table.costs)}")
    if critical:
        handles.append(Patch(facecolor="none", edgecolor=INK, linewidth=1.3))
        names.append("critical path")
    dense = len(handles) > 8
    where.legend(
        handles, names, handler_map={Swatch: SwatchHandler()}, ncols=len(handles), frameon=False,
        fontsize=7 if dense else 8, labelcolor=INK, handlelength=2.0, handleheight=1.0,
        handletextpad=0.5, columnspacing=1.0 if dense else 1.4, borderpad=0.0, **place,
    )  # fmt: skip


def _pixels(ax: Axes, ranks: int) -> tuple[int, float]:
    """Columns of the axes and height of a row in pixels, as a file has them."""
    box = ax.get_window_extent()
    dpi = ax.figure.dpi
    return max(1, round(box.width / dpi * DPI)), box.height / dpi * DPI / ranks
