"""Matplotlib artists for many rectangles and texts: few, however many actions; and the legend."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.legend_handler import HandlerBase
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.path import Path
from numpy.typing import NDArray

from debubble.analysis.metrics import limit_text
from debubble.core.kind_relations import transfer_of
from debubble.core.kinds import STEP_KINDS, Kind
from debubble.view.bars import Bars, Floats, Ints
from debubble.view.colors import IDLE, INK, LIMIT, MEMORY, NAMES, STRIPES, Palette
from debubble.view.options import SMALLEST_FONT, FigureOptions
from debubble.view.text import text_width
from debubble.view.transfers import MOVED, TransferEnds

LABEL_SIZES = (1.125, 1.0, 0.875, 0.75)
"""Sizes of labels in those of a figure's text; all labels of a picture have one."""

ENOUGH = 0.9
"""Share of the boxes that have room for their label in every panel of a figure with labels."""

STRIPE_SHARE = 0.13
"""Height of a stripe in that of its bar."""

TONES = ("#d8c6ea", "#9a6fc4", "#4a1f73")
"""Colors of the ribbon below the bars, iteration after iteration."""

MAX_VECTOR_NUMBERS = 200_000
"""Coordinates beyond which vector files hold a bitmap in place of shapes."""


class Boxes(NamedTuple):
    """Rectangles in data coordinates, by their edges."""

    left: Floats
    right: Floats
    top: Floats
    bottom: Floats

    def only(self, chosen: NDArray[np.bool_]) -> Boxes:
        """Return some of the rectangles."""
        return Boxes(*(edge[chosen] for edge in self))

    def path(self) -> Path:
        """Return one path that consists of all rectangles."""
        left, right, top, bottom = self
        corners = np.empty((len(left), 5, 2))
        corners[:, :, 0] = np.stack([left, left, right, right, left], axis=1)
        corners[:, :, 1] = np.stack([top, bottom, bottom, top, top], axis=1)
        codes = np.array([Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY])
        return Path(corners.reshape(-1, 2), np.tile(codes.astype(Path.code_type), len(left)))


def add_paths(ax: Axes, paths: Sequence[Path], label: str, **style: Any) -> None:
    """Add paths as one collection in data coordinates; `label` is its gid, for tests and SVG."""
    collection = PathCollection(list(paths), transform=ax.transData, **{"linewidths": 0} | style)
    collection.set_gid(label)
    collection.set_rasterized(sum(np.size(path.vertices) for path in paths) > MAX_VECTOR_NUMBERS)
    ax.add_collection(collection, autolim=False)


def step_areas(curves: Iterable[tuple[Floats, Floats]], baselines: Floats, scale: float) -> Path:
    """Return one path with the areas under step curves, each above its baseline (y points down)."""
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


@dataclass(frozen=True, eq=False)
class LabelBoxes:
    """Boxes, and a candidate label for each."""

    boxes: Boxes
    number: Ints
    text: Callable[[int], str]
    """The text of box i is ``text(number[i])``."""
    color: Sequence[str]
    """Color of each text."""
    group: Ints
    """Boxes of a group are written on all together or not at all."""


class _Fitting(NamedTuple):
    """Labels that fit: their size in points, (x, y, text, color), and their share of all boxes."""

    size: float
    marks: list[tuple[float, float, str, str]]
    share: float


class Labels(Artist):
    """Texts on all boxes that have room for them, as one artist.

    Room is measured in pixels when the picture is drawn: at any size, resolution and zoom.
    """

    def __init__(self, ax: Axes, labels: LabelBoxes, font_size: float) -> None:
        super().__init__()
        self.labels = labels
        self.peers: Sequence[Labels | None] = (self,)
        """Labels of all panels of a figure: numbers on some panels alone read as a mistake. None
        for a panel whose bars are too thin for any."""
        self.sizes = sorted({max(SMALLEST_FONT, part * font_size) for part in LABEL_SIZES})
        self.set_gid("labels")
        self.set_zorder(4)
        ax.add_artist(self)
        self.set_in_layout(False)

    def placed(self, renderer: Any) -> tuple[float, list[tuple[float, float, str, str]]]:
        """Return the size in points, and (x, y, text, color) in pixels of every label that fits.

        In a figure of several panels there are some in all of them or in none.
        """
        found = [None if one is None else one._fitting(renderer, one.sizes) for one in self.peers]
        least = ENOUGH if len(found) > 1 else 0.0
        if any(one is None or one.share < least for one in found):
            return self.sizes[0], []
        size = min(one.size for one in found if one is not None)
        return size, self._fitting(renderer, [size]).marks

    def _fitting(self, renderer: Any, sizes: Sequence[float]) -> _Fitting:
        """Return the labels that fit in the best of some sizes, smallest first."""
        assert self.axes is not None
        labels = self.labels
        corners = self.axes.transData.transform
        left, top = corners(np.column_stack([labels.boxes.left, labels.boxes.top])).T
        right, bottom = corners(np.column_stack([labels.boxes.right, labels.boxes.bottom])).T
        view = self.axes.bbox
        pixel = renderer.points_to_pixels(1.0)
        candidates = np.flatnonzero((right > view.x0) & (left < view.x1))
        numbers, which = np.unique(labels.number[candidates], return_inverse=True)
        texts = [labels.text(number) for number in numbers.tolist()]
        font = FontProperties(size=10.0)
        widths = [
            renderer.get_text_width_height_descent(text, font, ismath=False)[0] if text else np.inf
            for text in texts
        ]
        per_point = np.array(widths)[which] / 10
        room = (right - left)[candidates] - 1.0 * pixel
        tall = (top - bottom)[candidates] / (0.85 * pixel)
        # Numbers on some boxes of a group and not on others read as a mistake.
        groups = labels.group[candidates]
        many = int(groups.max(initial=-1)) + 1
        total = np.bincount(groups[np.isfinite(per_point)], minlength=many)
        size, fits = sizes[0], np.zeros(len(candidates), dtype=bool)
        for larger in sizes:
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
            marks.append((x, y, text, labels.color[box]))
        return _Fitting(size, marks, len(chosen) / max(1, int(total.sum())) if total.any() else 1.0)

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
    """Legend handle: colors side by side over a part of its height, with a stripe at an edge."""

    colors: tuple[str, ...]
    bottom: float = 0.0
    height: float = 1.0
    stripe: str = ""
    edge: str = ""

    @classmethod
    def of(cls, kind: Kind, shades: int, palette: Palette) -> Swatch:
        """Return the shades of a kind, with its stripe."""
        colors = tuple(palette.shade(kind, index, shades) for index in range(shades))
        return cls(colors, stripe=palette.stripes.get(kind, ""), edge=STRIPES.get(kind, ""))


class SwatchHandler(HandlerBase):
    """Handler of a :class:`Swatch` in a legend."""

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
        """Return rectangles side by side, and the stripe."""

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


_HANDLE, _PAD, _SPACE, _LINE = 2.0, 0.5, 1.3, 1.55
"""In sizes of the text: widths of a handle, of the gap after it and of that between entries; height
of a line."""

LegendEntry = tuple[Any, str]
"""Handle and text."""


def legend_entries(
    panels: Sequence[Bars], options: FigureOptions, moved: Sequence[TransferEnds], memory: bool
) -> list[LegendEntry]:
    """Return an entry for everything in the picture."""
    palette = options.palette
    shades: dict[Kind, int] = {}
    for bars in panels:
        for kind in bars.kinds:
            count = 1 if kind in STEP_KINDS else min(bars.shades, 4)
            shades[kind] = max(shades.get(kind, 1), count)
    found: list[LegendEntry] = [
        (Swatch.of(kind, shades[kind], palette), f"{kind.name} {NAMES[kind]}")
        for kind in NAMES
        if kind in shades
    ]
    if any(bars.timeline.bubble_ratio > 1e-9 for bars in panels):
        found.append((Patch(facecolor=IDLE, edgecolor="#c3cad5", linewidth=0.5), "idle"))
    iterations = max(bars.timeline.schedule.iterations for bars in panels)
    if iterations > 1:
        shown = min(iterations, len(TONES))
        more = ", …" if iterations > shown else ""
        tones = Swatch(TONES[:shown], bottom=0.35, height=0.3)
        found.append((tones, f"iteration {', '.join(map(str, range(shown)))}{more}"))
    for carried in (False, True):
        for backward, moving in ((False, "activation"), (True, "gradient")):
            if any(np.any((p.backward == backward) & (p.carried == carried)) for p in moved):
                swatch = Swatch((moved_color(panels, palette, backward, carried),))
                words = f"{'carried ' if carried else ''}{moving} sent, received"
                found.append((swatch, words))
    if memory:
        found.append((Patch(facecolor=MEMORY), "activation memory"))
    if memory and options.limit is not None:
        text = limit_text(options.limit, panels[0].timeline.table.costs)
        found.append((Line2D([], [], color=LIMIT, linewidth=1.0), f"limit {text}"))
    if options.critical:
        found.append((Patch(facecolor="none", edgecolor=INK, linewidth=1.3), "critical path"))
    return found


def moved_color(panels: Sequence[Bars], palette: Palette, backward: bool, carried: bool) -> str:
    """Return the color of transfers: the first kind that is moved, or that of what is carried."""
    moved = [kind for kind, offset in MOVED.items() if (offset < 0) == backward]
    drawn = (kind for kind in moved if any(kind in bars.kinds for bars in panels))
    kind = next(drawn, moved[-1])
    return palette.shade(transfer_of(kind, carried)[0] if carried else kind)


def columns_for(found: Sequence[LegendEntry], size: float, width: float) -> int:
    """Return the most columns that fit into `width` inches side by side."""
    wide = [text_width(text, size) + (_HANDLE + _PAD) * size / 72 for _, text in found]
    for columns in range(len(found), 1, -1):
        # As matplotlib fills them: column by column, the first ones with one more.
        split = np.array_split(np.array(wide), columns)
        taken = sum(float(part.max()) for part in split) + (columns - 1) * _SPACE * size / 72
        if taken <= width:
            return columns
    return 1


def legend_height(found: Sequence[LegendEntry], size: float, width: float) -> float:
    """Return the inches that a legend takes."""
    lines = -(-len(found) // columns_for(found, size, width)) if found else 0
    return lines * _LINE * size / 72


def add_legend(
    where: Axes | Figure, found: Sequence[LegendEntry], size: float, width: float, **place: Any
) -> None:
    """Add a legend in as many columns as fit into `width` inches."""
    where.legend(
        [handle for handle, _ in found], [text for _, text in found],
        handler_map={Swatch: SwatchHandler()},
        ncols=columns_for(found, size, width), frameon=False, fontsize=size, labelcolor=INK,
        handlelength=_HANDLE, handleheight=1.0, handletextpad=_PAD, columnspacing=_SPACE,
        labelspacing=_LINE - 1.2, borderpad=0.0, **place,
    )  # fmt: skip
