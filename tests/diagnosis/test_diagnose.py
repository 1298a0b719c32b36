"""The whole diagnosis: its data, and what is not told."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest

import debubble as db
from debubble.diagnosis.account import CAUSES
from debubble.diagnosis.diagnose import diagnose
from debubble.diagnosis.report import report
from tests.diagnosis.diagnosed import of_planted, plain
from tests.diagnosis.made import Made, one_f_one_b
from tests.diagnosis.planted import PLANTED

KEYS = {
    "format", "ranks", "copies", "stages", "microbatches", "steps", "step", "bubble_ratio", "plan",
    "schedule", "costs",
    "slowdown", "account", "findings", "clocks", "replay_error", "model_error", "left_out",
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_the_data_that_scripts_get(name: str) -> None:
    data = of_planted(name, 0).to_dict()
    assert set(data) == KEYS
    json.dumps(data, allow_nan=False)
    assert set(data["schedule"]) == {"name", "differences"}
    assert set(data["slowdown"]) == {
        "total", "stage", "rank", "copy", "kind", "last_stage", "slowest_workers",
    }  # fmt: skip
    assert len(data["slowdown"]["stage"]) == data["stages"]
    assert len(data["slowdown"]["rank"]) == data["ranks"]
    assert len(data["slowdown"]["copy"]) == data["copies"]
    for one in data["account"]:
        assert set(one) == {"rank", "compute", "causes", "step"}
    for one in data["findings"]:
        assert set(one) == {"cause", "where", "seconds", "gain", "error", "persistence", "text"}
        assert set(one["where"]) == {
            "stage", "rank", "copy", "link", "global_rank", "host", "file",
        }  # fmt: skip
        assert one["cause"] in CAUSES
    for one in data["clocks"]:
        assert set(one) == {"ranks", "interval", "iteration"}
    seconds = [one["seconds"] for one in data["findings"]]
    assert seconds == sorted(seconds, reverse=True)


def test_the_same_trace_gives_the_same_data() -> None:
    one, two = (json.dumps(diagnose(PLANTED["jitter"](0).made.observed()).to_dict())
                for _ in range(2))  # fmt: skip
    assert one == two


def test_a_kind_that_takes_no_time_elsewhere_is_no_measure() -> None:
    # The first stage has no gradient to hand on: its I is over at once.
    order = db.make("zb-h1", ranks=2, microbatches=6)
    made = Made(
        order.rows(),
        time=lambda _, at: 0.0 if (at.kind, at.stage) == ("I", 0) else 1.0 + 2 * at.stage,
    )
    with np.errstate(divide="raise"):
        found = diagnose(made.observed())
    json.dumps(found.to_dict(), allow_nan=False)
    text = " ".join(report(found, 100).split())
    assert re.search(r"\(F × [23]\.\d\d, W × [23]\.\d\d\)", text), text


def test_a_cause_on_the_only_rank_names_it() -> None:
    made = Made(
        [["0F0", "0F1", "0B0", "0B1"]], arrivals=False, gap=lambda _, at: 5e-3 * (at.kind == "B")
    )
    text = report(diagnose(made.observed()), 100)
    assert "several ranks" not in text
    assert text.startswith("The host of rank 0 launches too late")


def test_idle_time_inside_actions_is_said_next_to_that_between_them() -> None:
    observed = Made([["0F0", "0F1", "0B0", "0B1"]], arrivals=False).observed()
    actions = observed.actions
    busy = 0.25 * (actions.end - actions.start)
    found = diagnose(replace(observed, actions=replace(actions, busy=busy)))
    assert found.findings[0].cause == "launch-gap"
    assert found.bubble_ratio + found.idle_inside == pytest.approx(0.75, abs=0.02)
    assert found.findings[0].gain == pytest.approx(found.idle_inside, abs=0.02)
    text = " ".join(report(found, 100).split())
    assert "inside actions, devices are idle another 7" in text


def test_rows_in_any_order_give_the_same_data() -> None:
    observed = PLANTED["slow link"](0).made.observed()
    mixed = np.random.default_rng(0).permutation(len(observed.actions))
    letters = np.random.default_rng(1).permutation(len(observed.messages))
    other = replace(observed, actions=observed.actions.take(mixed),
                    messages=observed.messages.take(letters))  # fmt: skip
    assert diagnose(other).to_dict() == diagnose(observed).to_dict()


def test_gains_of_a_replay_that_is_off_are_not_told() -> None:
    """Actions begin late now and then, and nothing says why: the replay knows nothing of it."""

    def gap(rng: np.random.Generator, _: object) -> float:
        return float(rng.uniform(0, 60e-3)) if rng.random() < 0.2 else 0.0

    observed = Made(one_f_one_b(4, 8), gap=gap, arrivals=False).observed()
    unknown = np.full(len(observed.actions), np.nan)
    found = diagnose(replace(observed, actions=replace(observed.actions, issued=unknown)))
    assert found.replay_error > 0.05
    assert all(one.gain is None for one in found.findings)
    text = report(found, 100)
    assert "No gains are given: replayed steps are" in text
    assert "Nothing to gain" not in text


def test_a_warm_up_step_is_left_out() -> None:
    found = plain(time=lambda _, at: 3.0 if at.step == 0 else 1.0)
    assert found.left_out == {"steps of a copy that are warm-up": 2}
    assert len(found.run.step_times) == 5
    assert found.findings == ()


def test_the_timeline_of_the_median_step() -> None:
    found = plain(offset=(0.0, 5e-3, -3e-3, 1e-3))
    timeline = found.timeline
    assert isinstance(timeline, db.Timeline)
    assert timeline.schedule == db.make("1f1b", ranks=4, microbatches=8)
    _, place = found.run.step_of
    assert timeline.makespan == pytest.approx(1e3 * float(found.run.length[found.shown]))
    assert found.predicted.makespan == pytest.approx(timeline.makespan, rel=0.05)
    assert len(place) == found.run.rows


def test_durations_that_contain_waits() -> None:
    """As on gloo: the range of an action begins when the rank begins to wait for its input."""
    observed = Made(one_f_one_b(4, 8)).observed()
    actions = observed.actions
    order = np.lexsort((actions.start, actions.rank, actions.copy, actions.step))
    start = actions.start.copy()
    here, before = order[1:], order[:-1]
    same = np.ones(len(here), dtype=bool)
    for column in (actions.rank, actions.step, actions.copy):
        same &= column[here] == column[before]
    start[here[same]] = actions.end[before[same]]
    waits = replace(observed, actions=replace(actions, start=start), waits_inside=True)
    found, plain_one = diagnose(waits), diagnose(observed)
    assert pytest.approx(plain_one.costs.F, rel=0.05) == found.costs.F
    assert found.replay_error < 0.01


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("name", PLANTED)
def test_a_report_fits_its_width_and_a_screen(name: str, width: int) -> None:
    found = of_planted(name, 0)
    lines = report(found, width).splitlines()
    # A command is on one line, to be copied.
    assert max(len(line) for line in lines if not line.startswith("next: ")) <= width
    assert len(lines) <= (24 if width > 60 else 32)
    assert found.findings or lines[0].startswith("Nothing to gain beyond")
    assert max(map(len, report(found, width, details=True).splitlines()[:-1])) <= width
