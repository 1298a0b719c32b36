"""The chart of a sweep with matplotlib, in the look of the other pictures."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from debubble.analysis.layout import html_table
from debubble.core.atomic_write import write_atomically
from debubble.core.errors import FormatError, ParameterError
from debubble.core.units import number
from debubble.sweeps.chart import Chart, Line
from debubble.view.artists import add_legend, legend_height
from debubble.view.captions import metadata
from debubble.view.colors import FAINT, IDLE, INK
from debubble.view.figure import LINE, add_heading_and_notes, render, style
from debubble.view.options import FigureOptions
from debubble.view.page import document, inline_svg, results
from debubble.view.text import phrases, text_sizes, text_width, wrapped

ENDINGS = (".png", ".svg", ".pdf", ".html")
WIDTH, HEIGHT = 7.0, 3.4
"""Inches of the figure, and of its axes without title, legend and notes."""

COLORS = ("#0b72b5", "#c4501b", "#12806a", "#8e4fa8", "#b58900", "#5aa9e6", "#8e1c1b", "#5d6675")
MARKERS = "os^Dv<P>Xph*"
"""Signs of the lines, which separate lines of like colors."""

MOST_TICKS = 12
MOST_MARKS = 40
"""Places of a line up to which each has its sign."""


def save_chart(chart: Chart, path: str | Path) -> None:
    """Write a chart as ``.png``, ``.svg``, ``.pdf`` or ``.html``."""
    ending = Path(path).suffix.lower()
    if ending not in ENDINGS:
        raise FormatError(f"'{path}': pictures of sweeps end in {', '.join(ENDINGS)}")
    drawing = chart_figure(chart)
    if ending == ".html":
        picture = inline_svg(drawing, html.escape(chart.title))
        body = results(picture, html_table(chart.table()), chart.notes)
        content = document(chart.title, body).encode()
    else:
        content = render(drawing, ending[1:], metadata=metadata(ending))
    try:
        write_atomically(path, content)
    except OSError as error:
        raise ParameterError(f"cannot write '{path}': {error.strerror or error}") from None


def chart_figure(chart: Chart) -> Figure:
    """Draw a chart: medians as lines, least to greatest as areas, or single values as dots."""
    sizes = text_sizes(FigureOptions(), WIDTH)
    with style():
        handles = [(_handle(index, chart), line.name) for index, line in enumerate(chart.lines)]
        found = handles if chart.by else []
        least = min(at[0] for line in chart.lines for at in line.y)
        greatest = max(at[-1] for line in chart.lines for at in line.y)
        numbers = max(text_width(_tick(chart, end), sizes.text) for end in (least, greatest, 0.0))
        left, right = numbers + 2.2 * sizes.text / 72 + 0.1, 0.2
        whole = WIDTH - left - right
        heading = wrapped(chart.title, sizes.title, whole, bold=True)
        notes = phrases(list(chart.notes), sizes.small, whole)
        head = 0.1 + len(heading) * sizes.title * LINE / 72
        top = head + (legend_height(found, sizes.text, whole) + 0.06 if found else 0.02)
        longest = max((text_width(t, sizes.text) for t in chart.texts), default=0)
        # Texts below the axis are tilted where they have no room side by side.
        tilted = longest > 0.9 * whole / max(1, len(chart.texts))
        below = (0.7 * longest if tilted else 0.16) + 0.3
        foot = below + len(notes) * sizes.small * LINE / 72 + 0.12
        total = HEIGHT + top + foot
        drawing = Figure(figsize=(WIDTH, total), dpi=100, facecolor="white")
        ax = drawing.add_axes((left / WIDTH, foot / total, whole / WIDTH, HEIGHT / total))
        _decorate(ax, chart, sizes.text, tilted)
        for index, line in enumerate(chart.lines):
            _add_line(ax, chart, line, index)
        if 0 <= least <= 0.5 * greatest:
            # To begin at zero costs little room.
            ax.set_ylim(0, 1.05 * greatest)
        if found:
            title = f"{chart.by.replace('_', ' ')}: "
            first, *rest = found
            add_legend(
                drawing, [(first[0], title + first[1]), *rest], sizes.text, whole,
                loc="upper left", borderaxespad=0,
                bbox_to_anchor=(left / WIDTH, 1 - head / total),
            )  # fmt: skip
        add_heading_and_notes(drawing, left, (0.08, heading), (0.07, notes), sizes)
    return drawing


def _look(index: int) -> tuple[str, str, Literal["-", "--"]]:
    """Return color, sign and dashes of a line."""
    dashes: Literal["-", "--"] = "-" if index < len(COLORS) else "--"
    return COLORS[index % len(COLORS)], MARKERS[index], dashes


def _handle(index: int, chart: Chart) -> Line2D:
    color, marker, dashes = _look(index)
    return Line2D(
        [], [], color=color, marker=marker, markersize=4,
        linestyle="none" if chart.scattered or chart.texts else dashes, linewidth=1.5,
    )  # fmt: skip


def _add_line(ax: Axes, chart: Chart, line: Line, index: int) -> None:
    color, marker, dashes = _look(index)
    if chart.scattered:
        x = np.repeat(line.x, [len(values) for values in line.y])
        y = np.concatenate(line.y)
        ax.plot(x, y, linestyle="none", marker=marker, markersize=2.6, color=color, alpha=0.6,
                markeredgewidth=0, rasterized=len(x) > 20_000)  # fmt: skip
        return
    least, greatest = [v[0] for v in line.y], [v[-1] for v in line.y]
    if chart.texts:
        # Side by side, so that none hides another.
        shift = 0.5 * ((index + 0.5) / len(chart.lines) - 0.5)
        x = np.asarray(line.x) + shift
        ax.vlines(x, least, greatest, color=color, linewidth=3, alpha=0.3)
        ax.plot(x, line.middle, linestyle="none", marker=marker, markersize=4.5, color=color)
        return
    if chart.spread:
        ax.fill_between(line.x, least, greatest, color=color, alpha=0.14, linewidth=0)
    ax.plot(
        line.x, line.middle, color=color, linestyle=dashes, linewidth=1.5,
        marker=marker if len(line.x) <= MOST_MARKS else "", markersize=4, zorder=3,
    )  # fmt: skip


def _decorate(ax: Axes, chart: Chart, size: float, tilted: bool) -> None:
    """Axes, their labels and scales."""
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_color(FAINT)
    ax.tick_params(labelsize=size, colors=FAINT, labelcolor=INK, length=3)
    ax.grid(axis="y", color=IDLE, linewidth=1)
    ax.set_axisbelow(True)
    ax.set_xlabel(chart.x.replace("_", " "), fontsize=size, color=INK, parse_math=False)
    ax.set_ylabel(chart.y.replace("_", " "), fontsize=size, color=INK, parse_math=False)
    ax.yaxis.set_major_locator(MaxNLocator(7, integer=chart.whole, steps=[1, 2, 2.5, 5, 10]))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(chart, value)))
    places = sorted({place for line in chart.lines for place in line.x})
    if chart.texts:
        ax.set_xticks(range(len(chart.texts)), chart.texts)
        if tilted:
            ax.tick_params(axis="x", labelrotation=35)
            for label in ax.get_xticklabels():
                label.set_horizontalalignment("right")
        ax.set_xlim(-0.6, len(chart.texts) - 0.4)
        return
    if _in_ratios(places):
        ax.set_xscale("log")
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    if len(places) <= MOST_TICKS:
        ax.xaxis.set_major_locator(FixedLocator(places))
        ax.xaxis.set_minor_locator(NullLocator())


def _tick(chart: Chart, value: float) -> str:
    """Return a number next to the axis."""
    return f"{100 * value:.4g} %" if chart.share else number(value)


def _in_ratios(places: list[float]) -> bool:
    """Return whether places grow by ratios rather than by differences."""
    if len(places) < 3 or places[0] <= 0 or places[-1] < 6 * places[0]:
        return False
    steps = np.diff(places)
    ratios = np.diff(np.log(places))
    return bool(np.std(ratios) / np.mean(ratios) < np.std(steps) / np.mean(steps))
