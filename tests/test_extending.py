"""The guide to adding things: its examples run, and the files it names exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from debubble.analysis.metrics import MODES
from debubble.engine.graph import P2P_MODES, P2PMode

ROOT = Path(__file__).parents[1]
MAP = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
GUIDE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")


@pytest.mark.processes
def test_the_examples_run_one_after_the_other() -> None:
    blocks = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    code = "\n".join(blocks)
    found = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert not found.stderr
    lines = found.stdout.splitlines()
    assert lines[0] == "18.0"
    assert lines[1:4] == ["True"] * 3, "rows of kinds, costs and modes are those of the tables"
    assert lines[4:6] == ["{'stamp': 'red'}", "{'stamp': 'blue'}"]
    assert lines[6].endswith(" busy share of rank-time")
    assert any("efficiency" in line for line in lines[7:])
    assert lines[-1] == "[[{'area': 4}], [{'area': 9}]]"


@pytest.mark.parametrize("path", re.findall(r"`(src/debubble/[\w/.]+)`", GUIDE))
def test_the_files_exist(path: str) -> None:
    assert (ROOT / path).exists()


def test_the_map_of_the_house_is_right() -> None:
    named = re.findall(r"`([\w/]+\.py)`", MAP)
    named += [
        f"{folder}/__init__.py" for folder in re.findall(r"^\| `(\w+)` \|", MAP, re.MULTILINE)
    ]
    places = (ROOT / "src" / "debubble", ROOT, ROOT / "docs")
    assert [path for path in named if not any((place / path).exists() for place in places)] == []


@pytest.mark.processes
def test_every_mode_of_transfers_has_words_and_is_in_the_help() -> None:
    assert tuple(MODES) == P2P_MODES == get_args(P2PMode)
    command = [sys.executable, "-m", "debubble", "compare", "--help-all"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    words = " ".join(found.stdout.split())
    assert all(mode in words for mode in P2P_MODES)
