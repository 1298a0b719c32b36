"""PaddlePaddle's interleaving: the constants of its own tests, and both of its rules."""

from __future__ import annotations

import numpy as np
import pytest

import debubble as db
from tests.forms import hold


def warm_ups(schedule: db.Schedule) -> list[int]:
    """Forwards of every rank before the one that its first backward follows."""
    return ["".join(a.kind.name for a in program).index("B") - 1 for program in schedule]


@pytest.mark.parametrize(
    ("m", "warm_up", "steady"),
    [
        (6, [9, 8, 7, 6], [3, 4, 5, 6]),
        (7, [10, 9, 8, 7], [4, 5, 6, 7]),
        (8, [10, 8, 6, 4], [6, 8, 10, 12]),
    ],
)
def test_constants_of_four_ranks(m: int, warm_up: list[int], steady: list[int]) -> None:
    schedule = db.make("paddle-interleaved", ranks=4, microbatches=m, chunks=2)
    assert warm_ups(schedule) == warm_up
    assert [2 * m - count for count in warm_up] == steady


def test_balanced_memory_is_breadth_first_in_less_memory() -> None:
    def run(name: str, latency: float) -> db.Timeline:
        schedule = db.make(name, ranks=4, microbatches=7, chunks=2)
        return db.simulate(schedule, db.Costs(F=1, B=2, p2p=latency))

    ours, other = run("balanced-memory", 0), run("looped-bfs", 0)
    assert ours.makespan == other.makespan == 2 * 7 * 3 + 3 * 3
    assert (2 * ours.peak_activation).tolist() == [11, 10, 9, 8]
    assert (2 * other.peak_activation).tolist() == [14] * 4
    ours, other = run("balanced-memory", 0.2), run("looped-bfs", 0.2)
    assert (ours.makespan, other.makespan) == (pytest.approx(53.8), pytest.approx(52.2))


@pytest.mark.parametrize(("p", "m"), [(4, 9), (4, 10), (4, 11), (4, 13), (8, 13), (8, 20), (8, 21)])
@pytest.mark.parametrize("v", [2, 3])
def test_a_larger_first_group_leaves_the_bubble_as_it_is(p: int, m: int, v: int) -> None:
    schedule = db.make(
        "paddle-interleaved", ranks=p, microbatches=m, chunks=v, groups="larger-first"
    )
    timeline = db.simulate(schedule, db.Costs.per_rank(F=1, B=2))
    assert timeline.makespan - 3 * m == pytest.approx((p - 1) * 3 / v)
    first = p + m % p
    held = ((v - 1) * first + 2 * p - 1) / v
    assert timeline.peak_activation[0] == pytest.approx(min(held, m))
    spread = db.make("flexible-interleaved", ranks=p, microbatches=m, chunks=v)
    assert db.simulate(spread).peak_activation[0] <= timeline.peak_activation[0]


@pytest.mark.parametrize("p", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("groups", ["paddle", "one", "larger-first"])
def test_forms_hold_on_a_grid(p: int, groups: str) -> None:
    rng = np.random.default_rng(p)
    for m in sorted({p, p + 1, 2 * p - 1, 2 * p, 2 * p + 1, 3 * p + 2, 5 * p}):
        for v in (1, 2, 3):
            schedule = db.make(
                "paddle-interleaved", ranks=p, microbatches=m, chunks=v, groups=groups
            )
            assert db.check(schedule).ok
            F, B = rng.uniform(0.2, 2, 2)
            assert hold(schedule, db.Costs(F=F, B=B), f"p={p} m={m} v={v}") == 2


def test_refusals() -> None:
    with pytest.raises(db.ParameterError, match="is 3; the nearest that works is 4, or use 'loop"):
        db.make("paddle-interleaved", ranks=4, microbatches=3)
    with pytest.raises(db.ParameterError, match=r"needs groups that are .*; groups is two"):
        db.make("paddle-interleaved", ranks=4, microbatches=8, groups="two")
