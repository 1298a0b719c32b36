"""Interleaved 1F1B with a last group smaller than the number of ranks."""

from __future__ import annotations

import pytest

import debubble as db


@pytest.mark.parametrize(("microbatches", "makespan"), [(6, 55), (10, 79), (8, 57), (3, 30)])
def test_odd_numbers_of_microbatches_take_the_time_known_for_a_short_last_group(
    microbatches: int, makespan: float
) -> None:
    schedule = db.make(
        "interleaved-1f1b", ranks=4, microbatches=microbatches, chunks=2, short_last_group=True
    )
    assert db.simulate(schedule, db.Costs(F=1, B=2)).makespan == makespan


@pytest.mark.slow
def test_the_option_makes_no_deadlocks_and_refuses_nothing_that_runs() -> None:
    from debubble.core.placement import Placement
    from debubble.schedules.interleaved import interleaved_1f1b

    refused = 0
    for ranks, chunks, microbatches in (
        (p, v, m) for p in (1, 2, 3, 4, 5, 6) for v in (1, 2, 3, 4) for m in range(1, 3 * p + 2)
    ):
        for size in {None, ranks + 1, 2 * ranks - 1} - {0}:
            if size is not None and not ranks <= size <= microbatches:
                continue
            sizes = {"ranks": ranks, "microbatches": microbatches, "chunks": chunks,
                     "group_size": size, "short_last_group": True}  # fmt: skip
            order = db.Schedule.from_programs(
                "order", Placement.loop(ranks, chunks), microbatches, interleaved_1f1b(**sizes)
            )
            if db.check(order):
                made = db.make("interleaved-1f1b", **sizes)
                assert (made.actions == order.actions).all()
            else:
                refused += 1
                with pytest.raises(
                    db.ParameterError, match=r"or 'flexible-interleaved'|short_last_group"
                ):
                    db.make("interleaved-1f1b", **sizes)
    assert refused


def test_without_the_option_the_message_names_what_takes_any_number() -> None:
    with pytest.raises(
        db.ParameterError, match=r"short_last_group=true.*or 'flexible-interleaved'"
    ):
        db.make("interleaved-1f1b", ranks=4, microbatches=6, chunks=2)


@pytest.mark.parametrize("name", ["zb-v", "v-half", "v-min", "zb-auto", "1f1b"])
@pytest.mark.parametrize("microbatches", [1, 2, 3, 5, 7])
def test_fewer_microbatches_than_ranks_or_odd_ones_run(name: str, microbatches: int) -> None:
    assert db.check(db.make(name, ranks=4, microbatches=microbatches))
