from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from debubble import (
    Costs,
    Kind,
    ParameterError,
    Placement,
    Schedule,
    ScheduleError,
    check,
    make,
    simulate,
)
from debubble.core.actions import (
    PAIR_MASK,
    PAIR_SHIFT,
    STAGE_SHIFT,
    TRANSFER_KINDS,
    kinds_of,
    pairs_of,
)
from debubble.engine.graph import compile_graph
from debubble.lowering.recompute import RECOMPUTE_AT, add_recompute
from debubble.lowering.transfers import RECEIVE_POLICIES, add_transfers
from debubble.schedules.forms import closed_forms
from debubble.schedules.registry import Entry
from tests import oracle, oracle_modes
from tests.forms import hold
from tests.kernels import run_by
from tests.pairs import each_family, each_sort, each_sort_and
from tests.strategies import accepted, costs_for, made, recomputing

each_place = pytest.mark.parametrize("at", RECOMPUTE_AT)


def in_order(schedule: Schedule, times: dict[tuple[int, int], float]) -> list[float]:
    return [
        times[rank, index]
        for rank in range(schedule.ranks)
        for index in range(len(schedule.program(rank)))
    ]


def rows(schedule: Schedule) -> list[str]:
    return [" ".join(row) for row in schedule.rows()]


def without(schedule: Schedule) -> list[np.ndarray]:
    programs = [schedule.program(rank) for rank in range(schedule.ranks)]
    return [program[kinds_of(program) != Kind.R] for program in programs]


# What is inserted where.


def test_recomputes_stand_right_before_their_backwards() -> None:
    assert rows(make("zb-h1", ranks=2, microbatches=2, recompute="full")) == [
        "0F0 0F1 0R0 0I0 0W0 0R1 0I1 0W1",
        "1F0 1R0 1I0 1F1 1R1 1I1 1W0 1W1",
    ]


def test_recomputes_stand_before_the_pair_their_backward_is_half_of() -> None:
    assert rows(make("1f1b-overlap", ranks=2, microbatches=3, recompute=[1]))[1] == (
        "1F0 1R0 (1F1;1B0)OVERLAP_F_B 1R1 (1F2;1B1)OVERLAP_F_B 1R2 1B2"
    )


def test_stages_are_chosen_in_four_ways() -> None:
    plain = make("1f1b", ranks=3, microbatches=4)
    some = add_recompute(plain, [2, 0])
    assert add_recompute(plain, {0: True, 1: False, 2: True}) == some
    assert add_recompute(plain, np.array([0, 2])) == some
    assert add_recompute(plain, range(3)) == add_recompute(plain)
    assert add_recompute(plain, None) is add_recompute(plain, []) is plain
    assert some.options == {"recompute": [0, 2], "recompute_at": "just-in-time"}
    assert add_recompute(plain).options["recompute"] == "full"
    assert some.name == "1f1b"
    assert some != replace(some, recompute_after="gradient")


@pytest.mark.slow
@each_sort_and("at", RECOMPUTE_AT)
@settings(max_examples=4)
@given(data=st.data())
def test_every_chosen_backward_has_one_recompute_and_the_order_stays(
    entry: Entry, at: str, data: st.DataObject
) -> None:
    schedule = data.draw(made(entry))
    stages = data.draw(st.sets(st.integers(0, schedule.stages - 1), min_size=1))
    found = add_recompute(schedule, stages, at=at, costs=data.draw(costs_for(schedule)))
    assert np.array_equal(np.concatenate(without(found)), schedule.actions)
    kinds, cells = kinds_of(schedule.actions), schedule.actions >> STAGE_SHIFT
    backward = (kinds == Kind.I) | (kinds == Kind.B)
    wanted = cells[backward & np.isin(cells & 0xFFFFF, list(stages))]
    recomputed = found.actions[kinds_of(found.actions) == Kind.R] >> STAGE_SHIFT
    assert sorted(recomputed.tolist()) == sorted(wanted.tolist())
    report = check(found)
    assert report.ok, report
    if at != "bubbles":
        spots = np.flatnonzero(kinds_of(found.actions) == Kind.R)
        after = spots + 1
        after = after + (pairs_of(found.actions[after]) == 1)
        assert np.array_equal(found.actions[after] >> STAGE_SHIFT, recomputed)


@pytest.mark.parametrize(
    ("stages", "at", "message"),
    [
        ([3], None, "recompute has the stage 3; stages go from 0 to 2"),
        ([-1], None, "recompute has the stage -1"),
        ([0.5], None, "recompute has the stage 0.5; give whole numbers, or 'full'"),
        ([True], None, "recompute has the stage True"),
        ("all", None, r"recompute is 'all'; give 'full' or stages: \[0, 1\]"),
        (1, None, "recompute is 1; give 'full'"),
        (iter([0]), None, "recompute is <list_iterator .* give 'full'"),
        ({0: True}, None, "recompute says nothing of stage 1; give True or False"),
        ({0: True, 1: True, 2: True, 3: True}, None, "recompute has the stage 3"),
        ("full", "just-in-tim", "recompute_at is 'just-in-tim'; did you mean 'just-in-time'"),
        (None, "bubbles", "recompute_at is 'bubbles' and no stage recomputes"),
    ],
)
def test_stages_and_places_that_do_not_exist_are_refused(
    stages: Any, at: Any, message: str
) -> None:
    with pytest.raises(ParameterError, match=message):
        add_recompute(make("1f1b", ranks=3, microbatches=4), stages, at=at)
    with pytest.raises(ParameterError, match=message):
        make("1f1b", ranks=3, microbatches=4, recompute=stages, recompute_at=at)


def test_limits_that_do_not_fit_are_refused() -> None:
    for memory, message in (([1, 2], "2 limits for 3 ranks"), (0, "a positive number")):
        with pytest.raises(ParameterError, match=message):
            add_recompute(make("1f1b", ranks=3, microbatches=4), at="bubbles", memory=memory)


def test_stages_that_do_not_exist_are_left_to_the_checks() -> None:
    order = [["0F0", "0B0", "7F0", "7R0", "7B0"]]
    found = add_recompute(Schedule.from_text(order, Placement.linear(1), 1))
    assert rows(found) == ["0F0 0R0 0B0 7F0 7R0 7B0"]
    assert "7R0 is out of range; stages go to 0" in str(check(found))


def test_lowered_schedules_are_refused() -> None:
    schedule = make("1f1b", ranks=2, microbatches=2, recompute=[1])
    with pytest.raises(ParameterError, match=r"'1f1b' recomputes stages already: \[1\]"):
        add_recompute(schedule, [0])
    with pytest.raises(ParameterError, match="'1f1b' has transfers; recompute first"):
        add_recompute(add_transfers(make("1f1b", ranks=2, microbatches=2)))


def test_bubbles_of_an_order_that_cannot_run_are_refused() -> None:
    stuck = Schedule.from_text([["0F0", "0B0"], ["1B0", "1F0"]], Placement.linear(2), 1)
    with pytest.raises(ScheduleError, match=r"1R0 \(rank 1\) waits for 1F0 \(rank 1\)"):
        add_recompute(stuck, at="bubbles")
    assert len(add_recompute(stuck)) == 6


# Times and memory against plain simulators.


@each_sort
@settings(max_examples=4)
@given(data=st.data())
def test_engine_equals_the_oracle(entry: Entry, data: st.DataObject) -> None:
    schedule = data.draw(recomputing(data.draw(made(entry))))
    costs = data.draw(costs_for(schedule))
    expected = oracle.simulate(schedule, costs)
    timeline = simulate(schedule, costs)
    assert timeline.makespan == expected.makespan
    assert timeline.start.tolist() == in_order(schedule, expected.start)
    assert timeline.end.tolist() == in_order(schedule, expected.end)


@each_sort
@settings(max_examples=4)
@given(data=st.data())
def test_memory_equals_the_oracle(entry: Entry, data: st.DataObject) -> None:
    schedule = data.draw(recomputing(data.draw(made(entry, microbatches=16))))
    costs = data.draw(costs_for(schedule))
    timeline = simulate(schedule, costs)
    if not timeline.graph.has_copies:
        assert timeline.peak_activation == pytest.approx(oracle.peaks(schedule, costs))
    elif (timeline.duration > 0).all():
        held = oracle.peaks_by_time(schedule, costs, oracle.simulate(schedule, costs))
        assert timeline.peak_activation == pytest.approx(held)
    assert np.allclose(timeline.memory.left, 0, atol=1e-9)
    for rank in range(schedule.ranks):
        times, held = timeline.memory_curve(rank)
        assert (np.diff(times) >= 0).all()
        assert held[-1:] == pytest.approx([0] * len(held[-1:]), abs=1e-9)
        if (timeline.duration > 0).all():
            assert held.max() == pytest.approx(timeline.peak_activation[rank])


@pytest.mark.slow
@each_sort_and("mode", ["overlapped", "channel", "blocking"])
@settings(max_examples=4)
@given(data=st.data())
def test_explicit_transfers_take_the_same_times(
    entry: Entry, mode: Any, data: st.DataObject
) -> None:
    schedule = data.draw(recomputing(data.draw(made(entry, ranks=6, microbatches=12))))
    costs = data.draw(costs_for(schedule))
    policy = "just-in-time" if mode == "blocking" else data.draw(st.sampled_from(RECEIVE_POLICIES))
    lowered = add_transfers(schedule, policy=policy)
    plain, explicit = simulate(schedule, costs, mode), simulate(lowered, costs, mode)
    compute = ~np.isin(kinds_of(lowered.actions), TRANSFER_KINDS)
    assert explicit.end[compute].tolist() == plain.end.tolist()
    assert explicit.busy == pytest.approx(plain.busy)
    assert explicit.peak_activation.tolist() == plain.peak_activation.tolist()
    run = oracle_modes.simulate(lowered, costs, mode)
    assert run is not None
    assert explicit.start.tolist() == in_order(lowered, run.start)
    assert explicit.end.tolist() == in_order(lowered, run.end)


@pytest.mark.slow
@each_sort
@settings(max_examples=5)
@given(data=st.data())
def test_compiled_kernels_equal_their_python_source(entry: Entry, data: st.DataObject) -> None:
    plain = data.draw(made(entry, ranks=4, microbatches=8))
    schedule = data.draw(recomputing(plain))
    costs = data.draw(costs_for(schedule))
    found = []
    for compiled in (True, False):
        with run_by(compiled=compiled):
            fresh = replace(schedule)
            graph, timeline = compile_graph(fresh), simulate(fresh, costs)
            filled = add_recompute(replace(plain), at="bubbles", costs=costs, memory=plain.units)
            found.append((graph, timeline.memory, timeline.node_end, filled.actions))
    (graph, memory, end, actions), (other_graph, other_memory, other_end, other_actions) = found
    for name in ("first", "second", "lag", "cost", "node"):
        assert np.array_equal(getattr(graph, name), getattr(other_graph, name)), name
    for spec in fields(memory):
        assert np.array_equal(getattr(memory, spec.name), getattr(other_memory, spec.name))
    assert np.array_equal(end, other_end)
    assert np.array_equal(actions, other_actions)


# What a place costs.


@pytest.mark.slow
@each_sort
@settings(max_examples=4)
@given(data=st.data())
def test_with_the_backward_it_is_a_longer_backward(entry: Entry, data: st.DataObject) -> None:
    schedule = data.draw(made(entry))
    schedule = replace(schedule, actions=schedule.actions & ~(PAIR_MASK << PAIR_SHIFT))
    # Attention is a share of what an action takes, so that a longer action has more of it; and
    # there is less to copy where a forward leaves less.
    costs = replace(data.draw(costs_for(schedule)), attention=0.0, exchange=0.0, offload_share=0.0)
    table = costs.resolve(schedule.placement, vocabulary=schedule.vocabulary)
    F, I, W, B, R = table.duration[:5, : schedule.stages]
    longer = replace(costs, F=F, I=I + R, W=W, B=B + R, R=R)
    recomputed = simulate(add_recompute(schedule, at="with-backward"), costs)
    work = kinds_of(recomputed.schedule.actions) != Kind.R
    assert recomputed.end[work].tolist() == simulate(schedule, longer).end.tolist()


@pytest.mark.slow
@each_sort
@settings(max_examples=4)
@given(data=st.data())
def test_earlier_recomputes_are_never_slower(entry: Entry, data: st.DataObject) -> None:
    schedule = data.draw(made(entry))
    costs = data.draw(costs_for(schedule))
    mode = data.draw(st.sampled_from(["overlapped", "channel", "blocking"]))
    stages = data.draw(st.just("full") | st.sets(st.integers(0, schedule.stages - 1), min_size=1))
    late, in_time = (
        simulate(add_recompute(schedule, stages, at=at), costs, mode)
        for at in ("with-backward", "just-in-time")
    )
    if mode != "blocking":
        assert (in_time.end <= late.end).all()
    most = in_time.peak_activation
    for memory in (None, data.draw(st.integers(1, 8)) / 2 * float(table_unit(in_time.table))):
        order = add_recompute(
            schedule, stages, at="bubbles", costs=costs, memory=memory, p2p_mode=mode
        )
        filled = simulate(order, costs, mode)
        assert filled.makespan <= in_time.makespan
        limit = most if memory is None else np.maximum(most, memory)
        assert (filled.peak_activation <= limit * (1 + 1e-6)).all()


def table_unit(table: Any) -> float:
    return float(table.activation.max())


def test_bubbles_take_memory_for_time() -> None:
    schedule = make("interleaved-1f1b", ranks=8, microbatches=16)
    costs = Costs(F=10, I=11, W=7, p2p=5)
    found = []
    for options in ({"at": "with-backward"}, {}, {"at": "bubbles"}, {"at": "bubbles", "memory": 9}):
        timeline = simulate(add_recompute(schedule, costs=costs, **options), costs)
        found.append((timeline.makespan, timeline.peak_activation.max()))
    assert found == [(1632, 0.5), (1522, 0.5), (1522, 0.5), (1482, 2.5)]


def test_bubbles_are_filled_without_more_memory_where_there_are_any() -> None:
    schedule = make("dualpipe", ranks=8, microbatches=16)
    costs = Costs(F=10, I=11, W=7, p2p=5)
    in_time, filled = (
        simulate(add_recompute(schedule, at=at, costs=costs), costs)
        for at in ("just-in-time", "bubbles")
    )
    assert (in_time.makespan, filled.makespan) == (708, 688)
    assert in_time.peak_activation.max() == filled.peak_activation.max() == 4
    again = add_recompute(schedule, at="bubbles", costs=costs)
    assert again == filled.schedule


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@settings(max_examples=60)
@given(
    p=st.integers(1, 8), m=st.integers(1, 20), F=st.integers(0, 9), B=st.integers(0, 9),
    R=st.integers(0, 9),
)  # fmt: skip
def test_what_is_left_just_in_time_is_the_work(
    name: str, p: int, m: int, F: int, B: int, R: int
) -> None:
    schedule = make(name, ranks=p, microbatches=m, recompute="full")
    assert simulate(schedule, Costs(F=F, B=B, R=R)).makespan == (m + p - 1) * (F + B) + m * R


# Memory of families.


@each_place
@pytest.mark.parametrize("kept", [0.0, 0.125, 1.0])
def test_gpipe_holds_checkpoints_and_one_activation(at: str, kept: float) -> None:
    m = 8
    schedule = make("gpipe", ranks=4, microbatches=m, recompute="full", recompute_at=at)
    peak = simulate(schedule, Costs(recompute_kept=kept)).peak_activation
    assert peak.tolist() == [(m - 1) * kept + 1] * 4
    megabytes = Costs(activation=100, recompute_kept=kept)
    assert (
        simulate(schedule, megabytes).peak_activation.tolist() == [(m - 1) * kept * 100 + 100] * 4
    )


def test_one_f_one_b_and_interleaved() -> None:
    costs = Costs(recompute_kept=0.125)
    one = simulate(make("1f1b", ranks=4, microbatches=8, recompute="full"), costs)
    assert one.peak_activation.tolist() == [n / 8 + 7 / 8 for n in (4, 3, 2, 1)]
    several = make("interleaved-1f1b", ranks=4, microbatches=8, recompute="full")
    held = [11, 9, 7, 5]
    assert simulate(several, costs).peak_activation.tolist() == [n / 16 + 7 / 16 for n in held]


def test_what_weights_need_is_not_saved() -> None:
    """Rank r of ZB-H1 keeps r more microbatches for W, from the end of I."""
    schedule = make("zb-h1", ranks=4, microbatches=8, recompute="full")
    assert simulate(schedule).peak_activation.tolist() == [1, 2, 3, 4]
    half = simulate(schedule, Costs(kept_for_weight=0.5))
    assert half.peak_activation.tolist() == [1, 1.5, 2, 2.5]


def test_only_chosen_stages_save_memory() -> None:
    schedule = make("1f1b", ranks=4, microbatches=8, recompute=[0, 1])
    assert simulate(schedule).peak_activation.tolist() == [1, 1, 2, 1]


def test_some_microbatches_of_a_stage_save_memory() -> None:
    order = [["0F0", "0F1", "0F2", "0R1", "0B0", "0B1", "0B2"]]
    schedule = Schedule.from_text(order, Placement.linear(1), 3)
    timeline = simulate(schedule, Costs(recompute_kept=0.25))
    assert timeline.peak_activation.tolist() == [3]
    assert timeline.memory_curve(0)[1].tolist() == [1, 1.25, 2.25, 3, 2, 1, 0]


def test_shares_differ_from_stage_to_stage() -> None:
    schedule = make("gpipe", ranks=2, microbatches=3, recompute="full")
    peak = simulate(schedule, Costs(recompute_kept=[0, 0.5])).peak_activation
    assert peak.tolist() == [1, 2]


# Orders that are wrong.


@pytest.mark.parametrize(
    ("row", "message", "reason"),
    [
        (
            "0R0 0F0 0B0",
            "0R0 needs 0F0, which comes later, as action 1; move 0F0 before 0R0",
            r"0R0 \(rank 0\) waits for 0F0 \(rank 0\), which comes after it; move 0F0",
        ),
        (
            "0F0 0B0 0R0",
            "0B0 needs 0R0, which comes later, as action 2; move 0R0 before 0B0",
            r"0B0 \(rank 0\) waits for 0R0 \(rank 0\), which comes after it; move 0R0",
        ),
        (
            "0F0 0R0 0R0 0B0",
            "0R0 runs again; it runs on rank 0 as action 1; remove one of them",
            "action 2: 0R0 runs twice",
        ),
    ],
)
def test_checks_name_recomputes_in_the_wrong_place(row: str, message: str, reason: str) -> None:
    report = check(Schedule.from_text([row.split()], Placement.linear(1), 1))
    assert message in str(report)
    with pytest.raises(ScheduleError, match=reason):
        simulate(report.schedule)


def test_a_recompute_that_waits_for_its_gradient_can_deadlock() -> None:
    order = [["0F0", "0R0", "0F1", "0B0", "0B1"], ["1F0", "1F1", "1B0", "1B1"]]
    early = Schedule.from_text(order, Placement.linear(2), 2)
    late = replace(early, recompute_after="gradient")
    assert check(early).ok
    (problem,) = check(late).problems
    assert problem.code == "deadlock"
    assert problem.actions == ("0R0", "1B0", "1F1", "0F1")
    with pytest.raises(ScheduleError, match=r"0R0 \(rank 0\) waits for 1B0"):
        simulate(late)
    rows = add_transfers(early).rows()
    rows[0].remove("0RECV_B0")
    rows[0].insert(rows[0].index("0R0"), "0RECV_B0")
    late = Schedule.from_text(rows, early.placement, 2, recompute_after="gradient")
    with pytest.raises(ScheduleError, match=r"0R0 \(rank 0\) waits for 1SEND_B0"):
        simulate(late)


def test_a_recompute_that_waits_needs_its_receive_first() -> None:
    order = [["0F0", "0SEND_F0", "0R0", "0RECV_B0", "0B0"], ["1RECV_F0", "1F0", "1B0", "1SEND_B0"]]
    for mode in ("overlapped", "blocking"):
        simulate(Schedule.from_text(order, Placement.linear(2), 1), p2p_mode=mode)
        late = Schedule.from_text(order, Placement.linear(2), 1, recompute_after="gradient")
        with pytest.raises(ScheduleError, match=r"0R0 .* waits for 0RECV_B0 .* comes after"):
            simulate(late, p2p_mode=mode)


# Closed forms.

GRID = [
    *((p, m, v) for p in (1, 2, 3, 4) for m in range(1, 9) for v in (1, 2, 3)),
    *((8, m, v) for m in (7, 8, 16) for v in (1, 2, 3)),
]
"""Every place of the recomputes comes with all p, all m and all v."""


NO_FORMS = {
    "dualpipe", "dualpipe-v", "gis-h", "pipeoffload-full",
    "pipeoffload-half", "stp", "v-half", "v-min", "v-zb", "vocab-1", "vocab-1-v-half", "vocab-2",
    "vocab-2-v-half", "zb-2p", "zb-auto", "zb-v",
}  # fmt: skip
"""Schedules of which nothing is known under recompute.

They overlap actions, copy activations, shard the head, keep some for W, or depend on costs."""


@each_family
def test_closed_forms_hold_with_recomputes(entry: Entry) -> None:
    costs = Costs(F=2, I=3, W=1, R=1.5, recompute_kept=0.125)
    checked = 0
    # Orders that are searched for take long, and nothing is to be found for them.
    for p, m, v in GRID[:: 9 if entry.name in NO_FORMS else 1]:
        at = RECOMPUTE_AT[(p + m + v) % len(RECOMPUTE_AT)]
        chunks = None if entry.chunks else v
        if m not in accepted(entry.name, 16, ranks=p, chunks=chunks):
            continue
        try:
            schedule = make(
                entry.name, ranks=p, microbatches=m, chunks=chunks,
                costs=costs, recompute="full", recompute_at=at,
            )  # fmt: skip
        except ParameterError:
            continue
        checked += hold(schedule, costs, f"{entry.name} {at} p={p} m={m} v={v}")
    assert (checked == 0) == (entry.name in NO_FORMS)


def test_closed_forms_say_what_they_count() -> None:
    def forms(costs: Costs, **options: Any) -> list[tuple[str, str, Any]]:
        schedule = make("1f1b", ranks=4, microbatches=8, **options)
        found = closed_forms(schedule, costs)
        return [(item.form.text, item.form.accuracy, item.value) for item in found]

    costs = Costs(F=1, B=2, R=0.5, recompute_kept=0.25)
    time, peak = forms(costs, recompute="full", recompute_at="with-backward")
    assert time == ("(m + p − 1)(F + B), with B + R for B", "exact", 38.5)
    assert peak == ("q·(min(p − r, m)) + (1 − q)/v", "exact", [1.75, 1.5, 1.25, 1.0])
    time, peak = forms(costs, recompute="full")
    assert time[1:] == ("upper bound", 38.5)
    assert peak[1] == "exact"
    assert forms(costs, recompute=[0, 1]) == []
    assert forms(replace(costs, R=[1, 1, 1, 2]), recompute="full") == []
    assert forms(replace(costs, recompute_kept=[0, 0, 0, 1]), recompute="full") == []
    assert len(forms(costs)) == 2
    moved = make("1f1b", ranks=4, microbatches=8, recompute="full").rows()
    for row in moved:
        row.remove(f"{row[0][0]}R7")
        row.insert(row.index(f"{row[0][0]}F7") + 1, f"{row[0][0]}R7")
    early = Schedule.from_text(moved, Placement.linear(4), 8, name="1f1b")
    assert closed_forms(early, costs) == []
