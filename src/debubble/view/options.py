"""Options of a picture in a file: one table for the command line and Python."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from debubble.core.errors import ParameterError, deprecated, did_you_mean
from debubble.engine.memory import Limit
from debubble.view.colors import COLOR, Palette, palette_of

SMALLEST_FONT = 6.0
"""Points. Text of a figure is never smaller; what does not fit is left out."""

_INCHES = {"in": 1.0, "cm": 1 / 2.54, "mm": 1 / 25.4, "pt": 1 / 72}
_LEAST = {"width": 2.0, "height": 0.5}
_LARGEST = 200.0


def length(wanted: str | float, name: str) -> float:
    """Return inches of a number of them, or of text such as ``3.3in``, ``84mm``, ``240pt``.

    `name` is ``width`` or ``height``. Raises ParameterError when the text is no length, or one
    outside of the limits of that.
    """
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+) *(in|cm|mm|pt)?", str(wanted).strip())
    if not found or isinstance(wanted, bool):
        raise ParameterError(f"{name} is '{wanted}'; give inches, or a length such as 3.3in, 84mm")
    inches = float(found[1]) * _INCHES[found[2] or "in"]
    least = _LEAST[name]
    if not least <= inches <= _LARGEST:
        raise ParameterError(
            f"{name} is '{wanted}'; the limits are {least:g} and {_LARGEST:g} inches"
        )
    return inches


def _read_number(wanted: str | float, name: str) -> float:
    try:
        value = float(wanted)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise ParameterError(f"{name} is '{wanted}'; give a number")
    return value


def _within(
    least: float, most: float, advice: str, kind: type = float
) -> Callable[[Any, str], Any]:
    """Return a reader of numbers from `least` to `most`, whole ones for the kind int."""

    def read(wanted: str | float, name: str) -> Any:
        value = _read_number(wanted, name)
        if value != kind(value) or not least <= value <= most:
            raise ParameterError(f"{name} is '{wanted}'; {advice}")
        return kind(value)

    return read


def _read_range(wanted: Any, name: str) -> tuple[float, float]:
    parts = wanted.split(":") if isinstance(wanted, str) else wanted
    if not isinstance(parts, list | tuple) or len(parts) != 2:
        raise ParameterError(f"{name} is '{wanted}'; give two times such as 10:20")
    begin, end = (_read_number(part, name) for part in parts)
    if not 0 <= begin < end:
        raise ParameterError(f"{name} is '{wanted}'; it begins at 0 or later, and ends after that")
    return begin, end


def _read_caption(wanted: Any, name: str) -> str:
    if wanted not in CAPTIONS:
        raise ParameterError(f"{name} is '{wanted}'; {did_you_mean(wanted, CAPTIONS)}")
    return str(wanted)


def _read_labels(wanted: Any, name: str) -> Mapping[str, str]:
    """Return texts by name of a schedule, of a mapping or of texts such as ``zb-v=ZB-V``."""
    if isinstance(wanted, Mapping):
        return dict(wanted)
    pairs = [str(pair).partition("=") for pair in wanted]
    for key, equals, text in pairs:
        if not equals or not text:
            raise ParameterError(
                f"{name} is '{key}{equals}'; give a schedule and its text, such as "
                f'{key or "zb-v"}="ZB-V (ours)"'
            )
    return {key: text for key, _, text in pairs}


CAPTIONS = ("none", "name", "short", "full")
"""Texts above a panel: nothing; its name; also bubble and peak; also sizes and makespan."""

MOST_COLUMNS = 8

DPI = 180.0
"""Pixels per inch of the bitmap that stands for bars thinner than a pixel."""

PNG_DPI = 300.0
"""Pixels per inch of a ``.png``: what journals ask for."""

FIGURES = (".png", ".svg", ".pdf")
ALL = (*FIGURES, ".html")


def _option(
    default: Any,
    help: str,
    *,
    metavar: str | None = None,
    read: Callable[[Any, str], Any] = lambda wanted, _name: wanted,
    endings: tuple[str, ...] = FIGURES,
    flag: bool = True,
    repeated: bool = False,
) -> Any:
    """Return a field that carries its help; with `flag` the command line offers it."""
    about = {
        "help": help, "metavar": metavar, "read": read, "endings": endings, "flag": flag,
        "repeated": repeated,
    }  # fmt: skip
    return field(default=default, metadata=about)


@dataclass(frozen=True, kw_only=True)
class FigureOptions:
    """Options of a figure, checked. Raises ParameterError when a value cannot be used.

    Parameters
    ----------
    title
        Stands above all; empty for no title, and in a figure of one timeline no caption.
    label
        Texts in place of the names of schedules, ``{"zb-v": "ZB-V (ours)"}``.
    caption
        Text above each panel: ``"none"``, ``"name"``, ``"short"`` (with bubble and peak) or
        ``"full"``.
    columns
        Panels side by side.
    width, height
        Inches, or text such as ``"3.3in"``; the default height is that of rows of a comfortable
        height.
    font_size
        Points of most text, 6 or more; the default is 8, and 7 in figures below 6 inches.
    font
        Family of all text, of those that matplotlib finds; the default is DejaVu Sans.
    dpi
        Pixels per inch of a ``.png``.
    numbers_from
        Number of the first microbatch, and of the first slice.
    palette
        ``"color"``, ``"grey"``, or colors of kinds, see :func:`debubble.view.colors.palette_of`.
    range
        Stretch of time to draw, ``(10, 20)`` or ``"10:20"``; all of it by default.
    memory
        Whether a strip under each rank shows its activation memory over time.
    transfers
        Whether a row under each rank shows its sends and receives; by default for up to 32 ranks,
        where transfers are actions or take time.
    notes, legend
        Whether the conventions of the numbers, and a legend, are part of the figure.
    labels
        Whether microbatches are written on the actions, where those of every panel have room.
    critical
        Whether the actions of the critical path are outlined.
    normalize
        Whether each panel's time is divided by its ideal, the work of its busiest rank: a schedule
        that never waits then ends at 1, at any costs.
    limit
        A memory limit, or one for each rank, drawn as a line across the strips.
    time_unit
        Unit of the costs' times, for instance ``"ms"``.
    """

    title: str | None = _option(
        None, "Title of the figure.", metavar="TEXT",
        endings=(*ALL, ".txt", ".tex"),
    )  # fmt: skip
    label: Mapping[str, str] | None = _option(
        None, 'Text for a schedule: zb-v="ZB-V (ours)" (repeatable).', metavar="NAME=TEXT",
        read=_read_labels, endings=(*ALL, ".tex"), repeated=True,
    )  # fmt: skip
    caption: str = _option(
        "full", f"Text above each panel: {', '.join(CAPTIONS[:-1])} or {CAPTIONS[-1]} (default).",
        metavar="HOW", read=_read_caption,
    )  # fmt: skip
    columns: int = _option(
        1, "Panels side by side.", metavar="N",
        read=_within(1, MOST_COLUMNS, f"give a whole number from 1 to {MOST_COLUMNS}", int),
    )  # fmt: skip
    width: float | None = _option(
        None, "Width, such as 3.3in, 84mm or 240pt.", metavar="SIZE", read=length
    )
    height: float | None = _option(None, "Height, such as 2in.", metavar="SIZE", read=length)
    font_size: float | None = _option(
        None, "Font size in points, at least 6.", metavar="PT",
        read=_within(
            SMALLEST_FONT, 40,
            f"text is readable from {SMALLEST_FONT:g} points on, at most 40",
        ),
    )  # fmt: skip
    font: str | None = _option(None, "Font family, such as Times New Roman.", metavar="NAME")
    dpi: float = _option(
        DPI, "Pixels per inch of a .png; 300 by default.", metavar="N",
        read=_within(10, 1200, "give 10 to 1200 pixels per inch"), endings=(".png",),
    )  # fmt: skip
    numbers_from: int = _option(
        0, "Number of the first microbatch: 0 or 1.", metavar="N",
        read=_within(0, 1_000_000, "give a whole number such as 1", int), endings=ALL,
    )  # fmt: skip
    palette: Palette = _option(  # noqa: RUF009 - a field, as the others
        COLOR, "color, grey, or own colors: F=#4169e1,B=#90ee90.", metavar="COLORS",
        read=lambda wanted, _name: palette_of(wanted), endings=ALL,
    )  # fmt: skip
    range: tuple[float, float] | None = _option(
        None, "Time range to draw, such as 10:20.", metavar="A:B", read=_read_range
    )
    memory: bool = _option(True, "Omit the memory strips.", endings=ALL)
    transfers: bool | None = _option(None, "Omit sends and receives.")
    notes: bool = _option(True, "Omit the footnotes.")
    legend: bool = _option(True, "Omit the legend.")
    labels: bool = _option(True, "Omit the microbatch numbers.", endings=ALL)
    critical: bool = _option(False, "Outline the critical path.", endings=ALL)
    normalize: bool = _option(
        False, "Divide times by the ideal time of each schedule.", endings=ALL
    )
    limit: Limit | None = _option(None, "", endings=ALL, flag=False)  # noqa: RUF009 - a field
    time_unit: str = _option("", "", endings=ALL, flag=False)

    def __post_init__(self) -> None:
        for spec in fields(self):
            value = getattr(self, spec.name)
            if value is not None:
                value = spec.metadata["read"](value, spec.name.replace("_", " "))
                object.__setattr__(self, spec.name, value)


def read_options(options: Mapping[str, Any]) -> FigureOptions:
    """Return the options of a figure, of which one may have its former name."""
    if "normalise" in options:
        deprecated("normalise=", "normalize=", gone="0.3")
        options = {"normalize" if key == "normalise" else key: options[key] for key in options}
    return FigureOptions(**options)


def option_names(ending: str) -> tuple[str, ...]:
    """Return the names of the options that a format takes."""
    return tuple(spec.name for spec in fields(FigureOptions) if ending in spec.metadata["endings"])
