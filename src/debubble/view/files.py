"""Write pictures of timelines; the ending of the path picks the format."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from debubble.core.atomic_write import write_atomically
from debubble.core.errors import ParameterError, did_you_mean
from debubble.engine.timeline import Timeline
from debubble.view.options import option_names
from debubble.view.provenance import metadata

_OPTIONS = {
    ".png": (*option_names(".png"), "dpi"),
    ".svg": option_names(".svg"),
    ".pdf": option_names(".pdf"),
    ".html": (*option_names(".html"), "table_html"),
    ".txt": ("title", "width", "color", "ascii_only", "time_unit"),
}
"""Options each format takes."""


def save(
    timelines: Sequence[Timeline],
    path: str | Path,
    **options: Any,
) -> None:
    """Write timelines as ``.png``, ``.svg``, ``.pdf``, ``.html`` or ``.txt``.

    Parameters
    ----------
    timelines
        Timelines, one panel each.
    path
        Path of the file; an existing one is replaced.
    **options
        Fields of :class:`debubble.view.options.FigureOptions`, those that a format has; also
        ``dpi`` for ``.png`` and ``table_html`` for ``.html``. A ``.txt`` takes ``title``,
        ``width`` in characters (120 unless given), ``color`` (off), ``ascii_only`` and
        ``time_unit``.

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
    write: Callable[..., bytes] = _WRITERS.get(ending, _picture)
    content = write(list(timelines), ending, **options)
    try:
        write_atomically(target, content)
    except OSError as error:
        raise ParameterError(f"cannot write '{target}': {error.strerror or error}") from None


def _picture(timelines: list[Timeline], ending: str, dpi: float = 0, **options: Any) -> bytes:
    from debubble.view.figure import figure, render
    from debubble.view.panel import DPI

    made = metadata(ending, [timeline.table.costs for timeline in timelines])
    return render(figure(timelines, **options), ending[1:], dpi=dpi or DPI, metadata=made)


def _page(timelines: list[Timeline], ending: str, **options: Any) -> bytes:  # noqa: ARG001
    from debubble.view.page import page

    return page(timelines, **options).encode()


def _text(
    timelines: list[Timeline],
    ending: str,  # noqa: ARG001 - all writers are called alike
    title: str | None = None,
    width: int = 120,
    color: bool = False,
    **options: Any,
) -> bytes:
    from debubble.view.terminal import draw
    from debubble.view.words import printable

    parts = [draw(timeline, width=width, color=color, **options) for timeline in timelines]
    if title:
        parts.insert(0, textwrap.fill(printable(title, 300), width))
    return ("\n\n".join(parts) + "\n").encode()


_WRITERS: dict[str, Callable[..., bytes]] = {".html": _page, ".txt": _text}
