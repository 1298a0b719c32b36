"""Rows of what was observed."""

from __future__ import annotations

import numpy as np
import pytest

from debubble.diagnosis.observed import Messages, ObservedActions


def test_columns_that_a_format_lacks_are_unknown() -> None:
    rows = ObservedActions.of(rank=[0, 1], stage=[2, 3], start=[0.5, 1.5], end=[1, 2])
    assert len(rows) == 2
    assert rows.pair.tolist() == [-1, -1]
    assert rows.microbatch.tolist() == [0, 0]
    assert np.isnan(rows.busy).all()
    assert (rows.start.dtype, rows.kind.dtype) == (np.float64, np.int32)
    assert len(Messages.of()) == 0


def test_some_of_the_rows() -> None:
    rows = ObservedActions.of(rank=[0, 1, 2])
    assert rows.take(np.array([False, True, True])).rank.tolist() == [1, 2]


def test_what_is_no_column() -> None:
    with pytest.raises(AssertionError, match="there is no column ranks"):
        ObservedActions.of(ranks=[0])
