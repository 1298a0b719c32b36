"""Embedding, head and further predictions: costs of the first and the last stage."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import debubble as db
from debubble.core.actions import Kind
from debubble.core.placement import Placement

HEAD = {"F": 4, "I": 4, "W": 3, "activation": 0.25}


@pytest.mark.parametrize(
    "placement", [Placement.loop(4, 2), Placement.v(4), Placement.bidirectional(4)]
)
@pytest.mark.parametrize("basis", ["action", "rank"])
def test_parts_add_to_the_ends_of_every_copy(placement: Placement, basis: str) -> None:
    plain = db.Costs(F=8, I=8, W=4, basis=basis)
    costs = db.Costs(
        F=8, I=8, W=4, basis=basis, embedding={"F": 1, "B": 2}, head=HEAD, mtp={"F": 10, "R": 1}
    )
    before, after = plain.resolve(placement), costs.resolve(placement)
    stages = placement.stages
    more = (after.duration - before.duration).reshape(-1, placement.copies, stages)
    first, last = more[:, :, 0], more[:, :, -1]
    # F, I, W, B, R: B is I + W and R is F unless given; B alone is half I and half W.
    assert first[:5].T.tolist() == [[1, 1, 1, 2, 1]] * placement.copies
    assert last[:5].T.tolist() == [[14, 4, 3, 7, 5]] * placement.copies
    assert not more[:, :, 1:-1].any()
    memory = (after.activation - before.activation).reshape(placement.copies, stages)
    assert memory[:, -1].tolist() == [0.25] * placement.copies
    assert not memory[:, :-1].any()
    assert not costs.uniform


def test_a_pair_has_the_ends_on_top_of_its_own_time() -> None:
    placement = Placement.v(2)
    costs = db.Costs(F=1, B=2, O=2.5, overlap_factor=0.5, head=HEAD)
    table = costs.resolve(placement)
    assert table.pair((Kind.F, 1), (Kind.B, 2)) == 2.5
    assert table.pair((Kind.F, 3), (Kind.B, 0)) == 2.5 + 0.5 * 4
    assert table.pair((Kind.F, 0), (Kind.B, 3)) == 2.5 + 0.5 * 7


def test_times_scale_and_memory_does_not() -> None:
    scaled = db.Costs(F=1, head=HEAD).scaled(3)
    assert scaled.head == {"F": 12, "I": 12, "W": 9, "activation": 0.25}


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"f": 1}, "head has an unknown cost 'f'; did you mean 'F'"),
        ({"F": -1}, r"head\[F\] is -1; costs are not negative"),
        (4, "head is 4; give a mapping"),
        ({"F": [1, 2]}, r"head\[F\] is \[1, 2\]; give one number"),
    ],
)
def test_wrong_parts_are_refused(part: Any, message: str) -> None:
    with pytest.raises(db.CostError, match=message):
        db.Costs(head=part)


def test_one_layer_less_at_the_ends_pays_for_embedding_and_head() -> None:
    # 4 ranks of 4 layers; the head takes as long as a layer and the embedding hardly anything.
    layer = {"F": 1.0, "I": 1.0, "W": 1.0}
    even = db.Costs(F=4, I=4, W=4, head=layer)
    fewer = [4, 4.5, 4.5, 3]
    better = db.Costs(F=fewer, I=fewer, W=fewer, head=layer)
    schedule = db.make("1f1b", ranks=4, microbatches=16)
    assert db.simulate(schedule, even).ideal == 16 * 15
    assert db.simulate(schedule, better).makespan < db.simulate(schedule, even).makespan


@pytest.mark.parametrize("p", [4, 8])
def test_computed_schedules_know_about_the_ends(p: int) -> None:
    costs = db.Costs(F=10, I=11, W=7, head={"F": 4, "I": 4, "W": 4}, embedding={"F": 1, "W": 1})
    sizes: dict[str, Any] = {"ranks": p, "microbatches": 3 * p}
    fixed = db.simulate(db.make("zb-v", **sizes, published=True), costs)
    own = db.simulate(db.make("zb-v", **sizes, costs=costs), costs)
    assert own.makespan < fixed.makespan
    assert np.all(own.peak_activation <= p)
