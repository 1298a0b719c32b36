"""Decimal numbers of texts, many at a time: equal to Python's decimals, one by one."""

from __future__ import annotations

import math
from decimal import Decimal

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from debubble.diagnosis.readers.decimals import decimal, numbers_less

PLAIN = st.builds(
    "{:.{}f}".format, st.floats(-1e3, 2e9, allow_nan=False), st.integers(0, 12)
)  # fmt: skip
ALIKE = st.integers(0, 9).flatmap(
    lambda digits: st.lists(
        st.floats(-5, 2e9).map(lambda number: f"{number:.{digits}f}"), min_size=1, max_size=5
    )
)
ODD = st.sampled_from([
    "", "x", "1_0", "-", "1.", "+5", ".5", "-.5", "1.-5", "--1", "1e3", "nan", "1.2.3", "-0",
    "-0.0", "9" * 25, "9223372036854775807", "0." + "1" * 30, "0e-999999999", "1e999999999",
])  # fmt: skip
ANY = st.one_of(PLAIN, ODD, st.floats(allow_nan=False, allow_infinity=False).map(repr),
                st.integers(-(10**19), 10**19).map(str))  # fmt: skip


def expected(text: str, zero: Decimal) -> float:
    number = decimal(text)
    return math.nan if number is None else float(number - zero)


@given(texts=st.one_of(ALIKE, st.lists(ANY, min_size=1, max_size=4)), zero=ANY)
@example(texts=["1756000000.123456789", "1756000000.123456788"], zero="1756000000.1234567")
def test_they_are_those_of_decimals(texts: list[str], zero: str) -> None:
    first = decimal(zero) or Decimal()
    wanted = [expected(text, first) for text in texts]
    np.testing.assert_array_equal(numbers_less(texts, first), wanted)
