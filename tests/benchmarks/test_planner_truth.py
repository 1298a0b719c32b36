"""The script that writes docs/planner-truth.md, on rows of its own."""

import csv
import re
import subprocess
import sys
from pathlib import Path

import pytest

from debubble.planner.cost.published_efficiencies import shipped_factors
from tests.patience import patience
from tests.planner.rows import ROW

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "planner_truth.py"
PAGE = SCRIPT.parents[1] / "docs" / "planner-truth.md"


@pytest.mark.processes
def test_the_page_is_written_from_rows(tmp_path: Path) -> None:
    rows = [ROW | {"tp": str(tp), "dp": str(8 // tp), "step_s": "15"} for tp in (1, 2, 4, 8)]
    rows += [ROW | {"gpu": "TPUv4"}, ROW | {"experts": "8", "topk": "2", "source": "another one"}]
    path, out = tmp_path / "rows.csv", tmp_path / "page.md"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(ROW))
        writer.writeheader()
        writer.writerows(rows)
    subprocess.run([sys.executable, SCRIPT, path, "-o", out], check=True, timeout=patience(60))
    text = out.read_text()
    assert "| NVIDIA's containers, dense, pipelined | 4 |" in text
    assert "1 of 6 rows are left out" in text
    assert "{{" not in text


def test_the_page_in_the_project_is_whole() -> None:
    text = PAGE.read_text()
    assert "{{" not in text
    assert "| NVIDIA's containers, dense, pipelined |" in text


def test_the_page_has_the_shipped_efficiencies() -> None:
    text = PAGE.read_text()
    for item in shipped_factors().table:
        kind = ", experts" if item.experts else ""
        assert (
            f"| {item.gpu} | {item.tp} | {item.precision} | {item.runtime}{kind} |"
            f" {item.efficiency} | {item.rows} |" in text
        )


def test_the_page_meets_its_targets() -> None:
    """Of rows that contributed nothing: median, 90th percentile, and the share inside the bar."""
    text = PAGE.read_text()
    table = text[text.index("The release and model left out") :]
    for kind, middle, ninth in (
        ("NVIDIA's containers, dense, pipelined", 6, 12),
        ("NVIDIA's containers, dense, one stage", 8, 16),
        ("A100, AA-Scaling", 12, 25),
        ("A100, Megatron, pipelined", 12, 25),
        ("nanotron, MFU from 30 %, one stage", 15, 30),
        ("nanotron, MFU from 30 %, pipelined", 15, 30),
    ):
        found = re.search(rf"\| {re.escape(kind)} \| \d+ \| (.*?)% \| (.*?)% \|.* (\d+)% \|", table)
        assert found, kind
        assert float(found[1]) <= middle
        assert float(found[2]) <= ninth
        assert int(found[3]) >= 85


def test_nobody_who_is_judged_is_fitted(tmp_path: Path) -> None:
    """Another time of one row changes the prediction of no row of its fold."""
    from planner_efficiencies import FOLDS, judged, measured

    def predicted(seconds: str) -> dict[str, list[float]]:
        rows = [
            ROW | {"source": source, "model": model, "step_s": step}
            for source, model, step in (
                ("one a", "X", seconds), ("one a", "Y", "15"), ("one b", "X", "16"),
                ("two", "X", "17"),
            )
        ]  # fmt: skip
        path = tmp_path / "rows.csv"
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(ROW))
            writer.writeheader()
            writer.writerows(rows)
        found = measured([str(path)])
        return {fold: [one.seconds for one in judged(found, fold)] for fold in FOLDS}

    first, second = predicted("14"), predicted("25")
    same = {
        fold: [a == b for a, b in zip(first[fold], second[fold], strict=True)] for fold in first
    }
    assert same["publication"] == [True, True, True, False]
    assert same["release and model"] == [True, False, False, False]
