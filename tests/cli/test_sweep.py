"""``debubble sweep``."""

from __future__ import annotations

import csv
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from debubble.sweeps import Results, backends
from tests.contracts import follows_its_contract

Run = Callable[..., Any]
Refused = Callable[..., str]
Start = Callable[..., subprocess.Popen[str]]

EXAMPLES = Path(__file__).parents[2] / "examples"
SPEC = """
command: simulate
options: {microbatches: 8}
grid:
  schedule: [1f1b, zb-h1, dualpipe]
  ranks: [2, 3, 4]
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "sweep.yaml"
    path.write_text(SPEC)
    return path


@pytest.fixture(scope="module")
def swept(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("swept") / "sweep.yaml"
    path.write_text(SPEC)
    assert run("sweep", path, "-o", path.with_name("results.sqlite"), "-j", 1).code == 0
    return path.with_name("results.sqlite")


@pytest.fixture
def results(swept: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(swept, tmp_path))


def test_a_dry_run_has_the_size(run: Run, spec: Path) -> None:
    out = run("sweep", spec, "--dry-run").out
    assert out.startswith("simulate: 3 schedule × 3 ranks = 9 points\n  microbatches=8, ")
    assert run("sweep", spec, "--dry-run", "--json").data["points"] == 9
    assert not spec.with_name("results.sqlite").exists()


def test_a_sweep_says_how_large_it_is_and_what_came_out(run: Run, spec: Path) -> None:
    path = spec.with_name("x.sqlite")
    result = run("sweep", spec, "-o", path, "-j", 1)
    assert result.err == "simulate: 3 schedule × 3 ranks = 9 points\n"
    first, second = result.out.splitlines()
    assert first.startswith("9 points computed in ")
    assert first.endswith("x.sqlite has 9 points, 1 of them with errors")
    assert second.startswith("  1 × 'dualpipe' needs an even number of ranks; ranks is 3")
    again = run("sweep", spec, "-o", path, "-j", 1, "--json")
    assert again.err == "simulate: 3 schedule × 3 ranks = 9 points, 9 of them done before\n"
    data = again.data
    follows_its_contract("sweep", data)
    assert (data["computed"], data["points"], data["failed"]) == (0, 9, 1)


def test_results_are_described(run: Run, results: Path) -> None:
    out = run("sweep", results).out
    assert "options: microbatches, schedule, ranks\n" in out
    assert "results: chunks, stages, makespan, " in out
    data = run("sweep", results, "--json").data
    assert data["spec"]["grid"]["ranks"] == [2, 3, 4]
    assert data["errors"][0]["rows"] == 1


def test_results_are_written_as_a_table(run: Run, results: Path) -> None:
    path = results.with_name("x.csv")
    assert run("sweep", results, "--to", path).err == f"wrote 9 rows to {path}\n"
    with open(path, encoding="utf-8", newline="") as file:
        assert len(list(csv.DictReader(file))) == 9


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["png", "svg", "pdf", "html"])
def test_results_are_drawn(run: Run, results: Path, ending: str) -> None:
    path = results.with_name(f"x.{ending}")
    words = ["--plot", "x=ranks", "y=bubble_ratio", "by=schedule", "microbatches=8"]
    assert run("sweep", results, *words, "-o", path).err == f"wrote {path}\n"
    assert path.stat().st_size > 5000
    again = results.with_name(f"again.{ending}")
    run("sweep", results, "--plot=x=ranks,y=bubble_ratio,by=schedule,microbatches=8", "-o", again)
    assert again.read_bytes() == path.read_bytes()


def test_when_every_point_fails_the_exit_code_is_2(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("command: simulate\noptions: {schedule: dualpipe}\ngrid: {ranks: [3, 5]}\n")
    result = run("sweep", path, "-o", tmp_path / "x.sqlite", "-j", 1)
    assert result.code == 2
    assert result.err.endswith("debubble: every point failed\n")


def test_wrong_specs_are_refused(refused: Refused, spec: Path) -> None:
    out = spec.with_name("x.sqlite")
    assert refused("sweep", spec).startswith("results need a file; give -o")
    assert refused("sweep", spec.with_name("none.yaml"), "-o", out).startswith("there is no file")
    assert "is no spec of a sweep; these end in" in refused("sweep", "spec.txt", "-o", out)
    spec.write_text(SPEC.replace("ranks", "rank"))
    assert refused("sweep", spec, "-o", out) == (
        f"{spec}: unknown option 'rank'; did you mean 'ranks'?"
    )
    spec.write_text("grid: {ranks: [1, 2}")
    assert f"{spec}, line 1, column 20: " in refused("sweep", spec, "-o", out)
    spec.write_text("command: &a simulate")
    assert "anchors and aliases are not allowed" in refused("sweep", spec, "-o", out)
    spec.write_text("command: !!python/object/apply:os.system ['true']")
    assert "tags such as " in refused("sweep", spec, "-o", out)
    assert not out.exists()


def test_wrong_options_are_refused(refused: Refused, spec: Path, results: Path) -> None:
    out = spec.with_name("x.sqlite")
    assert refused("sweep", spec, "-o", out, "-j", "x") == "--jobs is 'x'; give a whole number"
    assert refused("sweep", spec, "-o", out, "-j", "0") == "jobs is 0; give a number from 1 up"
    assert refused("sweep", spec, "-o", out, "--backend", "dusk").startswith("backend is 'dusk'; d")
    assert refused("sweep", spec, "-o", "x.csv").startswith("'x.csv': results are kept as .sqlite")
    assert refused("sweep", spec, "-o", spec.parent / "none" / "x.db").startswith("there is no f")
    assert refused("sweep", spec, "--to", "x.csv") == "--to is for a file of results"
    assert refused("sweep", results, "--extend").endswith(
        "--extend is for a spec such as sweep.yaml"
    )
    assert refused("sweep", results, "-o", "x.png").startswith("-o is for pictures; add --plot")
    assert refused("sweep", results, "--to", "x.xlsx").startswith("'x.xlsx': results are written")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("x=rank y=makespan", "there is no column 'rank'; did you mean 'ranks'?"),
        ("x=ranks", "--plot needs y; write x=ranks y=bubble_ratio by=schedule"),
        ("x=ranks y=", "--plot 'y='; write x=ranks y=bubble_ratio by=schedule"),
        ("x=ranks y=ranks", "--plot has x=ranks twice; give different columns"),
        ("x=ranks y=error", "error is no number at any of these points; choose another result"),
        ("x=ranks y=makespan ranks=9", "has no points with ranks=9"),
    ],
)
def test_wrong_pictures_are_refused(
    refused: Refused, results: Path, words: str, message: str
) -> None:
    picture = results.with_name("x.png")
    assert message in refused("sweep", results, "--plot", *words.split(), "-o", picture)
    assert not picture.exists()


def test_a_picture_needs_a_file_with_an_ending(refused: Refused, results: Path) -> None:
    words = ["--plot", "x=ranks", "y=makespan"]
    assert refused("sweep", results, *words).startswith("a picture needs a file; give -o")
    assert "pictures of sweeps end in .png" in refused("sweep", results, *words, "-o", "x.gif")


def test_without_joblib_it_says_that_it_is_slower(
    run: Run, spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "has_joblib", lambda: False)
    result = run("sweep", spec, "-o", spec.with_name("x.sqlite"))
    assert result.err.splitlines()[1] == (
        "without joblib they are computed one by one; pip install 'debubble[sweep]'"
    )
    assert result.out.startswith("9 points computed")


LESS = {
    "count: 200": "count: 20",
    "gpus: [8, 16, 32, 64]": "gpus: [8, 32]",
    "  batch: 256\n": "  batch: 64\n  tp: 4\n  microbatch_size: 1\n  recompute: full\n",
}
"""Some of the draws, which are all alike, and of the plans: searching is tested elsewhere."""


@pytest.mark.slow
def test_the_examples_run(run: Run, tmp_path: Path) -> None:
    (tmp_path / "zero-bubble").symlink_to(EXAMPLES / "zero-bubble")
    (tmp_path / "sweeps").mkdir()
    for path in sorted((EXAMPLES / "sweeps").iterdir()):
        spec = tmp_path / "sweeps" / path.name
        text = path.read_text(encoding="utf-8")
        for whole, less in LESS.items():
            text = text.replace(whole, less)
        spec.write_text(text)
        data = run("sweep", spec, "-o", tmp_path / f"{path.stem}.sqlite", "-j", 1, "--json").data
        assert data["failed"] == 0
        assert data["computed"] == data["points"] >= 8
        columns = {
            "microbatches": ("x=microbatches", "y=makespan", "by=schedule"),
            "uncertain-costs": ("x=costs.p2p", "y=makespan", "by=schedule"),
            "gpus": ("x=gpus", "y=step_time", "by=gpu"),
        }
        words = columns[path.stem]
        picture = tmp_path / f"{path.stem}.png"
        assert run("sweep", data["file"], "--plot", *words, "-o", picture).code == 0


@pytest.mark.processes
def test_ctrl_c_says_how_to_go_on(start: Start, tmp_path: Path) -> None:
    spec = tmp_path / "long.yaml"
    spec.write_text(SPEC + "samples: {count: 5000, draw: {costs.p2p: {from: 0, to: 1}}}\n")
    path = tmp_path / "x.sqlite"
    process = start("sweep", spec, "-o", path)
    assert process.stderr is not None
    assert "= 45,000 points" in process.stderr.readline()
    while not Results.read(path).points:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[-1].startswith("interrupted; ")
    assert err.endswith(f"To go on: debubble sweep {spec} -o {path}\n")
