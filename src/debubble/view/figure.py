"""Timelines as matplotlib figures: one panel each, on one time axis."""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from debubble.core.errors import ParameterError
from debubble.engine.memory import Limit
from debubble.engine.timeline import Timeline
from debubble.view import words
from debubble.view.bars import Bars, bars_of
from debubble.view.colors import FAINT, INK
from debubble.view.panel import (
    DPI,
    add_caption,
    add_legend,
    add_panel,
    add_time_axis,
    setting,
)

WIDTH = 11.0
"""Inches across a figure."""

FONTS: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana"],
    "font.size": 9.0,
    "text.usetex": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "debubble",
    "pdf.fonttype": 42,
    "path.simplify": False,
}


@contextmanager
def style() -> Iterator[None]:
    """Settings of matplotlib for these pictures, whatever the user's are; put back afterwards."""
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(FONTS)
        # A name may be in any script; signs the font lacks become boxes.
        warnings.filterwarnings("ignore", message=r"Glyph \d+ .* missing")
        yield


def render(drawing: Figure, format: str, **options: Any) -> bytes:
    """A figure as ``"png"``, ``"svg"`` or ``"pdf"``; options as for ``Figure.savefig``."""
    buffer = io.BytesIO()
    with style():
        drawing.savefig(buffer, format=format, dpi=options.pop("dpi", DPI), **options)
    return buffer.getvalue()


def plot(
    timeline: Timeline,
    ax: Axes | None = None,
    *,
    memory: bool = False,
    labels: bool = True,
    title: str | None = None,
    critical: bool = False,
    limit: Limit | None = None,
    legend: bool = True,
    time_unit: str = "",
) -> Axes:
    """Draw one timeline, rank 0 on top.

    Parameters
    ----------
    timeline
        What to draw.
    ax
        Where; left out, the axes of a new figure that belongs to no window.
    memory
        Whether a strip under each rank shows its activation memory over time.
    labels
        Whether microbatches are written on the actions that have room for them.
    title
        Replaces the schedule's name and setting.
    critical
        Whether the actions of the critical path are outlined.
    limit
        A memory limit, or one for each rank, drawn as a line across the strips.
    legend
        Whether there is a legend of the kinds above the axes.
    time_unit
        Unit of times; the default is that of the costs.

    Notes
    -----
    An overlapped pair has the forward above and the backward below. Where actions are thinner than
    a pixel, each column of a row is a stack of what fills that part of the time.
    """
    bars = bars_of(timeline)
    # Axes of somebody else keep their settings.
    with style() if ax is None else nullcontext():
        if ax is None:
            height = 0.9 + bars.ranks * _row_height([bars], memory)
            ax = Figure(figsize=(WIDTH, height), layout="constrained").add_subplot()
        add_panel(
            ax, bars, span=timeline.makespan, memory=memory, labels=labels, critical=critical,
            limit=limit, fullest=_fullest([bars], limit),
        )  # fmt: skip
        add_time_axis(ax, _time_label(time_unit, [timeline]))
        name = title or f"{words.name(timeline)}: {setting(timeline)}"
        lines = [name, words.result(timeline, time_unit)]
        ax.set_title(
            "\n".join(lines), loc="left", fontsize=9, color=INK, pad=20 if legend else 6,
            parse_math=False,
        )  # fmt: skip
        if legend:
            corner = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0), "borderaxespad": 0.4}
            add_legend(ax, [bars], memory, limit, critical, **corner)
    return ax


def figure(
    timelines: Sequence[Timeline],
    *,
    title: str | None = None,
    memory: bool = True,
    normalise: bool = False,
    labels: bool = True,
    critical: bool = False,
    limit: Limit | None = None,
    notes: bool = True,
    time_unit: str = "",
) -> Figure:
    """Draw timelines below each other, on one time axis and one scale of memory.

    Parameters
    ----------
    timelines
        One panel each, in this order.
    title
        Stands above all.
    memory, labels, critical, limit, time_unit
        As in :func:`plot`, for every panel.
    normalise
        Whether each panel's time is divided by its ideal, the work of its busiest rank: 1 is a
        schedule that never waits, whatever it costs.
    notes
        Whether the conventions behind the numbers stand at the foot.

    Raises
    ------
    ParameterError
        When there is nothing to draw.
    """
    panels = [bars_of(timeline) for timeline in timelines]
    if not panels:
        raise ParameterError("there is no timeline to draw; give at least one")
    units = [b.timeline.ideal if normalise and b.timeline.ideal else 1.0 for b in panels]
    span = max(b.timeline.makespan / unit for b, unit in zip(panels, units, strict=True))
    fullest = _fullest(panels, limit)
    small = textwrap.wrap("  ·  ".join(words.conventions(timelines)), 205) if notes else []

    time = _time_label(time_unit, timelines)
    if normalise:
        time = "time / ideal (work of the busiest rank)"

    # All places are in inches from the lower left corner of the figure.
    row = _row_height(panels, memory)
    heading = textwrap.wrap(words.printable(title or "", 300), 105)
    head, foot = 0.26 + 0.2 * len(heading) + (0.14 if heading else 0.0), 0.52 + 0.14 * len(small)
    caption, gap = 0.42, 0.16
    total = head + foot + sum(caption + b.ranks * row for b in panels) + (len(panels) - 1) * gap
    left = 0.36 + 0.075 * len(str(max(b.ranks for b in panels)))
    width = WIDTH - left - (0.62 if memory else 0.2)

    with style():
        drawing = Figure(figsize=(WIDTH, total), dpi=100, facecolor="white")
        top = total - head
        for index, (bars, unit) in enumerate(zip(panels, units, strict=True)):
            height = bars.ranks * row
            top -= caption + height
            box = (left / WIDTH, top / total, width / WIDTH, height / total)
            ax = drawing.add_axes(box)
            add_panel(
                ax, bars, span=span, unit=unit, memory=memory, labels=labels, critical=critical,
                limit=limit, fullest=fullest,
            )  # fmt: skip
            add_time_axis(ax, time, shown=index == len(panels) - 1)
            add_caption(ax, bars.timeline, time_unit)
            top -= gap
        corner = (left / WIDTH, 1 - (head - 0.16) / total)
        add_legend(
            drawing, panels, memory, limit, critical,
            loc="upper left", bbox_to_anchor=corner, borderaxespad=0,
        )  # fmt: skip
        drawing.text(
            left / WIDTH, 1 - 0.1 / total, "\n".join(heading), fontsize=12, fontweight="bold",
            color=INK, va="top", parse_math=False,
        )  # fmt: skip
        drawing.text(
            left / WIDTH, 0.08 / total, "\n".join(small), fontsize=7, color=FAINT, va="bottom",
            parse_math=False,
        )  # fmt: skip
    return drawing


def _time_label(unit: str, timelines: Sequence[Timeline]) -> str:
    name = words.printable(unit or words.units(timelines)[0], 24)
    return f"time ({name or 'unit of the costs'})"


def _fullest(panels: Sequence[Bars], limit: Limit | None) -> float:
    peaks = [float(bars.timeline.peak_activation.max()) for bars in panels]
    return max([*peaks, float(np.max(limit or 0.0))])


def _row_height(panels: Sequence[Bars], memory: bool) -> float:
    """Inches of a row: comfortable for few ranks, and never a figure taller than a few pages."""
    ranks = max(bars.ranks for bars in panels)
    everything = sum(bars.ranks for bars in panels)
    comfortable = 0.4 if any(bars.paired for bars in panels) else 0.3
    bar = max(min(comfortable, 7.0 / ranks, 9.0 / everything), min(0.1, 30.0 / everything))
    return bar * (1.4 if memory else 1.0)
