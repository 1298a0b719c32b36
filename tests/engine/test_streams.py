"""Schedules whose sends and receives are actions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from debubble import Costs, Kind, Placement, Schedule, ScheduleError, make, simulate
from debubble.core.actions import TRANSFER_KINDS, kinds_of
from debubble.lowering.transfers import RECEIVE_POLICIES, add_transfers
from debubble.schedules.registry import Entry
from tests.pairs import each_sort, each_sort_and
from tests.strategies import made

each_mode = pytest.mark.parametrize("mode", ["overlapped", "channel", "blocking"])
FLOATS = st.floats(0.001, 100)


def cells(schedule: Schedule) -> list[str]:
    return [cell for row in schedule.rows() for cell in row]


@st.composite
def uneven_costs(draw: st.DrawFn, schedule: Schedule) -> Costs:
    """Costs that are not sums of a few bits: only the same additions give the same times."""
    per_stage = st.lists(FLOATS, min_size=schedule.stages, max_size=schedule.stages)
    ranks = schedule.ranks
    row = st.lists(FLOATS, min_size=ranks, max_size=ranks)
    links = st.lists(row, min_size=ranks, max_size=ranks)
    return Costs(
        F=draw(per_stage), I=draw(per_stage), W=draw(per_stage), OPT=draw(FLOATS), p2p=draw(links)
    )


@each_sort_and("mode", ["overlapped", "channel"])
@settings(max_examples=4)
@given(data=st.data())
def test_lowered_schedules_take_the_very_same_times(
    entry: Entry, mode: str, data: st.DataObject
) -> None:
    schedule = data.draw(made(entry, ranks=6, microbatches=16))
    costs = data.draw(uneven_costs(schedule))
    lowered = add_transfers(schedule, policy=data.draw(st.sampled_from(RECEIVE_POLICIES)))
    plain, explicit = simulate(schedule, costs, mode), simulate(lowered, costs, mode)
    compute = ~np.isin(kinds_of(lowered.actions), TRANSFER_KINDS)
    assert explicit.makespan == plain.makespan
    assert explicit.end[compute].tolist() == plain.end.tolist()
    assert explicit.busy == pytest.approx(plain.busy)
    assert explicit.stage_time.tolist() == plain.stage_time.tolist()
    assert explicit.peak_activation.tolist() == plain.peak_activation.tolist()
    assert explicit.graph.completed == plain.graph.completed
    assert np.allclose(explicit.slack[compute], plain.slack, atol=1e-9 * plain.makespan)
    for rank in range(schedule.ranks):
        for mine, other in zip(explicit.memory_curve(rank), plain.memory_curve(rank), strict=True):
            assert mine.tolist() == other.tolist()


@pytest.mark.slow
@each_sort
@settings(max_examples=4)
@given(data=st.data())
def test_a_transfer_takes_link_time_from_the_end_of_its_producer(
    entry: Entry, data: st.DataObject
) -> None:
    schedule = data.draw(made(entry, ranks=6, microbatches=8))
    costs = data.draw(uneven_costs(schedule))
    timeline = simulate(add_transfers(schedule), costs)
    lowered = timeline.schedule
    kinds = kinds_of(lowered.actions)
    link = timeline.table.link
    spans: dict[tuple[bool, int, int], list[tuple[float, float, int]]] = {}
    for position in np.flatnonzero(np.isin(kinds, TRANSFER_KINDS)).tolist():
        forward = kinds[position] <= Kind.RECV_F
        sends = kinds[position] in (Kind.SEND_F, Kind.SEND_B)
        code = int(lowered.actions[position])
        stage = (code >> 7 & 0xFFFFF) + (0 if sends else -1 if forward else 1)
        span = (timeline.start[position], timeline.end[position], lowered.rank_of(position))
        spans.setdefault((bool(forward), stage, code >> 27), []).append((sends, *span))
    assume(spans)
    for ends in spans.values():
        (_, *receive), (_, *send) = sorted(ends)
        assert send[:2] == receive[:2]
        assert send[1] - send[0] == pytest.approx(link[send[2], receive[2]])


def test_start_and_end_of_a_send_and_its_receive_are_the_transfers() -> None:
    timeline = simulate(add_transfers(make("1f1b", ranks=2, microbatches=1)), Costs(p2p=0.5))
    spans = dict(
        zip(
            cells(timeline.schedule),
            zip(timeline.start.tolist(), timeline.end.tolist(), strict=True),
            strict=True,
        )
    )
    assert spans == {
        "0F0": (0, 1), "0SEND_F0": (1, 1.5), "1RECV_F0": (1, 1.5), "1F0": (1.5, 2.5),
        "1B0": (2.5, 4.5), "1SEND_B0": (4.5, 5), "0RECV_B0": (4.5, 5), "0B0": (5, 7),
    }  # fmt: skip


@each_mode
def test_transfers_are_not_work(mode: str) -> None:
    timeline = simulate(add_transfers(make("1f1b", ranks=2, microbatches=1)), Costs(p2p=0.5), mode)
    assert timeline.busy.tolist() == [3, 3]
    assert timeline.stage_time.tolist() == [7, 3]
    assert timeline.bubble_ratio == 1 - 6 / 14
    assert timeline.slack.tolist() == [0] * 8


@each_mode
def test_critical_path_shows_every_transfer_as_its_send(mode: str) -> None:
    timeline = simulate(add_transfers(make("1f1b", ranks=2, microbatches=1)), Costs(p2p=0.5), mode)
    steps = timeline.critical_path()
    assert [(str(step.action), step.rank, step.waited_for) for step in steps] == [
        ("0F0", 0, "start"),
        ("0SEND_F0", 0, "rank"),
        ("1F0", 1, "data"),
        ("1B0", 1, "rank"),
        ("1SEND_B0", 1, "rank"),
        ("0B0", 0, "data"),
    ]
    assert [step.start for step in steps[1:]] == [step.end for step in steps[:-1]]


def test_a_late_send_delays_its_transfer() -> None:
    early = ["0F0", "0SEND_F0", "0F1", "0SEND_F1"]
    late = ["0F0", "0F1", "0SEND_F0", "0SEND_F1"]
    receiver = ["1RECV_F0", "1RECV_F1", "1F0", "1F1"]
    starts = [
        simulate(Schedule.from_text([sender, receiver], Placement.linear(2), 2), Costs(p2p=0.5))
        .start[6]
        .item()
        for sender in (early, late)
    ]
    assert starts == [1.5, 2.5]


def test_place_of_a_receive_does_not_matter_when_transfers_occupy_nobody() -> None:
    placement = Placement.linear(2)
    sender = ["0F0", "0SEND_F0", "0RECV_B0", "0B0", "0F1", "0SEND_F1", "0RECV_B1", "0B1"]
    late = ["1RECV_F0", "1F0", "1B0", "1SEND_B0", "1RECV_F1", "1F1", "1B1", "1SEND_B1"]
    early = ["1RECV_F0", "1RECV_F1", "1F0", "1B0", "1SEND_B0", "1F1", "1B1", "1SEND_B1"]
    first, second = (
        Schedule.from_text([sender, receiver], placement, 2) for receiver in (late, early)
    )
    costs = Costs(p2p=0.5)
    for mode in ("overlapped", "channel"):
        assert simulate(first, costs, mode).makespan == simulate(second, costs, mode).makespan == 14
    assert simulate(first, costs, "blocking").makespan == 14
    with pytest.raises(ScheduleError, match="deadlock"):
        simulate(second, costs, "blocking")


def test_a_channel_carries_transfers_in_the_order_of_the_sends() -> None:
    rows = [
        ["0F0", "0F1", "0SEND_F1", "0SEND_F0"],
        ["1RECV_F1", "1RECV_F0", "1F0", "1F1"],
    ]
    schedule = Schedule.from_text(rows, Placement.linear(2), 2)
    timeline = simulate(schedule, Costs(p2p=5), "channel")
    ends = dict(zip(cells(schedule), timeline.end.tolist(), strict=True))
    assert (ends["1RECV_F1"], ends["1RECV_F0"], ends["1F0"]) == (7, 12, 13)


@each_mode
def test_steps_over_several_iterations(mode: str) -> None:
    schedule = add_transfers(make("zb-h1", ranks=3, microbatches=4, iterations=2))
    costs = Costs(OPT=2, p2p=0.25)
    once = simulate(add_transfers(make("zb-h1", ranks=3, microbatches=4)), costs, mode)
    # A norm goes down the ranks, each of which adds to it when done, and comes back to rank 0.
    norm = -math.inf
    for rank in range(3):
        norm = max(once.end[once.schedule.ranks_of_actions == rank].max(), norm + 0.25)
    assert simulate(schedule, costs, mode).makespan == 2 * (norm + 0.25 + 2)


@each_mode
@pytest.mark.parametrize(
    ("rank", "drop", "at", "insert", "message"),
    [
        (0, "0SEND_F0", None, None, "action 0: 1RECV_F0 has no other end; add 0SEND_F0 on rank 0"),
        (1, "1RECV_F0", None, None, r"1F0 \(rank 1\) waits for 1RECV_F0, which no rank runs; add"),
        (
            1,
            "1RECV_F0",
            1,
            "1RECV_F0",
            r"1F0 \(rank 1\) waits for 1RECV_F0 \(rank 1\), which comes",
        ),
        (
            0,
            "0SEND_F0",
            0,
            "0SEND_F0",
            r"0SEND_F0 \(rank 0\) waits for 0F0 \(rank 0\), which comes",
        ),
        (0, "0B0", 0, "0B0", r"0B0 \(rank 0\) waits for 0F0 \(rank 0\), which comes after it"),
        (0, None, 1, "0SEND_F0", "rank 0, action 2: 0SEND_F0 runs twice; remove one"),
        (1, None, 1, "1RECV_F0", "rank 1, action 1: 1RECV_F0 runs twice; remove one"),
        (1, None, 2, "1F0", "rank 1, action 2: 1F0 runs twice"),
        (0, None, 1, "1SEND_F0", "rank 0, action 1: 1SEND_F0 is on the wrong rank"),
        (0, None, 1, "0SEND_B0", "rank 0, action 1: 0SEND_B0 has no other end: stage 0 is the fir"),
        (1, None, 2, "1SEND_F0", "rank 1, action 2: 1SEND_F0 has no other end: stage 1 is the las"),
        (1, None, 2, "1SEND_F4", "rank 1, action 2: 1SEND_F4 is out of range; stages go to 1"),
        (0, None, 1, "1UNSHARD0", "rank 0, action 1: 1UNSHARD0 is on the wrong rank; stage 1 li"),
        (1, None, 4, "1R0", r"1B0 \(rank 1\) waits for 1R0 \(rank 1\), which comes after it"),
        (0, None, 4, "0OPT0", r"0OPT0 \(rank 0\) waits for 1OPT0, which no rank runs; add"),
        (0, "0B0", 1, "0W0", r"0W0 \(rank 0\) waits for 0I0, which no rank runs; add 0I0 on rank"),
        (0, None, 1, "0W0", "rank 0, action 4: 0B0 runs beside 0W0 of the same microbatch"),
    ],
)
def test_orders_that_cannot_run_are_explained(
    mode: str, rank: int, drop: str | None, at: int | None, insert: str | None, message: str
) -> None:
    rows = add_transfers(make("1f1b", ranks=2, microbatches=1)).rows()
    if drop is not None:
        rows[rank].remove(drop)
    if insert is not None:
        rows[rank].insert(at or 0, insert)
    with pytest.raises(ScheduleError, match=message):
        simulate(Schedule.from_text(rows, Placement.linear(2), 1), None, mode)


@each_mode
def test_stages_on_one_rank_run_in_the_order_of_the_data(mode: str) -> None:
    rows = [["0F0", "0SEND_F0"], ["1RECV_F0", "2F0", "1F0"]]
    with pytest.raises(
        ScheduleError, match=r"2F0 \(rank 1\) waits for 1F0 \(rank 1\), which comes"
    ):
        simulate(Schedule.from_text(rows, Placement.explicit([0, 1, 1, 0]), 1), None, mode)


@each_mode
def test_an_iteration_is_stepped_once(mode: str) -> None:
    rows = add_transfers(make("1f1b", ranks=2, microbatches=1)).rows()
    for rank, row in enumerate(rows):
        row += [f"{rank}OPT0", f"{rank}OPT0"]
    with pytest.raises(ScheduleError, match="OPT0 steps an iteration that was stepped before"):
        simulate(Schedule.from_text(rows, Placement.linear(2), 1), None, mode)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([["0F0", "0SEND_F0"], []], "rank 0, action 1: 0SEND_F0 has no other end; add 1RECV_F0"),
        ([["0F0"], ["1RECV_F0"]], "rank 1, action 0: 1RECV_F0 has no other end; add 0SEND_F0"),
    ],
)
@pytest.mark.parametrize("mode", ["overlapped", "channel"])
def test_ends_without_the_other_are_refused_even_when_nothing_waits(
    mode: str, rows: list[list[str]], message: str
) -> None:
    schedule = Schedule.from_text(rows, Placement.linear(2), 1)
    with pytest.raises(ScheduleError, match=message):
        simulate(schedule, None, mode)


def test_deadlock_through_data_shows_where_the_ranks_stand() -> None:
    rows = [
        ["0F0", "0RECV_B0", "0B0", "0SEND_F0"],
        ["1RECV_F0", "1F0", "1B0", "1SEND_B0"],
    ]
    schedule = Schedule.from_text(rows, Placement.linear(2), 1)
    with pytest.raises(ScheduleError) as caught:
        simulate(schedule)
    assert caught.value.chain == (
        "0B0 (rank 0)",
        "1SEND_B0 (rank 1)",
        "1F0 (rank 1)",
        "0SEND_F0 (rank 0)",
    )


def test_shortest_of_several_cycles_is_shown() -> None:
    placement = Placement.explicit([0, 1, 2, 0])
    rows = [
        ["3RECV_F0", "0F0", "0SEND_F0", "3F0", "3B0", "3SEND_B0", "0RECV_B0", "0B0"],
        ["1RECV_F0", "1F0", "1SEND_F0", "1RECV_B0", "1B0", "1SEND_B0"],
        ["2RECV_F0", "2F0", "2SEND_F0", "2RECV_B0", "2B0", "2SEND_B0"],
    ]
    with pytest.raises(ScheduleError) as caught:
        simulate(Schedule.from_text(rows, placement, 1), None, "blocking")
    assert len(caught.value.chain) == 6
    # Receiving 1RECV_B0 early closes a cycle of ranks 1 and 2 only.
    rows[1] = ["1RECV_F0", "1RECV_B0", "1F0", "1SEND_F0", "1B0", "1SEND_B0"]
    with pytest.raises(ScheduleError) as caught:
        simulate(Schedule.from_text(rows, placement, 1), None, "blocking")
    assert caught.value.chain == (
        "1RECV_B0 (rank 1)",
        "2SEND_B0 (rank 2)",
        "2RECV_F0 (rank 2)",
        "1SEND_F0 (rank 1)",
    )


@pytest.mark.slow
def test_large_lowered_schedules_agree_with_plain_ones() -> None:
    schedule = make("interleaved-1f1b", ranks=8, microbatches=1024, chunks=2)
    lowered = add_transfers(schedule)
    costs = Costs(F=1.5, B=2.5, p2p=0.125)
    assert len(lowered) > 80_000
    for mode in ("overlapped", "channel"):
        assert simulate(lowered, costs, mode).makespan == simulate(schedule, costs, mode).makespan
