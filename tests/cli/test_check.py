"""``debubble check``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import debubble as db

Run = Callable[..., Any]


def test_good_schedules_exit_with_0(run: Run, tmp_path: Path) -> None:
    result = run("check", "1f1b", "-p", 4, "-m", 8)
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("ok: 64 actions on 4 ranks")
    assert "\nmemory in activation units; transfers overlapped. See" in result.out
    for ending in (".csv", ".json"):
        db.make("zb-h1", ranks=4, microbatches=8).save(tmp_path / f"x{ending}")
        assert run("check", tmp_path / f"x{ending}").code == 0


def test_problems_exit_with_1(run: Run, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1\n")
    result = run("check", tmp_path / "x.csv")
    assert (result.code, result.err) == (1, "")
    assert "1B1 is missing; add it on rank 1" in result.out
    data = run("check", tmp_path / "x.csv", "--json")
    assert (data.code, data.data["ok"]) == (1, False)
    assert [problem["code"] for problem in data.data["problems"]] == ["missing"]
    assert data.data["p2p_mode"] == "overlapped"
    assert data.data["conventions"]["memory"].startswith("activation units")


def test_warnings_leave_the_exit_code_alone(run: Run) -> None:
    traps = Path(__file__).parents[1] / "interchange" / "traps"
    result = run("check", traps / "early-receives.csv")
    assert result.code == 0
    assert result.out.splitlines()[1].startswith("warning: rank 1, action 4: 1RECV_F1")
    assert run("check", traps / "moved-receive.csv").code == 1
    assert run("check", traps / "moved-receive.csv", "--p2p-mode", "blocking").code == 0


def test_a_memory_limit_is_a_problem_when_it_is_exceeded(run: Run) -> None:
    words = ["check", "gpipe", "-p", 4, "-m", 8, "--memory"]
    assert run(*words, 8).code == 0
    result = run(*words, 7, "--json")
    assert (result.code, result.data["memory_limit"]) == (1, 7.0)
    assert {problem["code"] for problem in result.data["problems"]} == {"memory"}


def test_the_number_of_microbatches_of_a_csv_can_be_said(run: Run, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("0F0,0F1,0B0,0B1\n1F1,1B0,1F2,1B1\n")
    assert "1F2 is out of range" in run("check", tmp_path / "x.csv", "-m", 2).out


def test_a_deadlock_is_found(run: Run, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n")
    result = run("check", tmp_path / "x.csv")
    assert result.code == 1
    assert "deadlock" in result.out


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.csv", b"0F0,0F0xyz\n", "{}: row 1, column 2: '0F0xyz' is not an action; "),
        ("x.csv", b"0F0\n\n1F0\n", "{}: row 2 is blank; "),
        ("x.csv", b"\xff", "{}: byte 0 is 0xff, which is not UTF-8 text; "),
        ("x.json", b"{", "{}: line 1, column 2: not JSON: "),
        ("x.json", b"{}", "{}: not a schedule file; "),
    ],
)
def test_unreadable_files_exit_with_2(
    refused: Run, tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    assert refused("check", tmp_path / name).startswith(message.format(tmp_path / name))


def test_a_file_with_thousands_of_ranks_and_no_actions_is_checked(run: Run, tmp_path: Path) -> None:
    import json

    data = db.make("1f1b", ranks=2, microbatches=3).to_dict()
    data |= {"ranks": 4096, "programs": [[]] * 4096, "placement": {"table": [list(range(4096))]}}
    (tmp_path / "x.json").write_text(json.dumps(data))
    result = run("check", tmp_path / "x.json")
    assert result.code == 1
    assert "0F0 and 0B0 are missing" in result.out


def test_a_step_that_takes_longer_than_its_limit_is_a_problem(run: Run) -> None:
    words = ["check", "1f1b", "-p", 4, "-m", 8, "--times", "F=1,B=2", "--makespan"]
    assert run(*words, 33).code == 0  # 3 · (8 + 3)
    result = run(*words, 32.9)
    assert result.code == 1
    assert "makespan  a step takes 33, more than the limit of 32.9; look for" in result.out
    data = run(*words, 30, "--json").data
    assert ([each["code"] for each in data["problems"]], data["makespan_limit"]) == (
        ["makespan"], 30,
    )  # fmt: skip
    assert run(*words, -1).code == 2


def test_orders_that_do_not_run_have_no_time_to_limit(run: Run, tmp_path: Path) -> None:
    for name, rows in (("stuck", "0B0,0F0\n1F0,1B0\n"), ("short", "0F0,0B0\n1F0\n")):
        (tmp_path / f"{name}.csv").write_text(rows)
    words = ["check", "1f1b", tmp_path / "stuck.csv", tmp_path / "short.csv", "-p", 2, "-m", 1]
    result = run(*words, "--makespan", 1, "--json")
    assert (result.code, result.err) == (1, "")
    assert [[each["code"] for each in one["problems"]] for one in result.data["checked"]] == [
        ["makespan"], ["order"], ["missing"],
    ]  # fmt: skip


def test_several_schedules_are_checked_at_once(run: Run, tmp_path: Path) -> None:
    db.make("zb-h1", ranks=2, microbatches=4).save(tmp_path / "good.csv")
    (tmp_path / "bad.csv").write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1\n")
    good, bad = tmp_path / "good.csv", tmp_path / "bad.csv"
    assert run("check", good, good).code == 0
    result = run("check", good, bad)
    assert result.code == 1
    assert result.out.startswith(f"{good}: ok: 24 actions on 2 ranks")
    assert f"\n{bad}: 1 problem in bad.csv:" in result.out
    data = run("check", good, bad, "--json").data
    assert [each["ok"] for each in data["checked"]] == [True, False]
    assert not data["ok"]
    assert data["checked"][1] == run("check", bad, "--json").data
