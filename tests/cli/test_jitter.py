"""``--jitter``, ``--replicas`` and ``--slow`` of `simulate` and `compare`."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import debubble as db

Run = Callable[..., Any]
SIZES = ("-p", "4", "-m", "8")


def test_simulate_says_how_step_times_spread(run: Run) -> None:
    words = ("simulate", "1f1b", *SIZES, "--times", "F=1,B=2", "--jitter", "normal:3%")
    found = run(*words, "--samples", "200", "--seed", "3", "--replicas", "16", "--json").data
    timeline = db.simulate(db.make("1f1b", ranks=4, microbatches=8), db.Costs(F=1, B=2))
    spread = timeline.jitter("normal:3%", samples=200, seed=3, replicas=16)
    assert found["jitter"]["p95"] == pytest.approx(spread.p95, rel=1e-9)
    assert found["jitter"]["mean"] == pytest.approx(spread.mean, rel=1e-9)
    assert found["makespan"] == found["jitter"]["planned"] == 33
    text = run(*words).out
    assert "step time under jitter: normal:3% (1,000 samples, seed 0):\n" in text
    assert re.search(
        r"  mean [\d.]+, p50 [\d.]+, p95 [\d.]+, p99 [\d.]+; 1\.\d+ times the ma", text
    )
    assert "jitter" not in run("simulate", "1f1b", *SIZES).out


def test_what_is_slow_needs_no_jitter(run: Run) -> None:
    slow = ("--slow", "rank2=1.5,link0-1=3", "--slow", "copy=2", "--replicas", "8")
    words = ("simulate", "1f1b", *SIZES, "--times", "F=1,B=2,p2p=0.5", *slow)
    found = run(*words, "--json").data["jitter"]
    assert found["slow"] == {"rank2": 1.5, "link0-1": 3, "copy": 2}
    assert found["mean"] == found["p99"] > found["planned"]
    assert "rank2 × 1.5, link0-1 × 3, copy × 2, 8 copies, a step waits" in run(*words).out


def test_compare_says_who_wins(run: Run) -> None:
    words = ("compare", "gpipe", "1f1b", "zb-h1", *SIZES, "--jitter", "gamma:10%")
    rows = run(*words, "--json").data["rows"]
    assert sum(row["jitter"]["wins"] for row in rows) == pytest.approx(1)
    result = db.compare(["gpipe", "1f1b", "zb-h1"], ranks=4, microbatches=8, jitter="gamma:10%")
    assert [row.wins for row in result.rows] == pytest.approx(
        [row["jitter"]["wins"] for row in rows]
    )
    out = run(*words).out
    assert re.search(r"under jitter zb-h1 is fastest in \d", out)
    assert re.search(r"mean +p95", out)
    assert "the same in all\n" in out or "the same in all schedules" in out
    limited = run(*words, "--memory", "4", "--json").data["rows"]
    assert [row["jitter"]["wins"] for row in limited if not row["fits"]] == [0]


def test_measured_times_come_from_a_file(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "times.txt"
    path.write_text("10 11 9.5\n10.5 9 10")
    found = run("simulate", "1f1b", *SIZES, "--jitter", path, "--json").data["jitter"]
    timeline = db.simulate(db.make("1f1b", ranks=4, microbatches=8))
    expected = timeline.jitter([10, 11, 9.5, 10.5, 9, 10])
    assert found["jitter"] == "measured"
    assert found["p99"] == pytest.approx(expected.p99, rel=1e-9)
    assert "6 measured times" in run("simulate", "1f1b", *SIZES, "--jitter", path).out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--jitter", "normal"], "jitter is 'normal'; give the standard deviation, too: normal:3%"),
        (["--jitter", "nomal:3%"], "jitter is 'nomal:3%'; give a distribution such as normal:3%"),
        (["--jitter", "none.txt"], "there is no file 'none.txt'"),
        (["--replicas", "8"], "--replicas is 8, and nothing varies; add --jitter normal:3%, or"),
        (["--jitter", "normal:3%", "--samples", "x"], "--samples is 'x'; give a whole number from"),
        (["--jitter", "normal:3%", "--seed", "-1"], "--seed is '-1'; give a whole number from 0"),
        (["--slow", "rank2"], "--slow is 'rank2'; give what is slow, and how many times as long"),
        (["--slow", "rank2=x"], "--slow is 'rank2=x'; give what is slow, and how many times as"),
        (["--slow", "rank2=2,rank2=3"], "--slow: rank2 is there twice; give it once"),
        (["--slow", "rank9=2"], "slow rank9: there is no rank 9; ranks go to 3"),
        (["--slow", "rak=2"], "slow is 'rak'; give rank2, stage3, link0-1, copy, or one of"),
    ],
)
def test_what_is_wrong_is_named(
    refused: Callable[..., str], words: list[str], message: str
) -> None:
    assert refused("simulate", "1f1b", *SIZES, *words).startswith(message)


def test_optimize_takes_the_p95_as_its_objective(run: Run, refused: Callable[..., str]) -> None:
    words = ("optimize", "-p", "2", "-m", "4", "--effort", "0.05", "--no-cache")
    data = run(*words, "--robust", "normal:5%", "--json").data
    assert data["jitter"]["jitter"] == "normal:5%"
    message = refused(*words, "--memory", "sweep", "--robust", "normal:5%")
    assert message.startswith("--robust is for one memory limit, not for 'sweep'")
