"""Of several ways to lower a schedule, the best in the mode of transfers asked for."""

from __future__ import annotations

from typing import Any

import pytest

import debubble as db
from debubble.lowering.best_lowering import Setting
from debubble.lowering.chain import lower
from debubble.lowering.offload import ways_to_offload
from debubble.lowering.recompute import ways_to_recompute

COSTS = db.Costs(F=2, I=3, W=1, p2p=2, host_bandwidth=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"offload": "full"}])
@pytest.mark.parametrize("memory", [2, 3])
def test_waits_of_blocking_transfers_are_filled_as_those_of_others(
    memory: float, more: dict[str, Any]
) -> None:
    parameters: dict[str, Any] = {
        "recompute": "full", "recompute_at": "bubbles", "costs": COSTS, "memory": memory,
        "p2p_mode": "blocking", **more,
    }  # fmt: skip
    sizes = {"ranks": 4, "microbatches": 4}
    by_name = db.make("seq1f1b", **sizes, **parameters)
    by_order = lower(db.make("seq1f1b", **sizes, costs=COSTS), **parameters)
    assert by_name == by_order
    assert db.simulate(by_name, COSTS, "blocking").makespan == 127.5


def test_within_the_limit_comes_before_faster_and_that_before_less_memory() -> None:
    ways = [db.make(name, ranks=4, microbatches=8) for name in ("gpipe", "1f1b", "zb-h2", "zb-h1")]
    named = {way.name: way for way in ways}
    assert Setting().best(ways) is named["zb-h1"]  # as fast as zb-h2, in half the memory
    assert Setting(memory=5).best([named["zb-h2"], named["1f1b"]]) is named["1f1b"]
    assert Setting().best([named["gpipe"], named["1f1b"]]) is named["1f1b"]
    assert Setting(memory=0.5).best(ways) is named["zb-h1"]


def test_ways_that_lock_up_count_only_where_all_do() -> None:
    good = db.make("interleaved-1f1b", ranks=4, microbatches=8)
    stuck = lower(good, transfers="just-in-time")
    assert Setting(p2p_mode="pair").best([stuck, good]) is good
    assert Setting(p2p_mode="pair").best([stuck, stuck.with_programs(
        [stuck.program(rank) for rank in range(4)]
    )]) is stuck  # fmt: skip


def test_the_plainest_way_to_recompute_is_among_all() -> None:
    schedule, setting = db.make("interleaved-1f1b", ranks=8, microbatches=16), Setting(COSTS, 9)
    plain, *moved = ways_to_recompute(schedule, "full", "bubbles", None, setting)
    (in_time,) = ways_to_recompute(schedule, "full", "just-in-time", None, setting)
    assert plain.rows() == in_time.rows()
    times = [db.simulate(way, COSTS).makespan for way in (plain, *moved)]
    assert len(times) > 1
    assert times == sorted(set(times), reverse=True)


def test_copies_of_what_is_recomputed_in_part_are_refused() -> None:
    schedule = db.make("terapipe", ranks=4, microbatches=5)
    with pytest.raises(db.ParameterError, match="offload has stage 0, which recomputes some"):
        lower(schedule, recompute="full", recompute_cap=2, offload="full", costs=COSTS)


def test_no_limit_asks_for_copies_all_the_same() -> None:
    schedule = db.make("1f1b", ranks=4, microbatches=8)
    ways = ways_to_offload(schedule, "full", Setting(COSTS))
    assert all(len(way) > len(schedule) for way in ways)


def test_a_mode_that_does_not_exist_is_refused_whether_it_matters_or_not() -> None:
    for more in ({}, {"recompute": "full"}):
        with pytest.raises(db.ParameterError, match="p2p mode 'blockin'; did you mean 'blocking'"):
            db.make("1f1b", ranks=2, microbatches=2, p2p_mode="blockin", **more)


def test_all_lowerings_are_parameters_of_make() -> None:
    made = db.make("1f1b", ranks=2, microbatches=4, transfers="eager", sharding="ddp")
    plain = db.make("1f1b", ranks=2, microbatches=4)
    assert made == lower(plain, transfers="eager", sharding="ddp")
