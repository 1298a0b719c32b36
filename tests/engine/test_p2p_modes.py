"""Transfers of all modes against each other, formulas and a plain simulator."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from debubble import Costs, Kind, Schedule, ScheduleError, make, simulate
from debubble.core.actions import TRANSFER_KINDS, kinds_of, unpack
from debubble.engine.modes import P2P_MODES, QUEUES
from debubble.engine.timeline import Timeline
from debubble.lowering.transfers import RECEIVE_POLICIES, add_transfers
from debubble.schedules.registry import Entry
from tests import oracle_modes
from tests.kernels import run_by
from tests.pairs import each_family, each_sort
from tests.strategies import TIMES, carrying, costs_for, made


def in_order(schedule: Schedule, times: dict[tuple[int, int], float]) -> list[float]:
    return [
        times[rank, index]
        for rank in range(schedule.ranks)
        for index in range(schedule.offsets[rank + 1] - schedule.offsets[rank])
    ]


@each_family
@settings(max_examples=4)
@given(data=st.data())
def test_every_mode_equals_the_plain_simulator(entry: Entry, data: st.DataObject) -> None:
    schedule = data.draw(carrying(data.draw(made(entry, ranks=8, microbatches=16))))
    costs = data.draw(costs_for(schedule))
    mode = data.draw(st.sampled_from(P2P_MODES))
    policy = data.draw(st.sampled_from(RECEIVE_POLICIES))
    lowered = add_transfers(schedule, policy=policy)
    run = oracle_modes.simulate(lowered, costs, mode)
    if run is None:
        assert policy == "just-in-time"
        assert mode in QUEUES
        with pytest.raises(ScheduleError, match="a deadlock"):
            simulate(lowered, costs, mode)
        return
    timeline = simulate(lowered, costs, mode)
    assert timeline.start.tolist() == in_order(lowered, run.start)
    assert timeline.end.tolist() == in_order(lowered, run.end)
    if mode == "blocking":
        assert timeline.makespan == max(run.free)
    values = dict(zip(timeline.graph.cost_names(), timeline.costs, strict=True))
    paid = sum(values[name] * count for name, count in timeline.sensitivity().items())
    assert paid == pytest.approx(timeline.makespan)
    sent, carried = timeline.graph.sent, timeline.graph.carried
    if mode == "overlapped":
        assert not len(sent)
        assert not len(carried)
        return
    for nodes, words in ((sent, "FB"), (carried, ("C", "CB"))):
        for position in np.flatnonzero(nodes).tolist():
            stage, kind, unit = unpack(int(lowered.actions[position]))
            over = run.over[words[kind != Kind.F], unit, stage]
            assert timeline.node_end[nodes[position]] == over
    assert np.count_nonzero(sent) + np.count_nonzero(carried) == len(run.over)


@pytest.mark.slow
@each_sort
@settings(max_examples=4)
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


@each_sort
@settings(max_examples=6)
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
@each_sort
@settings(max_examples=4)
@given(data=st.data())
def test_free_transfers_need_no_channel(entry: Entry, data: st.DataObject) -> None:
    schedule = data.draw(made(entry, ranks=8, microbatches=16))
    per_stage = st.lists(TIMES, min_size=schedule.stages, max_size=schedule.stages)
    costs = Costs(F=data.draw(per_stage), I=data.draw(per_stage), W=data.draw(per_stage))
    overlapped = simulate(schedule, costs)
    assert simulate(schedule, costs, "channel").end.tolist() == overlapped.end.tolist()


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "1f1b-overlap"])
@settings(max_examples=40)
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
    # The norm goes down two links, and back to rank 0, which is the last to have its gradients.
    once = (4 + 2) * 12 + (2 * 4 + 2 * 3 - 5) * 0.25 + 3 * 0.25 + 2
    assert simulate(schedule, costs, "blocking").makespan == iterations * once


@pytest.mark.slow
@each_sort
@settings(max_examples=4)
@given(data=st.data())
def test_compiled_kernel_equals_its_python_source(entry: Entry, data: st.DataObject) -> None:
    schedule = data.draw(made(entry, ranks=4, microbatches=8))
    for mode in ("overlapped", "channel", "blocking"):
        graphs = []
        for compiled in (True, False):
            with run_by(compiled=compiled):
                graphs.append(simulate(add_transfers(schedule), None, mode).graph)
        for name in ("first", "second", "cost", "node", "sent", "dynamic_a", "dynamic_b"):
            assert np.array_equal(getattr(graphs[0], name), getattr(graphs[1], name)), name
