"""1F1B-V: its slots, the authors' orders, and what it needs of time and memory."""

from __future__ import annotations

import random

import numpy as np
import pytest

import debubble as db
from debubble.schedules.one_f_one_b_v import PERIOD, all_slots, building_block, squeezed


@pytest.mark.parametrize("p", range(1, 65))
def test_repeated_blocks_do_not_collide(p: int) -> None:
    slots = building_block(p)
    forwards, backwards = slots[: 2 * p], slots[2 * p :][::-1]
    for rank in range(p):
        stages = [rank, 2 * p - 1 - rank]
        taken = [*forwards[stages], *backwards[stages], *(backwards[stages] + 1)]
        assert sorted(slot % PERIOD for slot in taken) == list(range(PERIOD))


# Made with the authors' v1f1b.py (commit 1adf3b8).
ORDERS = {
    (2, 4): [
        "0F0 0F1 0F2 3F0 3B0 3F1 3B1 0F3 0B0 3F2 3B2 0B1 3F3 3B3 0B2 0B3",
        "1F0 2F0 1F1 2F1 2B0 1B0 1F2 2F2 2B1 1B1 1F3 2F3 2B2 1B2 2B3 1B3",
    ],
    (4, 4): [
        "0F0 0F1 0F2 0F3 7F0 7B0 7F1 7B1 7F2 7B2 7F3 7B3 0B0 0B1 0B2 0B3",
        "1F0 1F1 1F2 1F3 6F0 6F1 6B0 6F2 6B1 6B2 6F3 1B0 6B3 1B1 1B2 1B3",
        "2F0 2F1 2F2 5F0 5F1 5F2 5B0 2F3 5B1 2B0 5F3 5B2 2B1 5B3 2B2 2B3",
        "3F0 4F0 3F1 4F1 3F2 4F2 4B0 3B0 3F3 4F3 4B1 3B1 4B2 3B2 4B3 3B3",
    ],
}


@pytest.mark.parametrize(("p", "m"), ORDERS)
def test_orders_of_the_authors(p: int, m: int) -> None:
    rows = db.make("1f1b-v", ranks=p, microbatches=m).rows()
    assert [" ".join(row) for row in rows] == ORDERS[p, m]


@pytest.mark.parametrize("p", [1, 2, 3, 4, 5, 6, 8, 12, 16, 21])
def test_the_steady_part_repeats(p: int) -> None:
    for m in (4 * p + 8, 4 * p + 9, 6 * p + 20):
        assert np.array_equal(all_slots(p, m), squeezed(p, m))


@pytest.mark.parametrize(("p", "peak"), [(4, 3), (8, 6), (16, 11), (64, 43)])
def test_two_thirds_of_the_activations_of_1f1b(p: int, peak: float) -> None:
    timeline = db.simulate(db.make("1f1b-v", ranks=p, microbatches=2 * p))
    assert timeline.peak_activation.max() == peak
    assert 2 / 3 < peak / p <= 2 / 3 + 1 / p
    # Squeezing fills every rank up to the same peak, or to a chunk less.
    assert timeline.peak_activation.min() >= peak - 0.5


@pytest.mark.parametrize(
    ("p", "bubble"),
    [(2, 4), (3, 8), (4, 15), (5, 18), (6, 22), (7, 30), (8, 33), (9, 36), (16, 75)],
)
@pytest.mark.parametrize("factor", [1, 2, 6])
def test_bubble_with_backwards_twice_as_long(p: int, bubble: float, factor: int) -> None:
    m = factor * p
    costs = db.Costs.per_rank(F=2, B=4)
    timeline = db.simulate(db.make("1f1b-v", ranks=p, microbatches=m), costs)
    assert timeline.makespan - 6 * m == bubble
    one = db.simulate(db.make("1f1b", ranks=p, microbatches=m), costs)
    assert one.makespan - 6 * m == 6 * (p - 1)
    assert 2 / 3 <= bubble / (6 * (p - 1)) <= 5 / 6


@pytest.mark.parametrize("p", [4, 5, 8, 9])
def test_a_shorter_backward_loses_time_for_every_microbatch(p: int) -> None:
    def bubble(m: int, B: float) -> float:
        timeline = db.simulate(db.make("1f1b-v", ranks=p, microbatches=m), db.Costs(F=4, B=B))
        return timeline.makespan - 2 * m * (4 + B)

    lost = (8 - 7) * (2 if p in (4, 8) else 1)
    assert bubble(12 * p + 60, 7) - bubble(12 * p, 7) == 60 * lost
    for B in (8, 9, 20):
        assert bubble(12 * p + 60, B) == bubble(12 * p, B)


@pytest.mark.parametrize("p", [1, 2, 3, 7, 8, 12])
def test_time_stays_below_its_bound(p: int) -> None:
    draw = random.Random(p)
    for m in (*range(1, 10), p, 3 * p, 6 * p + 11):
        schedule = db.make("1f1b-v", ranks=p, microbatches=m)
        assert not db.check(schedule).problems
        for _ in range(5):
            F = draw.randint(1, 40)
            B = draw.randint(0, 4 * F)
            makespan = db.simulate(schedule, db.Costs(F=F, B=B)).makespan
            assert makespan <= 2 * (m + p - 1) * (F + max(B, 2 * F))


def test_too_many_ranks_are_refused() -> None:
    with pytest.raises(db.ParameterError, match=r"ranks; ranks is 1025; .* is 1024"):
        db.make("1f1b-v", ranks=1025, microbatches=2)
