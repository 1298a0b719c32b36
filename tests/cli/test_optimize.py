"""``debubble optimize``."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import debubble as db
from tests.interchange.test_layouts import layers_in
from tests.patience import patience

Run = Callable[..., Any]
SMALL = ["optimize", "-p", 2, "-m", 4, "-v", 2, "--no-cache"]


@pytest.mark.slow
def test_result_bound_and_published_schedules(run: Run) -> None:
    out = run(*SMALL, "--memory", 2, "--times", "F=5,I=6,W=4").out
    assert "proven optimal\nfound by " in out
    assert "within 2 activation units" in out
    for name in ("optimized", "zb-v", "interleaved-1f1b"):
        assert f"\n{name} " in out


@pytest.mark.slow
def test_json(run: Run) -> None:
    data = run(*SMALL, "--memory", "2/1.5", "--json").data
    assert data["status"] == "optimal"
    assert data["makespan"] == data["lower_bound"]
    assert [peak <= limit for peak, limit in zip(data["peak_activation"], (2, 1.5), strict=True)]
    assert data["published"]["rows"]


@pytest.mark.slow
def test_files_are_schedules_and_pictures(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "best.csv"
    data = run(*SMALL, "--memory", 2, "--json", "-o", path).data
    schedule = db.load(path)
    assert db.check(schedule, memory=2).ok
    assert db.simulate(schedule).makespan == data["makespan"]
    run(*SMALL, "--memory", 2, "-o", tmp_path / "best.png")
    assert (tmp_path / "best.png").stat().st_size > 5000


def test_a_cost_file_has_sizes_and_the_limit(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(
        "name: A model\nranks: 2\nmicrobatches: 4\nbasis: rank\ntimes: {F: 2, I: 2, W: 2}\n"
        "memory: {limit: 2}\n"
    )
    data = run("optimize", "--costs", path, "--no-cache", "--json").data
    assert (data["ranks"], data["microbatches"], data["costs"]) == (2, 4, "A model")
    assert data["published"]["memory"] == 2


@pytest.mark.slow
def test_layers_are_cut_and_their_costs_are_written(run: Run, tmp_path: Path) -> None:
    path, best = tmp_path / "x.yaml", tmp_path / "best.csv"
    path.write_text(
        "name: A model\nbasis: rank\ntime_unit: ms\ntimes: {F: 13, I: 13, W: 13, p2p: 0.5, "
        "head: {F: 4, B: 8}}\nmemory: {unit: GB, activation: 6, head: 1, limit: 40}\n"
    )
    words = ["optimize", "-p", 2, "-m", 6, "--layers", 13, "--costs", path, "--no-cache"]
    result = run(*words, "-o", best)
    data = run(*words, "--json").data
    assert f"\nlayers {' '.join(map(str, data['layers']))}\n" in result.out
    assert "the others have the cut under which their busiest" in result.out
    assert "debubble simulate" in result.err
    costs = tmp_path / "best.costs.json"
    assert json.loads(costs.read_text()) == data["costs"]
    assert data["costs"]["name"].startswith("cut into ")
    modules = json.loads((tmp_path / "best.modules.json").read_text())
    assert modules["layers"] == data["layers"]
    assert sum(len(names) for names in modules["torchtitan"]) == 13 + 3
    assert modules["torchtitan<=0.2.2"][-1][-1] == "output"
    if data["layout"] is None:
        assert "\nlayout Megatron-LM has none for the placement" in result.out
    else:
        assert f"\nlayout {data['layout']}\n" in result.out
    assert modules["megatron"] == data["layout"]
    again = run("simulate", best, "--costs", costs, "--json").data
    assert again["makespan"] == pytest.approx(data["makespan"])
    assert again["peak_activation"] == pytest.approx(data["peak_activation"])


@pytest.mark.slow
def test_stages_that_recompute(run: Run, tmp_path: Path) -> None:
    words = [*SMALL, "--memory", 0.75, "--times", "F=5,I=6,W=4"]
    data = run(*words, "--recompute", "free", "--json").data
    assert data["recompute"]
    path = tmp_path / "best.json"
    out = run(*words, "--recompute", "0-3", "-o", path).out
    assert "\nfull recompute, right before the backward\n" in out
    assert db.simulate(db.load(path), db.Costs(F=5, I=6, W=4)).peak_activation.max() <= 0.75


@pytest.mark.slow
def test_sweep(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "frontier.svg"
    words = ["optimize", "-p", 2, "-m", 3, "-v", 2, "--memory", "sweep", "--no-cache"]
    out = run(*words, "-o", path).out
    assert out.splitlines()[0].split() == ["memory", "makespan", "bound", "gap", "status"]
    assert "zb-v" in path.read_text()
    assert run(*words, "--json").data["frontier"][0]["memory"] == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-m", 8], "ranks is missing; give -p"),
        (["-p", 4], "microbatches is missing; give -m"),
        (["-p", 4, "-m", 8, "--memory", 0.5], "memory 0.5 is too small"),
        (
            ["-p", 4, "-m", 8, "--memory", "much"],
            "--memory is 'much'; the limit is a positive number",
        ),
        (["-p", 4, "-m", 8, "--memory", "1/2"], "memory has 2 limits for 4 ranks"),
        (["-p", 4, "-m", 8, "--time-limit", "x"], "--time-limit is 'x'"),
        (["-p", 4, "-m", 8, "--layers", "x"], "--layers is 'x'; give costs, or a number of layers"),
        (["-p", 4, "-m", 8, "--layers", 3], "layers is 3, fewer than the 4 stages"),
        (["-p", 2, "-m", 8, "--layers", 3, "--times", "F=1/2"], "F has 2 values, but which"),
        (["-p", 4, "-m", 8, "--seed", "-1"], "--seed is '-1'; give a whole number from 0"),
        (["-p", 4, "-m", 8, "--placement", "v"], "placement is 'v'"),
        (["-p", 4, "-m", 8, "--placement", "0,x"], "--placement is '0,x'; give any, loop, wave"),
        (["-p", 4, "-m", 8, "--recompute", "some"], "give none, full, free, or stages"),
        (
            ["-p", 4, "-m", 8, "--recompute", "free", "-o", "x.csv"],
            "a CSV has no recomputes and copies",
        ),
        (["-p", 4, "-m", 8, "--recompute", "0-9"], "stages go from 0 to 3"),
        (["-p", 4, "-m", 8, "--offload", "full"], "give none, free, or stages"),
        (["-p", 4, "-m", 8, "--offload", "0"], "offload needs host_bandwidth"),
        (["-p", 4, "-m", 8, "--recompute-at", "bubbles"], "--recompute-at is for published"),
        (["-p", 4, "-m", 8, "--iterations", 2], "--iterations is for published schedules"),
        (["-p", 4, "-m", 8, "--sharding", "ddp"], "--sharding is for published schedules"),
        (["-p", 4, "-m", 8, "--unshard-lookahead", 2], "--unshard-lookahead is for published"),
        (["-p", 4, "-m", 8, "--recompute-cap", 2], "--recompute-cap is for published schedules"),
        (["-p", 4, "-m", 8, "--group-size", 2], "--group-size is for published schedules"),
        (["-p", 4, "-m", 8, "-o", "x.doc"], "x.doc"),
        (["-p", 4, "-m", 8, "--memory", "sweep", "-o", "x.csv"], "a frontier is drawn as .png"),
    ],
)
def test_what_cannot_be_used_is_refused(refused: Run, words: list[Any], message: str) -> None:
    assert message in refused("optimize", *words)


@pytest.mark.slow
def test_without_the_solver_it_says_what_to_install(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from debubble.optimize import strategies

    monkeypatch.setattr(strategies, "has_solver", lambda: False)
    solved = run(*SMALL, "--memory", 2)
    assert "proven optimal" in solved.out
    assert "OR-Tools" not in solved.err
    sizes = ("-p", 4, "-m", 16, "-v", 2, "--memory", 2)
    result = run("optimize", *sizes, "--times", "F=5,I=6,W=4", "--effort", 0.01, "--no-cache")
    assert (result.code, "best found" in result.out) == (0, True)
    assert "'pip install ortools' may find faster schedules" in result.err


@pytest.mark.parametrize("name", ["nowhere/x.csv", "nowhere/x.png", "."])
def test_what_cannot_be_written_is_refused_before_the_search(
    refused: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    def search(**_: Any) -> None:
        raise AssertionError("searched")

    monkeypatch.setattr(db, "optimize", search)
    (tmp_path / "folder.csv").mkdir()
    path = tmp_path / ("folder.csv" if name == "." else name)
    message = refused(*SMALL, "-o", path)
    assert ("is a folder" if name == "." else "there is no folder") in message


def test_a_result_that_cannot_be_written_is_printed(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: Any) -> None:
        raise db.FormatError("cannot write: No space left on device")

    monkeypatch.setattr(db.Schedule, "save", fail)
    result = run(*SMALL, "--memory", 2, "-o", tmp_path / "x.csv")
    assert result.code == 2
    assert "proven optimal" in result.out
    assert "No space left" in result.err


@pytest.mark.processes
def test_ctrl_c_prints_the_best(start: Callable[..., subprocess.Popen[str]]) -> None:
    # A terminal is told of every order that is found.
    ours, theirs = os.openpty()
    process = start(
        "optimize", "-p", 8, "-m", 16, "-v", 2, "--memory", 4, "--times", "F=5,I=6,W=4",
        "--time-limit", 3000, "--no-cache", stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    err = b""
    try:
        while b"  best " not in err:
            err += os.read(ours, 4096)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=patience(300))
        # What is left ends with an error: nobody has the other end any more.
        with contextlib.suppress(OSError):
            while part := os.read(ours, 4096):
                err += part
    finally:
        process.kill()
        os.close(ours)
    assert process.returncode == 0, err
    assert "before it was interrupted" in out
    assert b"Traceback" not in err


@pytest.mark.slow
def test_layers_of_the_cost_file_are_cut(run: Run, tmp_path: Path) -> None:
    best, example = tmp_path / "best.json", Path(__file__).parents[2] / "examples" / "layers.yaml"
    words = ["optimize", "--costs", example, "--layers", "costs", "--placement", "loop",
             "--no-cache", "--effort", 0.02]  # fmt: skip
    plain = run(*words, "--json").data
    assert sum(plain["layers"]) == 8
    # The head takes as long as four of the dense layers.
    assert plain["layers"][-1] == 0
    assert plain["layout"].endswith("|L")
    words += ["--recompute", "free", "--memory", "5GB"]
    data = run(*words, "-o", best, "--json").data
    assert data["recompute"]
    assert max(data["peak_activation"]) <= 5
    again = run("simulate", best, "--costs", tmp_path / "best.costs.json", "--json").data
    assert again["makespan"] == pytest.approx(data["makespan"])
    assert again["peak_activation"] == pytest.approx(data["peak_activation"])
    modules = json.loads((tmp_path / "best.modules.json").read_text())
    assert modules["layers"] == data["layers"]
    assert layers_in(modules["megatron"]) == data["layers"]


def test_layers_that_no_cost_file_has_are_refused(refused: Run, tmp_path: Path) -> None:
    words = ["optimize", "-p", 2, "-m", 4, "--layers", "costs"]
    assert "'costs' and there is no cost file; give one with --costs" in refused(*words)
    path = tmp_path / "x.yaml"
    path.write_text("times: {F: 1, B: 2}\n")
    assert "the cost file has no section layers" in refused(*words, "--costs", path)
