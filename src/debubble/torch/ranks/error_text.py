"""Errors of ranks in one line, with the place in the user's code."""

from __future__ import annotations

import os
import traceback
from pathlib import Path

import torch

from debubble.core.errors import DebubbleError

OWN = str(Path(__file__).parents[2]) + os.sep
PACKAGES = (str(Path(torch.__file__).parent) + os.sep, OWN)
"""Folders of code that is not the user's."""


def is_timeout(error: str) -> bool:
    """Return if an error of a connection is about a timeout."""
    return "timed out" in error.lower() or "timeout" in error.lower()


def describe_error(error: BaseException) -> str:
    """Return class, message and place of an error, in one line."""
    if isinstance(error, DebubbleError):
        return str(error)
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(PACKAGES)
    ]  # fmt: skip
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    first = (str(error).strip() or "no message").splitlines()[0]
    return f"{type(error).__name__}: {first}{where}"
