"""``debubble hang``: the schedule, its sizes, and what it answers."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import debubble as db
from tests.contracts import follows_its_contract
from tests.diagnosis.hang.recorded import of_schedule, write
from tests.diagnosis.hang.recorded import run as execute

Run = Callable[..., Any]
SCHEDULE = db.make("1f1b", ranks=4, microbatches=8)


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dumps of two copies, one of which stops."""
    hung = of_schedule(SCHEDULE, stop=(0, 2, 0, "2F3"), copies=2, dp=True)
    return write(execute(hung), tmp_path_factory.mktemp("dumps"))


def test_ranks_are_found_in_the_dumps(run: Run, dumps: Path) -> None:
    words = "Rank 2 of copy 0 (global 4) never began 2F3"
    result = run("hang", dumps, "--schedule", "1f1b", "-m", 8)
    assert result.code == 0
    assert result.out.startswith(words)
    assert run("hang", dumps, "--schedule", "1f1b", "-m", 8, "-p", 4).out == result.out


def test_a_file_says_all_and_trace_answers_the_same(
    run: Run, dumps: Path, tmp_path: Path
) -> None:  # fmt: skip
    file = tmp_path / "order.csv"
    SCHEDULE.save(file)
    first = run("hang", dumps, "--schedule", file, "--json")
    assert first.data["hang"]["action"] == "2F3"
    assert run("trace", dumps, "--schedule", file, "--json").data == first.data


def test_data_names_rank_action_and_file(run: Run, dumps: Path) -> None:
    data = run("hang", dumps, "--schedule", "1f1b", "-m", 8, "--json").data
    follows_its_contract("hang", data)
    hang = data["hang"]
    assert (hang["kind"], hang["rank"], hang["action"]) == ("rank", 2, "2F3")
    assert sorted(hang["waiting"]) == [0, 1, 3]
    assert (hang["global_rank"], hang["file"], hang["host"]) == (4, "nccl_trace_rank_4", None)
    states = {row["global_rank"]: row["state"] for row in data["ranks"]}
    assert (states[4], states[2], states[5]) == ("absent", "waiting", "calling")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "dumps0 --schedule 1f1b -m 8, or its .csv or .json file"),
        (["--schedule", "gpipe"], "dumps0 --schedule gpipe -m 8"),
        (
            ["--schedule", "1f1b", "-m", "8", "-p", "2"],
            "ranks 2 and 4 exchange messages: a pipeline has 4 ranks, and the schedule has 2",
        ),
        (["--schedule", "1f1b", "-m", "8", "-p", "3"], "job of 8 ranks, and the schedule has 3"),
    ],
)
def test_what_is_missing_is_asked_for(
    run: Run, dumps: Path, words: list[str], message: str
) -> None:  # fmt: skip
    result = run("hang", dumps, *words)
    assert result.code == 2
    assert message in result.err


@pytest.mark.parametrize(
    ("flag", "value"),
    [("--set", "p2p=0"), ("--fail-if", "bubble>3%"), ("--costs-out", "costs.yaml"),
     ("--html", "run.html"), ("--schedule-out", "schedule.csv"), ("--details", None)],
)  # fmt: skip
def test_trace_refuses_what_dumps_have_no_times_for(
    run: Run, dumps: Path, flag: str, value: str | None
) -> None:
    result = run("trace", dumps, flag, *filter(None, [value]))
    assert result.code == 2
    assert f"{flag} needs times; {dumps} has dumps of a job that hangs" in result.err


def test_trace_names_a_command_that_works(run: Run, dumps: Path) -> None:
    told = run("trace", dumps).err
    words = told[told.index("debubble hang") : told.index(", or its")]
    assert run(*shlex.split(words)[1:]).out.startswith("Rank 2 of copy 0 (global 4) never began")


def test_an_empty_dump_is_named(run: Run, tmp_path: Path) -> None:
    write(execute(of_schedule(SCHEDULE, stop=(0, 2, 0, "2F3"))), tmp_path, without=[1])
    (tmp_path / "nccl_trace_rank_1").touch()
    words = ["hang", tmp_path, "--schedule", "1f1b", "-m", 8]
    assert "unreadable, as it is empty: nccl_trace_rank_1" in run(*words).out
    assert run(*words, "--json").data["empty_files"] == ["nccl_trace_rank_1"]
