"""The pictures that pages ask for by a command can be made, and are shown with their captions."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import typer
from PIL import Image, ImageStat

from debubble.cli.app import app
from tests.missing import missing

ROOT = Path(__file__).parents[1]
PAGES = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md")}


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "docs")
    module = importlib.import_module("pictures")
    monkeypatch.setattr(module, "KEPT", tmp_path / "kept")
    return module


def test_every_picture_has_a_command_that_can_be_read(pictures: ModuleType) -> None:
    program = typer.main.get_command(app)
    targets: dict[str, str] = {}
    for name, text in PAGES.items():
        asked = pictures.asked_for(name, text)
        assert len(asked) == len(re.findall(r"\]\(made/", text)), f"{name}: a picture has no title"
        for picture in asked:
            assert picture.files
            assert targets.setdefault(picture.target, picture.command) == picture.command, name
            assert picture.chart is None or picture.chart in pictures.charts.CHARTS
            for words in picture.steps:
                with program.make_context("debubble", [*words], resilient_parsing=False) as group:
                    _, command, rest = program.resolve_command(group, [*words])
                    command.make_context(words[0], rest, parent=group).close()
    assert targets


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        ("make demo", "no command of debubble"),
        ("debubble draw zb-v -p 4 -m 8", "does not write x.svg"),
        ("debubble draw zb-v -p 4 -m 8 -o y.svg", "does not write x.svg"),
    ],
)
def test_a_picture_that_cannot_be_made_is_refused(
    pictures: ModuleType, command: str, wrong: str
) -> None:
    (picture,) = pictures.asked_for("page.md", f'![Two.](made/x.svg "{command}")')
    with pytest.raises(pictures.PictureError, match=wrong):
        assert picture.files


@pytest.mark.parametrize("name", ["frontier", "truth", "planner-truth"])
def test_a_chart_of_a_benchmark_is_drawn(pictures: ModuleType, tmp_path: Path, name: str) -> None:
    (picture,) = pictures.asked_for("page.md", f'![A.](made/x.svg "chart {name}")')
    assert pictures.drawn((picture, tmp_path / "chart")) == ""
    light, dark = ((tmp_path / "chart" / file).read_text() for file in picture.files)
    assert "fill: #ffffff" in light
    assert "fill: #ffffff" not in dark[:3000]
    assert light.count("<use") > 20


@pytest.mark.processes
def test_commands_draw_for_light_and_dark_pages_once(
    pictures: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = '![`1f1b` on [two ranks](x.md).](made/x.svg "debubble draw 1f1b -p 2 -m 2 -o x.svg")'
    asked = pictures.asked_for("page.md", text)
    for _ in range(2):
        pictures.make(asked, tmp_path / "made")
        monkeypatch.setattr(pictures, "drawn", None)  # the second time they are kept
    light, dark = (tmp_path / "made" / name for name in ("x.svg", "x-dark.svg"))
    assert "fill: #ffffff" in light.read_text(encoding="utf-8")
    assert "fill: #ffffff" not in dark.read_text(encoding="utf-8")[:3000]
    shown = pictures.insert(text, tmp_path / "made")
    assert '<img src="made/x.svg#only-light" alt="1f1b on two ranks."' in shown
    assert '<figcaption markdown="span">`1f1b` on [two ranks](x.md).</figcaption>' in shown


LOOK = """
import sys
from pathlib import Path

import pictures

pictures.KEPT = Path("kept")
pictures.make(pictures.asked_for("page.md", sys.argv[1]), Path("made"))
"""


@pytest.mark.slow
@pytest.mark.browser
def test_reports_and_the_playground_are_looked_at_in_the_light_and_in_the_dark(
    pictures: ModuleType, tmp_path: Path
) -> None:
    if not any(map(shutil.which, pictures.PROGRAMS)):
        missing("no Chromium here; 'make browser' installs Debian's")
    text = (
        '![A.](made/report.png "debubble draw 1f1b -p 2 -m 2 -o report.html")\n'
        '![B.](made/page.png "debubble serve #")'
    )
    subprocess.run(
        [sys.executable, "-c", LOOK, text], cwd=tmp_path, check=True,
        env=os.environ | {"PYTHONPATH": str(ROOT / "docs")},
    )  # fmt: skip
    assert 'href="made/report.html"' in pictures.insert(text, tmp_path / "made")
    for name, width in (("report", 1650), ("page", 2160)):
        light, dark = (
            Image.open(tmp_path / "made" / f"{name}{suffix}.png").convert("L")
            for suffix in ("", "-dark")
        )
        assert light.size == dark.size
        assert light.width == width
        assert ImageStat.Stat(light).mean[0] > 180 > 90 > ImageStat.Stat(dark).mean[0]


def test_a_picture_that_was_not_made_leaves_its_caption(
    pictures: ModuleType, tmp_path: Path
) -> None:
    shown = pictures.insert('![A plan.](made/plan.png "debubble plan x -o plan.html")', tmp_path)
    assert "A plan." in shown
    assert "<img" not in shown


def test_a_command_that_fails_ends_the_build(pictures: ModuleType, tmp_path: Path) -> None:
    asked = pictures.asked_for("page.md", '![x](made/x.svg "debubble draw zb-w -p 2 -o x.svg")')
    with pytest.raises(pictures.PictureError, match="zb-w"):
        pictures.make(asked, tmp_path / "made")
