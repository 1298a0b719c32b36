"""Output of commands: results on standard output, everything else on standard error."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from debubble.analysis.layout import takes_color
from debubble.core.errors import ParameterError
from debubble.core.units import plain

_STYLES = {"head": "1", "best": "32", "faint": "2"}


def print_json(data: Any) -> None:
    """Print plain data as JSON."""
    print(json_text(data))


def json_text(data: Any) -> str:
    """Return plain data as JSON, as all commands write it."""
    return json.dumps(_rounded(data), indent=2, ensure_ascii=False, allow_nan=False)


def _rounded(data: Any) -> Any:
    """Return data with numbers without digits of rounding: 58.9, not 58.900000000000006."""
    if isinstance(data, float):
        return plain(data)
    if isinstance(data, dict):
        return {key: _rounded(value) for key, value in data.items()}
    return [_rounded(value) for value in data] if isinstance(data, list | tuple) else data


def in_color() -> bool:
    """Return whether standard output takes colors: a terminal, unless NO_COLOR is set."""
    return takes_color(sys.stdout)


def styled(text: str, style: str) -> str:
    """Return text in a style for terminals: ``"head"``, ``"best"`` or ``"faint"``."""
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if text else text


COST_FILES = (".yaml", ".yml", ".json"), "a cost file is written as .yaml or .json"


def check_output(flag: str, path: str | None, endings: tuple[str, ...], advice: str) -> None:
    """Refuse a file to write with another ending, or that cannot be written; None is no file."""
    if path is None:
        return
    if not path.lower().endswith(endings):
        raise ParameterError(f"{flag}{' ' * bool(flag)}'{path}': {advice}")
    check_writable(path)


def check_writable(path: str) -> None:
    """Refuse a file that could not be written in the end, before anything is computed."""
    target = Path(path)
    try:
        is_folder, in_folder = target.is_dir(), target.parent.is_dir()
        there = target.exists()
    except (OSError, ValueError) as error:
        raise ParameterError(f"cannot write '{path}': {error}") from None
    if is_folder:
        raise ParameterError(f"'{path}' is a folder; name a file in it")
    if not in_folder:
        raise ParameterError(f"there is no folder '{target.parent}'; make it first")
    if not os.access(target if there else target.parent, os.W_OK):
        raise ParameterError(f"cannot write '{path}': permission denied")


def note(text: str) -> None:
    """Print a line that is not the result."""
    print(text, file=sys.stderr)
