"""Distributions of times, and what is slow: quantiles against formulas and drawn numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import debubble as db
from debubble.engine.jitter import ENTRIES, Slow


@pytest.mark.parametrize("text", ["normal:3%", "lognormal:0.05", "gamma:10%", "gamma:100%"])
def test_mean_and_deviation_are_exact(text: str) -> None:
    found = db.Jitter(text).quantiles
    deviation = {"3%": 0.03, "0.05": 0.05, "10%": 0.1, "100%": 1.0}[text.partition(":")[2]]
    assert found.mean() == pytest.approx(1, abs=1e-14)
    assert found.std() == pytest.approx(deviation, rel=1e-6)
    assert (np.diff(found) >= 0).all()
    assert found[0] >= 0


def test_quantiles_are_those_of_drawn_numbers() -> None:
    rng = np.random.default_rng(0)
    count, deviation = 1_000_000, 0.3
    width = math.sqrt(math.log1p(deviation**2))
    shape = 1 / deviation**2
    drawn = {
        "normal:20%": rng.normal(1, 0.2, count),
        "lognormal:30%": rng.lognormal(-(width**2) / 2, width, count),
        "gamma:30%": rng.gamma(shape, 1 / shape, count),
    }
    for text, numbers in drawn.items():
        found = db.Jitter(text).quantiles
        for share in (0.01, 0.1, 0.5, 0.9, 0.99):
            expected = np.quantile(numbers, share)
            assert found[int(share * ENTRIES)] == pytest.approx(expected, rel=0.01), text


def test_measured_times_are_taken_by_their_mean() -> None:
    found = db.Jitter([8.0, 10.0, 12.0]).quantiles
    assert found.mean() == pytest.approx(1, abs=1e-14)
    assert (found[0], found[-1]) == pytest.approx((0.8, 1.2), rel=1e-3)
    assert db.Jitter([3.0, 3.0]).quantiles.tolist() == [1.0] * ENTRIES
    assert db.Jitter("normal:0%").quantiles.tolist() == [1.0] * ENTRIES
    assert db.Jitter().quantiles.tolist() == [1.0] * ENTRIES


def test_what_is_slow_is_read() -> None:
    slow = {"rank2": 1.2, "stage3": 2, "link0-1": 3.0, "copy": 1.1, "copy.rank2": 1.5}
    assert db.Jitter(slow=slow).slowed == (
        Slow("rank", (2,), 1.2, False),
        Slow("stage", (3,), 2.0, False),
        Slow("link", (0, 1), 3.0, False),
        Slow("copy", (), 1.1, True),
        Slow("rank", (2,), 1.5, True),
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"times": "norml:3%"}, "jitter is 'norml:3%'; give a distribution such as normal:3%, or a"
         " file of measured times; did you mean 'normal'"),
        ({"times": "normal"}, "jitter is 'normal'; give the standard deviation, too: normal:3%"),
        ({"times": "normal:x"}, "jitter is 'normal:x'; give a distribution"),
        ({"times": "normal:e"}, "jitter is 'normal:e'; give the standard deviation, too"),
        ({"times": "normal:30%"}, "jitter is 'normal:30%'; normal goes from 0 to 25 %: beyond"),
        ({"times": "gamma:200%"}, "jitter is 'gamma:200%'; gamma goes from 0 to 100 %: give meas"),
        ({"times": [1.0]}, "jitter is [1.0]; give a list of 2 to 10,000,000 measured times"),
        ({"times": [1.0, -2.0]}, "measured time 1 of the jitter is -2; times are finite numbers"),
        ({"times": [0.0, 0.0]}, "the measured times of the jitter have the mean 0; give times"),
        ({"times": 3}, "jitter is 3; give a list of 2"),
        ({"times": [[1, 2]]}, "jitter is [[1, 2]]; give a list of 2"),
        ({"samples": 0}, "samples is 0; give a whole number from 1 to 1,000,000"),
        ({"replicas": 1.5}, "replicas is 1.5; give a whole number from 1 to 1,000,000"),
        ({"seed": -1}, "seed is -1; give a whole number from 0"),
        ({"slow": ["rank2"]}, "slow is ['rank2']; give a mapping such as {'rank2': 1.2}"),
        ({"slow": {"rnk2": 2}}, "slow is 'rnk2'; give rank2, stage3, link0-1, copy, or one of the"),
        ({"slow": {"rank2": 0}}, "slow rank2 is 0; give how many times as long it takes"),
        ({"slow": {"rank2": "x"}}, "slow rank2 is 'x'; give how many times as long it takes"),
        ({"slow": {2: 1.5}}, "slow is 2; give rank2"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(db.ParameterError) as caught:
        db.Jitter(**values)
    assert str(caught.value).startswith(message)
