"""Timelines as matplotlib figures: one panel each, on one time axis."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from debubble.analysis.metrics import result_text
from debubble.analysis.results import shared_units
from debubble.core.errors import ParameterError, check_type
from debubble.engine.timeline import Timeline
from debubble.view import captions
from debubble.view.artists import add_legend, legend_entries, legend_height
from debubble.view.bars import Bars, RowLayout, bars_of, row_layout
from debubble.view.colors import FAINT, INK
from debubble.view.options import DPI, FigureOptions, read_options
from debubble.view.panel import Panel, add_panel, add_time_axis, peaks_width
from debubble.view.text import (
    FAMILY,
    TextSizes,
    check_font,
    clauses,
    phrases,
    text_sizes,
    text_width,
    wrapped,
)
from debubble.view.transfers import TransferEnds, transfer_ends

T = TypeVar("T")

WIDTH = 11.0
"""Default width of a figure in inches."""

LINE = 1.3
"""Height of a line of text in its size."""

MOST_RANKS_WITH_TRANSFERS = 32
"""Ranks up to which transfers are drawn by default."""

FONT = "_debubble_font"
"""Attribute of a figure with the family of its text: files are written with it, too."""

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
def style(font: str | None = None) -> Iterator[None]:
    """Use matplotlib's settings for these pictures, in place of the user's, for a while.

    Text is in the family `font`, where that has the signs.
    """
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(FONTS)
        if font is not None:
            matplotlib.rcParams["font.sans-serif"] = [font, *FAMILY]
        # A name may be in any script; signs the font lacks become boxes.
        warnings.filterwarnings("ignore", message=r"Glyph \d+ .* missing")
        yield


def render(drawing: Figure, format: str, **options: Any) -> bytes:
    """Return a figure as ``"png"``, ``"svg"`` or ``"pdf"``; options as for ``Figure.savefig``."""
    buffer = io.BytesIO()
    with style(getattr(drawing, FONT, None)):
        drawing.savefig(buffer, format=format, dpi=options.pop("dpi", DPI), **options)
    return buffer.getvalue()


def plot(timeline: Timeline, ax: Axes | None = None, **options: Any) -> Axes:
    """Draw one timeline, rank 0 on top.

    An overlapped pair has the forward above and the backward below. Where actions are thinner than
    a pixel, each column of a row is a stack of what fills that part of the time.

    Parameters
    ----------
    timeline
        The timeline.
    ax
        Axes of any figure, of which nothing else is touched; by default those of a new figure that
        belongs to no window.
    **options
        Fields of :class:`debubble.view.options.FigureOptions`. Here `memory` is off by default,
        `title` stands in place of the schedule's name and result, and `width` and `height` are for
        new figures only, as `notes` are for :func:`figure`.

    Raises
    ------
    ParameterError
        When an option cannot be used.
    """
    look = read_options({"memory": False} | options)
    check_type("ax", ax, (Axes, type(None)), "give axes of matplotlib, or leave it out")
    if ax is not None and (look.width is not None or look.height is not None):
        raise ParameterError("axes have their size already; leave width and height out")
    check_font(look.font)
    [timeline] = captions.labelled([timeline], look.label)
    with style(look.font) if ax is None else nullcontext():
        if ax is None:
            layout = _FigureLayout([timeline], look)
            height = look.height or 0.9 + layout.row * timeline.schedule.ranks
            ax = Figure(figsize=(layout.width, height), layout="constrained").add_subplot()
        # Other decorations may yet take some of the width.
        width = 0.95 * ax.get_window_extent().width / ax.figure.dpi
        layout = _FigureLayout([timeline], look, width=width)
        (panel,), size = layout.panels, layout.sizes.text
        add_panel(ax, panel)
        add_time_axis(ax, layout.time_label, size, width)
        if look.title is None:
            name = f"{captions.name(timeline)}: {captions.setting_and_shades(timeline)}"
            lines = clauses(name, size, width)
            lines += clauses(result_text(timeline, look.time_unit), size, width)
        else:
            lines = wrapped(captions.printable(look.title, 300), size, width)
        if look.title != "":
            room = legend_height(layout.legend, size, width) * 72
            ax.set_title(
                "\n".join(lines), loc="left", fontsize=size, color=INK,
                pad=room + 7 if layout.legend else 6, parse_math=False,
            )  # fmt: skip
        if layout.legend:
            add_legend(
                ax, layout.legend, size, width,
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
    look = read_options(options)
    check_font(look.font)
    with style(look.font):
        drawing = _FigureLayout(captions.labelled(timelines, look.label), look).draw()
    setattr(drawing, FONT, look.font)
    return drawing


@dataclass(frozen=True)
class _Caption:
    """Lines above a panel: the schedule's name, faint words that follow it, and more lines."""

    name: str
    right: str = ""
    faint: tuple[str, ...] = ()
    """Lines on the setting."""
    below: tuple[str, ...] = ()
    """Lines on the result."""

    @property
    def lines(self) -> tuple[str, ...]:
        """All lines below the name."""
        return (*self.faint, *self.below)

    def height(self, sizes: TextSizes) -> float:
        """Return the height in inches."""
        if not self.name:
            return 0.06
        return (sizes.name + len(self.lines) * sizes.text) * LINE / 72 + 0.06


class _FigureLayout:
    """Layout of a figure, in inches from its lower left corner."""

    def __init__(
        self, timelines: Sequence[Timeline], look: FigureOptions, width: float | None = None
    ) -> None:
        self.look = look
        self.timelines = timelines
        self.width = look.width or WIDTH
        self.sizes = text_sizes(look, (self.width if width is None else width) / look.columns)
        bars = [bars_of(timeline) for timeline in timelines]
        moved = [self._moved(timeline) for timeline in timelines]
        moves = [part for part in moved if part is not None]
        units = [t.ideal if look.normalize and t.ideal else 1.0 for t in timelines]
        span = max(t.makespan / unit for t, unit in zip(timelines, units, strict=True))
        if look.range is not None and look.range[0] >= span:
            raise ParameterError(
                f"range begins at {look.range[0]:g}; the timeline ends at {span:g}"
            )
        peaks = [float(t.peak_activation.max()) for t in timelines]
        fullest = max([*peaks, float(np.max(look.limit or 0.0))])
        bar = self._bar_height(bars)
        self.rows: RowLayout = row_layout(
            iterations=any(t.schedule.iterations > 1 for t in timelines),
            transfers=max((move.lanes for move in moves), default=0),
            memory=look.memory,
            label=1.05 * self.sizes.small / 72 / bar,
        )
        self.row = bar * self.rows.share
        window = look.range or (0.0, span)
        self.panels = [
            Panel(part, move, look, self.sizes, self.rows, window, fullest, unit)
            for part, move, unit in zip(bars, moved, units, strict=True)
        ]
        self.legend = legend_entries(bars, look, moves, look.memory) if look.legend else []
        unit = captions.printable(look.time_unit or shared_units(timelines)[0], 24)
        self.time_label = f"time ({unit or 'arbitrary units'})"
        if look.normalize:
            self.time_label = "time / ideal (work of the busiest rank)"

    def _moved(self, timeline: Timeline) -> TransferEnds | None:
        """Return the transfers to draw, None for no row of them."""
        wanted = self.look.transfers
        if wanted is None:
            ranks = sum(t.schedule.ranks for t in self.timelines)
            wanted = ranks <= MOST_RANKS_WITH_TRANSFERS
        return (transfer_ends(timeline) or None) if wanted else None

    def _bar_height(self, panels: Sequence[Bars]) -> float:
        """Return inches of a bar: comfortable for few ranks, never a figure of many pages."""
        ranks = max(bars.ranks for bars in panels)
        everything = sum(max(bars.ranks for bars in row) for row in self._grid(panels))
        comfortable = 0.34 if any(bars.paired for bars in panels) else 0.25
        comfortable *= min(1.0, math.sqrt(self.width / self.look.columns / WIDTH))
        return max(min(comfortable, 5.9 / ranks, 7.6 / everything), min(0.084, 25 / everything))

    def _caption(self, timeline: Timeline, width: float) -> _Caption:
        sizes, name = self.sizes, captions.name(timeline)
        how = self.look.caption
        if self.look.title == "" and how == "full":
            how = "name" if len(self.panels) > 1 else "none"
        if how in ("none", "name"):
            return _Caption(name if how == "name" else "")
        room = width - text_width(name, sizes.name, bold=True) - 0.1
        if how == "short":
            short = captions.short_result(timeline)
            if text_width(short, sizes.text) <= room:
                return _Caption(name, short)
            return _Caption(name, below=tuple(clauses(short, sizes.text, width)))
        setting = captions.setting_and_shades(timeline)
        result = clauses(result_text(timeline, self.look.time_unit), sizes.text, width)
        if text_width(setting, sizes.text) <= room:
            return _Caption(name, setting, below=tuple(result))
        return _Caption(name, "", tuple(clauses(setting, sizes.text, width)), tuple(result))

    def _notes(self, width: float) -> list[str]:
        """Return the lines at the foot."""
        notes = captions.conventions(self.timelines) if self.look.notes else []
        if self.look.notes and any(panel.moved is not None for panel in self.panels):
            notes.append(
                "transfers: below the bars of a rank, what it sends above what it receives"
            )
        return phrases(notes, self.sizes.small, width)

    def _grid(self, panels: Sequence[T]) -> list[Sequence[T]]:
        """Return panels, or what belongs to them, line by line."""
        columns = self.look.columns
        return [panels[place : place + columns] for place in range(0, len(panels), columns)]

    def draw(self) -> Figure:
        """Return the figure."""
        look, sizes, panels = self.look, self.sizes, self.panels
        ranks = max(panel.bars.ranks for panel in panels)
        left = 0.08 + 1.5 * sizes.text / 72 + text_width(str(ranks - 1), sizes.text)
        # Right of a panel are its peaks.
        right = 0.16
        if look.memory:
            right = max(peaks_width(timeline, sizes) for timeline in self.timelines) + 0.06
        # Half of the last number of the axis reaches beyond it.
        right = max(right, 0.04 + text_width("00.0", sizes.text) / 2)
        columns = min(look.columns, len(panels))
        width, whole = self.width / columns - left - right, self.width - 0.12 - left
        above_panels = [self._caption(timeline, width) for timeline in self.timelines]
        heading = wrapped(captions.printable(look.title or "", 300), sizes.title, whole, bold=True)
        notes = self._notes(whole)

        head = 0.06 + len(heading) * sizes.title * LINE / 72 + (0.06 if heading else 0.0)
        top = head + legend_height(self.legend, sizes.text, whole)
        foot = (2 * LINE * sizes.text + 6) / 72 + (len(notes) * sizes.small * LINE) / 72 + 0.1
        gap = 0.12
        grid = self._grid(range(len(panels)))
        heads = [max(above_panels[place].height(sizes) for place in line) for line in grid]
        ranks_of = [max(panels[place].bars.ranks for place in line) for line in grid]
        above, everything = sum(heads) + gap * (len(grid) - 1), sum(ranks_of)
        total = look.height or top + foot + above + everything * self.row
        row = (total - top - foot - above) / everything
        if row < 0.02:
            least = top + foot + above + 0.02 * everything
            raise ParameterError(
                f"height {total:g} inches leaves no room for {everything} rows below the text; "
                f"give at least {least:.1f}, or leave out notes, legend or title"
            )

        drawing = Figure(figsize=(self.width, total), dpi=100, facecolor="white")
        y, labels = total - top, []
        for line, head_height, most in zip(grid, heads, ranks_of, strict=True):
            y -= head_height
            for column, place in enumerate(line):
                panel, height = panels[place], panels[place].bars.ranks * row
                x = column * self.width / columns + left
                box = (x / self.width, (y - height) / total, width / self.width, height / total)
                ax = drawing.add_axes(box)
                labels.append(add_panel(ax, panel))
                last = place + columns >= len(panels)
                add_time_axis(ax, self.time_label, sizes.text, width, shown=last)
                _add_caption(ax, above_panels[place], sizes)
            y -= most * row + gap
        for one in labels:
            if one is not None:
                one.peers = labels
        if self.legend:
            add_legend(
                drawing, self.legend, sizes.text, whole, loc="upper left", borderaxespad=0,
                bbox_to_anchor=(left / self.width, 1 - head / total),
            )  # fmt: skip
        add_heading_and_notes(drawing, left, (0.06, heading), (0.06, notes), sizes)
        return drawing


def add_heading_and_notes(
    drawing: Figure,
    left: float,
    heading: tuple[float, Sequence[str]],
    notes: tuple[float, Sequence[str]],
    sizes: TextSizes,
) -> None:
    """Write lines at the top and the foot of a figure, each some inches from its edge."""
    width, height = drawing.get_size_inches()
    (top, head), (bottom, foot) = heading, notes
    drawing.text(
        left / width, 1 - top / height, "\n".join(head), fontsize=sizes.title, fontweight="bold",
        color=INK, va="top", parse_math=False, linespacing=LINE,
    )  # fmt: skip
    drawing.text(
        left / width, bottom / height, "\n".join(foot), fontsize=sizes.small, color=FAINT,
        va="bottom", parse_math=False, linespacing=LINE,
    )  # fmt: skip


def _add_caption(ax: Axes, caption: _Caption, sizes: TextSizes) -> None:
    """Write name and setting in one line where they fit, the result below."""
    if not caption.name:
        return
    place: dict[str, Any] = {
        "xycoords": "axes fraction", "textcoords": "offset points", "va": "bottom",
        "annotation_clip": False, "parse_math": False,
    }  # fmt: skip
    line = sizes.text * LINE
    rise = 3 + len(caption.lines) * line
    name = ax.annotate(
        caption.name, (0.0, 1.0), (0, rise), fontsize=sizes.name, fontweight="bold", color=INK,
        **place,
    )  # fmt: skip
    ax.annotate(
        caption.right, (1.0, 0.0), (7, 0), fontsize=sizes.text, color=FAINT,
        **place | {"xycoords": name},
    )  # fmt: skip
    for index, text in enumerate(caption.lines, 1):
        color = FAINT if index <= len(caption.faint) else INK
        ax.annotate(
            text, (0.0, 1.0), (0, rise - index * line), fontsize=sizes.text, color=color, **place
        )
