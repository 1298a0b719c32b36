"""Costs of the same model with other stages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import debubble as db
from debubble.core.cost_fields import CostField
from debubble.core.costs import COST_FIELDS
from debubble.diagnosis.recut import recut, shares_of_cut

VALUES = {
    "stage": (0.2, 0.4, 0.6, 0.8), "boundary": (1.0, 2.0, 3.0), "rank": (1.0, 2.0),
    "pair": {(0, 3): 2.0, (1, 2): 3.0}, "microbatch": (1.0, 1.4), "number": 1.25, "rate": 3.0,
    "link": ((0.0, 1.0), (2.0, 0.0)), "sharing": 2, "part": {"F": 0.5},
}  # fmt: skip
"""A value of every shape for four stages on two ranks."""


def made(chunks: int) -> db.Schedule:
    return db.make("looped-bfs", ranks=2, microbatches=2, chunks=chunks)


@pytest.mark.parametrize("spec", COST_FIELDS.values(), ids=lambda spec: spec.name)
def test_every_cost_has_a_place_in_another_cut(spec: CostField) -> None:
    costs = db.Costs(**{spec.name: VALUES[spec.shape]})
    assert recut(costs, made(2), made(2)) == costs
    other = recut(costs, made(2), made(4))
    other.table(made(4))
    if spec.shape not in ("stage", "boundary", "pair"):
        assert getattr(other, spec.name) == getattr(costs, spec.name)
    if spec.shape == "stage" and not spec.share:
        assert sum(getattr(other, spec.name)) == pytest.approx(2.0)
    if spec.shape == "stage" and spec.share:
        assert getattr(other, spec.name) == pytest.approx([0.2, 0.2, 0.4, 0.4, 0.6, 0.6, 0.8, 0.8])
    # There and back.
    back = recut(other, made(4), made(2))
    if spec.shape != "pair":
        assert np.ravel(_plain(getattr(back, spec.name))) == pytest.approx(
            np.ravel(_plain(getattr(costs, spec.name)))
        )


def _plain(value: object) -> object:
    return list(value.values()) if isinstance(value, dict) else value


def test_pairs_take_the_share_of_their_parts() -> None:
    costs = db.Costs(F=[1, 1, 2, 2], B=2.0, O={(0, 0): 2.4, (3, 3): 3.2})
    other = recut(costs, made(2), made(1))
    assert (other.F, other.B, other.O) == ((2.0, 4.0), (4.0, 4.0), None)
    assert other.overlap_factor == pytest.approx(0.8)
    uniform = recut(replace(costs, F=1.0, O=2.1), made(2), made(4))
    assert uniform.overlap_factor == pytest.approx(0.7)


def test_pieces_of_a_cut_add_up() -> None:
    shares = shares_of_cut([1, 2, 1], [0.5, 0.25, 0.25])
    assert shares.sum(axis=0) == pytest.approx(1)
    assert shares == pytest.approx(np.array([[1, 0.5, 0], [0, 0.5, 0], [0, 0, 1]]))
