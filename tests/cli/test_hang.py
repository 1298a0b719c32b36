"""``debubble hang``: the schedule, its sizes, and what it answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import debubble as db
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
    hang = data["hang"]
    assert (hang["kind"], hang["rank"], hang["action"]) == ("rank", 2, "2F3")
    assert sorted(hang["waiting"]) == [0, 1, 3]
    assert (hang["global_rank"], hang["file"], hang["host"]) == (4, "nccl_trace_rank_4", None)
    states = {row["global_rank"]: row["state"] for row in data["ranks"]}
    assert (states[4], states[2], states[5]) == ("absent", "waiting", "calling")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "which schedule ran? give --schedule 1f1b -m 8"),
        (["--schedule", "1f1b"], "how many microbatches had '1f1b'? give -m"),
        (["--schedule", "1f1b", "-m", "8", "-p", "3"], "job of 8 ranks, and the schedule has 3"),
    ],
)
def test_what_is_missing_is_asked_for(
    run: Run, dumps: Path, words: list[str], message: str
) -> None:  # fmt: skip
    result = run("hang", dumps, *words)
    assert result.code == 2
    assert message in result.err
