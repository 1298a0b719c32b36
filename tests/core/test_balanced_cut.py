"""Cuts whose busiest rank does little: against every cut of small models."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import debubble as db
from debubble.core.balanced_cut import balanced_cut


def busiest(
    cut: tuple[int, ...], loads: NDArray[np.float64], ends: NDArray[np.float64], homes: list[int]
) -> float:
    sums = np.append(0.0, np.cumsum(loads))[np.cumsum((0, *cut))]
    return float(np.bincount(homes, np.diff(sums) + ends).max())


@given(
    st.lists(st.sampled_from([1.0, 1.0, 1.0, 0.6, 2.5]), min_size=4, max_size=9),
    st.sampled_from([[0, 1, 2], [0, 1, 2, 0, 1, 2][:4], [0, 1, 1, 0], [0, 1, 0, 1]]),
    st.sampled_from([0.0, 0.1, 1.0]), st.sampled_from([0.0, 0.5, 2.0, 4.0]),
)  # fmt: skip
def test_no_cut_is_much_better(
    layers: list[float], homes: list[int], first: float, last: float
) -> None:
    loads, ends = np.array(layers), np.zeros(len(homes))
    ends[0], ends[-1] = first, last
    least = [1] * len(homes)
    least[0], least[-1] = int(first == 0), int(last == 0)
    cut = balanced_cut(loads, ends, homes)
    assert sum(cut) == len(layers)
    assert all(own >= fewest for own, fewest in zip(cut, least, strict=True))
    spans = (range(fewest, len(layers) + 1) for fewest in least)
    every = (other for other in product(*spans) if sum(other) == len(layers))
    best = min(busiest(other, loads, ends, homes) for other in every)
    assert busiest(cut, loads, ends, homes) <= best + max(layers) * (len(set(layers)) > 1) + 1e-9


def test_ends_without_layers_and_later_ranks_first() -> None:
    assert balanced_cut(np.ones(10), np.array([0.1, 0, 0, 1.5]), range(4)) == (3, 3, 3, 1)
    assert balanced_cut(np.ones(9), np.zeros(4), range(4)) == (2, 2, 2, 3)
    assert balanced_cut(np.ones(2), np.array([1.0, 0, 0, 1]), range(4)) == (0, 1, 1, 0)


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(db.ParameterError, match="3 layers are fewer than 4 stages that need one"):
        balanced_cut(np.ones(3), np.zeros(4), range(4))
