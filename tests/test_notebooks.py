"""The notebooks run from top to bottom, in this process, and say what their texts say."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from debubble.optimize import cache
from debubble.schedules import registry

FOLDER = Path(__file__).parents[1] / "examples" / "notebooks"


def read(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))
    return data


def run(name: str) -> Iterator[tuple[dict[str, Any], Any]]:
    """Names after each cell, and the value of its last expression, which a notebook shows."""
    scope: dict[str, Any] = {"__name__": "__main__"}
    for cell in read(name)["cells"]:
        if cell["cell_type"] != "code":
            continue
        tree = ast.parse("".join(cell["source"]))
        shown = None
        if isinstance(tree.body[-1], ast.Expr):
            last = ast.Expression(tree.body.pop().value)
            exec(compile(tree, name, "exec"), scope)
            shown = eval(compile(last, name, "eval"), scope)
        else:
            exec(compile(tree, name, "exec"), scope)
        yield scope, shown


@pytest.fixture(autouse=True)
def there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(FOLDER)
    monkeypatch.setattr(cache, "folder", lambda: tmp_path)


def test_all_of_them_are_run_here_and_hold_no_output() -> None:
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == {"choose", "own_schedule"}
    for path in FOLDER.glob("*.ipynb"):
        for cell in read(path.stem)["cells"]:
            assert cell.get("outputs", []) == []
            assert cell.get("execution_count") is None


def test_choose(capsys: pytest.CaptureFixture[str]) -> None:
    steps = list(run("choose"))
    scope = steps[-1][0]
    comparison = steps[1][1]
    assert comparison.best.name == "zb-v"
    assert "<table>" in comparison._repr_html_()
    assert set(steps[3][1]) == {"F", "I", "W", "p2p"}
    *times, _ = capsys.readouterr().out.splitlines()
    found = scope["result"]
    makespans = [float(line.split(":")[1].split(" ms")[0]) for line in times]
    assert len(makespans) == 3
    assert makespans == sorted(makespans)
    assert found.lower_bound <= found.makespan


def test_own_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        steps = list(run("own_schedule"))
    finally:
        registry._ENTRIES.pop("patient-1f1b", None)
    assert steps[1][1] is True
    assert steps[-2][1].makespan > 33  # what it is without latency
    out = capsys.readouterr().out
    still, quarter, half = (
        ast.literal_eval(line.split(": ")[1])
        for line in out.splitlines()
        if line.startswith("p2p ") and "[" in line
    )
    assert len(set(still)) == 1
    assert half[0] > half[1] > half[2]
    assert min(quarter) < quarter[0]
    rows = {row.name: row.makespan for row in steps[-1][0]["comparison"].rows}
    assert rows["eager-1f1b"] <= rows["patient-1f1b"] < rows["1f1b"]
    assert "1B0" in out.splitlines()[-1]
