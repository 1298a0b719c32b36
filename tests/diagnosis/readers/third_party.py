"""Files of others that are no part of the project: beside its checkout, where they are at all.

``DEBUBBLE_THIRD_PARTY`` names another folder.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

BESIDE = Path(__file__).parents[4] / "shared" / "reference" / "data"
FOLDER = Path(os.environ.get("DEBUBBLE_THIRD_PARTY", BESIDE))


def third_party(name: str) -> Path:
    """The path of a file; without it the test is skipped."""
    path = FOLDER / name
    if not path.exists():
        pytest.skip(f"needs {name}, a file of others; DEBUBBLE_THIRD_PARTY names its folder")
    return path
