"""The script that writes docs/planner-truth.md and its data, on rows of its own."""

import csv
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

from debubble.planner.cost.published_efficiencies import shipped_factors
from tests.patience import patience
from tests.planner.rows import ROW

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "planner_truth.py"
DATA = SCRIPT.with_name("planner_truth")
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
    data = tmp_path / "data"
    words = [sys.executable, SCRIPT, path, "-o", out, "--data", data]
    subprocess.run(words, check=True, timeout=patience(60))
    text = out.read_text()
    assert "| NVIDIA's containers, dense, pipelined | 4 |" in text
    assert "1 of 6 rows are left out" in text
    assert "{{" not in text
    assert {file.stem for file in data.iterdir()} == {file.stem for file in DATA.glob("*.csv")}


def read(name: str) -> list[dict[str, str]]:
    with (DATA / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_page_has_the_errors_of_every_kind_and_links_all_rows() -> None:
    text = PAGE.read_text()
    assert "{{" not in text
    for row in read("errors"):
        if row["by"] == "kind":
            assert f"| {row['group']} | {row['rows']} |" in text
    for file in DATA.iterdir():
        assert f"](../benchmarks/planner_truth/{file.name})" in text


def test_the_data_have_the_shipped_efficiencies_and_error_bars() -> None:
    rows = read("efficiencies")
    found = [(row["gpu"], row["tp"], row["precision"], row["software"], row["efficiency"],
              row["steps"]) for row in rows]  # fmt: skip
    assert found == [
        (item.gpu, str(item.tp), item.precision,
         item.runtime + (", experts" if item.experts else ""), str(item.efficiency),
         str(item.rows))
        for item in shipped_factors().table
    ]  # fmt: skip
    shipped = resources.files("debubble.planner.cost") / "published_errors.csv"
    bars = [[cell if cell != "all" else "" for cell in row.values()] for row in read("error_bars")]
    assert bars == list(csv.reader(shipped.read_text().splitlines()))[1:]


def test_the_errors_meet_their_targets() -> None:
    """Of rows that contributed nothing: median, 90th percentile, and the share inside the bar."""
    rows = {
        row["group"]: row
        for row in read("errors")
        if (row["left_out"], row["by"]) == ("release and model", "kind")
    }
    for kind, middle, ninth in (
        ("NVIDIA's containers, dense, pipelined", 6, 12),
        ("NVIDIA's containers, dense, one stage", 8, 16),
        ("A100, AA-Scaling", 12, 25),
        ("A100, Megatron, pipelined", 12, 25),
        ("nanotron, MFU from 30 %, one stage", 15, 30),
        ("nanotron, MFU from 30 %, pipelined", 15, 30),
    ):
        assert float(rows[kind]["median"]) <= middle / 100
        assert float(rows[kind]["ninth"]) <= ninth / 100
        assert float(rows[kind]["inside"]) >= 0.85


def test_the_page_on_plans_has_these_errors() -> None:
    medians = {
        row["group"]: 100 * float(row["median"])
        for row in read("errors")
        if (row["left_out"], row["by"]) == ("release and model", "kind")
    }
    experts = [medians.pop(name) for name in [*medians] if name.startswith("experts")]
    dense, mixed = (f"{min(some):.0f} to {max(some):.0f} %" for some in (medians.values(), experts))
    text = PAGE.with_name("plan.md").read_text()
    assert f"For dense models the median error is {dense}, for mixtures of experts {mixed}" in text
    ends = [f"{one(some):.1f} %" for some in (medians.values(), experts) for one in (min, max)]
    first = PAGE.read_text().split("\n")[2]
    assert [first.index(end) for end in ends] == sorted(first.index(end) for end in ends)


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
