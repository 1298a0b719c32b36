"""Text files of any origin: bounded, UTF-8, and quoted safely in messages."""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from debubble.core.errors import FormatError, did_you_mean

SHOWN = 60
"""Characters of a value that an error message quotes."""

A_TRACE = (
    "a trace, not a schedule; 'debubble draw' and 'debubble serve' show it; name a schedule here"
)
"""End of the message for a trace where a schedule is needed."""

_LISTED = 2000


@contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Name a file in the errors of writing it."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FormatError(f"cannot write '{path}': {reason}") from None


def read_bytes(path: str | Path, limit: int) -> bytes:
    """Return the bytes of a file; parameters and errors as of :func:`read_text`."""
    try:
        with open(path, "rb") as file:
            data = file.read(limit + 1)
    except FileNotFoundError:
        raise FormatError(f"there is no file '{path}'{_neighbours(path)}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FormatError(f"cannot read '{path}': {reason}") from None
    if len(data) > limit:
        raise FormatError(f"{path}: more than {limit:,} bytes, the limit for such a file")
    return data


def read_text(path: str | Path, limit: int) -> str:
    """Return the text of a file without byte order mark.

    Raises FormatError when it cannot be read, has more than `limit` bytes or is not UTF-8.
    """
    data = read_bytes(path, limit)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FormatError(
            f"{path}: byte {error.start:,} is 0x{data[error.start]:02x}, which is not UTF-8 text; "
            "save the file as UTF-8"
        ) from None


def _neighbours(path: str | Path) -> str:
    """Return a hint with the nearest name in the folder of a file that does not exist."""
    folder, name = os.path.split(os.fspath(path))
    try:
        with os.scandir(folder or ".") as found:
            names = [entry.name for _, entry in zip(range(_LISTED), found, strict=False)]
    except (OSError, ValueError):
        return f"; there is no folder '{folder}'" if folder else ""
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.75)
    return f"; did you mean '{os.path.join(folder, near[0])}'?" if near else ""


def shown(value: Any) -> str:
    """Quote a value for messages: short, on one line, without control characters.

    Examples
    --------
    >>> shown("0F0"), shown(True), shown([1, 2]), shown(None)
    ("'0F0'", 'true', 'a list', 'null')
    """
    if isinstance(value, str):
        return f"'{plain(value)}'"
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list" if value else "an empty list"
    if isinstance(value, int) and abs(value) >= 10**SHOWN:
        return "a number with more than 60 digits"
    return plain(repr(value))


def plain(text: str) -> str:
    """Cut text to :data:`SHOWN` characters, with escapes for characters that do not print."""
    cut = text if len(text) <= SHOWN else text[:SHOWN] + "…"
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in cut
    )


def check_keys(
    data: Mapping[Any, Any], where: str, known: Collection[str], required: Collection[str] = ()
) -> None:
    """Refuse keys that do not exist, and missing ones that must.

    Messages begin with `where`: the file, and the dotted key of the mapping.
    """
    for key in data:
        if key not in known:
            name = key if isinstance(key, str) else repr(key)
            hint = did_you_mean(name[:SHOWN], known)
            raise FormatError(f"{where}: unknown key {shown(name)}; {hint}")
    for key in required:
        if key not in data:
            raise FormatError(f"{where}: '{key}' is missing")
