"""Matplotlib artists of a timeline: few, however many actions it has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.font_manager import FontProperties
from matplotlib.legend_handler import HandlerBase
from matplotlib.patches import Rectangle
from matplotlib.path import Path
from numpy.typing import NDArray

from debubble.core.kinds import STEP_KINDS, Kind
from debubble.view.bars import LOWER, UPPER, WHOLE, Bars
from debubble.view.colors import IDLE, INK, PAPER, STRIPES, Palette, rgb
from debubble.view.options import SMALLEST_FONT
from debubble.view.rows import Floats, Rows
from debubble.view.transfers import Transfers

LABEL_SIZES = (1.125, 1.0, 0.875, 0.75)
"""Sizes of labels in those of a figure's text; all labels of a picture have one."""

STRIPE_SHARE = 0.13
STEP_WIDTH = 1.8
"""Points of the line that stands for an optimizer step that takes no time."""

TONES = ("#d8c6ea", "#9a6fc4", "#4a1f73")
"""Colours of the ribbon below the bars, iteration after iteration."""

MAX_VECTOR_NUMBERS = 200_000


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


def add_idle(ax: Axes, ranks: int, span: tuple[float, float], rows: Rows) -> None:
    """The background of all rows: what stays visible of it is idle."""
    top = np.arange(ranks) + rows.top
    path = rectangles(np.full(ranks, span[0]), np.full(ranks, span[1]), top, top + rows.height)
    add_paths(ax, [path], "idle", facecolors=[IDLE], linewidths=0, zorder=1)


def add_bars(
    ax: Axes,
    bars: Bars,
    scale: float,
    rows: Rows,
    gaps: Sequence[float],
    palette: Palette,
    clip: bool,
) -> None:
    """All bars in one collection with a path per style, and the stripes in another.

    `gaps` are the points of the white line around bars of every style. Without `clip`
    an optimizer step at the very end is seen as a whole.
    """
    top, bottom = rows.extent(bars)
    left, right = bars.start * scale, bars.end * scale
    paths, colors, edges, stripes, stripe_colors = [], [], [], [], []
    for style in range(len(bars.styles)):
        here = bars.style == style
        kind, index, count = bars.shade_of(style)
        paths.append(rectangles(left[here], right[here], top[here], bottom[here]))
        colors.append(palette.shade(kind, index, count))
        # An optimizer step may take no time: its edge is what is seen of it.
        edges.append(colors[-1] if kind in STEP_KINDS else PAPER)
        if kind in STRIPES:
            thickness = STRIPE_SHARE * (bottom - top)[here]
            upper = top[here] if STRIPES[kind] == "top" else bottom[here] - thickness
            stripes.append(rectangles(left[here], right[here], upper, upper + thickness))
            stripe_colors.append(palette.stripes[kind])
    widths = [STEP_WIDTH if color != PAPER else gap for color, gap in zip(edges, gaps, strict=True)]
    if paths:
        add_paths(
            ax, paths, "actions", facecolors=colors, edgecolors=edges, linewidths=widths,
            joinstyle="miter", zorder=2, clip_on=clip,
        )  # fmt: skip
    if stripes:
        add_paths(ax, stripes, "stripes", facecolors=stripe_colors, linewidths=0, zorder=2.1)


def add_image(
    ax: Axes,
    bars: Bars,
    scale: float,
    rows: Rows,
    pixels: tuple[int, int],
    palette: Palette,
    window: tuple[float, float],
) -> None:
    """The bars from afar: every column of a row is a stack of what fills that part of time.

    `pixels` are the width of the whole picture and the height of one row, `window` the stretch of
    time that it shows.
    """
    width, height = pixels
    begin, span = window[0], window[1] - window[0]
    first = round((0.5 + rows.top) * height)
    halves = (UPPER, LOWER) if bars.paired else (WHOLE,)
    size = max(1, round(rows.height * height / len(halves)))
    colors = [
        (*rgb(palette.shade(*bars.shade_of(style))), 255) for style in range(len(bars.styles))
    ]
    table = np.array([*colors, (*rgb(IDLE), 255)], dtype=np.uint8)
    middles = (np.arange(size) + 0.5) / size
    image = np.zeros((bars.ranks, height, width, 4), dtype=np.uint8)
    for rank in range(bars.ranks):
        for place, half in enumerate(halves):
            stack = np.cumsum(bars.shares(rank, width, span, half, begin), axis=1)
            style = (stack[None, :, :] <= middles[:, None, None]).sum(axis=2)
            line = first + place * size
            image[rank, line : line + size] = table[style][: height - line]
    picture = ax.imshow(
        image.reshape(-1, width, 4),
        extent=(begin * scale, window[1] * scale, bars.ranks - 0.5, -0.5),
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


def add_ribbon(ax: Axes, bars: Bars, scale: float, rows: Rows) -> None:
    """A band below the bars whose tone changes with the iteration they belong to."""
    top = bars.rank + rows.top + rows.height
    middle = top + rows.ribbon / 2
    upper = np.where(bars.half == LOWER, middle, top)
    lower = np.where(bars.half == UPPER, middle, top + rows.ribbon)
    tone = bars.iteration % len(TONES)
    work = ~bars.steps
    used = [index for index in range(len(TONES)) if np.any((tone == index) & work)]
    paths = []
    for index in used:
        here = (tone == index) & work
        paths.append(
            rectangles(bars.start[here] * scale, bars.end[here] * scale, upper[here], lower[here])
        )
    colors = [TONES[index] for index in used]
    add_paths(ax, paths, "iterations", facecolors=colors, linewidths=0, zorder=2)


def add_transfers(
    ax: Axes, moved: Transfers, scale: float, rows: Rows, colors: tuple[str, str]
) -> tuple[Floats, Floats]:
    """Sends above, receives below; `colors` are those of activations and gradients.

    Returns upper and lower edge of every rectangle.
    """
    half = rows.transfers_height / 2
    top = moved.rank + rows.transfers + np.where(moved.received, half, 0.0)
    bottom = top + 0.94 * half
    # An instant is seen by its edge.
    paths = [
        rectangles(moved.start[here] * scale, moved.end[here] * scale, top[here], bottom[here])
        for here in (~moved.backward, moved.backward)
    ]
    add_paths(
        ax, paths, "transfers", facecolors=list(colors), edgecolors="face", linewidths=0.3, zorder=2
    )
    return top, bottom


@dataclass(frozen=True, eq=False)
class Written:
    """Candidate labels of boxes, one entry per box."""

    left: Floats
    right: Floats
    top: Floats
    bottom: Floats
    """The boxes, in data coordinates."""
    number: NDArray[np.int64]
    text: Callable[[int], str]
    """The text of box i is ``text(number[i])``."""
    color: Sequence[str]
    """Colour of each text."""
    group: NDArray[np.int64]
    """Boxes of a group are written on all together or not at all."""


class Labels(Artist):
    """Texts on all boxes that have room for them, as one artist.

    Which ones fit is measured in pixels when the picture is drawn, so that it holds for every
    size, resolution and zoom.
    """

    def __init__(self, ax: Axes, boxes: Written, font_size: float) -> None:
        super().__init__()
        self.boxes = boxes
        self.sizes = sorted({max(SMALLEST_FONT, part * font_size) for part in LABEL_SIZES})
        self.set_gid("labels")
        self.set_zorder(4)
        ax.add_artist(self)
        self.set_in_layout(False)

    def placed(self, renderer: Any) -> tuple[float, list[tuple[float, float, str, str]]]:
        """Size in points, and (x, y, text, colour) in pixels of every label that fits."""
        assert self.axes is not None
        boxes = self.boxes
        corners = self.axes.transData.transform
        left, top = corners(np.column_stack([boxes.left, boxes.top])).T
        right, bottom = corners(np.column_stack([boxes.right, boxes.bottom])).T
        view = self.axes.bbox
        pixel = renderer.points_to_pixels(1.0)
        candidates = np.flatnonzero((right > view.x0) & (left < view.x1))
        numbers, which = np.unique(boxes.number[candidates], return_inverse=True)
        texts = [boxes.text(number) for number in numbers.tolist()]
        font = FontProperties(size=10.0)
        widths = [
            renderer.get_text_width_height_descent(text, font, ismath=False)[0] if text else np.inf
            for text in texts
        ]
        per_point = np.array(widths)[which] / 10
        room = (right - left)[candidates] - 1.0 * pixel
        tall = (top - bottom)[candidates] / (0.85 * pixel)
        # Numbers on some boxes of a group and not on others read as a mistake.
        groups = boxes.group[candidates]
        many = int(groups.max(initial=-1)) + 1
        total = np.bincount(groups[np.isfinite(per_point)], minlength=many)
        size, fits = self.sizes[0], np.zeros(len(candidates), dtype=bool)
        for larger in self.sizes:
            enough = (per_point * larger <= room) & (larger <= tall)
            count = np.bincount(groups[enough], minlength=many)
            enough &= (count >= 0.97 * total)[groups]
            if enough.sum() < 0.97 * fits.sum():
                break
            size, fits = larger, enough
        chosen = np.flatnonzero(fits)
        # One height for all: digits differ by fractions of a pixel, and lines of text would dance.
        height = renderer.get_text_width_height_descent("0", font, ismath=False)[1] * size / 10
        marks = []
        for place in chosen.tolist():
            box, text = candidates[place], texts[which[place]]
            width = per_point[place] * size
            x = (left[box] + right[box] - width) / 2
            y = (top[box] + bottom[box] - height) / 2
            marks.append((x, y, text, boxes.color[box]))
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
    """A legend entry: colours side by side over a part of its height, with a stripe at an edge."""

    colors: tuple[str, ...]
    bottom: float = 0.0
    height: float = 1.0
    stripe: str = ""
    edge: str = ""

    @classmethod
    def of(cls, kind: Kind, shades: int, palette: Palette) -> Swatch:
        """The shades of a kind, with its stripe."""
        colors = tuple(palette.shade(kind, index, shades) for index in range(shades))
        return cls(colors, stripe=palette.stripes.get(kind, ""), edge=STRIPES.get(kind, ""))


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
        """Rectangles side by side, and the stripe."""

        def box(left: float, bottom: float, wide: float, tall: float, color: str) -> Rectangle:
            place = (left - xdescent, bottom * height - ydescent)
            return Rectangle(
                place, wide, tall * height, facecolor=color, edgecolor="none", transform=trans
            )

        swatch: Swatch = orig_handle
        wide = width / len(swatch.colors)
        parts: list[Artist] = [
            box(index * wide, swatch.bottom, wide, swatch.height, color)
            for index, color in enumerate(swatch.colors)
        ]
        if swatch.stripe:
            bottom = 1 - STRIPE_SHARE if swatch.edge == "top" else 0.0
            parts.append(box(0, bottom, width, STRIPE_SHARE, swatch.stripe))
        return parts
