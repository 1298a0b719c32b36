"""Pictures of timelines in files; the ending of the path picks the format."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from debubble.core.atomic_write import write_atomically
from debubble.core.errors import ParameterError, did_you_mean
from debubble.engine.timeline import Timeline
from debubble.view.captions import metadata
from debubble.view.options import FIGURES, PNG_DPI, option_names, read_options

_OPTIONS = {
    **{ending: option_names(ending) for ending in FIGURES},
    ".html": (*option_names(".html"), "table_html"),
    ".txt": ("title", "width", "color", "ascii_only", "time_unit"),
}
"""Options of each format."""


def save(timelines: Sequence[Timeline], path: str | Path, **options: Any) -> None:
    """Write timelines, a panel each, as ``.png``, ``.svg``, ``.pdf``, ``.html`` or ``.txt``.

    Options are those fields of :class:`debubble.view.options.FigureOptions` that a format has;
    also ``table_html`` for ``.html``. A ``.txt`` takes ``title``,
    ``width`` in characters (120 by default), ``color`` (off), ``ascii_only`` and ``time_unit``.

    Raises
    ------
    ParameterError
        When the ending or an option is unknown, the folder does not exist, or the file cannot be
        written.
    """
    if not isinstance(path, str | Path):
        raise ParameterError(f"path is {path!r}; give a file name such as 'timeline.svg'")
    target = Path(path)
    ending = target.suffix.lower()
    if ending not in _OPTIONS:
        raise ParameterError(
            f"cannot write a picture to '{target}'; the ending is one of {', '.join(_OPTIONS)}"
        )
    for name in options:
        if name not in _OPTIONS[ending]:
            hint = did_you_mean(name, _OPTIONS[ending])
            raise ParameterError(f"a {ending} picture has no option '{name}'; {hint}")
    if not target.parent.is_dir():
        raise ParameterError(f"there is no folder '{target.parent}'; make it first")
    if not timelines:
        raise ParameterError("there is no timeline to draw; give at least one")
    if ending == ".html":
        from debubble.view.page import page

        content = page(timelines, **options).encode()
    elif ending == ".txt":
        content = _text(timelines, **options)
    else:
        content = _picture(timelines, ending, **options)
    try:
        write_atomically(target, content)
    except OSError as error:
        raise ParameterError(f"cannot write '{target}': {error.strerror or error}") from None


def _picture(timelines: Sequence[Timeline], ending: str, **options: Any) -> bytes:
    from debubble.view.figure import figure, render

    made = metadata(ending, [timeline.table.costs for timeline in timelines])
    if ending == ".png":
        options = {"dpi": PNG_DPI} | options
    dpi = read_options(options).dpi
    return render(figure(timelines, **options), ending[1:], dpi=dpi, metadata=made)


def _text(
    timelines: Sequence[Timeline], title: str | None = None, width: int = 120, **options: Any
) -> bytes:
    from debubble.view.captions import printable
    from debubble.view.terminal import draw

    options = {"color": False} | options
    parts = [draw(timeline, width=width, **options) for timeline in timelines]
    if title:
        parts.insert(0, textwrap.fill(printable(title, 300), width))
    return ("\n\n".join(parts) + "\n").encode()
