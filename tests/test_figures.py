"""The figures in the documentation are what the registry draws today."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "docs" / "figures"


@pytest.fixture
def script(monkeypatch):
    spec = importlib.util.spec_from_file_location("draw_figures", ROOT / "draw.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def test_figures_are_small_and_listed(script):
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    assert {path.stem for path in ROOT.glob("*.svg")} == {e.schedule for e in script.EXAMPLES}
    for example in script.EXAMPLES:
        assert f"![{example.schedule}.svg]({example.schedule}.svg)" in page
        assert (ROOT / f"{example.schedule}.svg").stat().st_size < 150_000


def test_figures_are_vectors_that_hold_text(script):
    assert script.EXAMPLES
    for example in script.EXAMPLES:
        text = (ROOT / f"{example.schedule}.svg").read_text(encoding="utf-8")
        assert "<image" not in text
        assert f">{example.schedule}<" in text


def test_drawing_again_gives_the_same_bytes(script, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "HERE", tmp_path)
    monkeypatch.setattr(script, "EXAMPLES", script.EXAMPLES[:2])
    script.main()
    for example in script.EXAMPLES[:2]:
        name = f"{example.schedule}.svg"
        assert (tmp_path / name).read_bytes() == (ROOT / name).read_bytes()
