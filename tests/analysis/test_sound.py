"""What one look calls sound has nothing for the inspections, and good schedules are called so."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import debubble as db
from debubble.analysis.check import is_sound, without_sharding
from debubble.analysis.problems import Findings, Problem
from debubble.analysis.sharding import inspect_sharding
from debubble.analysis.structure import inspect_structure
from debubble.core.actions import COPY_KINDS, PAIR_SHIFT, Kind, kinds_of, pack
from debubble.core.schedule import Schedule
from debubble.engine.explain.action_faults import matched
from debubble.engine.validate import scan
from debubble.lowering.sharding import add_sharding
from debubble.lowering.transfers import RECEIVE_POLICIES, add_transfers
from tests.strategies import ENTRIES, made


@st.composite
def lowered(draw: st.DrawFn) -> Schedule:
    """A good schedule with transfers, sharding actions, or both."""
    schedule = draw(made(draw(st.sampled_from(ENTRIES)), ranks=4, microbatches=8))
    copies = np.isin(kinds_of(schedule.actions), COPY_KINDS).any()
    assume(not copies and not schedule.vocabulary)
    transfers = draw(st.booleans())
    if transfers:
        schedule = add_transfers(schedule, policy=draw(st.sampled_from(RECEIVE_POLICIES)))
    mode = draw(st.sampled_from(["ddp", "fsdp", None] if transfers else ["ddp", "fsdp"]))
    if mode:
        schedule = add_sharding(schedule, mode=mode, prefetch=draw(st.booleans()))
    return replace(schedule, explicit_reduction=bool(mode) and draw(st.booleans()))


def changed(draw: st.DrawFn, schedule: Schedule) -> Schedule:
    """The schedule with one action elsewhere, gone, repeated, or another one."""
    programs = [schedule.program(rank).tolist() for rank in range(schedule.ranks)]
    program = draw(st.sampled_from([row for row in programs if row]))
    here, there = (draw(st.integers(0, len(program) - 1)) for _ in range(2))
    change = draw(st.sampled_from(["move", "shift", "drop", "repeat", "away", "other", "pair"]))
    if change == "shift":
        there = min(max(0, here + draw(st.integers(-2, 2))), len(program) - 1)
    code = program[here]
    if change != "repeat":
        del program[here]
    if change == "away":
        draw(st.sampled_from(programs)).insert(0, code)
    if change == "other":
        stage, unit = draw(st.integers(0, schedule.stages)), draw(st.integers(0, schedule.units))
        code = int(pack(draw(st.sampled_from(Kind)), stage, unit)[0])
    if change == "pair":
        code ^= draw(st.integers(1, 3)) << PAIR_SHIFT
    if change in ("move", "shift", "repeat", "other"):
        program.insert(there, code)
    if change == "pair":
        program.insert(here, code)
    arrays = [np.array(row, dtype=np.int64) for row in programs]
    offsets = np.cumsum([0, *map(len, arrays)])
    return replace(schedule, actions=np.concatenate(arrays), offsets=offsets)


def sound(schedule: Schedule) -> bool:
    return scan(schedule).strays == (None, None) and is_sound(schedule, without_sharding(schedule))


@given(lowered())
def test_good_schedules_are_sound(schedule: Schedule) -> None:
    assert sound(schedule)


def inspected(schedule: Schedule) -> list[Problem]:
    """What the inspections find."""
    found = Findings()
    inspect_structure(schedule, found)
    inspect_sharding(schedule, found)
    return found.problems


@pytest.mark.slow
@settings(max_examples=200)
@given(st.data())
def test_inspections_find_nothing_in_sound_schedules(data: st.DataObject) -> None:
    schedule = data.draw(lowered())
    for _ in range(data.draw(st.integers(1, 2))):
        schedule = changed(data.draw, schedule)
    # Few changes leave a schedule sound, and waiting for those alone takes most of the time.
    assert not sound(schedule) or inspected(schedule) == matched(schedule) == []


def test_reductions_that_a_schedule_says_are_all_there_are_asked_for() -> None:
    schedule = add_transfers(db.make("1f1b", ranks=2, microbatches=2))
    assert sound(schedule)
    assert not sound(replace(schedule, explicit_reduction=True))
    assert sound(add_sharding(replace(schedule, explicit_reduction=True)))


def test_sharding_that_takes_no_time_costs_no_head_of_line() -> None:
    rows = [
        "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1",
        "1RECV_F0 1F0 1SEND_F0 1RECV_B0 1RECV_F1 1F1 1SEND_F1 1B0 1SEND_B0 1RECV_B1 1B1 1SEND_B1",
        "2RECV_F0 2F0 2B0 2SEND_B0 2RECV_F1 2F1 2B1 2SEND_B1",
    ]
    schedule = Schedule.from_text([row.split() for row in rows], db.Placement.linear(3), 2)
    sharded = add_sharding(schedule, mode="fsdp")
    (warning,) = db.check(sharded).warnings
    assert (warning.rank, warning.position) == (1, 5)
    assert warning.actions == ("1RECV_F1", "1RECV_B0")
    assert (
        warning.message.partition("; ")[2]
        == (db.check(schedule).warnings[0].message.partition("; ")[2])
    )
    (slower,) = db.check(sharded, costs=db.Costs(unshard=2, reduce_grad=1)).warnings
    assert slower.actions == warning.actions
