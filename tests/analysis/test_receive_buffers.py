"""Slots of receive buffers: PyTorch's published table, and a count event by event."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import debubble as db
from debubble.analysis.receive_buffers import receive_slots
from debubble.analysis.summary import report, summary
from debubble.core.actions import begins_group
from debubble.lowering.transfers import TRANSFER_POLICIES, add_transfers
from tests.pairs import each_sort
from tests.strategies import made


@pytest.mark.parametrize("m", [8, 16, 32])
def test_slots_of_interleaved_1f1b_are_those_of_pytorch(m: int) -> None:
    # A reviewer's count on pytorch#196465, for 4 ranks and 4 chunks each.
    plain = db.make("interleaved-1f1b", ranks=4, microbatches=m, chunks=4)
    slots = receive_slots(add_transfers(plain, policy="pytorch"))
    assert slots["by_stage"].T.tolist() == [[16, 24, 24, 20], [6, 6, 4, 12]]
    assert slots["by_direction"].T.tolist() == [[12, 18, 16, 14], [2, 2, 1, 4]]
    assert slots["shared"].T.tolist() == [[14, 20, 17, 16]]
    assert [int(row.sum()) for row in slots.values()] == [112, 69, 67]


def by_rank(schedule: db.Schedule) -> dict[str, list[int]]:
    """The slots of every rank, activations and gradients together."""
    return {pool: slots.sum(axis=1).tolist() for pool, slots in receive_slots(schedule).items()}


def by_events(schedule: db.Schedule) -> dict[str, list[int]]:
    """The same, one action after the other."""
    found: dict[str, list[int]] = {"by_stage": [], "by_direction": [], "shared": []}
    for rank, program in enumerate(schedule):
        last: dict[tuple[int, int], int] = {}
        for place, (stage, kind, unit) in enumerate(program):
            if kind in (db.Kind.I, db.Kind.W, db.Kind.B):
                last[stage, unit] = place
        begins = begins_group(schedule.program(rank)).tolist()
        live: dict[str, dict[object, int]] = {key: {} for key in found}
        most: dict[str, dict[object, int]] = {key: {} for key in found}
        frees: dict[int, list[tuple[int, str]]] = {}
        for place, (stage, kind, unit) in enumerate(program):
            name = kind.name
            if begins[place]:
                for due in [due for due in frees if due < place]:
                    for freed in frees.pop(due):
                        pools = {"by_stage": freed, "by_direction": freed[1], "shared": 0}
                        for key, pool in pools.items():
                            live[key][pool] -= 1
            if name.startswith("RECV"):
                pools = {"by_stage": (stage, name), "by_direction": name, "shared": 0}
                for key, pool in pools.items():
                    live[key][pool] = live[key].get(pool, 0) + 1
                    most[key][pool] = max(most[key].get(pool, 0), live[key][pool])
                if (stage, unit) in last:
                    frees.setdefault(last[stage, unit], []).append((stage, name))
        for key, pools_of in most.items():
            found[key].append(sum(pools_of.values()))
    return found


@each_sort
@settings(max_examples=6)
@given(data=st.data(), policy=st.sampled_from(TRANSFER_POLICIES))
def test_slots_are_those_that_are_live(entry, data: st.DataObject, policy) -> None:
    schedule = add_transfers(data.draw(made(entry, ranks=4, microbatches=12)), policy=policy)
    assert by_rank(schedule) == by_events(schedule)


def test_one_pool_never_needs_more_than_two_nor_those_more_than_many() -> None:
    for name in ("1f1b", "zb-v", "dualpipe-v", "interleaved-zb"):
        for policy in TRANSFER_POLICIES:
            plain = db.make(name, ranks=4, microbatches=12)
            slots = by_rank(add_transfers(plain, policy=policy))
            for many, two, one in zip(*slots.values(), strict=True):
                assert many >= two >= one


def test_without_transfers_there_are_no_buffers() -> None:
    slots = by_rank(db.make("1f1b", ranks=3, microbatches=4))
    assert slots == {"by_stage": [0] * 3, "by_direction": [0] * 3, "shared": [0] * 3}


def test_results_say_how_many_where_transfers_are_actions() -> None:
    plain = db.make("interleaved-1f1b", ranks=4, microbatches=8, chunks=4)
    timeline = db.simulate(add_transfers(plain, policy="pytorch"))
    assert summary(timeline)["receive_buffers"]["by_stage"] == [22, 30, 28, 32]
    text = " ".join(report(timeline).split())
    assert "receive buffers: 112 in pools by stage and direction, 69 in one pool of a rank" in text
    assert summary(db.simulate(plain))["receive_buffers"] is None
    assert "receive buffers" not in report(db.simulate(plain))


def test_a_file_that_claims_many_microbatches_takes_no_memory_for_them() -> None:
    rows = [["0F0", "0SEND_F0", "0RECV_B0", "0B0"], ["1RECV_F0", "1F0", "1B0", "1SEND_B0"]]
    schedule = db.Schedule.from_text(rows, db.Placement.linear(2), 1 << 24)
    assert receive_slots(schedule)["shared"].tolist() == [[1], [1]]
