"""Timelines as text for terminals and files: one row per rank, time from left to right."""

from __future__ import annotations

import math
import os
import re
import shutil
import sys
import textwrap
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from debubble.analysis.layout import takes_color, wrap
from debubble.analysis.metrics import result_text
from debubble.core.errors import ParameterError
from debubble.core.kinds import STEP_KINDS, TRANSFER_KINDS
from debubble.core.units import number
from debubble.engine.timeline import Timeline
from debubble.engine.validate import has
from debubble.view import captions
from debubble.view.bars import LOWER, UPPER, WHOLE, Bars, Ints, bars_of
from debubble.view.colors import NAMES, rgb, shade, text_color, xterm, xterm_rgb
from debubble.view.transfers import TransferEnds, transfer_ends

MIN_WIDTH, WIDE = 20, 60
"""Fewest columns, and those from which rows have whole words for labels."""

_RESET = "\x1b[0m"
_ANSI = re.compile("\x1b\\[[0-9;]*m")
_ENOUGH = 0.9
"""Share of bars that must get a column of their own; else columns show what fills them most."""

_PARTS, _LINES, _MOST_NAMED = 8, 100, 5000
"""Parts and lines of a drawing without colors, and actions up to which it names all of them."""

_MOST_MOVED = 5000
"""Ends of transfers beyond which there is no room in any terminal."""

_TRANSFERS = "send, recv: >2 activation, <2 gradient of microbatch 2, where its transfer starts"
_CARRIED = "; send C, recv C: what stages carry to others than the next"
_ENDS = (("send", "s"), ("send C", "S"), ("recv", "r"), ("recv C", "R"))
"""Labels of the lanes of transfers, in wide and in narrow drawings."""

_NO_ROOM = "transfers have no room here: a picture in a file has them"


def print_timeline(timeline: Timeline, *, file: TextIO | None = None, time_unit: str = "") -> None:
    """Print a timeline, in color when `file` is a terminal and NO_COLOR is not set.

    The default is standard output, and for times the unit of the costs.
    """
    out = file or sys.stdout
    true_color = os.environ.get("COLORTERM", "").lower() in ("truecolor", "24bit")
    picture = partial(
        draw, timeline, color=takes_color(out), true_color=true_color, time_unit=time_unit
    )
    text = picture()
    try:
        text.encode(getattr(out, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        text = picture(ascii_only=True)
    print(text, file=out)


def draw(
    timeline: Timeline,
    *,
    width: int | None = None,
    color: bool = True,
    ascii_only: bool = False,
    true_color: bool = False,
    time_unit: str = "",
) -> str:
    """Return a timeline as text.

    Every rank has one row, two when actions overlap: forward above, backward below. Numbers are
    microbatches, written at the start of an action where they fit. Without colors nothing else
    distinguishes actions, so a timeline that is too long for its names goes on in further parts
    below each other, up to eight. An optimizer step without duration is a ``|``. Where actions are
    thinner than a column, columns show what fills most of them. Where transfers are actions, a rank
    has rows of its sends and receives, if these have room.

    The `width` is that of the longest line, 20 or more (else ParameterError), by default the
    terminal's. Colors are ANSI sequences of the 256 that nearly every terminal has, or of 24 bits;
    without, actions are letters: ``F0--`` takes four columns. Times are in the costs' unit.
    """
    if width is None:
        width = max(shutil.get_terminal_size((100, 24)).columns, MIN_WIDTH)
    if width < MIN_WIDTH:
        raise ParameterError(f"width is {width}; a timeline needs at least {MIN_WIDTH} columns")
    bars = bars_of(timeline)
    margin = len(f"rank {bars.ranks - 1}" if width >= WIDE else str(bars.ranks - 1))
    room = width - margin - 2
    scale, part = _scale(bars, room), room
    if not color:
        scale, part = _with_names(bars, scale, room)
    columns = max(1, math.ceil(timeline.makespan * scale - 1e-6))
    drawing = _TextDrawing(bars, columns, scale, color, ascii_only, true_color, time_unit)
    rows, note = drawing.rows(width)
    lines = drawing.head(width)
    for first in range(0, columns, part):
        # Colored rows are in one part, and have more characters than columns.
        shown = slice(None) if columns <= part else slice(first, first + part)
        lines += [""] * (first > 0)
        lines += [f"{label:>{margin}} {drawing.edge}{row[shown]}" for label, row in rows]
        axis = drawing.axis(first, min(part, columns - first))
        lines += [" " * (margin + 1) + line for line in axis]
    lines += drawing.legend(width) + textwrap.wrap(note, width)
    for text in captions.short_conventions(timeline):
        lines += [drawing.faint(line) for line in textwrap.wrap(drawing.clean(text), width)]
    return "\n".join(line.rstrip() for line in lines)


def _scale(bars: Bars, columns: int) -> float:
    """Return columns per unit of time: a whole number of columns per slot where that fits."""
    makespan = bars.timeline.makespan
    if makespan <= 0:
        return 1.0
    slot = bars.slot() if len(bars.start) <= columns * bars.ranks else 0.0
    whole = int(columns * slot / makespan + 1e-9)
    # Less than two thirds of the width would cost more numbers than even columns are worth.
    if whole and whole * makespan / slot >= 2 * columns / 3:
        return whole / slot
    return columns / makespan


def _with_names(bars: Bars, scale: float, room: int) -> tuple[float, int]:
    """Return a scale at which actions have room for their names, and the columns of a part.

    The given scale stays where it is enough, or where none would be.
    """
    lengths = (bars.end - bars.start)[bars.end > bars.start]
    if not len(lengths):
        return scale, room
    thin = float(np.quantile(lengths, 0.05))
    name = 1 + len(bars.text(int(bars.number.max())))
    slot = bars.slot() if len(lengths) <= _MOST_NAMED else 0.0
    # Off the grid of columns an action may lose one to rounding.
    even = slot > 0 and abs(thin / slot - 1) < 1e-6
    wanted = name if even else name + 1
    if thin * scale >= wanted - 1e-9 or len(lengths) > _MOST_NAMED:
        return scale, room
    longer = wanted / thin
    part = room - room % wanted if even else room
    columns = math.ceil(bars.timeline.makespan * longer - 1e-6)
    parts = math.ceil(columns / max(1, part))
    if not part or parts > _PARTS or parts * bars.ranks * (1 + bars.paired) > _LINES:
        return scale, room
    # Parts of about one length, that do not cut through actions where these are on a grid.
    return longer, min(part, wanted * math.ceil(columns / parts / wanted))


@dataclass(eq=False)
class _TextDrawing:
    """Parts of a drawing, in one width and one set of characters."""

    bars: Bars
    columns: int
    scale: float
    color: bool
    ascii_only: bool
    true_color: bool
    time_unit: str

    def __post_init__(self) -> None:
        styles = self.bars.styles
        self.time_unit = captions.printable(self.time_unit, 12)
        self.edge, self.idle = "|." if self.ascii_only else "│·"
        self.afar = False
        self.letters = np.array([captions.letter(kind, index) for kind, index in styles] or [" "])

    def rows(self, width: int) -> tuple[list[tuple[str, str]], str]:
        """Return the label and text of every line of all ranks, and a note on transfers."""
        bars, moved = self.bars, has(self.bars.timeline.schedule, TRANSFER_KINDS)
        sent = self.transfers() if moved else []
        lines: list[tuple[str, str]] = []
        for rank in range(bars.ranks):
            lines.append((f"rank {rank}" if width >= WIDE else str(rank), self.row(rank, UPPER)))
            if bars.paired:
                lines.append(("", self.row(rank, LOWER)))
            lanes = sent[rank] if sent else []
            names = _ENDS if len(lanes) > 2 else _ENDS[::2]
            for (name, short), text in zip(names, lanes, strict=False):
                lines.append((name if width >= WIDE else short, text))
        apart = any(len(lanes) > 2 for lanes in sent)
        note = f"{_TRANSFERS}{_CARRIED * apart}" if sent else _NO_ROOM
        return lines, note if moved else ""

    def transfers(self) -> list[list[str]]:
        """Return the lanes of transfers of every rank, sends first; none if they do not all fit."""
        moved = transfer_ends(self.bars.timeline)
        if len(moved) > _MOST_MOVED:
            return []
        lines = [
            [
                self._ends(moved, (moved.rank == rank) & (moved.lane == lane))
                for lane in range(moved.lanes)
            ]
            for rank in range(self.bars.ranks)
        ]
        return lines if all(map(all, lines)) else []

    def _ends(self, moved: TransferEnds, chosen: NDArray[np.bool_]) -> str:
        """Return a line with some ends of transfers, empty where they do not fit."""
        here = np.flatnonzero(chosen)
        line, free = [" "] * self.columns, 0
        for index in here[np.argsort(moved.start[here], kind="stable")].tolist():
            sign = "<" if moved.backward[index] else ">"
            text = sign + self.bars.text(int(moved.unit[index]))
            # Two that start together stand next to each other, if that moves none far.
            place = moved.start[index] * self.scale
            at = max(free, int(np.rint(place)))
            free = at + len(text)
            if free > self.columns or at - place > 2 * len(text):
                return ""
            line[at:free] = text
        return "".join(line)

    def row(self, rank: int, half: int) -> str:
        """Return one line of a rank's row, `columns` characters wide."""
        bars, part = self.bars, self.bars.of(rank)
        halves = bars.half[part]
        here = (halves == WHOLE) | (halves == half)
        begin, end = (
            np.minimum(np.rint(times[part] * self.scale).astype(np.int64), self.columns)
            for times in (bars.start, bars.end)
        )
        shown = np.flatnonzero(here & (end > begin))
        timed = np.count_nonzero(here & (bars.end[part] > bars.start[part]))
        if len(shown) >= _ENOUGH * timed:
            upper, char = self._one_by_one(shown + part.start, begin[shown], end[shown], half)
            lower = upper
        else:
            upper, lower, char = self._from_afar(rank, half)
        steps = bars.steps[part] & (end <= begin)
        char[np.clip(end[steps] - 1, 0, self.columns - 1)] = "|"
        return self._painted(upper, lower, char) if self.color else "".join(char.tolist())

    def _one_by_one(
        self, index: Ints, begin: Ints, end: Ints, half: int
    ) -> tuple[Ints, NDArray[np.str_]]:
        """Return styles (−1 for idle) and characters of actions that have columns of their own."""
        bars = self.bars
        style = np.full(self.columns, -1)
        char = np.full(self.columns, self.idle)
        styles = bars.style[index]
        # The next action may follow at once and look the same: then a column stays free.
        touching = np.zeros(len(styles), dtype=bool)
        touching[:-1] = (begin[1:] == end[:-1]) & (styles[1:] == styles[:-1])
        for bar, kind, left, right, tight in zip(
            index.tolist(), styles.tolist(), begin.tolist(), end.tolist(), touching.tolist(),
            strict=True,
        ):  # fmt: skip
            style[left:right] = kind
            repeated = half == LOWER and bars.half[bar] == WHOLE
            char[left:right] = " " if self.color or repeated else "-"
            if repeated:
                continue
            text = bars.label(bar)
            if self.color:
                fits = len(text) <= right - left - (tight and len(text) > 1)
                text = text if fits else ""
            else:
                name = str(self.letters[kind])
                text = name + text if len(name + text) <= right - left else name
            char[left : left + len(text)] = list(text)
        return style, char

    def _from_afar(self, rank: int, half: int) -> tuple[Ints, Ints, NDArray[np.str_]]:
        """Return the styles of the upper and the lower half of every column, and characters.

        Where half blocks can be drawn, a column is a stack of its styles with idle at the bottom,
        and the halves show what is in their middle; else it shows what fills most of it.
        """
        self.afar = True
        share = self.bars.shares(
            rank, self.columns, self.columns / self.scale, half if self.bars.paired else WHOLE
        )
        if self.color and not self.ascii_only and not self.bars.paired:
            stack = np.cumsum(share, axis=1)
            upper, lower = (
                np.where(stack[:, -1] > height, (stack <= height).sum(axis=1), -1)
                for height in (0.25, 0.75)
            )
            return upper, lower, np.where(upper < 0, self.idle, np.where(upper == lower, " ", "▀"))
        best = np.where(share.max(axis=1) > 1 - share.sum(axis=1), share.argmax(axis=1), -1)
        letters = np.full(self.columns, " ") if self.color else self.letters[best]
        return best, best, np.where(best < 0, self.idle, letters)

    def _painted(self, upper: Ints, lower: Ints, char: NDArray[np.str_]) -> str:
        text = "".join(char.tolist())
        changes = (np.diff(upper) != 0) | (np.diff(lower) != 0)
        edges = [0, *(np.flatnonzero(changes) + 1).tolist(), len(text)]
        runs = []
        for begin, end in pairwise(edges):
            run, above, below = text[begin:end], int(upper[begin]), int(lower[begin])
            if above < 0:
                runs.append(self.faint(run))
            elif above == below:
                runs.append(f"{self._ink(above)}{self._fill(above)}{run}{_RESET}")
            else:
                fill = self._fill(below) if below >= 0 else ""
                runs.append(f"{self._fill(above, '38')}{fill}{run}{_RESET}")
        return "".join(runs)

    def _fill(self, style: int, target: str = "48") -> str:
        """Return the ANSI sequence that makes a style the background, or with 38 the foreground."""
        which = self.bars.shade_of(style)
        if self.true_color:
            red, green, blue = rgb(shade(*which))
            return f"\x1b[{target};2;{red};{green};{blue}m"
        return f"\x1b[{target};5;{xterm(*which)}m"

    def _ink(self, style: int) -> str:
        """Return the ANSI sequence for text on a style."""
        which = self.bars.shade_of(style)
        background = shade(*which) if self.true_color else xterm_rgb(xterm(*which))
        return f"\x1b[38;5;{16 if text_color(background) == '#000000' else 231}m"

    def head(self, width: int) -> list[str]:
        """Return the lines with name, setting and result."""
        timeline = self.bars.timeline
        name = self.clean(captions.name(timeline))
        title = textwrap.wrap(f"{name}: {captions.setting(timeline)}", width)
        if self.color and title and title[0].startswith(name):
            title[0] = f"\x1b[1m{name}{_RESET}{title[0][len(name) :]}"
        return title + wrap(result_text(timeline, self.time_unit), width)

    def axis(self, first: int, count: int) -> list[str]:
        """Return a line with ticks and one with their times, below `count` columns from `first`."""
        dash, tick, corner = "-++" if self.ascii_only else "─┴└"
        span = self.columns / self.scale
        wanted = max(8, len(number(span)) + 3)
        spacing = tick_spacing(wanted / self.scale)
        line, numbers = [corner] + [dash] * count, [" "] * (count + 1)
        for index in range(int(span / spacing + 1e-9) + 1):
            at = round(index * spacing * self.scale) - first
            text = number(index * spacing)
            if not 0 <= at <= count:
                continue
            line[at] = tick if at else corner
            if at + len(text) <= len(numbers):
                numbers[at : at + len(text)] = list(text)
        return [self.faint("".join(line)), self.faint("".join(numbers).rstrip())]

    def legend(self, width: int) -> list[str]:
        """Return the legend of colors or letters, wrapped to the width."""
        items = []
        timed = self.bars.end > self.bars.start
        for kind in self.bars.kinds:
            if kind in STEP_KINDS and not np.any(self.bars.steps[timed]):
                continue
            styles = [i for i, (other, _) in enumerate(self.bars.styles) if other == kind]
            name = kind.name if width < 40 else f"{kind.name} {NAMES[kind]}"
            if self.color:
                swatch = "".join(f"{self._fill(i)}  {_RESET}" for i in styles[:4])
                items.append(f"{swatch} {name}")
            else:
                letters = "/".join(dict.fromkeys(str(self.letters[i]) for i in styles))
                items.append(letters if width < 40 else f"{letters} {NAMES[kind]}")
        items.append(f"{self.idle} idle")
        if np.any(self.bars.steps[~timed]):
            items.append("| optimizer step")
        note = captions.shades_note(self.bars.timeline, letters=not self.color)
        items += textwrap.wrap(self.clean(note), width)
        if self.afar:
            items += textwrap.wrap(
                "actions are narrower than a column: it shows what fills most of it", width
            )
        lines: list[str] = []
        for text in items:
            longer = f"{lines[-1]}   {text}" if lines else text
            if lines and len(_ANSI.sub("", longer)) <= width:
                lines[-1] = longer
            else:
                lines.append(text)
        return lines

    def faint(self, text: str) -> str:
        """Return text in a faint color."""
        return f"\x1b[2m{text}{_RESET}" if self.color and text else text

    def clean(self, text: str) -> str:
        """Return text in ASCII when nothing else may be written."""
        if not self.ascii_only:
            return text
        for there, here in (("−", "-"), ("Σ busy", "busy time"), ("×", "*"), ("–", " to ")):
            text = text.replace(there, here)
        return text.encode("ascii", "replace").decode()


def tick_spacing(least: float) -> float:
    """Return the smallest of …, 0.2, 0.5, 1, 2, 5, 10, … that is at least `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * digit for digit in (1, 2, 5, 10) if power * digit >= least * (1 - 1e-9))
