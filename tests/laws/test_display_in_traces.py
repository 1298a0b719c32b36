"""How an answer is shown changes no answer: text, data, pages, files, widths and colors agree."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import debubble as db
from debubble.cli.app import app
from debubble.core.units import number
from debubble.diagnosis.diagnose import diagnose
from debubble.diagnosis.what_if import with_schedule
from debubble.diagnosis.wording import LEAST_ERROR, share_text
from debubble.view.trace_view import trace_timelines
from tests.cli.test_trace import written
from tests.diagnosis.planted import PLANTED
from tests.laws.jobs import JOBS

ASKED = {
    "nothing": (),
    "another schedule": ("--schedule", "zb-h1"),
    "the schedule that ran": ("--schedule", "1f1b"),
    "other times": ("--set", "stage1*=0.8", "--set", "p2p=0"),
    "both": ("--schedule", "gpipe", "--set", "F+=1"),
}
"""Questions, by what is asked."""


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(PLANTED["slow stage"](0).made, tmp_path_factory.mktemp("run") / "traces")


def call(*words: object, width: int = 100, **env: str) -> str:
    given = {"DEBUBBLE_DEBUG": "1", "COLUMNS": str(width)} | env
    result = CliRunner(env=given).invoke(app, ["trace", *map(str, words)], prog_name="debubble")
    assert result.exit_code == 0, result.output
    return result.stdout


@cache
def data_of(asked: str, traces: Path) -> Any:
    """The answer to a question, as data."""
    return json.loads(call(traces, *ASKED[asked], "--json"))


def shows(data: Any, text: str) -> None:
    """That a text has the times and shares of all findings and what-ifs of the data."""
    text = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", text).split())
    for one in data.get("what_if", ()):
        word = "shorter" if one["gain"] >= 0 else "longer"
        error = one["error"] if abs(one["gain"]) > LEAST_ERROR else 0.0
        share = f"{share_text(abs(one['gain']), error)} {word}"
        before, after = (number(1e3 * one[key], 4) for key in ("before", "after"))
        assert f"{one['change']}: a mean step takes {after} ms, not {before}: {share}" in text
        assert one["before"] == data["step"]


def shows_findings(data: Any, text: str, *, page: bool) -> None:
    """That a text has gain and time of all findings: in a table, or as sentences of a page."""
    text = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", text).split())
    for one in data["findings"]:
        after = data["step"] - one["seconds"]
        times = f"{number(1e3 * data['step'], 4)} → {number(1e3 * after, 4)}"
        gain, cause = share_text(one["gain"], one["error"]), one["cause"]
        row, sentence = f"{gain} {times} {cause}: ", f"{cause}: {gain} to gain, {times} ms a step"
        assert (sentence if page else row) in text
        assert one["gain"] == pytest.approx(one["seconds"] / data["step"], rel=1e-9)


@pytest.mark.parametrize("asked", ASKED)
def test_every_way_to_show_an_answer_has_the_same(asked: str, traces: Path, tmp_path: Path) -> None:
    question, data = (traces, *ASKED[asked]), data_of(asked, traces)
    page, order, costs = (tmp_path / name for name in ("run.html", "order.json", "costs.yaml"))
    files: tuple[object, ...] = ("--html", page, "--schedule-out", order)
    if "--set" not in ASKED[asked]:
        # Next to other times the measured ones are refused.
        files += ("--costs-out", costs)
    plain = call(*question)
    assert json.loads(call(*question, "--json", *files)) == data
    # The next command to type writes the schedule; where that is done there is none.
    assert call(*question, *files) == re.sub(r"\nnext: .* --schedule-out .*\n$", "", plain)
    shows(data, plain)
    if asked == "nothing":
        shows_findings(data, plain, page=False)
    html = re.sub(r"<[^>]+>", "", page.read_text().partition("<debubble-timeline")[0])
    shows(data, html)
    shows_findings(data, html, page=True)


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("width", [40, 60, 200])
def test_nor_does_a_width_or_a_color(asked: str, width: int, traces: Path) -> None:
    question, data = (traces, *ASKED[asked]), data_of(asked, traces)
    assert json.loads(call(*question, "--json", width=width, NO_COLOR="1")) == data
    shows(data, call(*question, width=width, FORCE_COLOR="1"))


@pytest.mark.parametrize("name", JOBS)
def test_a_page_draws_what_is_said(name: str) -> None:
    """A run of one step: the picture of another schedule is as long as its step."""
    found = diagnose(JOBS[name]().without(steps=1, copies=1).observed())
    seen = trace_timelines(found)[0].makespan
    for wanted in ("gpipe", "1f1b", found.name.text):
        one = with_schedule(found.replay, wanted)
        drawn = trace_timelines(found, [one])[-1].makespan
        off = 1e-9 + 1.1 * found.replay_error
        assert drawn == pytest.approx(one.after * 1e3, rel=off)
        assert seen == pytest.approx(one.before * 1e3, rel=1e-9)


def test_python_says_what_the_command_says(traces: Path) -> None:
    data, found = json.loads(call(traces, "--json")), db.read_trace(traces).to_dict()
    assert data.keys() == found.keys()
    assert data["step"] == pytest.approx(found["step"], rel=1e-9)
    for one, two in zip(data["findings"], found["findings"], strict=True):
        assert one["where"] == two["where"]
        assert one["gain"] == pytest.approx(two["gain"], rel=1e-9)
