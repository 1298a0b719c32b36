"""Vocabulary parallelism: the sharded output layer, its rules, times, memory and errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import debubble as db
from debubble import Action, Costs, Kind, Placement, Schedule
from debubble.schedules.forms import closed_forms

NAMES = ("vocab-1", "vocab-2", "vocab-1-v-half", "vocab-2-v-half")
DELAY = {"vocab-1": 2, "vocab-2": 1, "vocab-1-v-half": 2, "vocab-2-v-half": 1}


def ends_by_rules(
    schedule: Schedule, times: dict[Kind, float], latency: float = 0.0
) -> dict[tuple[int, Action], float]:
    """When every action ends, by the words of the paper: repeat until nothing changes."""
    home, last = schedule.placement.table[0], schedule.stages - 1
    ranks = range(schedule.ranks)
    first = [home.index(rank) for rank in ranks]
    programs = list(schedule)
    ends: dict[Action, float] = {}
    free, head = [0.0 for _ in ranks], [0 for _ in ranks]

    def hop(source: int, target: int) -> float:
        return latency if source != target else 0.0

    def inputs(action: Action, rank: int) -> list[tuple[Action, float]]:
        stage, kind, unit = action
        if kind == Kind.F:
            before = Action(stage - 1, Kind.F, unit)
            return [(before, hop(home[stage - 1], rank))] if stage else []
        if kind == Kind.W:
            return [(Action(stage, Kind.I, unit), 0.0)]
        if kind == Kind.S:
            return [(Action(last, Kind.F, unit), hop(home[last], rank))]
        if kind == Kind.T:
            return [(Action(s, Kind.S, unit), hop(home[last], rank)) for s in first]
        if stage < last:
            return [(Action(stage + 1, kind, unit), hop(home[stage + 1], rank))]
        done = Kind.T if schedule.vocabulary == 1 else Kind.S
        return [(Action(s, done, unit), hop(home[s], rank)) for s in first]

    while any(head[rank] < len(programs[rank]) for rank in ranks):
        before = list(head)
        for rank in ranks:
            while head[rank] < len(programs[rank]):
                action = programs[rank][head[rank]]
                needed = inputs(action, rank)
                if any(source not in ends for source, _ in needed):
                    break
                begin = max([free[rank], *(ends[source] + lag for source, lag in needed)])
                free[rank] = ends[action] = begin + times[action.kind]
                head[rank] += 1
        assert head != before, "a deadlock"
    return {(home[action.stage], action): end for action, end in ends.items()}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("p", "m"), [(1, 1), (1, 3), (2, 1), (2, 5), (3, 8), (4, 4), (5, 13)])
@pytest.mark.parametrize("latency", [0.0, 0.5])
def test_actions_run_by_the_rules_of_the_paper(name: str, p: int, m: int, latency: float) -> None:
    F, I, W = 1.0, 1.5, 0.5
    head = {"F": 0.5, "I": 0.75, "W": 1.25}
    costs = Costs(F=F, I=I, W=W, p2p=latency, head={key: p * head[key] for key in head})
    schedule = db.make(name, ranks=p, microbatches=m, costs=costs)
    if schedule.vocabulary == 1:
        passes = {Kind.S: head["F"], Kind.T: head["I"] + head["W"]}
    else:
        passes = {Kind.S: head["F"] + head["I"], Kind.T: head["W"]}
    times = {Kind.F: F, Kind.I: I, Kind.W: W, Kind.B: I + W, **passes}
    timeline = db.simulate(schedule, costs)
    found = {
        (rank, action): timeline.end[int(schedule.offsets[rank]) + index]
        for rank, program in enumerate(schedule)
        for index, action in enumerate(program)
    }
    assert found == ends_by_rules(schedule, times, latency)
    work = m * schedule.chunks * (F + I + W) + m * sum(passes.values())
    assert timeline.busy.tolist() == pytest.approx([work] * p)
    assert db.check(schedule).ok


@pytest.mark.parametrize(("name", "more"), [("1f1b", 0), ("vocab-1", 2), ("vocab-2", 1)])
@pytest.mark.parametrize("p", [2, 4, 8, 16, 32])
def test_activation_of_the_paper(name: str, more: int, p: int) -> None:
    # Table of arXiv 2411.05288: p, p + 2 and p + 1 microbatches.
    schedule = db.make(name, ranks=p, microbatches=3 * p)
    peak = db.simulate(schedule).peak_activation
    assert peak.max() == peak[0] == p + more
    assert peak.tolist() == [p - r + more for r in range(p)]


@pytest.mark.parametrize("name", ["vocab-1-v-half", "vocab-2-v-half"])
@pytest.mark.parametrize("p", [1, 2, 3, 4, 7, 8, 16])
def test_v_half_holds_as_many_microbatches_more_on_all_ranks(name: str, p: int) -> None:
    peak = db.simulate(db.make(name, ranks=p, microbatches=2 * p + 3)).peak_activation
    assert set(peak) == {p // 2 + 1 + DELAY[name]}


@pytest.mark.parametrize("name", ["vocab-1", "vocab-2"])
@pytest.mark.parametrize("p", [1, 2, 3, 4, 8])
def test_the_makespan_is_exact_for_any_times(name: str, p: int) -> None:
    random = np.random.default_rng(p)
    for m in (p + DELAY[name], p + 4, 4 * p + 3):
        for _ in range(10):
            F, I, W = random.choice([0.25, 0.5, 1, 2, 3, 7], 3).tolist()
            f, i, w = random.choice([0, 0.25, 0.5, 1, 2, 7], 3).tolist()
            costs = Costs(F=F, I=I, W=W, head={"F": f * p, "I": i * p, "W": w * p})
            schedule = db.make(name, ranks=p, microbatches=m, costs=costs)
            timeline = db.simulate(schedule, costs)
            total = m * (F + I + W + f + i + w) + (p - 1) * (F + I + W)
            assert timeline.makespan == pytest.approx(total)
            forms = closed_forms(schedule, costs)
            assert [form.form.quantity for form in forms] == ["makespan", "peak_activation"]
            assert forms[0].value == pytest.approx(total)


@pytest.mark.parametrize("name", ["vocab-1-v-half", "vocab-2-v-half"])
@pytest.mark.parametrize("p", [3, 4, 8, 11, 14])
@pytest.mark.parametrize(("f", "b"), [(0, 0), (0.5, 1), (3, 0.25)])
def test_waits_in_v_half_do_not_depend_on_the_head(name: str, p: int, f: float, b: float) -> None:
    head = {"F": f * p, "B": b * p} if name == "vocab-1-v-half" else {"F": f * p, "W": b * p}
    costs = Costs(F=1, head=head)
    for m in (2 * p, 3 * p + 1):
        schedule = db.make(name, ranks=p, microbatches=m, costs=costs)
        makespan = db.simulate(schedule, costs).makespan
        form = closed_forms(schedule, costs)[0]
        assert form.form.quantity == "makespan"
        if form.form.accuracy == "exact":
            assert makespan == pytest.approx(form.value)
        assert makespan <= form.value
        assert p - 1 <= makespan - m * (6 + f + b) <= 3 * p - (4 if p % 2 else 7)


@pytest.mark.parametrize("p", [2, 4, 8])
@pytest.mark.parametrize("latency", [0.0, 0.1])
def test_a_head_of_two_layers_is_faster_on_all_ranks(p: int, latency: float) -> None:
    costs = Costs(F=1, I=1, W=1, p2p=latency, head={"F": 2, "I": 2, "W": 2})
    on_last = db.simulate(db.make("1f1b", ranks=p, microbatches=8 * p), costs)
    for name in ("vocab-1", "vocab-2"):
        schedule = db.make(name, ranks=p, microbatches=8 * p, costs=costs)
        timeline = db.simulate(schedule, costs)
        assert timeline.makespan < on_last.makespan
        assert timeline.busy.sum() == pytest.approx(on_last.busy.sum())
    for name in ("vocab-1-v-half", "vocab-2-v-half"):
        schedule = db.make(name, ranks=p, microbatches=8 * p, costs=costs)
        base = db.make("v-half", ranks=p, microbatches=8 * p, published=True)
        assert db.simulate(schedule, costs).makespan < db.simulate(base, costs).makespan


@pytest.mark.parametrize(
    "times",
    [
        {"F": 0, "I": 0, "W": 0}, {"F": 0, "B": 1}, {"F": 1, "B": 0}, {"F": 1e-12, "B": 1},
        {"F": [0, 1, 0], "B": [1, 0, 2]}, {"F": 0.1, "I": 0.3, "W": 0.7, "p2p": 0.2},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("name", ["vocab-1", "vocab-2"])
def test_orders_run_whatever_the_times(name: str, times: dict[str, Any]) -> None:
    costs = Costs(**times)
    for m in (1, 2, 5, 9):
        assert db.check(db.make(name, ranks=3, microbatches=m, costs=costs), costs=costs).ok


def test_head_memory_is_held_from_s_to_t() -> None:
    costs = Costs(head={"F": 3, "B": 3, "activation": 6})
    schedule = db.make("vocab-1", ranks=3, microbatches=6)
    timeline, plain = db.simulate(schedule, costs), db.simulate(schedule)
    for rank in range(3):
        held = shards = most = 0.0
        for action in list(schedule)[rank]:
            held += action.kind == Kind.F
            shards += 2 * (action.kind == Kind.S)
            most = max(most, held + shards)
            held -= action.kind == Kind.B
            shards -= 2 * (action.kind == Kind.T)
        assert timeline.peak_activation[rank] == most > plain.peak_activation[rank]
    assert timeline.memory.left.tolist() == [0, 0, 0]
    assert [form.form.quantity for form in closed_forms(schedule, costs)] == []


def test_the_head_leaves_the_last_stage() -> None:
    costs = Costs(F=1, B=2, head={"F": 4, "I": 6, "W": 2, "activation": 8})
    one, two = (costs.table(db.make(f"vocab-{n}", ranks=2, microbatches=4)) for n in (1, 2))
    assert one.duration[Kind.F].tolist() == two.duration[Kind.F].tolist() == [1, 1]
    assert one.duration[[Kind.S, Kind.T]].tolist() == [[2, 2], [4, 4]]
    assert two.duration[[Kind.S, Kind.T]].tolist() == [[5, 5], [1, 1]]
    assert one.activation.tolist() == [1, 1]
    assert one.shard == 4
    assert costs.table(db.make("1f1b", ranks=2, microbatches=4)).shard == 0


@pytest.mark.parametrize("name", NAMES)
def test_files_keep_it(name: str, tmp_path: Path) -> None:
    schedule = db.make(name, ranks=3, microbatches=4, iterations=2)
    schedule.save(tmp_path / "x.json")
    again = db.load(tmp_path / "x.json")
    assert again == schedule
    assert again.vocabulary == schedule.vocabulary
    assert again != replace(schedule, vocabulary=3 - schedule.vocabulary)
    assert "vocabulary" not in db.make("1f1b", ranks=2, microbatches=2).to_dict()
    with pytest.raises(db.ParameterError, match="shards the output layer over all ranks"):
        replace(schedule, iterations=1, microbatches=8).save(tmp_path / "x.csv")


@pytest.mark.parametrize("value", [3, -1, True, "1", None])
def test_files_with_another_vocabulary_are_refused(value: Any, tmp_path: Path) -> None:
    import json

    data = db.make("vocab-1", ranks=2, microbatches=2).to_dict() | {"vocabulary": value}
    (tmp_path / "x.json").write_text(json.dumps(data))
    with pytest.raises(db.FormatError, match=r"vocabulary is .*; use 0 for an output layer"):
        db.load(tmp_path / "x.json")


def test_what_cannot_be_sharded_is_refused() -> None:
    schedule = db.make("vocab-1", ranks=2, microbatches=2)
    with pytest.raises(db.ParameterError, match="vocabulary is 3; use 0 for"):
        replace(schedule, vocabulary=3)
    for other in (
        db.make("chimera", ranks=2, microbatches=2),
        db.make("seq1f1b", ranks=2, microbatches=2, slices=2),
        Schedule.from_text([["0F0", "0B0"], []], Placement.explicit([0], ranks=2), 1),
    ):
        with pytest.raises(db.ParameterError, match="one copy of the model, whole microbatches"):
            replace(other, vocabulary=1)


GOOD = [["0F0", "0S0", "0T0", "0B0"], ["1F0", "1S0", "1T0", "1B0"]]


def custom(rows: list[list[str]], vocabulary: int = 1) -> Schedule:
    return Schedule.from_text(rows, Placement.linear(2), 1, vocabulary=vocabulary)


@pytest.mark.parametrize(
    ("rows", "vocabulary", "message", "code"),
    [
        (GOOD, 0, r"0S0 \(rank 0\) is a pass of an output layer that is not sharded; set",
         "vocabulary"),
        ([GOOD[0], ["1F0", "1T0", "1B0"]], 1, "waits for 1S0, which no rank runs; add 1S0",
         "missing"),
        ([["0F0", "0S0", "0B0"], GOOD[1]], 2, "0S0 comes without 0T0; add 0T0 on rank 0",
         "missing"),
        ([["0F0", "0B0"], ["1F0", "1B0"]], 1, "waits for 0T0, which no rank runs", "missing"),
        ([["0F0", "0S0", "0S0", "0T0", "0B0"], GOOD[1]], 1, "0S0 runs twice", "duplicate"),
        ([["0F0", "0T0", "0S0", "0B0"], GOOD[1]], 1, "0T0 .* waits for .*0S0", "order"),
        ([GOOD[0], ["1S0", "1F0", "1T0", "1B0"]], 1, "1S0 .* waits for .*1F0", "deadlock"),
        ([GOOD[0], ["1F0", "1S0", "1B0", "1T0"]], 1, "1B0 .* waits for .*1T0", "deadlock"),
        ([["0S0", "0F0", "0T0", "0B0"], GOOD[1]], 1, "a deadlock: .*0S0", "deadlock"),
    ],
)  # fmt: skip
def test_wrong_orders_are_explained(
    rows: list[list[str]], vocabulary: int, message: str, code: str
) -> None:
    schedule = custom(rows, vocabulary)
    with pytest.raises(db.ScheduleError, match=message):
        db.simulate(schedule)
    assert code in {problem.code for problem in db.check(schedule).problems}


def test_with_one_exchange_the_second_pass_may_come_last() -> None:
    late = [["0F0", "0S0", "0B0", "0T0"], ["1F0", "1S0", "1B0", "1T0"]]
    assert db.check(custom(GOOD)).ok
    assert db.check(custom(late, 2)).ok


def test_a_pass_on_another_stage_of_its_rank_is_found() -> None:
    schedule = db.make("vocab-1-v-half", ranks=2, microbatches=2)
    rows = [[cell.replace("0S1", "3S1") for cell in row] for row in schedule.rows()]
    wrong = Schedule.from_text(rows, schedule.placement, 2, vocabulary=1)
    with pytest.raises(db.ScheduleError, match=r"3S1 \(rank 0\) is not on the rank's first stage"):
        db.simulate(wrong)
    assert {problem.code for problem in db.check(wrong).problems} == {"vocabulary", "missing"}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", ["channel", "blocking"])
def test_other_modes_take_no_less_time(name: str, mode: Any) -> None:
    costs = Costs(p2p=0.25, head={"F": 2, "I": 2, "W": 2})
    for p, m in ((2, 4), (4, 10)):
        schedule = db.make(name, ranks=p, microbatches=m, costs=costs)
        fastest = db.simulate(schedule, costs)
        timeline = db.simulate(schedule, costs, mode)
        assert timeline.makespan >= fastest.makespan
        assert timeline.busy.tolist() == pytest.approx(fastest.busy.tolist())
        assert db.check(schedule, p2p_mode=mode).ok


@pytest.mark.parametrize("name", NAMES)
def test_idle_time_and_pictures_know_the_passes(name: str) -> None:
    from debubble.analysis.bubbles import bubbles
    from debubble.view.terminal import draw

    costs = Costs(head={"F": 2, "I": 2, "W": 2})
    timeline = db.simulate(db.make(name, ranks=2, microbatches=4), costs)
    idle = bubbles(timeline).totals.sum(axis=1)
    assert idle == pytest.approx(timeline.makespan - timeline.busy)
    assert "output layer, first pass" in draw(timeline)
