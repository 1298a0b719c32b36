"""Legend of a figure: an entry for everything in any of its panels, and no others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from debubble.analysis.metrics import limit_text
from debubble.core.kinds import STEP_KINDS, Kind
from debubble.view.artists import TONES, Swatch, SwatchHandler
from debubble.view.bars import MOVED, Bars, TransferEnds
from debubble.view.colors import IDLE, INK, LIMIT, MEMORY, NAMES
from debubble.view.options import FigureOptions
from debubble.view.text import text_width

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
    for backward, moving in ((False, "activation"), (True, "gradient")):
        if any(bool((part.backward == backward).any()) for part in moved):
            kind = moved_kind(panels, backward)
            found.append((Swatch.of(kind, 1, palette), f"{moving} sent, received"))
    if memory:
        found.append((Patch(facecolor=MEMORY), "activation memory"))
    if memory and options.limit is not None:
        text = limit_text(options.limit, panels[0].timeline.table.costs)
        found.append((Line2D([], [], color=LIMIT, linewidth=1.0), f"limit {text}"))
    if options.critical:
        found.append((Patch(facecolor="none", edgecolor=INK, linewidth=1.3), "critical path"))
    return found


def moved_kind(panels: Sequence[Bars], backward: bool) -> Kind:
    """Return the kind that gives transfers their color: the first that occurs and is moved."""
    moved = [kind for kind, offset in MOVED.items() if (offset < 0) == backward]
    return next((kind for kind in moved if any(kind in bars.kinds for bars in panels)), moved[-1])


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
