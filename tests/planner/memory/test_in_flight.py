"""Microbatches in flight by the order alone, against the engine's memory."""

import warnings

import numpy as np
import pytest

import debubble as db
from debubble.planner.memory.in_flight import counted, in_flight
from debubble.planner.plannable import fits, plannable
from debubble.schedules import registry

ORDERS = [name for name in plannable() if not registry.find(name).uses_costs]


@pytest.mark.parametrize("runtime", ["any", "torch"])
@pytest.mark.parametrize("name", ORDERS)
def test_peaks_are_the_engines(name: str, runtime: str) -> None:
    some, tried = np.random.default_rng(1), 0
    for ranks, microbatches, chunks in ((1, 4, 1), (2, 16, 3), (4, 8, 2), (4, 16, 4)):
        chunks = registry.find(name).chunks or chunks
        try:
            order = db.make(name, ranks=ranks, microbatches=microbatches, chunks=chunks)
        except db.ParameterError:
            continue
        tried += 1
        stored = some.uniform(1, 5, ranks * chunks)
        share = some.uniform(0, 1, ranks * chunks)
        costs = db.Costs(
            F=1, I=1, W=1, activation=stored.tolist(), kept_for_weight=share.tolist(),
            runtime=runtime,
        )  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            timeline = db.simulate(order, costs)
        found = counted(order, runtime)
        assert found.peaks(stored, share * stored) == pytest.approx(timeline.peak_activation)
    assert tried > 1


def test_few_moments_are_enough() -> None:
    found = in_flight("interleaved-1f1b", 4, 64, 4, "any")
    assert found is not None
    assert len(found.whole) < 64
    assert not found.kept.any()
    assert found.whole.sum(axis=1).max() == 2 * 3 + 3 * 4 + 1


def test_orders_that_depend_on_costs_are_not_counted() -> None:
    assert in_flight("zb-v", 4, 8, 2, "any") is None


@pytest.mark.parametrize("name", ORDERS)
def test_a_shorter_order_with_as_much_in_flight_stands_for_a_longer_one(name: str) -> None:
    for ranks, rounds, chunks in ((2, 7, 3), (4, 6, 2), (4, 5, 4)):
        chunks, microbatches = registry.find(name).chunks or chunks, ranks * rounds
        if not fits(name, ranks, chunks, microbatches):
            continue
        whole = registry.make(name, ranks=ranks, microbatches=microbatches, chunks=chunks)
        stored = np.linspace(1.0, 2.0, ranks * chunks)
        found = in_flight(name, ranks, microbatches, chunks, "any")
        assert found is not None
        expected = counted(whole, "any").peaks(stored, stored / 2)
        assert found.peaks(stored, stored / 2) == pytest.approx(expected)
