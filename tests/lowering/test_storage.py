"""Orders made under a memory limit use what recomputes and offloads free."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import debubble as db
from debubble.core.actions import COPY_KINDS, kinds_of
from debubble.core.kinds import OFFLOAD_KINDS
from debubble.lowering.offload import LEADS, add_offload
from debubble.lowering.recompute import add_recompute

COSTS = db.Costs(F=5, I=6, W=4)
HOST = db.Costs(F=5, I=6, W=4, host_bandwidth=0.1)
FAMILIES = ("zb-v", "v-half", "v-min", "v-zb", "zb-auto", "zb-2p")
each_family = pytest.mark.parametrize("name", FAMILIES)


def slowly(value: float) -> Any:
    """A limit that only the whole run tries."""
    return pytest.param(value, marks=pytest.mark.slow)


@each_family
@pytest.mark.parametrize("memory", [1, slowly(1.5), slowly(2), 4])
@pytest.mark.parametrize("at", ["just-in-time", "with-backward", "bubbles"])
def test_recompute_is_known_to_the_order(name: str, memory: float, at: str) -> None:
    size = {"ranks": 4, "microbatches": 8}
    plain = db.make(name, **size, costs=COSTS, memory=memory)
    unaware = db.simulate(add_recompute(plain, "full", at=at, costs=COSTS), COSTS)
    made = db.make(name, **size, costs=COSTS, memory=memory, recompute="full", recompute_at=at)
    assert db.check(made, memory=memory, costs=COSTS)
    aware = db.simulate(made, COSTS)
    assert aware.makespan <= unaware.makespan
    if memory <= 2 and at != "bubbles":
        assert aware.makespan < unaware.makespan


@each_family
@pytest.mark.parametrize("memory", [1.5, slowly(2), slowly(4)])
def test_offload_is_known_to_the_order(name: str, memory: float) -> None:
    size = {"ranks": 4, "microbatches": 8}
    plain = db.simulate(db.make(name, **size, costs=HOST, memory=memory), HOST)
    made = db.make(name, **size, costs=HOST, memory=memory, offload="full")
    assert db.check(made, memory=memory, costs=HOST)
    time = db.simulate(made, HOST).makespan
    assert time <= plain.makespan
    # With one chunk and little memory a copy is back no sooner than it is needed.
    if memory <= 2 and name not in ("zb-auto", "zb-2p"):
        assert np.isin(kinds_of(made.actions), COPY_KINDS).any()
        assert time < plain.makespan


def test_how_much_a_limit_of_one_and_a_half_gains() -> None:
    size = {"ranks": 4, "microbatches": 8}
    times = {
        str(stored): db.simulate(
            db.make("zb-v", **size, costs=HOST, memory=1.5, **stored), HOST
        ).makespan
        for stored in ({}, {"offload": "full"}, {"recompute": "full"})
    }
    without, offloaded, recomputed = times.values()
    assert offloaded < recomputed < without


@pytest.mark.parametrize("name", ["1f1b", "interleaved-1f1b", "zb-h1", "gpipe"])
def test_fixed_orders_get_copies_at_the_best_distance(name: str) -> None:
    plain = db.make(name, ranks=4, microbatches=8)
    made = db.make(name, ranks=4, microbatches=8, costs=HOST, offload="full")
    assert db.check(made, costs=HOST)
    kept = made.actions[~np.isin(kinds_of(made.actions), COPY_KINDS)]
    assert np.array_equal(kept, plain.actions)
    fast = db.simulate(made, HOST)
    assert fast.makespan >= db.simulate(plain, HOST).makespan
    assert fast.peak_activation.max() <= db.simulate(plain, HOST).peak_activation.max()
    assert len(LEADS) > 1


@pytest.mark.parametrize("name", ["dualpipe", "dualpipe-v", "1f1b-overlap"])
@pytest.mark.parametrize("memory", [None, 3])
def test_copies_stand_outside_of_overlapped_pairs(name: str, memory: float | None) -> None:
    sizes = {"ranks": 2, "microbatches": 8}
    plain = db.make(name, **sizes)
    made = db.make(name, **sizes, costs=HOST, offload="full", memory=memory)
    assert db.check(made, costs=HOST, memory=memory)
    kept = made.actions[~np.isin(kinds_of(made.actions), OFFLOAD_KINDS)]
    assert np.array_equal(kept, plain.actions)
    assert len(kept) < len(made)


def test_recomputed_stages_offload_their_checkpoints() -> None:
    costs = db.Costs(F=5, I=6, W=4, host_bandwidth=1, recompute_kept=0.25)
    made = db.make("1f1b", ranks=3, microbatches=6, costs=costs, recompute=[0], offload=[0, 1])
    assert db.check(made, costs=costs)
    assert made.options["recompute"] == [0]
    assert made.options["offload"] == [0, 1]


def test_what_cannot_be_offloaded_is_refused() -> None:
    plain = db.make("1f1b", ranks=2, microbatches=4)
    with pytest.raises(db.ParameterError, match="offload needs host_bandwidth"):
        add_offload(plain, "full")
    with pytest.raises(db.ParameterError, match="stages go from 0 to 1"):
        add_offload(plain, [2], costs=HOST)
    once = add_offload(db.make("gpipe", ranks=2, microbatches=8), "full", costs=HOST)
    with pytest.raises(db.ParameterError, match="has copies already"):
        add_offload(once, "full", costs=HOST)
    assert add_offload(plain, None) is plain
    with pytest.raises(db.ParameterError, match=r"memory 0\.5 is too small"):
        db.make("zb-v", ranks=4, microbatches=8, costs=HOST, memory=0.5, offload=[0])


def test_compare_makes_orders_that_know() -> None:
    found = db.compare(
        ["interleaved-1f1b", "zb-v"], ranks=4, microbatches=8, memory=2, recompute="full",
        costs=db.Costs.per_rank(F=10, I=12, W=8),
    )  # fmt: skip
    own = db.make(
        "zb-v", ranks=4, microbatches=8, memory=2, recompute="full",
        costs=db.Costs.per_rank(F=10, I=12, W=8),
    )  # fmt: skip
    assert {row.name: row.schedule for row in found.rows}["zb-v"] == own
