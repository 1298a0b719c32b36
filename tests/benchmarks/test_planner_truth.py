"""The script that writes docs/planner-truth.md, on rows of its own."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.rows import ROW

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "planner_truth.py"
PAGE = SCRIPT.parents[1] / "docs" / "planner-truth.md"


@pytest.mark.processes
def test_the_page_is_written_from_rows(tmp_path: Path) -> None:
    rows = [ROW | {"tp": str(tp), "dp": str(8 // tp), "step_s": "15"} for tp in (1, 2, 4, 8)]
    rows += [ROW | {"gpu": "TPUv4"}, ROW | {"experts": "8", "topk": "2"}]
    path, out = tmp_path / "rows.csv", tmp_path / "page.md"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(ROW))
        writer.writeheader()
        writer.writerows(rows)
    subprocess.run([sys.executable, SCRIPT, path, "-o", out], check=True, timeout=60)
    text = out.read_text()
    assert "| dense, pipelined | 4 |" in text
    assert "1 of 6 rows are left out" in text
    assert "{{" not in text


def test_the_page_in_the_project_is_whole() -> None:
    text = PAGE.read_text()
    assert "{{" not in text
    assert "| dense, pipelined |" in text
