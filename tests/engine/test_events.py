"""The general compiler: the same times and the same refusals as the sweeps, and more rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import debubble as db
from debubble import Costs, Placement, Schedule, ScheduleError, make, simulate
from debubble.core.actions import COPY_KINDS, kinds_of
from debubble.engine import rules
from debubble.engine.events import Edges, Events
from debubble.engine.graph import P2P_MODES, QUEUES, compile_graph
from debubble.engine.timeline import evaluate_graph
from debubble.lowering.transfers import RECEIVE_POLICIES, add_transfers
from debubble.schedules.registry import Entry
from tests.engine.ruled import by_rules
from tests.pairs import each_family_and
from tests.strategies import ENTRIES, costs_for, made

MODES = [mode for mode in P2P_MODES if mode not in QUEUES]
"""Modes that the sweeps know."""

each_mode = pytest.mark.parametrize("mode", MODES)


def plain(schedule: Schedule) -> Schedule:
    """The schedule without copies of activations, which the sweeps do not know."""
    programs = (schedule.program(rank) for rank in range(schedule.ranks))
    return with_programs(
        schedule, [program[~np.isin(kinds_of(program), COPY_KINDS)] for program in programs]
    )


def with_programs(schedule: Schedule, programs: list[NDArray[np.int64]]) -> Schedule:
    offsets = np.cumsum([0, *map(len, programs)])
    return replace(schedule, actions=np.concatenate(programs), offsets=offsets)


@each_family_and("mode", MODES)
@settings(max_examples=8)
@given(data=st.data())
def test_times_are_those_of_the_sweeps(entry: Entry, mode: str, data: st.DataObject) -> None:
    schedule = plain(data.draw(made(entry, ranks=8, microbatches=16)))
    if data.draw(st.booleans()):
        schedule = add_transfers(schedule, policy=data.draw(st.sampled_from(RECEIVE_POLICIES)))
    costs = data.draw(costs_for(schedule))
    swept = evaluate_graph(compile_graph(schedule, mode), costs)
    ruled = evaluate_graph(by_rules(schedule, mode), costs)
    assert ruled.makespan == swept.makespan
    assert ruled.end.tolist() == swept.end.tolist()
    assert ruled.start.tolist() == swept.start.tolist()
    assert ruled.slack.tolist() == swept.slack.tolist()
    assert ruled.busy.tolist() == swept.busy.tolist()
    assert ruled.graph.completed == swept.graph.completed
    names = ruled.graph.cost_names()
    assert sorted(names) == sorted(swept.graph.cost_names())
    value = dict(zip(names, ruled.costs, strict=True))
    paid = sum(value[name] * count for name, count in ruled.sensitivity().items())
    assert paid == pytest.approx(ruled.makespan)
    for one, other in ((ruled, swept), (swept, ruled)):
        sent = one.graph.sent > 0
        assert (other.graph.sent[sent] > 0).all()
        assert one.node_end[one.graph.sent[sent]].tolist() == (
            other.node_end[other.graph.sent[sent]].tolist()
        )


@pytest.mark.slow
@each_mode
@settings(max_examples=150)
@given(data=st.data())
def test_orders_are_refused_as_by_the_sweeps(mode: str, data: st.DataObject) -> None:
    schedule = plain(data.draw(made(data.draw(st.sampled_from(ENTRIES)), ranks=4, microbatches=8)))
    if data.draw(st.booleans()):
        schedule = add_transfers(schedule)
    programs = [schedule.program(rank).tolist() for rank in range(schedule.ranks)]
    program = data.draw(st.sampled_from(programs))
    one, other = (data.draw(st.integers(0, len(program) - 1)) for _ in range(2))
    change = data.draw(st.sampled_from(["swap", "drop", "repeat"]))
    if change == "swap":
        program[one], program[other] = program[other], program[one]
    elif change == "drop":
        program.pop(one)
    else:
        program.insert(other, program[one])
    broken = with_programs(schedule, [np.array(row, dtype=np.int64) for row in programs])
    refusals = []
    for lower in (compile_graph, by_rules):
        try:
            lower(broken, mode)
        except ScheduleError as error:
            refusals.append(str(error))
    assert len(refusals) in (0, 2), refusals


@each_mode
@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([["0F0", "0F1"], ["1F0", "1B1"]], r"1B1 \(rank 1\) waits for 1F1, which no rank"),
        ([["0F0", "0F0"], []], "rank 0, action 1: 0F0 runs twice"),
        ([["0F0", "0W0"], []], r"0W0 \(rank 0\) waits for 0I0, which no rank runs; add 0I0"),
        ([["1F0"], []], "rank 0, action 0: 1F0 is on the wrong rank; stage 1 lives on rank 1"),
        ([["0F7"], []], "rank 0, action 0: 0F7 is out of range; stages go to 1"),
        ([["1UNSHARD0"], []], "rank 0, action 0: 1UNSHARD0 is on the wrong rank; stage 1 lives"),
        ([["0F0", "0OFFLOAD0", "0OFFLOAD0"], []], "action 2: 0OFFLOAD0 runs twice; remove one"),
        ([["0OFFLOAD0"], []], r"0OFFLOAD0 \(rank 0\) waits for 0F0, which no rank runs"),
        ([["0F0", "0RELOAD0"], []], "waits for 0OFFLOAD0, which no rank runs; add 0OFFLOAD0"),
        (
            [["0F0", "0OFFLOAD0", "0B0"], ["1F0", "1B0"]],
            r"0B0 \(rank 0\) waits for 0RELOAD0, which no rank runs; add 0RELOAD0",
        ),
        (
            [["0OFFLOAD0", "0F0", "0RELOAD0", "0B0"], ["1F0", "1B0"]],
            r"0OFFLOAD0 \(rank 0\) copies what 0F0 \(rank 0\) makes after it; move the copy",
        ),
        (
            [["0F0", "0RELOAD0", "0OFFLOAD0", "0B0"], ["1F0", "1B0"]],
            r"0RELOAD0 \(rank 0\) waits for 0OFFLOAD0 \(rank 0\), which comes after it",
        ),
        (
            [["0F0", "0OFFLOAD0", "0B0", "0RELOAD0"], ["1F0", "1B0"]],
            r"0B0 \(rank 0\) waits for 0RELOAD0 \(rank 0\), which comes after it; move 0RELOAD0",
        ),
        (
            [["0F0", "0OPT0", "0B0"], ["1F0", "1B0"]],
            r"0OPT0 \(rank 0\) waits for 1OPT0, which no rank runs; add 1OPT0",
        ),
    ],
)
def test_refusals_say_why(mode: str, rows: list[list[str]], message: str) -> None:
    schedule = Schedule.from_text(rows, Placement.linear(2), 2)
    with pytest.raises(ScheduleError, match=message):
        by_rules(schedule, mode)


def test_the_shortest_of_several_circles_is_shown() -> None:
    rows = [
        ["0F0", "0B0", "0F1", "0OFFLOAD1", "0RELOAD1", "0B1"],
        ["1F1", "1B1", "1F0", "1B0"],
    ]
    with pytest.raises(ScheduleError) as caught:
        simulate(Schedule.from_text(rows, Placement.linear(2), 2))
    assert caught.value.chain == (
        "0F1 (rank 0)", "0B0 (rank 0)", "1B0 (rank 1)", "1F1 (rank 1)",
    )  # fmt: skip
    assert "0F1 (rank 0) runs after 0B0 (rank 0), 0B0 (rank 0) waits for 1B0" in str(caught.value)


def test_a_rule_of_ones_own_waits_for_any_number_of_actions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every rank's last forward waits for the first forward of all ranks."""

    def all_ranks(events: Events) -> Iterator[Edges]:
        forwards = events.of(db.Kind.F)
        units = events.unit[forwards]
        first, last = forwards[units == 0], forwards[units == events.schedule.units - 1]
        (join,) = events.add(np.zeros(1, dtype=np.int32))
        yield Edges(np.full(len(first), join), events.event[first])
        yield Edges(events.event[last], np.full(len(last), join))

    schedule = make("gpipe", ranks=5, microbatches=2)
    costs = Costs(F=[1, 1, 1, 1, 50])
    assert evaluate_graph(by_rules(schedule, "overlapped"), costs).start[1] == 1
    monkeypatch.setattr(rules, "RULES", (*rules.RULES, all_ranks))
    for mode in ("overlapped", "channel"):
        timeline = evaluate_graph(by_rules(schedule, mode), costs)
        assert [timeline.start[4 * rank + 1] for rank in range(5)] == [54, 55, 56, 57, 58]
