"""Copy of the package with edits, as the guide to extending it says."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import debubble as db

Edits = Mapping[str, tuple[tuple[str, str], ...]]
"""By file: texts that stand in it once, each with what takes its place."""


def environment_with(edits: Edits, home: Path, *paths: Path) -> dict[str, str]:
    """Return the environment of programs that find an edited copy of the package in `home`."""
    copy = home / "debubble"
    ignored = shutil.ignore_patterns("*.pyc")  # machine code of what is not edited stays valid
    shutil.copytree(Path(db.__file__).parent, copy, ignore=ignored)
    for name, changes in edits.items():
        text = (copy / name).read_text(encoding="utf-8")
        for old, new in changes:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        (copy / name).write_text(text, encoding="utf-8")
    return os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (home, *paths)))}
