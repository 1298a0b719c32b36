"""Overlapped, channel and blocking transfers against each other, formulas and a plain simulator."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from debubble import Costs, Kind, Schedule, make, simulate
from debubble.core.actions import COPY_KINDS, PAIR_SHIFT, TRANSFER_KINDS, kinds_of, unpack
from debubble.engine.timeline import Timeline
from debubble.lowering.transfers import RECEIVE_POLICIES, add_transfers
from debubble.schedules.registry import Entry
from tests.oracle import copy_of, copy_time, link_time, place_of, shard_arrival
from tests.pairs import each_family
from tests.strategies import TIMES, costs_for, made


def blocking_oracle(schedule: Schedule, costs: Costs) -> tuple[dict, dict, float]:
    """Start and end by (rank, index), and the makespan, of a schedule with transfers.

    Ranks post a whole group, links take transfers in the order of the sends, and whatever can
    happen happens, until nothing is left.
    """
    table = costs.table(schedule)
    ranks = schedule.ranks
    codes = [schedule.program(rank).tolist() for rank in range(ranks)]
    programs = [[unpack(code) for code in row] for row in codes]

    def ends(rank: int, index: int) -> tuple[tuple[int, int], tuple[str, int, int]]:
        """The link and the name of the transfer that an action is one end of."""
        stage, kind, microbatch = programs[rank][index]
        step = 1 if kind in (Kind.SEND_F, Kind.RECV_B) else -1
        row = schedule.placement.table[copy_of(schedule, microbatch)]
        other = row[stage + step]
        name = kind.name[-1], microbatch
        if kind in (Kind.SEND_F, Kind.SEND_B):
            return (rank, other), (*name, stage)
        return (other, rank), (*name, stage + step)

    line = defaultdict(list)
    for rank, program in enumerate(programs):
        for index, action in enumerate(program):
            if action.kind in (Kind.SEND_F, Kind.SEND_B):
                link, name = ends(rank, index)
                line[link].append(name)

    head, free = [0] * ranks, [0.0] * ranks
    posted: list[list[int]] = [[] for _ in range(ranks)]
    posts: dict[tuple[str, int, int], list[float]] = defaultdict(list)
    link_free: dict[tuple[int, int], float] = defaultdict(float)
    over: dict[tuple[str, int, int], tuple[float, float]] = {}
    reduced: list[list[float]] = [[] for _ in range(ranks)]
    start, end = {}, {}
    stream, reloaded = [0.0] * ranks, {}

    def run(rank: int, indices: list[int], begin: float, took: float) -> None:
        for index in indices:
            start[rank, index], end[rank, index] = begin, begin + took
        free[rank] = begin + took
        head[rank] += len(indices)

    moved = True
    while moved:
        moved = False
        for rank, program in enumerate(programs):
            if head[rank] == len(program):
                continue
            index = head[rank]
            action = program[index]
            if posted[rank]:
                names = [ends(rank, member)[1] for member in posted[rank]]
                if all(name in over for name in names):
                    for member, name in zip(posted[rank], names, strict=True):
                        start[rank, member], end[rank, member] = over[name]
                    free[rank] = max(over[name][1] for name in names)
                    head[rank] += len(names)
                    posted[rank] = []
                    moved = True
            elif action.kind in TRANSFER_KINDS:
                while index < len(program) and program[index].kind in TRANSFER_KINDS:
                    posted[rank].append(index)
                    posts[ends(rank, index)[1]].append(free[rank])
                    index += 1
                moved = True
            elif action.kind in COPY_KINDS:
                begin = max(free[rank], stream[rank])
                took = copy_time(schedule, costs, table, action, rank)
                stream[rank] = begin + took
                start[rank, index], end[rank, index] = begin, stream[rank]
                if action.kind == Kind.RELOAD:
                    reloaded[action.stage, action.microbatch] = stream[rank]
                head[rank] += 1
                moved = True
            elif action.kind == Kind.OPT and schedule.sync == "global":
                waiting = [
                    head[r] < len(row) and row[head[r]].kind == Kind.OPT
                    for r, row in enumerate(programs)
                ]
                if all(waiting):
                    together = max(free)
                    for each in range(ranks):
                        run(each, [head[each]], together, table.optimizer[each])
                    moved = True
            else:
                paired = (codes[rank][index] >> PAIR_SHIFT) & 3 == 1
                members = [index, index + 1] if paired else [index]
                places = [
                    (int(program[member].kind), place_of(schedule, program[member]))
                    for member in members
                ]
                if action.kind == Kind.OPT:
                    if schedule.sync == "post-validation":
                        norms = reduced[rank - 1] if rank else [0.0] * schedule.iterations
                        if len(norms) == len(reduced[rank]):
                            continue
                        wait = table.link[rank - 1, rank] if rank else 0.0
                        free[rank] = max(free[rank], norms[len(reduced[rank])] + wait)
                        reduced[rank].append(free[rank])
                    took = table.optimizer[rank]
                elif paired:
                    took = table.pair(*places)
                else:
                    took = table.duration[places[0]]
                back = [
                    reloaded.get((program[member].stage, program[member].microbatch), 0.0)
                    for member in members
                    if program[member].kind in (Kind.I, Kind.B, Kind.R)
                ]
                finished = {}
                if schedule.vocabulary:
                    finished = {programs[r][i]: (when, r) for (r, i), when in end.items()}
                shards = [
                    shard_arrival(schedule, costs, finished, program[member], rank)
                    for member in members
                ]
                if None in shards:
                    continue
                run(rank, members, max([free[rank], *back, *shards]), took)
                moved = True
        for link, names in line.items():
            while names and len(posts[names[0]]) == 2:
                name = names.pop(0)
                begin = max(*posts[name], link_free[link])
                took = link_time(schedule, costs, *link, name[1] % schedule.slices)
                over[name] = (begin, begin + took)
                link_free[link] = over[name][1]
                moved = True
    assert all(head[rank] == len(program) for rank, program in enumerate(programs))
    return start, end, max(free)


def in_order(schedule: Schedule, times: dict[tuple[int, int], float]) -> list[float]:
    return [
        times[rank, index]
        for rank in range(schedule.ranks)
        for index in range(len(schedule.program(rank)))
    ]


@each_family
@settings(max_examples=12)
@given(data=st.data())
def test_blocking_equals_the_plain_simulator(entry: Entry, data: st.DataObject) -> None:
    schedule = data.draw(made(entry, ranks=8, microbatches=16))
    costs = data.draw(costs_for(schedule))
    policy = data.draw(st.sampled_from(RECEIVE_POLICIES))
    lowered = add_transfers(schedule, policy=policy)
    start, end, makespan = blocking_oracle(lowered, costs)
    timeline = simulate(lowered, costs, "blocking")
    assert timeline.makespan == makespan
    assert timeline.start.tolist() == in_order(lowered, start)
    assert timeline.end.tolist() == in_order(lowered, end)


@pytest.mark.slow
@each_family
@settings(max_examples=15)
@given(data=st.data())
def test_blocking_gives_a_plain_schedule_late_receives(entry: Entry, data: st.DataObject) -> None:
    schedule = data.draw(made(entry, ranks=8, microbatches=16))
    costs = data.draw(costs_for(schedule))
    plain = simulate(schedule, costs, "blocking")
    lowered = simulate(add_transfers(schedule, policy="just-in-time"), costs, "blocking")
    compute = ~np.isin(kinds_of(lowered.schedule.actions), TRANSFER_KINDS)
    assert plain.schedule is schedule
    assert plain.start.tolist() == lowered.start[compute].tolist()
    assert plain.end.tolist() == lowered.end[compute].tolist()
    assert plain.slack.tolist() == lowered.slack[compute].tolist()
    for name in ("busy", "stage_time", "peak_activation"):
        assert getattr(plain, name).tolist() == getattr(lowered, name).tolist()
    for name in ("makespan", "bubble_ratio", "stage_bubble_rate", "overhead"):
        assert getattr(plain, name) == getattr(lowered, name)
    assert plain.sensitivity() == lowered.sensitivity()


@each_family
@settings(max_examples=20)
@given(data=st.data())
def test_blocking_is_above_channel_is_above_overlapped(entry: Entry, data: st.DataObject) -> None:
    schedule = data.draw(made(entry, ranks=8, microbatches=16))
    costs = data.draw(costs_for(schedule))
    blocking, channel, overlapped = (
        simulate(schedule, costs, mode) for mode in ("blocking", "channel", "overlapped")
    )
    assert (blocking.end >= channel.end).all()
    assert (channel.end >= overlapped.end).all()


@pytest.mark.slow
@each_family
@settings(max_examples=10)
@given(data=st.data())
def test_free_transfers_need_no_channel(entry: Entry, data: st.DataObject) -> None:
    schedule = data.draw(made(entry, ranks=8, microbatches=16))
    per_stage = st.lists(TIMES, min_size=schedule.stages, max_size=schedule.stages)
    costs = Costs(F=data.draw(per_stage), I=data.draw(per_stage), W=data.draw(per_stage))
    overlapped = simulate(schedule, costs)
    assert simulate(schedule, costs, "channel").end.tolist() == overlapped.end.tolist()


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "1f1b-overlap"])
@settings(max_examples=60)
@given(data=st.data())
def test_a_rendezvous_that_takes_no_time_costs_these_schedules_nothing(
    name: str, data: st.DataObject
) -> None:
    ranks = data.draw(st.integers(1, 8))
    schedule = make(name, ranks=ranks, microbatches=data.draw(st.integers(1, 16)))
    per_stage = st.lists(TIMES, min_size=ranks, max_size=ranks)
    costs = Costs(F=data.draw(per_stage), I=data.draw(per_stage), W=data.draw(per_stage))
    assert simulate(schedule, costs, "blocking").makespan == simulate(schedule, costs).makespan


def test_a_rendezvous_that_takes_no_time_can_still_make_a_sender_wait() -> None:
    # Rank 1 holds 1SEND_B1 from 7 on, rank 0 is busy with 0W0 until 9: 1W0 starts two late, and
    # one of the two is lost.
    schedule = make("zb-h1", ranks=2, microbatches=2)
    costs = Costs(F=1, I=2, W=3)
    assert simulate(schedule, costs).makespan == 14
    assert simulate(schedule, costs, "blocking").makespan == 15


@given(p=st.integers(1, 8), m=st.integers(1, 24), F=st.integers(4, 20), B=st.integers(4, 20))
def test_blocking_1f1b_has_a_closed_form(p: int, m: int, F: int, B: int) -> None:
    """Every microbatch pays two transfers in the steady state, as in Megatron without overlap."""
    c = 0.25
    makespan = simulate(
        make("1f1b", ranks=p, microbatches=m), Costs(F=F, B=B, p2p=c), "blocking"
    ).makespan
    if p == 1 or m == 1:
        transfers = 2 * (p - 1)
    elif p == 2:
        transfers = m + 1
    else:
        transfers = 2 * m + 2 * p - 5
    assert makespan == (m + p - 1) * (F + B) + transfers * c


@given(p=st.integers(2, 8), m=st.integers(1, 24))
def test_blocking_gpipe_pays_for_every_forward_and_backward(p: int, m: int) -> None:
    timeline = simulate(
        make("gpipe", ranks=p, microbatches=m), Costs(F=4, B=8, p2p=0.25), "blocking"
    )
    transfers = 2 * (m + p - 2)
    assert timeline.makespan == (m + p - 1) * 12 + 0.25 * transfers


def test_both_ranks_are_held_up_while_a_transfer_runs() -> None:
    schedule = make("gpipe", ranks=2, microbatches=2)
    timeline = simulate(schedule, Costs(F=1, B=1, p2p=10), "blocking")
    assert timeline.start.tolist() == [0, 11, 34, 45, 11, 22, 23, 34]


def test_transfers_of_one_group_run_at_the_same_time() -> None:
    # Ranks 0 and 1 hand 1F1B's steady state to each other in one exchange.
    schedule = make("1f1b", ranks=2, microbatches=3)
    lowered = add_transfers(schedule, policy="just-in-time")
    timeline = simulate(lowered, Costs(F=1, B=1, p2p=10), "blocking")
    cells = [cell for row in lowered.rows() for cell in row]
    starts = dict(zip(cells, timeline.start.tolist(), strict=True))
    assert starts["0SEND_F1"] == starts["1SEND_B0"] == 13
    assert starts["1RECV_F1"] == starts["0RECV_B0"] == 13
    assert starts["0B0"] == starts["1F1"] == 23


def test_transfers_of_one_link_run_one_by_one_in_one_group() -> None:
    schedule = make("dualpipe-v", ranks=2, microbatches=4)
    timeline = simulate(add_transfers(schedule), Costs(F=1, B=2, p2p=5), "blocking")
    by_link = defaultdict(list)
    for position, code in enumerate(timeline.schedule.actions.tolist()):
        action = unpack(code)
        if action.kind in (Kind.SEND_F, Kind.SEND_B):
            by_link[timeline.schedule.rank_of(position)].append(
                (timeline.start[position], timeline.end[position])
            )
    gaps = [b - a for spans in by_link.values() for (_, a), (b, _) in pairwise(spans)]
    assert min(gaps) == 0
    assert all(gap >= 0 for gap in gaps)


def test_names_of_what_the_critical_path_pays_include_links() -> None:
    schedule = make("1f1b", ranks=2, microbatches=1)
    for mode in ("overlapped", "channel", "blocking"):
        timeline = simulate(schedule, Costs(F=1, B=2, p2p=0.5), mode)
        paid = timeline.sensitivity()
        assert paid["p2p 0 → 1"] == paid["p2p 1 → 0"] == 1


def test_sent_names_the_transfer_of_every_result() -> None:
    schedule = make("1f1b", ranks=2, microbatches=2)
    for mode in ("channel", "blocking"):
        timeline: Timeline = simulate(schedule, Costs(F=1, B=2, p2p=0.5), mode)
        sent = timeline.graph.sent
        moves = [
            cell
            for cell, node in zip(
                [cell for row in schedule.rows() for cell in row], sent.tolist(), strict=True
            )
            if node
        ]
        assert moves == ["0F0", "0F1", "1B0", "1B1"]
        nodes = sent[sent > 0]
        assert (timeline.node_end[nodes] >= timeline.end[sent > 0] + 0.5).all()


@pytest.mark.parametrize("iterations", [1, 3])
def test_steps_of_several_iterations_under_rendezvous(iterations: int) -> None:
    schedule = make("1f1b", ranks=3, microbatches=4, iterations=iterations)
    costs = Costs(F=4, B=8, OPT=2, p2p=0.25)
    once = (4 + 2) * 12 + (2 * 4 + 2 * 3 - 5) * 0.25 + 2
    assert simulate(schedule, costs, "blocking").makespan == iterations * once


@pytest.mark.slow
@each_family
@settings(max_examples=6)
@given(data=st.data())
def test_compiled_kernel_equals_its_python_source(entry: Entry, data: st.DataObject) -> None:
    from debubble.engine import jit

    schedule = data.draw(made(entry, ranks=6, microbatches=12))
    for mode in ("overlapped", "channel", "blocking"):
        graphs = []
        for below in (0, 10**9):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(jit, "INTERPRET_BELOW", below)
                patch.setattr(jit, "INTERPRET_WHEN_LOADED", below)
                graphs.append(simulate(add_transfers(schedule), None, mode).graph)
        for name in ("first", "second", "cost", "node", "sent", "dynamic_a", "dynamic_b"):
            assert np.array_equal(getattr(graphs[0], name), getattr(graphs[1], name)), name
