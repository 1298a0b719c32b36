"""Queued transfers against a simulator that runs queue heads one by one."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import debubble as db
from debubble import Costs, Kind, Schedule, ScheduleError, make, simulate
from debubble.core.actions import TRANSFER_KINDS, pairs_of
from debubble.engine.graph import compile_graph
from debubble.engine.timeline import evaluate_graph
from debubble.lowering.transfers import add_transfers
from debubble.schedules.registry import Entry
from tests.engine.ruled import by_rules
from tests.oracle import copy_of
from tests.pairs import each_family_and
from tests.strategies import ENTRIES, costs_for, made

MODES = ["pair", "group", "directed"]
each_mode = pytest.mark.parametrize("mode", MODES)

SENDS = (Kind.SEND_F, Kind.SEND_B)


def run_queues(schedule: Schedule, mode: str, p2p: float) -> list[float] | None:
    """End of every action, F, I, W of one unit, or None where it gets stuck.

    For linear programs of compute and transfers: a rank computes what has its input, and transfers
    go when both their queues come to them.
    """
    programs = [list(program) for program in schedule]
    table = schedule.placement.table

    def other(rank: int, index: int) -> tuple[int, tuple[str, int, int]]:
        """The rank at the other end, and a name for the transfer."""
        stage, kind, unit = programs[rank][index]
        step = 1 if kind in (Kind.SEND_F, Kind.RECV_B) else -1
        sender = stage if kind in SENDS else stage + step
        row = table[copy_of(schedule, unit)]
        return row[stage + step], (kind.name[-1], sender, unit)

    queues: dict[object, list[tuple[int, int]]] = {}
    member: dict[tuple[int, int], object] = {}
    ends_of: dict[tuple[str, int, int], list[tuple[int, int]]] = {}
    for rank, program in enumerate(programs):
        for index, action in enumerate(program):
            if action.kind in TRANSFER_KINDS:
                peer, name = other(rank, index)
                sends = action.kind in SENDS
                key = {"pair": (rank, peer), "group": rank, "directed": (rank, peer, sends)}[mode]
                queues.setdefault(key, []).append((rank, index))
                member[rank, index] = key
                ends_of.setdefault(name, []).append((rank, index))
    idle = dict.fromkeys(queues, 0.0)
    head, free = [0] * schedule.ranks, [0.0] * schedule.ranks
    posted: dict[tuple[int, int], float] = {}
    arrived: dict[tuple[str, int, int], float] = {}
    done: dict[tuple[int, str, int], tuple[float, int]] = {}
    end: dict[tuple[int, int], float] = {}
    moved = True
    while moved:
        moved = False
        for rank, program in enumerate(programs):
            while head[rank] < len(program):
                index = head[rank]
                stage, kind, unit = program[index]
                if kind in TRANSFER_KINDS:
                    posted[rank, index] = free[rank]
                else:
                    need = None
                    if kind == Kind.F and stage:
                        need = ("F", stage - 1, unit)
                    if kind in (Kind.I, Kind.B) and stage < schedule.stages - 1:
                        need = ("B", stage + 1, unit)
                    begin = free[rank]
                    if need is not None:
                        made_at, home = done.get((need[1], need[0], unit), (0.0, -1))
                        if home != rank and need not in arrived:
                            break
                        begin = max(begin, made_at if home == rank else arrived[need])
                    free[rank] = end[rank, index] = begin + (2.0 if kind == Kind.B else 1.0)
                    if kind != Kind.W:
                        done[stage, "F" if kind == Kind.F else "B", unit] = (free[rank], rank)
                head[rank] += 1
                moved = True
        for name, both in ends_of.items():
            if name in arrived or len(both) < 2 or any(spot not in posted for spot in both):
                continue
            keys = [member[spot] for spot in both]
            if all(queues[key][0] == spot for key, spot in zip(keys, both, strict=True)):
                begin = max(*(posted[spot] for spot in both), *(idle[key] for key in keys))
                arrived[name] = begin + p2p
                for key, spot in zip(keys, both, strict=True):
                    queues[key].pop(0)
                    idle[key] = end[spot] = arrived[name]
                moved = True
    if any(head[rank] < len(program) for rank, program in enumerate(programs)):
        return None
    if any(queues.values()):
        return None
    return [end[r, i] for r, program in enumerate(programs) for i in range(len(program))]


PLAIN = [
    entry
    for entry in ENTRIES
    if entry.name in ("gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-v", "chimera", "hanayo")
]


@each_mode
@settings(max_examples=60)
@given(data=st.data(), p2p=st.sampled_from([0.0, 0.25, 1.5]))
def test_times_and_deadlocks_are_those_of_a_run(mode: str, data: st.DataObject, p2p: float) -> None:
    schedule = data.draw(made(data.draw(st.sampled_from(PLAIN)), ranks=4, microbatches=8))
    plain = [[text for text in row if "OPT" not in text] for row in schedule.rows()]
    policy = data.draw(st.sampled_from(["eager", "just-in-time", "queued"]))
    schedule = Schedule.from_text(plain, schedule.placement, schedule.units)
    assume(not db.check(schedule).problems and not pairs_of(schedule.actions).any())
    lowered = add_transfers(schedule, policy=policy)
    expected = run_queues(lowered, mode, p2p)
    assert expected is not None or policy == "just-in-time"
    if expected is None:
        with pytest.raises(ScheduleError, match="deadlock"):
            simulate(lowered, Costs(p2p=p2p), mode)
    else:
        assert simulate(lowered, Costs(p2p=p2p), mode).end.tolist() == expected


@each_family_and("mode", MODES)
@settings(max_examples=8)
@given(data=st.data(), policy=st.sampled_from(["eager", "queued"]))
def test_transfers_in_one_order_never_deadlock(
    entry: Entry, mode: str, data: st.DataObject, policy: str
) -> None:
    schedule = data.draw(made(entry, ranks=8, microbatches=16))
    queued = simulate(add_transfers(schedule, policy=policy), Costs(p2p=0.5), mode)
    assert queued.makespan >= simulate(schedule, Costs(p2p=0.5)).makespan


@each_family_and("mode", MODES)
@settings(max_examples=8)
@given(data=st.data())
def test_times_are_those_of_the_rules(entry: Entry, mode: str, data: st.DataObject) -> None:
    schedule = data.draw(made(entry, ranks=8, microbatches=16))
    if data.draw(st.booleans()):
        policy = data.draw(st.sampled_from(["eager", "queued"]))
        schedule = add_transfers(schedule, policy=policy)
    costs = data.draw(costs_for(schedule))
    swept = evaluate_graph(compile_graph(schedule, mode), costs)
    ruled = evaluate_graph(by_rules(schedule, mode), costs)
    assert ruled.end.tolist() == swept.end.tolist()
    assert ruled.start.tolist() == swept.start.tolist()
    assert ruled.slack.tolist() == swept.slack.tolist()
    assert ruled.graph.completed == swept.graph.completed
    assert sorted(ruled.graph.cost_names()) == sorted(swept.graph.cost_names())
    for one, other in ((ruled, swept), (swept, ruled)):
        sent = one.graph.sent > 0
        assert one.node_end[one.graph.sent[sent]].tolist() == (
            other.node_end[other.graph.sent[sent]].tolist()
        )


def test_deadlocks_of_thousands_of_transfers_are_explained() -> None:
    lowered = add_transfers(make("1f1b", ranks=4, microbatches=300), policy="queued")
    rows = lowered.rows()
    here = rows[2].index("2RECV_F57")
    rows[2][here : here + 2] = "2SEND_B55", "2RECV_F57"
    stuck = Schedule.from_text(rows, lowered.placement, 300)
    for mode in ("pair", "group"):
        with pytest.raises(ScheduleError) as caught:
            simulate(stuck, p2p_mode=mode)
        assert caught.value.chain == (
            "1SEND_F57 (rank 1)", "2RECV_F57 (rank 2)", "2SEND_B55 (rank 2)", "1RECV_B55 (rank 1)",
        )  # fmt: skip


def test_a_schedule_without_transfers_is_given_some() -> None:
    schedule = make("1f1b", ranks=4, microbatches=8)
    for mode in ("pair", "group"):
        lowered = add_transfers(schedule, policy="queued")
        costs = Costs(F=1, B=2, p2p=0.5)
        assert simulate(schedule, costs, mode).makespan == simulate(lowered, costs, mode).makespan
        assert len(simulate(schedule, costs, mode).end) == len(schedule)


def test_the_circle_of_a_deadlock_names_both_ends_of_transfers() -> None:
    # Megatron's groups are posted at once; one by one each rank waits for the other to receive.
    groups = add_transfers(make("1f1b", ranks=2, microbatches=2), policy="just-in-time")
    assert db.check(groups, p2p_mode="blocking")
    (problem,) = db.check(groups).problems
    assert problem.code == "deadlock"
    assert "queued between each two ranks, as by NCCL (pair)" in problem.message
    assert set(problem.actions) == {"0SEND_F1", "1RECV_F1", "1SEND_B0", "0RECV_B0"}
    assert "1RECV_F1 (rank 1) is queued behind 1SEND_B0 (rank 1)" in problem.message
    assert "move 1RECV_F1 before 1SEND_B0 on rank 1" in problem.fix
    assert "move 0RECV_B0 before 0SEND_F1 on rank 0" in problem.fix


def test_what_only_one_queue_for_all_peers_stops_is_said() -> None:
    # Three ranks in a ring: each sends to the next before it receives from the one before.
    placement = db.Placement.explicit([0, 1, 2, 0, 1, 2])
    rows = [
        "0F0 0SEND_F0 3RECV_F0 3F0 3SEND_F0",
        "1RECV_F0 1F0 1SEND_F0 4RECV_F0 4F0 4SEND_F0",
        "2RECV_F0 2F0 2SEND_F0 5RECV_F0 5F0",
    ]
    good = Schedule.from_text([row.split() for row in rows], placement, 1)
    for mode in ("pair", "group"):
        assert simulate(good, p2p_mode=mode).makespan == 6
    rows[0] = "0F0 3RECV_F0 0SEND_F0 3F0 3SEND_F0"
    crossed = Schedule.from_text([row.split() for row in rows], placement, 1)
    assert simulate(crossed, p2p_mode="pair").makespan == 6
    with pytest.raises(ScheduleError, match=r"0SEND_F0 \(rank 0\) is queued behind 3RECV_F0"):
        simulate(crossed, p2p_mode="group")


def test_a_wait_behind_another_transfer_is_a_warning_with_its_cost() -> None:
    # Rank 1 asks for a gradient that rank 2 has at 5 before it asks for what rank 0 has at 2.
    rows = [
        "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1",
        "1RECV_F0 1F0 1SEND_F0 1RECV_B0 1RECV_F1 1F1 1SEND_F1 1B0 1SEND_B0 1RECV_B1 1B1 1SEND_B1",
        "2RECV_F0 2F0 2B0 2SEND_B0 2RECV_F1 2F1 2B1 2SEND_B1",
    ]
    schedule = Schedule.from_text([row.split() for row in rows], db.Placement.linear(3), 2)
    assert [simulate(schedule, p2p_mode=mode).makespan for mode in ("overlapped", "group")] == [
        12, 13,
    ]  # fmt: skip
    report = db.check(schedule)
    assert report
    (warning,) = report.warnings
    assert (warning.code, warning.rank, warning.position) == ("head-of-line", 1, 4)
    assert warning.actions == ("1RECV_F1", "1RECV_B0")
    assert warning.message == (
        "rank 1, action 4: 1RECV_F1 could start at 2 but is queued behind 1RECV_B0 (action 3), "
        "whose data is sent at 5; with one queue per rank such waits make the schedule 1 (8.33 %) "
        "longer"
    )
    assert str(report).endswith(f"\nwarning: {warning}")
    assert report.to_dict()["warnings"] == [warning.to_dict()]
    assert not db.check(schedule, p2p_mode="pair").warnings
    assert not db.check(schedule, p2p_mode="overlapped").warnings
