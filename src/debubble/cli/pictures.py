"""Options of pictures that commands share, made from the fields of the Python options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

from debubble.cli.options import switch, takes, with_options
from debubble.cli.output import check_writable
from debubble.cli.panels import FIGURE
from debubble.core.errors import FormatError, ParameterError
from debubble.view.options import FigureOptions, read_options

ENDINGS = (".png", ".svg", ".pdf", ".html", ".txt")
_NO_TITLE = "no_title"

_FIELDS = {spec.name: spec for spec in fields(FigureOptions) if spec.metadata["flag"]}

_TYPED = {
    f"no_{name}" if spec.metadata["metavar"] is None and spec.default is not False else name: spec
    for name, spec in _FIELDS.items()
}
"""Options by the names that are typed: ``no_…`` for a switch that is on by default."""

Picture = Mapping[str, Any]
"""Options of a picture as typed, by their names in Python; others are left out."""


def with_picture(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of a picture in place of its parameter ``picture``."""
    added: dict[str, tuple[Any, Any]] = {}
    for name, spec in _TYPED.items():
        about = spec.metadata
        kind: Any = list[str] | None if about["repeated"] else str | None
        kind, usual = (bool, False) if about["metavar"] is None else (kind, None)
        flag = f"--{name.replace('_', '-')}"
        option = takes(about["metavar"], about["help"], flag, panel=FIGURE)
        added[name] = Annotated[kind, option], usual
    no_title = switch("--no-title", "No title and no caption.", FIGURE)
    added[_NO_TITLE] = Annotated[bool, no_title], False
    return with_options(function, "picture", added, _given, last=True)


def picture_names() -> tuple[str, ...]:
    """Return the names of a picture's options."""
    return (*_TYPED, _NO_TITLE)


def _given(typed: dict[str, Any]) -> Picture:
    """Return the options that were typed, by their names in Python."""
    given = {}
    for name, spec in _TYPED.items():
        value = typed[name]
        if value not in (None, False, []):
            # A switch that is typed says so by its name: --no-… turns off.
            given[spec.name] = name == spec.name if value is True else value
            if spec.metadata["repeated"]:
                given[spec.name] = spec.metadata["read"](value, _flag(spec.name, given))
    if typed[_NO_TITLE]:
        if "title" in given:
            raise ParameterError("--title and --no-title exclude each other; use one of them")
        given["title"] = ""
    return given


def _flag(name: str, picture: Picture) -> str:
    """Return an option as it was typed."""
    off = picture[name] is False or (name == "title" and not picture[name])
    return f"--{'no-' if off else ''}{name.replace('_', '-')}"


def check_picture(path: str | None, picture: Picture, *more: str) -> None:
    """Refuse impossible options before anything is computed.

    `more` are endings of files other than pictures, which take none of the options.
    """
    if path is None:
        if picture:
            name = _flag(next(iter(picture)), picture)
            raise ParameterError(f"{name} is for a picture in a file; add -o, such as -o x.svg")
        return
    ending = Path(path).suffix.lower()
    known = (*ENDINGS, *more)
    if ending not in known:
        kind = "pictures and tables" if more else "pictures"
        raise FormatError(f"'{path}': {kind} end in {', '.join(known[:-1])} or {known[-1]}")
    check_writable(path)
    for name in picture:
        endings = _FIELDS[name].metadata["endings"]
        if ending not in endings:
            raise ParameterError(
                f"{_flag(name, picture)} is for {', '.join(endings)}; "
                f"a {ending} picture does not have it"
            )
    read_options(picture)
