"""Skip connections: what stages carry to others that are not the next, and its gradients."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import debubble as db
from debubble import Costs, Placement, Schedule
from debubble.analysis import metrics
from debubble.analysis.measures import boundary_transfers, p2p_volume
from debubble.core.errors import FormatError, ParameterError, ScheduleError
from debubble.core.kinds import CARRY_KINDS
from debubble.engine.modes import P2P_MODES
from debubble.engine.validate import has
from debubble.interchange import launchers
from debubble.interchange.read_trace import load_trace
from debubble.interchange.schedule_json import from_json
from debubble.interchange.torch_csv import to_csv
from debubble.interchange.trace_events import trace_text, write_trace
from debubble.lowering.carries import add_carries
from debubble.lowering.transfers import RECEIVE_POLICIES, TRANSFER_POLICIES, add_transfers
from debubble.megatron.refused import refuse
from debubble.schedules.registry import Entry
from debubble.view import captions
from tests.command import call
from tests.strategies import ENTRIES, carrying, costs_for, made

COSTS = Costs(F=1, B=2, p2p=1, p2p_carry=9)


def three(microbatches: int = 1, **more: Any) -> Schedule:
    return db.make("1f1b", ranks=3, microbatches=microbatches, carry=[(0, 2)], **more)


def test_a_forward_and_a_backward_wait_for_what_is_carried() -> None:
    # 0F0 ends at 1, so that stage 2 has what it carries at 10, the output of stage 1 at 4. 2B0 ends
    # at 13, so that stage 0 has the carried gradient at 22, that of stage 1 at 17.
    timeline = db.simulate(three(), COSTS)
    assert timeline.start.tolist() == [0, 22, 2, 14, 10, 11]
    assert timeline.makespan == 24


def test_it_is_one_message_and_one_for_its_gradient() -> None:
    plain = db.make("1f1b", ranks=3, microbatches=4)
    assert boundary_transfers(plain) == 16
    assert boundary_transfers(three(4)) == 24


def test_it_takes_the_time_of_a_message_to_the_next_stage_unless_given() -> None:
    costs = Costs(p2p=[[0, 1, 7], [1, 0, 1], [7, 1, 0]], message=2, bandwidth=1)
    names = db.simulate(three(), costs).graph.cost_names()
    timeline = db.simulate(three(), costs)
    paid = dict(zip(names, timeline.costs.tolist(), strict=True))
    assert paid["p2p_carry of stage 0 to stage 2"] == paid["p2p_carry of stage 2 to stage 0"] == 9


def test_no_gradient_is_carried_to_stages_without_a_backward() -> None:
    timeline = db.simulate(three(), Costs(p2p_carry=9, frozen=[1, 0, 0]))
    assert timeline.costs[timeline.graph.dynamic_costs :].tolist()[-1] == 0


def test_gradients_that_nobody_needs_are_not_counted() -> None:
    timeline = db.simulate(three(4), Costs(frozen=[1, 0, 0], p2p_carry=9))
    # Of 24, without those of stages 1 and 2 to stage 0.
    assert boundary_transfers(timeline.schedule, timeline.table) == 16
    assert p2p_volume(timeline) == 16


@pytest.mark.parametrize("name", ["1f1b", "zb-v"])
def test_transfers_are_free_only_if_carries_are_too(name: str) -> None:
    # Stages 0 and 5 of the V are on one rank.
    carry = [(0, 2)] if name == "1f1b" else [(0, 5)]
    schedule = db.make(name, ranks=3, microbatches=4, carry=carry)
    paid = db.simulate(schedule, Costs(p2p_carry=0.4))
    free = db.simulate(schedule, Costs(p2p_carry=0.0))
    for timeline, takes_time in ((paid, name == "1f1b"), (free, False)):
        assert metrics.transfers_take_time(timeline) == takes_time
        line = metrics.in_short(metrics.conventions(timeline))[-1]
        assert ("transfers overlapped and free" in line) != takes_time
        assert ("p2p: transfers take no time" in captions.conventions([timeline])) != takes_time


def test_stages_of_one_rank_send_nothing() -> None:
    schedule = db.make("zb-v", ranks=3, microbatches=4, carry=[(0, 5), (1, 4)])
    assert not has(add_transfers(schedule), CARRY_KINDS)
    plain = replace(schedule, carries=())
    assert db.simulate(schedule, COSTS).makespan == db.simulate(plain, COSTS).makespan


@settings(max_examples=12)
@given(data=st.data(), entry=st.sampled_from(ENTRIES))
def test_carrying_costs_at_least_nothing(data: st.DataObject, entry: Entry) -> None:
    plain = data.draw(made(entry, ranks=4, microbatches=8))
    schedule = data.draw(carrying(plain))
    costs = data.draw(costs_for(schedule))
    mode = data.draw(st.sampled_from(["overlapped", "channel"]))
    free = db.simulate(schedule, replace(costs, p2p_carry=0.0), mode)
    assert free.end.tolist() == db.simulate(plain, costs, mode).end.tolist()
    times = [db.simulate(schedule, replace(costs, p2p_carry=time), mode).end for time in (0.5, 2.0)]
    assert (free.end <= times[0]).all()
    assert (times[0] <= times[1]).all()


@settings(max_examples=12)
@given(data=st.data(), entry=st.sampled_from(ENTRIES))
def test_no_rendezvous_of_a_lowered_schedule_locks_up(data: st.DataObject, entry: Entry) -> None:
    schedule = data.draw(carrying(data.draw(made(entry, ranks=4, microbatches=8))))
    policy = data.draw(st.sampled_from(RECEIVE_POLICIES))
    lowered = add_transfers(schedule, policy=policy)
    modes = P2P_MODES if policy != "just-in-time" else ("overlapped", "channel", "blocking")
    for mode in modes:
        report = db.check(lowered, p2p_mode=mode)
        assert report.ok, str(report)


def test_two_that_carry_each_other_on_chain() -> None:
    schedule = db.make("1f1b", ranks=5, microbatches=2, carry=[(0, 2), (2, 4)])
    assert db.check(add_transfers(schedule)).ok


@pytest.mark.parametrize(
    ("carries", "message"),
    [
        ([(1, 1)], r"carries\[0\] is .*; a stage carries to a later one: \[0, 1\]"),
        ([(2, 0)], r"carries\[0\] is \[2, 0\]; a stage carries to a later one: \[0, 2\]"),
        ([(0, 3)], "carries go to stage 3; there are 3 stages, 0 to 2"),
        ([(0, 1), (0, 2)], "stage 0 carries to two stages, 1 and 2; give one, and hand on several"),
        ([(0, 2), (1, 2)], "stage 2 gets what is carried from two stages, 0 and 1; give one"),
        ("0:2", r"carries is .*; give pairs of a stage and a later one: \[\[0, 5\]\]"),
        ([(0, 1.5)], r"give pairs of a stage and a later one"),
    ],
)
def test_what_cannot_be_carried_is_refused(carries: Any, message: str) -> None:
    plain = db.make("1f1b", ranks=3, microbatches=2)
    with pytest.raises(ParameterError, match=message):
        replace(plain, carries=carries)


@pytest.mark.parametrize("pair", [[2, 0], [0, 2, 3], [0, 2.0]])
def test_a_wrong_pair_of_a_file_is_shown(pair: list[Any]) -> None:
    data = db.make("1f1b", ranks=3, microbatches=2).to_dict() | {"carries": [pair]}
    with pytest.raises(FormatError, match=re.escape(f"carries[0] is {pair}; ")):
        from_json(json.dumps(data), "x.json")


@pytest.mark.parametrize(
    ("carry", "message"),
    [
        ((0, 2), r"carry is \(0, 2\); give pairs of stages, from and to: \[\(0, 5\), \(1, 4\)\]"),
        ({0: 2}, r"carry is {0: 2}; give pairs"),
        (5, "carry is 5; give pairs"),
        ("0-2", "carry is '0-2'; give pairs of stages, from and to: 0:5,1:4"),
        ([(0, 1.5)], r"carry is \[\(0, 1.5\)\]; give pairs"),
        ("2:0", "carry is 2:0; a stage carries to a later one: 0:2"),
    ],
)
def test_a_carry_that_is_no_pairs_is_refused(carry: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        db.make("1f1b", ranks=4, microbatches=4, carry=carry)
    compared = db.compare(["1f1b"], ranks=4, microbatches=4, carry=carry)
    assert re.search(message, " ".join(str(compared).split()))


def test_a_carry_is_a_text_or_pairs() -> None:
    assert db.make("1f1b", ranks=3, microbatches=1, carry="0:2") == three()
    assert db.make("1f1b", ranks=3, microbatches=1, carry=[]).carries == ()


def test_a_lowering_that_is_typed_twice_is_refused() -> None:
    result = call("simulate", "1f1b", "-p", 4, "-m", 4, "--carry", "0:2", "--carry", "1:3")
    assert result.code == 2
    assert "--carry is given 2 times: 0:2 and 1:3; give one value (skip conn" in result.err


def test_one_stage_is_no_plural() -> None:
    with pytest.raises(ParameterError, match="carries go to stage 9; there is 1 stage, 0"):
        db.make("1f1b", ranks=1, microbatches=4, carry="0:9")


def test_a_schedule_with_transfers_takes_no_carry() -> None:
    lowered = db.make("1f1b", ranks=3, microbatches=2, transfers="eager")
    with pytest.raises(ScheduleError, match="has transfers already: 0SEND_F0"):
        add_carries(lowered, [(0, 2)])


def test_ends_that_nothing_is_carried_over_are_found() -> None:
    rows = [["0F0", "0SEND_C0", "0B0"], ["1RECV_C0", "1F0", "1B0"]]
    schedule = Schedule.from_text(rows, Placement.linear(2), 1)
    text = str(db.check(schedule))
    assert "nothing is carried from or to stage 0 that way" in text


SURFACES: dict[str, Callable[[Schedule, Any], object]] = {
    "torch-csv": lambda schedule, _: to_csv(schedule),
    "torch-csv-comms": lambda schedule, path: add_transfers(schedule).save(f"{path}.csv"),
    "torchtitan": lambda schedule, _: launchers.torchtitan(schedule, "x.csv", None),
    "automodel": lambda schedule, _: launchers.automodel(schedule, "x.csv", None),
    "megatron": lambda schedule, _: launchers.megatron(schedule),
    "debubble.megatron": lambda schedule, _: refuse(None, schedule),
}
"""Everything outside of debubble's engine that takes a schedule, and no carries."""


@pytest.mark.parametrize("surface", SURFACES)
def test_no_surface_drops_a_carry(surface: str, tmp_path: Any) -> None:
    call = SURFACES[surface]
    with pytest.raises((ParameterError, FormatError), match=r"carr(y|ies)"):
        call(three(4), tmp_path / "x")


@pytest.mark.parametrize("policy", TRANSFER_POLICIES)
def test_every_policy_places_carries_or_refuses(policy: Any) -> None:
    if policy in RECEIVE_POLICIES:
        assert has(add_transfers(three(4), policy=policy), CARRY_KINDS)
        return
    with pytest.raises(ParameterError, match="places no carries"):
        add_transfers(three(4), policy=policy)


def test_other_skip_connections_are_another_model() -> None:
    rows = [three(4), db.make("1f1b", ranks=3, microbatches=4)]
    assert "other skip connections" in str(db.compare(rows))


def test_so_are_the_same_stages_of_a_finer_cut_but_not_the_same_shares() -> None:
    four = db.make("1f1b", ranks=4, microbatches=4, carry=[(0, 3)])
    eight = [db.make("zb-v", ranks=4, microbatches=4, carry=[there]) for there in ((0, 3), (1, 6))]
    costs = Costs.per_rank(F=1, I=1, W=1)
    assert "so none is fastest" in db.compare([four, eight[0]], costs=costs).headline
    assert "zb-v is fastest" in db.compare([four, eight[1]], costs=costs).headline


def test_a_trace_has_the_carries_of_its_schedule(tmp_path: Any) -> None:
    path = tmp_path / "run.json"
    write_trace(trace_text(db.simulate(three(4), COSTS)), path)
    assert load_trace(path)[0].schedule.carries == ((0, 2),)
