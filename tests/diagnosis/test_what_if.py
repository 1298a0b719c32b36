"""Other times, and other schedules."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import debubble as db
from debubble.core.errors import ParameterError
from debubble.core.given_layers import make_layers
from debubble.diagnosis.changes import Change
from debubble.diagnosis.diagnose import Diagnosis, diagnose
from debubble.diagnosis.replay import Replay
from debubble.diagnosis.report import gain_text, report, what_if_text
from debubble.diagnosis.what_if import faster, recut, with_changes, with_schedule
from tests.diagnosis.diagnosed import plain
from tests.laws.executed import Job
from tests.laws.jobs import even

EXACT = {"noise": 0.0, "steps": 1, "copies": 1}


def exact(**changes: object) -> Diagnosis:
    return plain(latency=lambda *_: 1e-3, **EXACT, **changes)


def asked(found: Diagnosis, *texts: str) -> float:
    """Milliseconds of a step with changes."""
    return 1e3 * with_changes(found.replay, [Change.parse(text) for text in texts]).after


@pytest.mark.parametrize(
    ("texts", "costs"),
    [
        ((), {}),
        (("p2p=0",), {"p2p": 0.0}),
        (("p2p*=3",), {"p2p": 3.0}),
        (("F*=2",), {"F": 20.0}),
        (("stage3*=0.5",), {"F": [10, 10, 10, 5], "B": [20, 20, 20, 10]}),
        (("rank1.B=25", "F+=1"), {"F": 11.0, "B": [20, 25, 20, 20]}),
        (("copy0.F=12.5",), {"F": 12.5}),
    ],
)
def test_a_change_of_times_is_a_simulation_with_them(
    texts: tuple[str, ...], costs: dict[str, object]
) -> None:
    schedule = db.make("1f1b", ranks=4, microbatches=8)
    expected = db.simulate(schedule, db.Costs(**{"F": 10.0, "B": 20.0, "p2p": 1.0} | costs))
    assert asked(exact(), *texts) == pytest.approx(expected.makespan, rel=1e-9)


def test_one_link() -> None:
    link = [[0, 1, 0, 0], [1, 0, 4, 0], [0, 4, 0, 1], [0, 0, 1, 0]]
    schedule = db.make("1f1b", ranks=4, microbatches=8)
    expected = db.simulate(schedule, db.Costs(F=10, B=20, p2p=link))
    assert asked(exact(), "p2p.2-1=4") == pytest.approx(expected.makespan, rel=1e-9)


@pytest.mark.parametrize("text", ["", "stage3", "stage3.X=1", "F=-1", "F=nan", "p2p.1=2", "=3"])
def test_what_is_no_change(text: str) -> None:
    with pytest.raises(ParameterError, match="--set"):
        Change.parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [("stage9*=2", "stage 9; the last is 3"), ("copy1*=2", "copy 1; the last is 0"),
     ("p2p.0-2=1", "ranks 0 and 2 send nothing")],
)  # fmt: skip
def test_what_the_run_does_not_have(text: str, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        asked(exact(), text)


@pytest.mark.parametrize("name", ["zb-h1", "gpipe", "interleaved-1f1b", "zb-v"])
def test_another_schedule_of_the_same_model(name: str) -> None:
    found = exact()
    other = with_schedule(found.replay, name)
    schedule = db.make(name, ranks=4, microbatches=8)
    chunks = schedule.chunks
    costs = db.Costs(F=10 / chunks, B=20 / chunks, p2p=1)
    if schedule.made_for is not None:
        schedule = db.make(name, ranks=4, microbatches=8, costs=costs)
    assert other.after == pytest.approx(db.simulate(schedule, costs).makespan / 1e3, rel=1e-6)


def test_another_schedule_is_cut_between_the_models_layers() -> None:
    layers = make_layers({"F": [10, 10, 6, 4, 10], "B": [20, 20, 12, 8, 20],
                          "cut": [1, 1, 2, 1], "ranks": [0, 1, 2, 3]}, db.Costs())  # fmt: skip
    found = exact()
    other = with_schedule(replace(found.replay, layers=layers), "zb-h1")
    assert other.after == with_schedule(found.replay, "zb-h1").after
    layers = make_layers({"F": [4, 6] * 4, "B": [8, 12] * 4,
                          "cut": [2] * 4, "ranks": [0, 1, 2, 3]}, db.Costs())  # fmt: skip
    other = with_schedule(replace(found.replay, layers=layers), "interleaved-1f1b")
    schedule = db.make("interleaved-1f1b", ranks=4, microbatches=8)
    costs = db.Costs(F=[4, 6] * 4, B=[8, 12] * 4, p2p=1)
    assert other.after == pytest.approx(db.simulate(schedule, costs).makespan / 1e3, rel=1e-6)


def test_another_schedule_with_other_times() -> None:
    found = exact()
    other = with_schedule(found.replay, "zb-h1", [Change.parse("p2p=0"), Change.parse("F*=2")])
    schedule = db.make("zb-h1", ranks=4, microbatches=8)
    expected = db.simulate(schedule, db.Costs(F=20, B=20)).makespan
    assert other.after == pytest.approx(expected / 1e3, rel=1e-6)


def test_stages_are_cut_where_the_model_is() -> None:
    old, new = db.make("1f1b", ranks=2, microbatches=4), db.make("zb-v", ranks=2, microbatches=4)
    costs = recut(db.Costs(F=[2, 6], B=[4, 10], p2p=0.5), old, new)
    assert costs == db.Costs(F=[1, 1, 3, 3], B=[2, 2, 5, 5], p2p=0.5)


def test_faster_schedules_come_fastest_first() -> None:
    found = faster(exact().replay)
    gains = [one.gain for one in found]
    assert gains == sorted(gains, reverse=True)
    assert "zb-v" in [one.text for one in found]


def test_a_run_that_its_links_do_not_explain_says_so() -> None:
    """Messages that are late for no reason may be late under another schedule as well, or not."""
    near = with_schedule(exact().replay, "zb-h1")
    assert near.error < 1e-6
    assert near.plan == pytest.approx(near.before)
    assert "Uncertain" not in " ".join(what_if_text(near, 1 << 20))
    rng = np.random.default_rng(0)
    found = plain(latency=lambda *_: 40e-3 if rng.random() < 0.3 else 1e-3)
    far = with_schedule(found.replay, "zb-h1")
    assert far.error > 0.1
    text = " ".join(what_if_text(far, 1 << 20))
    off = f"with one time for every link, a step is {100 * far.error:.0f} % off"
    assert f"Uncertain: {off}" in text
    assert re.search(r": \d+ to \d+ % shorter", text)
    assert f"Gains are uncertain: {off}" in report(found, 1 << 20)
    assert far.to_dict()["error"] == far.error
    for one in found.findings:
        assert one.error == far.error
        assert re.match(r"\d+ to \d+ % to gain", gain_text(one))


@pytest.mark.parametrize(
    ("name", "options"),
    [("interleaved-1f1b", {"group_size": 8, "chunks": 2}), ("seq1f1b", {"slices": 4}),
     ("gis", {"chunks": 2})],
)  # fmt: skip
def test_the_schedule_that_ran_has_the_options_that_it_ran_with(
    name: str, options: dict[str, int]
) -> None:
    schedule = db.make(name, ranks=4, microbatches=8, **options)
    found = diagnose(Job(schedule, even(schedule)).observed())
    one = with_schedule(found.replay, name)
    assert one.after == one.before
    assert one.timeline is not None
    assert one.timeline.schedule.rows() == schedule.rows()


def test_an_order_without_a_name_is_asked_by_what_it_is_called() -> None:
    rows = db.make("1f1b", ranks=3, microbatches=6).rows()
    rows[0] = [cell for cell in rows[0] if "F" in cell] + [c for c in rows[0] if "B" in c]
    schedule = db.Schedule.from_text(rows, db.Placement.linear(3), 6)
    found = diagnose(Job(schedule, even(schedule)).observed())
    one = with_schedule(found.replay, found.schedule.name)
    if found.name.differences:
        assert one.after != one.before
    else:
        assert found.schedule.name == "custom"
        assert one.after == one.before


def test_a_step_of_a_run_cannot_be_shorter_than_work() -> None:
    """Where the replay is longer than the run, since what was traced contradicts itself."""
    replay = exact().replay
    work = 8 * 30e-3
    for text in ("p2p=0", "gaps=0"):
        assert with_changes(replay, [Change.parse(text)]).after >= work
    longer = Replay(
        replay.run, replace(replay.transfers, in_flight=replay.transfers.in_flight * 20)
    )
    assert longer.replayed.mean() > 1.5 * replay.run.step_times.mean()
    one = with_schedule(longer, "zb-h1", [Change.parse("p2p=0")])
    assert one.after == pytest.approx(work, rel=1e-9)
    assert with_schedule(longer, "1f1b").after == one.before
    assert with_changes(longer, [Change.parse("F*=1")]).after == one.before
