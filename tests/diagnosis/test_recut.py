"""Costs of the same model with other stages."""

from __future__ import annotations

import numpy as np
import pytest

import debubble as db
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


def test_pairs_take_the_share_of_their_parts() -> None:
    costs = db.Costs(F=[1, 1, 2, 2], B=2.0, O={(0, 0): 2.4, (3, 3): 3.2})
    other = recut(costs, made(2), made(1))
    assert (other.F, other.B, other.O) == ((2.0, 4.0), (4.0, 4.0), None)
    assert other.overlap_factor == pytest.approx(0.8)


def test_pieces_of_a_cut_add_up() -> None:
    shares = shares_of_cut([1, 2, 1], [0.5, 0.25, 0.25])
    assert shares.sum(axis=0) == pytest.approx(1)
    assert shares == pytest.approx(np.array([[1, 0.5, 0], [0, 0.5, 0], [0, 0, 1]]))
