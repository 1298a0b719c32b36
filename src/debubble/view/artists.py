"""What a timeline consists of in matplotlib: few artists, however many actions it has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.font_manager import FontProperties
from matplotlib.legend_handler import HandlerBase
from matplotlib.patches import Rectangle
from matplotlib.path import Path
from numpy.typing import NDArray

from debubble.core.actions import Kind
from debubble.view.bars import LOWER, UPPER, WHOLE, Bars
from debubble.view.colors import IDLE, INK, PAPER, STRIPES, rgb, shade, text_color

Floats: TypeAlias = NDArray[np.floating[Any]]

SIZES = (9.0, 8.0, 7.0, 6.0, 5.0)
"""Sizes of labels in points; all labels of a picture have one."""

STRIPE_SHARE = 0.13
MAX_VECTOR_NUMBERS = 200_000


@dataclass(frozen=True)
class Rows:
    """Where things are in the row of a rank, whose middle is at y = rank, pointing down.

    Parameters
    ----------
    top, height
        Of the bars.
    strip
        Baseline of the memory strip.
    strip_height
        Height of the memory strip, 0 for none.
    """

    top: float = -0.42
    height: float = 0.84
    strip: float = 0.0
    strip_height: float = 0.0

    def lane(self, bars: Bars) -> tuple[Floats, Floats]:
        """Upper and lower edge of every bar."""
        top = bars.rank + self.top + np.where(bars.lane == LOWER, self.height / 2, 0.0)
        return top, top + np.where(bars.lane == WHOLE, self.height, self.height / 2)


def rectangles(left: Floats, right: Floats, top: Floats, bottom: Floats) -> Path:
    """One path that consists of many rectangles."""
    count = len(left)
    corners = np.empty((count, 5, 2))
    corners[:, :, 0] = np.stack([left, left, right, right, left], axis=1)
    corners[:, :, 1] = np.stack([top, bottom, bottom, top, top], axis=1)
    codes = np.array([Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY])
    return Path(corners.reshape(-1, 2), np.tile(codes.astype(Path.code_type), count))


def add_paths(ax: Axes, paths: Sequence[Path], label: str, **style: Any) -> PathCollection:
    """Add paths as one collection in data coordinates; `label` is its gid, for tests and SVG."""
    collection = PathCollection(list(paths), transform=ax.transData, **style)
    collection.set_gid(label)
    # Vector files hold a picture instead of shapes that would take many megabytes.
    collection.set_rasterized(sum(np.size(path.vertices) for path in paths) > MAX_VECTOR_NUMBERS)
    ax.add_collection(collection, autolim=False)
    return collection


def add_idle(ax: Axes, ranks: int, span: float, rows: Rows) -> None:
    """The background of all rows: what stays visible of it is idle."""
    top = np.arange(ranks) + rows.top
    path = rectangles(np.zeros(ranks), np.full(ranks, span), top, top + rows.height)
    add_paths(ax, [path], "idle", facecolors=[IDLE], linewidths=0, zorder=1)


def add_bars(ax: Axes, bars: Bars, scale: float, rows: Rows, gap: float) -> None:
    """All bars in one collection with a path per style, and the stripes in another.

    `gap` is the width in points of the white line between bars.
    """
    top, bottom = rows.lane(bars)
    left, right = bars.start * scale, bars.end * scale
    paths, colors, edges, stripes, stripe_colors = [], [], [], [], []
    for style in range(len(bars.styles)):
        here = bars.style == style
        kind, index, count = bars.shade_of(style)
        paths.append(rectangles(left[here], right[here], top[here], bottom[here]))
        colors.append(shade(kind, index, count))
        # An optimizer step may take no time: its edge is what is seen of it.
        edges.append(colors[-1] if kind == Kind.OPT else PAPER)
        if kind in STRIPES:
            edge, color = STRIPES[kind]
            thickness = STRIPE_SHARE * (bottom - top)[here]
            upper = top[here] if edge == "top" else bottom[here] - thickness
            stripes.append(rectangles(left[here], right[here], upper, upper + thickness))
            stripe_colors.append(color)
    widths = [1.2 if color != PAPER else gap for color in edges]
    if paths:
        add_paths(
            ax, paths, "actions", facecolors=colors, edgecolors=edges, linewidths=widths,
            joinstyle="miter", zorder=2,
        )  # fmt: skip
    if stripes:
        add_paths(ax, stripes, "stripes", facecolors=stripe_colors, linewidths=0, zorder=2.1)


def add_image(ax: Axes, bars: Bars, scale: float, rows: Rows, pixels: tuple[int, int]) -> None:
    """The bars from afar: every column of a row is a stack of what fills that part of time.

    `pixels` are the width of the whole picture and the height of one row.
    """
    width, height = pixels
    span = bars.timeline.makespan
    first = round((0.5 + rows.top) * height)
    lanes = (UPPER, LOWER) if bars.paired else (WHOLE,)
    size = max(1, round(rows.height * height / len(lanes)))
    colors = [(*rgb(shade(*bars.shade_of(style))), 255) for style in range(len(bars.styles))]
    table = np.array([*colors, (*rgb(IDLE), 255)], dtype=np.uint8)
    middles = (np.arange(size) + 0.5) / size
    image = np.zeros((bars.ranks, height, width, 4), dtype=np.uint8)
    for rank in range(bars.ranks):
        for place, lane in enumerate(lanes):
            stack = np.cumsum(bars.shares(rank, width, span, lane), axis=1)
            style = (stack[None, :, :] <= middles[:, None, None]).sum(axis=2)
            begin = first + place * size
            image[rank, begin : begin + size] = table[style][: height - begin]
    picture = ax.imshow(
        image.reshape(-1, width, 4),
        extent=(0.0, span * scale, bars.ranks - 0.5, -0.5),
        aspect="auto",
        interpolation="nearest",
        zorder=2,
    )
    picture.set_gid("actions")


def add_outlines(
    ax: Axes, left: Floats, right: Floats, rank: Floats, rows: Rows, width: float
) -> None:
    """Dark frames around bars, for the critical path."""
    top = rank + rows.top
    path = rectangles(left, right, top, top + rows.height)
    add_paths(
        ax, [path], "critical", facecolors="none", edgecolors=[INK], linewidths=width, zorder=3
    )


def step_areas(curves: Iterable[tuple[Floats, Floats]], baselines: Floats, scale: float) -> Path:
    """One path with the areas under step curves, each upward from its baseline (y points down)."""
    vertices, codes = [], []
    for (times, values), baseline in zip(curves, baselines.tolist(), strict=True):
        if not len(times):
            continue
        area = np.empty((2 * len(times) + 1, 2))
        area[:-1, 0] = np.repeat(times, 2)
        area[0, 1] = baseline
        area[1:-1, 1] = baseline - np.repeat(values, 2)[:-1] * scale
        area[-2, 1] = baseline
        area[-1] = area[0]
        vertices.append(area)
        code = np.full(len(area), Path.LINETO, dtype=Path.code_type)
        code[0], code[-1] = Path.MOVETO, Path.CLOSEPOLY
        codes.append(code)
    if not vertices:
        return Path(np.empty((0, 2)))
    return Path(np.concatenate(vertices), np.concatenate(codes))


class Labels(Artist):
    """The microbatches of all bars that have room for them, as one artist.

    Which ones fit is measured in pixels when the picture is drawn, so that it holds for every
    size, resolution and zoom.
    """

    def __init__(self, ax: Axes, bars: Bars, scale: float, rows: Rows) -> None:
        super().__init__()
        self.bars = bars
        top, bottom = rows.lane(bars)
        self._left, self._right = bars.start * scale, bars.end * scale
        self._top, self._bottom = top, bottom
        self.set_gid("labels")
        self.set_zorder(4)
        ax.add_artist(self)

    def placed(self, renderer: Any) -> tuple[float, list[tuple[float, float, str, str]]]:
        """Size in points, and (x, y, text, colour) in pixels of every label that fits."""
        assert self.axes is not None
        bars = self.bars
        corners = self.axes.transData.transform
        left, top = corners(np.column_stack([self._left, self._top])).T
        right, bottom = corners(np.column_stack([self._right, self._bottom])).T
        view = self.axes.bbox
        pixel = renderer.points_to_pixels(1.0)
        candidates = np.flatnonzero((right > view.x0) & (left < view.x1))
        numbers, which = np.unique(bars.number[candidates], return_inverse=True)
        texts = [bars.text(number) for number in numbers.tolist()]
        font = FontProperties(size=10.0)
        widths = [
            renderer.get_text_width_height_descent(text, font, ismath=False)[0] if text else np.inf
            for text in texts
        ]
        per_point = np.array(widths)[which] / 10
        room = (right - left)[candidates] - 1.5 * pixel
        tall = (top - bottom)[candidates] / (0.85 * pixel)
        # Numbers on some bars of a kind and not on others read as a mistake: all of a rank or none.
        groups = (bars.rank * len(Kind) + bars.kind)[candidates]
        total = np.bincount(groups[np.isfinite(per_point)], minlength=bars.ranks * len(Kind))
        size, fits = SIZES[-1], np.zeros(len(candidates), dtype=bool)
        for larger in reversed(SIZES):
            enough = (per_point * larger <= room) & (larger <= tall)
            count = np.bincount(groups[enough], minlength=len(total))
            enough &= (count >= 0.97 * total)[groups]
            if enough.sum() < 0.97 * fits.sum():
                break
            size, fits = larger, enough
        chosen = np.flatnonzero(fits)
        # One height for all: digits differ by fractions of a pixel, and lines of text would dance.
        height = renderer.get_text_width_height_descent("0", font, ismath=False)[1] * size / 10
        colors = [text_color(shade(*bars.shade_of(s))) for s in range(len(bars.styles))]
        marks = []
        for place in chosen.tolist():
            bar, text = candidates[place], texts[which[place]]
            width = per_point[place] * size
            x = (left[bar] + right[bar] - width) / 2
            y = (top[bar] + bottom[bar] - height) / 2
            marks.append((x, y, text, colors[bars.style[bar]]))
        return size, marks

    def draw(self, renderer: Any) -> None:
        """Draw the labels that fit."""
        if not self.get_visible():
            return
        size, marks = self.placed(renderer)
        font = FontProperties(size=size)
        renderer.open_group("labels", gid=self.get_gid())
        gc = renderer.new_gc()
        gc.set_clip_rectangle(self.axes.bbox if self.axes else None)
        height = renderer.get_canvas_width_height()[1]
        for x, y, text, color in marks:
            gc.set_foreground(color)
            renderer.draw_text(
                gc, x, height - y if renderer.flipy() else y, text, font, 0.0, ismath=False
            )
        gc.restore()
        renderer.close_group("labels")
        self.stale = False


@dataclass(frozen=True)
class Swatch:
    """A legend entry: the shades of a kind, with its stripe."""

    kind: Kind
    shades: int


class SwatchHandler(HandlerBase):
    """Draws a :class:`Swatch` in a legend."""

    def create_artists(
        self,
        legend: Any,  # noqa: ARG002 - matplotlib's signature
        orig_handle: Any,
        xdescent: float,
        ydescent: float,
        width: float,
        height: float,
        fontsize: float,  # noqa: ARG002
        trans: Any,
    ) -> list[Artist]:
        """Rectangles side by side, one per shade."""
        kind, count = orig_handle.kind, orig_handle.shades
        parts: list[Artist] = []
        for index in range(count):
            left = -xdescent + width * index / count
            parts.append(
                Rectangle(
                    (left, -ydescent), width / count, height,
                    facecolor=shade(kind, index, count), edgecolor="none", transform=trans,
                )
            )  # fmt: skip
        if kind in STRIPES:
            edge, color = STRIPES[kind]
            thickness = STRIPE_SHARE * height
            bottom = -ydescent + (height - thickness if edge == "top" else 0.0)
            parts.append(
                Rectangle(
                    (-xdescent, bottom), width, thickness,
                    facecolor=color, edgecolor="none", transform=trans,
                )
            )  # fmt: skip
        return parts
