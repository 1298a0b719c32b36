"""Pictures of a sweep: a result against an option, a line for each value of another one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from debubble.analysis.layout import Column
from debubble.analysis.measures import MEASURES
from debubble.core.errors import ParameterError
from debubble.core.units import number, percent
from debubble.sweeps.table import Results

MOST_LINES = 12
MOST_TEXTS = 40
"""Values of an option that is text, on the axis below."""

MANY = 30
"""Values of the option on the axis below from which single ones are dots, not ends of lines."""


@dataclass(frozen=True)
class Line:
    """The values of one group, by place on the axis below."""

    name: str
    """Value of the option that separates groups, empty for a single group."""
    x: tuple[float, ...]
    """Places, rising."""
    y: tuple[tuple[float, ...], ...]
    """All values at each place, rising."""

    @property
    def middle(self) -> list[float]:
        """Median at each place."""
        return [median(values) for values in self.y]


@dataclass(frozen=True)
class Chart:
    """Lines, axes and notes of one picture."""

    x: str
    """Column of the option on the axis below."""
    y: str
    """Column of the result."""
    by: str
    """Column of the option that separates lines, empty for none."""
    lines: tuple[Line, ...]
    """The lines, in the order of the sweep."""
    texts: tuple[str, ...]
    """Labels of the places 0, 1, … where the option on the axis below is text; else empty."""
    title: str
    notes: tuple[str, ...]
    """Lines at the foot."""

    @classmethod
    def read(cls, results: Results, wanted: str, title: str | None = None) -> Chart:
        """Return the chart for a text such as ``x=ranks y=bubble_ratio by=schedule chunks=2``.

        Other keys than x, y and by choose points by the value of an option.

        Raises
        ------
        ParameterError
            When the text names no column, or nothing is left to draw, or too much.
        """
        axes, chosen = _parse(results, wanted)
        x, y, by = axes["x"], axes["y"], axes.get("by", "")
        others = [name for name in results.options if name not in (x, by)]
        names = (y, x, *([by] if by else []), *others)
        rows = [dict(zip(names, row, strict=True)) for row in results.select(*names)]
        rows = [row for row in rows if all(_equals(row[key], text) for key, text in chosen.items())]
        if not rows:
            found = " ".join(f"{key}={text}" for key, text in chosen.items())
            raise ParameterError(
                f"'{results.path}' has no points{' with ' if found else ''}{found}"
            )
        kept = [row for row in rows if _is_number(row[y]) and row[x] is not None]
        if not kept:
            raise ParameterError(f"{y} is no number at any of these points; choose another result")
        texts, lines = _lines(kept, x, y, by)
        notes = _notes(kept, len(rows) - len(kept), x, y, by, others)
        return cls(x, y, by, lines, texts, title or f"{_words(y)} by {_words(x)}", notes)

    @property
    def scattered(self) -> bool:
        """Whether values are dots: random draws, hardly two at one place."""
        places = {place for line in self.lines for place in line.x}
        single = sum(len(values) == 1 for line in self.lines for values in line.y)
        return len(places) > MANY and single > 0.5 * sum(len(line.x) for line in self.lines)

    @property
    def spread(self) -> bool:
        """Whether there are several values at a place."""
        return any(len(values) > 1 for line in self.lines for values in line.y)

    @property
    def share(self) -> bool:
        """Whether the result is a share, shown in percent."""
        return any(m.key == self.y and m.unit == "share" for m in MEASURES)

    @property
    def whole(self) -> bool:
        """Whether all values are whole numbers."""
        return all(v.is_integer() for line in self.lines for values in line.y for v in values)

    def text(self, value: float) -> str:
        """Return a value of the result in words."""
        return percent(value) if self.share else number(value)

    def table(self) -> list[Column]:
        """Return the drawn values."""
        rows = [
            (line.name, self.texts[int(place)] if self.texts else number(place), values)
            for line in self.lines
            for place, values in zip(line.x, line.y, strict=True)
        ]
        columns = [Column((self.by,), tuple(row[0] for row in rows), left=True)] if self.by else []
        columns.append(Column((self.x,), tuple(row[1] for row in rows), left=bool(self.texts)))
        sums: dict[str, Callable[[Sequence[float]], float]] = {"": median}
        if self.spread:
            sums = {"median": median, "least": min, "greatest": max}
        for name, value in sums.items():
            cells = tuple(self.text(value(row[2])) for row in rows)
            columns.append(Column((self.y, name) if name else (self.y,), cells))
        return columns


def _parse(results: Results, wanted: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the columns of the axes, and the values that points must have."""
    axes: dict[str, str] = {}
    chosen: dict[str, str] = {}
    for word in wanted.replace(",", " ").split():
        key, equals, value = word.partition("=")
        if not equals or not value:
            raise ParameterError(f"--plot '{word}'; write x=ranks y=bubble_ratio by=schedule")
        if key in ("x", "y", "by"):
            results.check_column(value)
            axes[key] = value
        elif key in results.columns and key not in results.options:
            raise ParameterError(
                f"--plot '{word}': {key} is a result; points are chosen by an option: "
                f"{', '.join(results.options)}"
            )
        else:
            results.check_column(key)
            chosen[key] = value
    for key in ("x", "y"):
        if key not in axes:
            raise ParameterError(f"--plot needs {key}; write x=ranks y=bubble_ratio by=schedule")
    for key, name in axes.items():
        if list(axes.values()).count(name) > 1:
            raise ParameterError(f"--plot has {key}={name} twice; give different columns")
    return axes, chosen


def _lines(
    rows: Sequence[Mapping[str, Any]], x: str, y: str, by: str
) -> tuple[tuple[str, ...], tuple[Line, ...]]:
    texts: tuple[str, ...] = ()
    places: dict[Any, float] = {}
    if not all(_is_number(row[x]) for row in rows):
        texts = tuple(dict.fromkeys(str(row[x]) for row in rows))
        places = {text: float(index) for index, text in enumerate(texts)}
        if len(texts) > MOST_TEXTS:
            raise ParameterError(
                f"{x} has {len(texts):,} values that are no numbers; the limit is {MOST_TEXTS}"
            )
    groups: dict[str, dict[float, list[float]]] = {}
    for row in rows:
        place = places[str(row[x])] if texts else float(row[x])
        name = _shown(row[by]) if by else ""
        groups.setdefault(name, {}).setdefault(place, []).append(float(row[y]))
    if len(groups) > MOST_LINES:
        raise ParameterError(
            f"{by} has {len(groups):,} values, and the limit is {MOST_LINES} lines; choose some "
            f"points, such as {by}={next(iter(groups))}"
        )
    lines = []
    for name, values in groups.items():
        order = sorted(values)
        lines.append(Line(name, tuple(order), tuple(tuple(sorted(values[at])) for at in order)))
    return texts, tuple(lines)


def _notes(
    rows: Sequence[Mapping[str, Any]], left_out: int, x: str, y: str, by: str, others: Sequence[str]
) -> tuple[str, ...]:
    """Return the definition of the result, the options that vary, and the fixed ones."""
    words = next((m.words for m in MEASURES if m.key == y), "")
    notes = [f"{_words(y)}: {words}"] if words else []
    numbers = all(_is_number(row[x]) for row in rows)
    drawn = "line: median{}; area" if numbers else "sign: median{}; bar"
    values = {name: dict.fromkeys(_shown(row[name]) for row in rows) for name in others}
    fixed = [f"{name} {next(iter(found))}" for name, found in values.items()
             if len(found) == 1 and None not in found]  # fmt: skip
    varied = [name for name, found in values.items() if len(found) > 1]
    places = len({(row[x], row[by] if by else "") for row in rows})
    if len(rows) > places:
        of = f" over {', '.join(varied)}" if varied else ""
        notes.append(f"{drawn.format(of)}: least to greatest")
    if fixed:
        notes.append(", ".join(fixed))
    if left_out:
        notes.append(f"{left_out:,} of {len(rows) + left_out:,} points have no such result")
    return tuple(notes)


def _words(name: str) -> str:
    return name.replace("_", " ")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _equals(value: Any, text: str) -> bool:
    """Return whether a value equals the one in a text."""
    if isinstance(value, int | float):
        try:
            return value == float(text)
        except ValueError:
            return False
    return str(value) == text


def _shown(value: Any) -> str:
    return number(value) if isinstance(value, float) else "none" if value is None else str(value)
