"""Waits for offloads: with them an order keeps a limit, whatever its copies take."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import debubble as db
from debubble.core.actions import COPY_KINDS, Kind, kinds_of
from debubble.engine.memory import measure_memory
from debubble.lowering.offload_waits import with_waits
from debubble.lowering.transfers import RECEIVE_POLICIES, add_transfers
from tests.strategies import ENTRIES, costs_for, made, with_copies

SLOW = db.Costs(F=1, I=1, W=1, host_bandwidth=0.5)


def waits_of(schedule: db.Schedule) -> int:
    return int(np.count_nonzero(kinds_of(schedule.actions) == Kind.WAIT_OFFLOAD))


def one_rank(text: str, microbatches: int) -> db.Schedule:
    return db.Schedule.from_text([text.split()], db.Placement.linear(1), microbatches)


@pytest.mark.parametrize(
    ("limit", "program"),
    [
        # Every copy is waited for by what comes one behind.
        (1, "0F0 0OFFLOAD0 0WAIT_OFFLOAD0 0F1 0OFFLOAD1 0WAIT_OFFLOAD1 0F2 0B2 "
            "0RELOAD0 0B0 0RELOAD1 0B1"),
        (2, "0F0 0OFFLOAD0 0F1 0OFFLOAD1 0WAIT_OFFLOAD0 0F2 0B2 0RELOAD0 0B0 0RELOAD1 0B1"),
        # Nothing has to be over.
        (3, "0F0 0OFFLOAD0 0F1 0OFFLOAD1 0F2 0B2 0RELOAD0 0B0 0RELOAD1 0B1"),
        (np.inf, "0F0 0OFFLOAD0 0F1 0OFFLOAD1 0F2 0B2 0RELOAD0 0B0 0RELOAD1 0B1"),
    ],
)  # fmt: skip
def test_what_has_no_room_waits_for_as_few_copies_as_make_it(limit: float, program: str) -> None:
    plain = one_rank("0F0 0OFFLOAD0 0F1 0OFFLOAD1 0F2 0B2 0RELOAD0 0B0 0RELOAD1 0B1", 3)
    found = with_waits(plain, SLOW.table(plain), np.array([limit]))
    assert found.rows() == [program.split()]
    assert (found is plain) == (limit >= 3)
    assert db.simulate(found, SLOW).peak_activation[0] <= limit


def test_static_memory_counts_and_lengths_do() -> None:
    plain = one_rank("0F0 0OFFLOAD0 0F1 0RELOAD0 0B0 0B1", 2)
    for costs, limit in (
        (db.Costs(static=5, host_bandwidth=0.5), 7),
        (db.Costs(microbatch=[1, 2], host_bandwidth=0.5), 3),
    ):
        table = costs.table(plain)
        assert waits_of(with_waits(plain, table, np.array([limit]))) == 0
        assert waits_of(with_waits(plain, table, np.array([limit - 0.01]))) == 1


@settings(max_examples=60)
@given(data=st.data())
def test_the_limit_is_kept_whatever_copies_take(data: st.DataObject) -> None:
    entry = data.draw(st.sampled_from(ENTRIES))
    schedule = data.draw(made(entry, ranks=4, microbatches=6, chunks=2))
    if not np.isin(kinds_of(schedule.actions), COPY_KINDS).any():
        schedule = data.draw(with_copies(schedule, waits=False))
    schedule = schedule.with_programs(map(schedule.program, range(schedule.ranks)), offload_to=())
    costs = data.draw(costs_for(schedule))
    table = costs.table(schedule)
    at_once = measure_memory(schedule, table).peak
    limits = at_once * data.draw(st.sampled_from([1, 1.25, 1.5]))
    found = with_waits(schedule, table, limits)
    timeline = db.simulate(found, costs)
    assert (timeline.peak_activation <= limits * (1 + 1e-9) + 1e-9).all()
    assert db.check(found, memory=[max(limit, 1e-9) for limit in limits], costs=costs).ok
    # Sends do not stand behind waits, which would hold them up.
    lowered = add_transfers(found, policy=data.draw(st.sampled_from(RECEIVE_POLICIES)))
    assert db.check(lowered, p2p_mode="overlapped").ok
    assert db.simulate(lowered, costs).makespan == pytest.approx(timeline.makespan)


def test_orders_fit_that_would_hold_more_while_copies_are_under_way() -> None:
    sizes = {"ranks": 4, "microbatches": 8, "costs": SLOW}
    for name, makespan in (("1f1b", 38), ("gpipe", 44)):
        found = db.make(name, **sizes, memory=2, offload="full")
        timeline = db.simulate(found, SLOW)
        assert waits_of(found)
        assert timeline.peak_activation.max() == 2
        assert timeline.makespan == makespan
        free = found.with_programs(
            program[kinds_of(program) != Kind.WAIT_OFFLOAD]
            for program in map(found.program, range(4))
        )
        assert db.simulate(free, SLOW).peak_activation.max() > 2
    # Without a limit nobody waits.
    assert waits_of(db.make("gpipe", **sizes, offload="full")) == 0
