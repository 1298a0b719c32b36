"""Options of pictures that commands share, made from the fields of the Python options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import Field
from pathlib import Path
from typing import Annotated, Any

import typer

from debubble.cli.options import with_options
from debubble.cli.output import check_writable
from debubble.cli.panels import FIGURE
from debubble.core.errors import FormatError, ParameterError
from debubble.view.options import endings_of, offered_fields, read_options

ENDINGS = (".png", ".svg", ".pdf", ".html", ".txt")
_NO_TITLE = "no_title"

Picture = Mapping[str, Any]
"""Options of a picture as typed, by their names in Python; others are left out."""


def with_picture(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of a picture in place of its parameter ``picture``."""
    flag = typer.Option("--no-title", help="No title and no caption.", rich_help_panel=FIGURE)
    added: dict[str, tuple[Any, Any]] = {}
    for spec in offered_fields():
        about, name = spec.metadata, _typed_name(spec)
        option = typer.Option(
            f"--{name.replace('_', '-')}",
            metavar=about["metavar"],
            help=about["help"],
            rich_help_panel=FIGURE,
        )
        kind: Any = list[str] | None if about["repeated"] else str | None
        kind, usual = (bool, False) if about["metavar"] is None else (kind, None)
        added[name] = Annotated[kind, option], usual
    added[_NO_TITLE] = Annotated[bool, flag], False
    return with_options(function, "picture", added, _given, last=True)


def picture_names() -> tuple[str, ...]:
    """Return the names of a picture's options."""
    return (*map(_typed_name, offered_fields()), _NO_TITLE)


def _given(typed: dict[str, Any]) -> Picture:
    """Return the options that were typed, by their names in Python."""
    given = {}
    for spec in offered_fields():
        value = typed[_typed_name(spec)]
        if value not in (None, False, []):
            # A switch that is typed says so by its name: --no-… turns off.
            given[spec.name] = _typed_name(spec) == spec.name if value is True else value
            if spec.metadata["repeated"]:
                given[spec.name] = spec.metadata["read"](value, _flag(spec.name, given))
    if typed[_NO_TITLE]:
        if "title" in given:
            raise ParameterError("--title and --no-title exclude each other; use one of them")
        given["title"] = ""
    return given


def _typed_name(spec: Field[Any]) -> str:
    """Return the option's name: ``no_…`` for a switch that is on by default."""
    switch = spec.metadata["metavar"] is None
    return f"no_{spec.name}" if switch and spec.default is not False else spec.name


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
        if ending not in endings_of(name):
            raise ParameterError(
                f"{_flag(name, picture)} is for {', '.join(endings_of(name))}; "
                f"a {ending} picture does not have it"
            )
    read_options(picture)
