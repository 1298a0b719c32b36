"""What commands print: results on standard output, everything else on standard error."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from debubble.core.errors import ParameterError


def print_json(data: Any) -> None:
    """Print plain data as JSON."""
    print(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False))


def check_writable(path: str) -> None:
    """Refuse a file that could not be written in the end, before anything is computed.

    Raises
    ------
    ParameterError
        When its folder does not exist, it is a folder, or its owner does not let us write.
    """
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
    """Say something that is not the result."""
    print(text, file=sys.stderr)
