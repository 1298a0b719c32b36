"""Costs of the same model with other stages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import debubble as db
from debubble.core.actions import Kind
from debubble.core.given_layers import make_layers
from debubble.diagnosis.times_under_schedule import shares_of_cut
from debubble.diagnosis.what_if import recut


def made(chunks: int) -> db.Schedule:
    return db.make("looped-bfs", ranks=2, microbatches=2, chunks=chunks)


def test_times_and_memory_of_stages_add_up_there_and_back() -> None:
    costs = db.Costs(F=[0.2, 0.4, 0.6, 0.8], B=2.0, activation=[4, 3, 2, 1], p2p=0.5)
    assert recut(costs, made(2), made(2)) == costs
    other = recut(costs, made(2), made(4))
    other.table(made(4))
    assert pytest.approx([0.1, 0.1, 0.2, 0.2, 0.3, 0.3, 0.4, 0.4]) == other.F
    assert pytest.approx([1.0] * 8) == other.B
    assert other.activation == pytest.approx([2, 2, 1.5, 1.5, 1, 1, 0.5, 0.5])
    assert other.p2p == costs.p2p
    assert pytest.approx(costs.F) == recut(other, made(4), made(2)).F


LAYERS = {
    "F": [1, 1, 1, 2, 2, 2, 2, 2], "B": [2, 2, 2, 4, 4, 4, 4, 4], "head": {"F": 3, "B": 6},
    "cut": [3, 2, 2, 1], "ranks": [0, 1, 2, 3],
}  # fmt: skip


@pytest.mark.parametrize("name", ["interleaved-1f1b", "zb-v"])
def test_stages_are_cut_between_layers(name: str) -> None:
    """Measured stages that take what the layers do have the costs of the layers' own cut."""
    layers = make_layers(LAYERS, db.Costs())
    old = db.make("1f1b", ranks=4, microbatches=4)
    new = db.make(name, ranks=4, microbatches=4)
    measured, wanted = (layers.for_placement(one.placement)[1].table(one) for one in (old, new))
    costs = db.Costs(F=measured.duration[Kind.F].tolist(), B=measured.duration[Kind.B].tolist())
    assert costs.F == (3, 4, 4, 5)
    other = recut(costs, old, new, layers).table(new)
    for kind in (Kind.F, Kind.B):
        assert other.duration[kind] == pytest.approx(wanted.duration[kind])
    assert recut(costs, old, old, layers) == costs


def test_pairs_take_the_share_of_their_parts() -> None:
    costs = db.Costs(F=[1, 1, 2, 2], B=2.0, O={(0, 0): 2.4, (3, 3): 3.2})
    other = recut(costs, made(2), made(1))
    assert (other.F, other.B, other.O) == ((2.0, 4.0), (4.0, 4.0), None)
    assert other.overlap_factor == pytest.approx(0.8)
    links = replace(costs, p2p=((0.0, 0.5), (0.5, 0.0)))
    assert recut(links, made(2), made(1)).overlap_factor == other.overlap_factor


def test_pieces_of_a_cut_add_up() -> None:
    shares = shares_of_cut([1, 2, 1], [0.5, 0.25, 0.25])
    assert shares.sum(axis=0) == pytest.approx(1)
    assert shares == pytest.approx(np.array([[1, 0.5, 0], [0, 0.5, 0], [0, 0, 1]]))
