"""What actions wait for, against the plain simulator's own statement of it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import debubble as db
from debubble.core.actions import computes, kinds_of, unpack
from debubble.core.kinds import COMPUTE_KINDS, KINDS, TRANSFER_KINDS, WORK_KINDS, Kind, Per
from debubble.core.waits import last_before, waits_for
from debubble.lowering.chain import lower
from debubble.schedules.registry import Entry
from tests import oracle
from tests.pairs import each_family
from tests.strategies import carrying, made, recomputing, with_copies

WORK = (*WORK_KINDS, Kind.S, Kind.T)


def found_of(schedule: db.Schedule) -> dict[tuple[int, str], set[tuple[int, str]]]:
    """What every action waits for, by rank and text."""
    waits = waits_for(schedule)
    names = [
        (schedule.rank_of(position), schedule.text(unpack(int(code))))
        for position, code in enumerate(schedule.actions.tolist())
    ]
    return {
        name: {names[producer] for producer in waits.of(position).tolist()}
        for position, name in enumerate(names)
    }


@each_family
@settings(max_examples=6)
@given(data=st.data())
def test_work_waits_for_what_the_plain_simulator_says(entry: Entry, data: st.DataObject) -> None:
    schedule = data.draw(carrying(data.draw(made(entry, ranks=4, microbatches=8, chunks=3))))
    if data.draw(st.booleans()):
        schedule = data.draw(recomputing(schedule))
    if not schedule.vocabulary and data.draw(st.booleans()):
        schedule = data.draw(with_copies(schedule))
    there = {action: rank for rank, program in enumerate(schedule) for action in program}
    again = {(action.stage, action.microbatch) for action in there if action.kind == Kind.R}
    moved = {(action.stage, action.microbatch) for action in there if action.kind == Kind.RELOAD}
    found = found_of(schedule)
    checked = 0
    for action, rank in there.items():
        if action.kind not in WORK:
            continue
        cell = (action.stage, action.microbatch)
        wanted = {
            next(source for source in group if source in there)
            for sources in (oracle.sources_of, oracle.carried_sources_of)
            for group in sources(schedule, action)
        } | set(oracle.shard_sources_of(schedule, action))
        if action.kind in (Kind.I, Kind.B) and cell in again:
            wanted.add(action._replace(kind=Kind.R))
        if action.kind in (Kind.I, Kind.B, Kind.R) and cell in moved:
            wanted.add(action._replace(kind=Kind.RELOAD))
        texts = {(there[source], schedule.text(source)) for source in wanted}
        assert found[rank, schedule.text(action)] == texts, schedule.text(action)
        checked += 1
    assert checked


@pytest.mark.parametrize("name", ["1f1b", "zb-v", "dualpipe-v", "seq1f1b"])
def test_results_of_other_ranks_come_through_receives(name: str) -> None:
    schedule = lower(db.make(name, ranks=3, microbatches=6), transfers="eager")
    waits = waits_for(schedule)
    ends = 0
    for position, code in enumerate(schedule.actions.tolist()):
        action = unpack(code)
        rank = schedule.rank_of(position)
        for producer in waits.of(position).tolist():
            far = schedule.rank_of(producer) != rank
            source = unpack(int(schedule.actions[producer]))
            if KINDS[action.kind].receives:
                assert far
                assert source.kind == KINDS[action.kind].other_end
                assert abs(source.stage - action.stage) == 1
                ends += 1
            else:
                assert not far
    sends = sum(
        action.kind in (Kind.SEND_F, Kind.SEND_B) for program in schedule for action in program
    )
    assert ends == sends > 0


@pytest.mark.parametrize("sync", ["global", "local", "post-validation"])
def test_steps_wait_for_the_ranks_that_their_rule_names(sync: str) -> None:
    schedule = db.make("1f1b", ranks=3, microbatches=4, iterations=2, sync=sync)
    waits = waits_for(schedule)
    steps = [i for i, code in enumerate(schedule.actions.tolist()) if unpack(code).kind == Kind.OPT]
    assert len(steps) == 6
    for step in steps:
        rank = schedule.rank_of(step)
        ranks = [schedule.rank_of(producer) for producer in waits.of(step).tolist()]
        everybody = {"global": [0, 1, 2], "local": [rank], "post-validation": [*range(rank + 1)]}
        assert ranks == everybody[sync]
        own = [p for p in waits.of(step).tolist() if schedule.rank_of(p) == rank]
        assert own == [step - 1]


def test_computing_waits_for_the_weights_and_reductions_for_all_gradients() -> None:
    schedule = lower(
        db.make("interleaved-1f1b", ranks=2, microbatches=2, chunks=2), sharding="fsdp"
    )
    found = found_of(schedule)
    weights = {(r, t) for r, t in found if "UNSHARD" in t}
    assert weights
    for (rank, text), sources in found.items():
        action = db.Action.parse(text)
        if action.kind in (Kind.F, Kind.I, Kind.B):
            assert (rank, f"{action.stage}UNSHARD0") in sources
        if action.kind == Kind.REDUCE_GRAD:
            assert sources == {(rank, f"{action.stage}B{m}") for m in range(2)}


def test_every_kind_has_a_row_that_agrees_with_itself() -> None:
    assert [spec.kind for spec in KINDS] == list(Kind)
    for spec in KINDS:
        assert spec.title
        assert bool(spec.letter) == (spec.kind in COMPUTE_KINDS)
        assert (spec.other_end is not None) == (spec.kind in TRANSFER_KINDS)
        if spec.other_end is not None:
            assert KINDS[spec.other_end].other_end == spec.kind
            assert KINDS[spec.other_end].sends == spec.receives
        for need in spec.needs:
            assert need.kinds
            if need.through is not None:
                assert KINDS[need.through].receives
                assert set(need.kinds) <= set(
                    KINDS[KINDS[need.through].other_end or 0].needs[0].kinds
                )
        assert all(
            spec.kind in KINDS[other].instead_of or other == Kind.B or spec.kind == Kind.B
            for other in spec.instead_of
        )
    assert {spec.kind for spec in KINDS if spec.per is Per.SHARD} == {Kind.S, Kind.T}


def test_actions_of_side_streams_follow_the_computing_before_them() -> None:
    schedule = db.make("pipeoffload-half", ranks=4, microbatches=8)
    before = last_before(schedule, computes(kinds_of(schedule.actions)))
    for begin, end in pairwise(schedule.offsets.tolist()):
        last = -1
        for position in range(begin, end):
            assert before[position] == last
            if unpack(int(schedule.actions[position])).kind in COMPUTE_KINDS:
                last = position


def test_what_is_missing_is_waited_for_by_nobody() -> None:
    schedule = db.Schedule.from_text([["0F0"], ["1B0", "1B1"]], db.Placement.linear(2), 1)
    assert found_of(schedule) == {(0, "0F0"): set(), (1, "1B0"): set(), (1, "1B1"): set()}
