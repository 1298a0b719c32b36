"""Timelines as matplotlib figures: one panel each, on one time axis."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from debubble.analysis.results import shared_units
from debubble.core.errors import ParameterError, check_type
from debubble.engine.timeline import Timeline
from debubble.view import words
from debubble.view.bars import Bars, bars_of
from debubble.view.colors import FAINT, INK
from debubble.view.legend import add_legend, entries, legend_height
from debubble.view.options import FigureOptions
from debubble.view.panel import (
    DPI,
    Panel,
    add_panel,
    add_time_axis,
    peaks_width,
    setting,
)
from debubble.view.rows import Rows, rows_of
from debubble.view.text import FAMILY, Sizes, clauses, phrases, sizes_of, text_width, wrapped
from debubble.view.transfers import Transfers, transfers_of

WIDTH = 11.0
"""Inches across a figure, unless another width is asked for."""

LINE = 1.3
"""Height of a line of text in its size."""

MOST_RANKS_WITH_TRANSFERS = 32
"""Ranks up to which transfers are drawn without being asked for."""

FONTS: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": FAMILY,
    "font.size": 8.0,
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


def plot(timeline: Timeline, ax: Axes | None = None, **options: Any) -> Axes:
    """Draw one timeline, rank 0 on top.

    Parameters
    ----------
    timeline
        Timelines to draw.
    ax
        Where: axes of any figure, of which nothing else is touched. Left out, those of a new figure
        that belongs to no window.
    **options
        Fields of :class:`debubble.view.options.FigureOptions`. Here the memory strips are left out
        unless asked for, `title` stands in place of the schedule's name and result, and `width`
        and `height` are for new figures only, as `notes` are for :func:`figure`.

    Raises
    ------
    ParameterError
        When an option cannot be used.

    Notes
    -----
    An overlapped pair has the forward above and the backward below. Where actions are thinner than
    a pixel, each column of a row is a stack of what fills that part of the time.
    """
    look = FigureOptions(**{"memory": False} | options)
    check_type("ax", ax, (Axes, type(None)), "give axes of matplotlib, or leave it out")
    if ax is not None and (look.width is not None or look.height is not None):
        raise ParameterError("axes have their size already; leave width and height out")
    with style() if ax is None else nullcontext():
        if ax is None:
            sheet = _Sheet([timeline], look)
            height = look.height or 0.9 + sheet.row * timeline.schedule.ranks
            ax = Figure(figsize=(sheet.width, height), layout="constrained").add_subplot()
        # Other decorations may yet take some of the width.
        width = 0.95 * ax.get_window_extent().width / ax.figure.dpi
        sheet = _Sheet([timeline], look, width=width)
        (panel,) = sheet.panels
        add_panel(ax, panel)
        add_time_axis(ax, sheet.time_label, sheet.sizes.text, width)
        found = sheet.legend if look.legend else []
        if look.title != "":
            lines = wrapped(words.printable(look.title or "", 300), sheet.sizes.text, width)
            if look.title is None:
                name = f"{words.name(timeline)}: {setting(timeline)}"
                result = words.result(timeline, look.time_unit)
                lines = [
                    *clauses(name, sheet.sizes.text, width),
                    *clauses(result, sheet.sizes.text, width),
                ]
            room = legend_height(found, sheet.sizes.text, width) * 72
            ax.set_title(
                "\n".join(lines), loc="left", fontsize=sheet.sizes.text, color=INK,
                pad=room + 7 if found else 6, parse_math=False,
            )  # fmt: skip
        if found:
            add_legend(
                ax, found, sheet.sizes.text, width,
                loc="lower left", bbox_to_anchor=(0.0, 1.0), borderaxespad=0.4,
            )  # fmt: skip
    return ax


def figure(timelines: Sequence[Timeline], **options: Any) -> Figure:
    """Draw timelines below each other, a panel each, on one time axis and one scale of memory.

    Options are fields of :class:`debubble.view.options.FigureOptions`. Raises ParameterError when
    there is nothing to draw, or the height leaves no room for the rows.
    """
    if not timelines:
        raise ParameterError("there is no timeline to draw; give at least one")
    look = FigureOptions(**options)
    with style():
        return _Sheet(timelines, look).draw()


@dataclass(frozen=True)
class _Caption:
    """Lines above a panel: the schedule's name, what may follow it on its line, and more lines."""

    name: str
    beside: str
    below: tuple[str, ...]

    def height(self, sizes: Sizes) -> float:
        """Inches."""
        if not self.name:
            return 0.06
        return (sizes.name + len(self.below) * sizes.text) * LINE / 72 + 0.06


class _Sheet:
    """Layout of a figure, in inches from its lower left corner."""

    def __init__(
        self, timelines: Sequence[Timeline], look: FigureOptions, width: float | None = None
    ) -> None:
        self.look = look
        self.timelines = timelines
        self.width = look.width or WIDTH
        self.sizes = sizes_of(look, self.width if width is None else width)
        bars = [bars_of(timeline) for timeline in timelines]
        moved = [self._moved(part.timeline) for part in bars]
        shown = any(part is not None for part in moved)
        units = [t.ideal if look.normalise and t.ideal else 1.0 for t in timelines]
        span = max(t.makespan / unit for t, unit in zip(timelines, units, strict=True))
        if look.range is not None and look.range[0] >= span:
            raise ParameterError(
                f"range begins at {look.range[0]:g}; the timeline ends at {span:g}"
            )
        window = look.range or (0.0, span)
        peaks = [float(t.peak_activation.max()) for t in timelines]
        fullest = max([*peaks, float(np.max(look.limit or 0.0))])
        small = self.sizes.small / 72

        def rows_for(height: float) -> Rows:
            return rows_of(
                iterations=any(t.schedule.iterations > 1 for t in timelines),
                transfers=shown,
                memory=look.memory,
                label=1.05 * small / height,
            )

        bar = self._bar_height(bars)
        self.rows = rows_for(bar)
        self.row = bar * self.rows.share
        self.panels = [
            Panel(part, move, look, self.sizes, self.rows, window, fullest, unit)
            for part, move, unit in zip(bars, moved, units, strict=True)
        ]
        moves = [part for part in moved if part is not None]
        self.legend = entries(bars, look, moves, look.memory)
        unit = words.printable(look.time_unit or shared_units(timelines)[0], 24)
        self.time_label = f"time ({unit or 'unit of the costs'})"
        if look.normalise:
            self.time_label = "time / ideal (work of the busiest rank)"

    def _moved(self, timeline: Timeline) -> Transfers | None:
        wanted = self.look.transfers
        ranks = sum(t.schedule.ranks for t in self.timelines)
        if wanted is None:
            wanted = ranks <= MOST_RANKS_WITH_TRANSFERS
        found = transfers_of(timeline) if wanted else None
        return found if found is not None and len(found) else None

    def _bar_height(self, panels: Sequence[Bars]) -> float:
        """Inches of a bar: comfortable for few ranks, never a figure taller than a few pages."""
        ranks = max(bars.ranks for bars in panels)
        everything = sum(bars.ranks for bars in panels)
        comfortable = 0.34 if any(bars.paired for bars in panels) else 0.25
        comfortable *= min(1.0, math.sqrt(self.width / WIDTH))
        return max(min(comfortable, 5.9 / ranks, 7.6 / everything), min(0.084, 25 / everything))

    def _caption(self, timeline: Timeline, width: float) -> _Caption:
        if self.look.title == "" and len(self.panels) == 1:
            return _Caption("", "", ())
        sizes, name = self.sizes, words.name(timeline)
        if self.look.title == "":
            return _Caption(name, "", ())
        what, result = setting(timeline), words.result(timeline, self.look.time_unit)
        room = width - text_width(name, sizes.name, bold=True) - 0.1
        beside = text_width(what, sizes.text) <= room
        lines = [] if beside else clauses(what, sizes.text, width)
        return _Caption(name, what if beside else "", (*lines, *clauses(result, sizes.text, width)))

    def draw(self) -> Figure:
        """The figure."""
        look, sizes, panels = self.look, self.sizes, self.panels
        ranks = max(panel.bars.ranks for panel in panels)
        left = 0.08 + 1.5 * sizes.text / 72 + text_width(str(ranks - 1), sizes.text)
        right = 0.16
        if look.memory:
            right = max(peaks_width(timeline, sizes) for timeline in self.timelines) + 0.06
        # Half of the last number of the axis reaches beyond it.
        right = max(right, 0.04 + text_width("00.0", sizes.text) / 2)
        width = self.width - left - right
        captions = [self._caption(timeline, width) for timeline in self.timelines]
        whole = self.width - 0.12 - left
        title = words.printable(look.title or "", 300)
        heading = wrapped(title, sizes.title, whole, bold=True)
        notes = words.conventions(self.timelines) if look.notes else []
        if look.notes and any(panel.moved is not None for panel in panels):
            notes.append(
                "transfers: below the bars of a rank, what it sends above what it receives"
            )
        small = phrases(notes, sizes.small, whole)
        found = self.legend if look.legend else []

        head = 0.06 + len(heading) * sizes.title * LINE / 72 + (0.06 if heading else 0.0)
        top = head + legend_height(found, sizes.text, whole)
        foot = (2 * LINE * sizes.text + 6) / 72 + (len(small) * sizes.small * LINE) / 72 + 0.1
        gap = 0.12
        above = sum(caption.height(sizes) for caption in captions) + gap * (len(panels) - 1)
        everything = sum(panel.bars.ranks for panel in panels)
        total = look.height or top + foot + above + everything * self.row
        row = (total - top - foot - above) / everything
        if row < 0.02:
            least = top + foot + above + 0.02 * everything
            raise ParameterError(
                f"height {total:g} inches leaves no room for {everything} rows below the text; "
                f"give at least {least:.1f}, or leave out notes, legend or title"
            )

        drawing = Figure(figsize=(self.width, total), dpi=100, facecolor="white")
        y = total - top
        for index, (panel, caption) in enumerate(zip(panels, captions, strict=True)):
            height = panel.bars.ranks * row
            y -= caption.height(sizes) + height
            box = (left / self.width, y / total, width / self.width, height / total)
            ax = drawing.add_axes(box)
            add_panel(ax, panel)
            last = index == len(panels) - 1
            add_time_axis(ax, self.time_label, sizes.text, width, shown=last)
            _add_caption(ax, caption, sizes)
            y -= gap
        if found:
            add_legend(
                drawing, found, sizes.text, whole, loc="upper left", borderaxespad=0,
                bbox_to_anchor=(left / self.width, 1 - head / total),
            )  # fmt: skip
        drawing.text(
            left / self.width, 1 - 0.06 / total, "\n".join(heading), fontsize=sizes.title,
            fontweight="bold", color=INK, va="top", parse_math=False, linespacing=LINE,
        )  # fmt: skip
        drawing.text(
            left / self.width, 0.06 / total, "\n".join(small), fontsize=sizes.small, color=FAINT,
            va="bottom", parse_math=False, linespacing=LINE,
        )  # fmt: skip
        return drawing


def _add_caption(ax: Axes, caption: _Caption, sizes: Sizes) -> None:
    """Name and setting in one line where they fit, the result below."""
    if not caption.name:
        return
    place: dict[str, Any] = {
        "xycoords": "axes fraction", "textcoords": "offset points", "va": "bottom",
        "annotation_clip": False, "parse_math": False,
    }  # fmt: skip
    rise = 3 + len(caption.below) * sizes.text * LINE
    name = ax.annotate(
        caption.name, (0.0, 1.0), (0, rise), fontsize=sizes.name, fontweight="bold", color=INK,
        **place,
    )  # fmt: skip
    ax.annotate(
        caption.beside, (1.0, 0.0), (7, 0), fontsize=sizes.text, color=FAINT,
        **place | {"xycoords": name},
    )  # fmt: skip
    for index, line in enumerate(caption.below):
        last = index == len(caption.below) - 1
        ax.annotate(
            line, (0.0, 1.0), (0, rise - (index + 1) * sizes.text * LINE), fontsize=sizes.text,
            color=INK if last else FAINT, **place,
        )  # fmt: skip
