"""The executor of made runs moves messages as its transports say: so does the engine, which has no
code in common with it.
"""

from __future__ import annotations

from itertools import pairwise

import pytest

import debubble as db
from tests.diagnosis.made import Made, gpipe, one_f_one_b
from tests.diagnosis.transports import TRANSPORTS

ORDERS = {"1f1b": one_f_one_b, "gpipe": gpipe}


def made(order: str, transport: str, latency: float, slow: int | None = None) -> Made:
    """A run of one step without noise; times are 10 and 20 ms, 1.5 times that on a slow rank."""
    return Made(
        ORDERS[order](4, 8), copies=1, steps=1, noise=0, transport=transport,
        latency=lambda *_: latency, time=lambda _, at: 1.5 if at.rank == slow else 1.0,
    )  # fmt: skip


@pytest.mark.parametrize("slow", [None, 1, 3])
@pytest.mark.parametrize("latency", [0.2e-3, 4e-3, 16e-3])
@pytest.mark.parametrize(
    ("order", "transport", "mode"),
    [
        ("1f1b", "buffered", "channel"), ("gpipe", "buffered", "channel"),
        ("1f1b", "together", "blocking"), ("gpipe", "rendezvous", "directed"),
    ],
)  # fmt: skip
def test_as_the_engine(
    order: str, transport: str, mode: str, latency: float, slow: int | None
) -> None:
    factor = [1.5 if stage == slow else 1.0 for stage in range(4)]
    costs = db.Costs(F=[10 * one for one in factor], B=[20 * one for one in factor],
                     p2p=1e3 * latency)  # fmt: skip
    schedule = db.make(order, ranks=4, microbatches=8)
    wanted = db.simulate(schedule, costs, p2p_mode=mode).makespan
    assert 1e3 * made(order, transport, latency, slow).seconds() == pytest.approx(wanted)


@pytest.mark.parametrize("order", ORDERS)
def test_who_waits_for_more_is_never_sooner(order: str) -> None:
    """Buffered messages wait for their link; others for their receiver; senders for all that."""
    ways = ("buffered", "rendezvous", "together", "blocking")
    times = [made(order, way, 4e-3, 1).seconds() for way in ways]
    assert all(a <= b + 1e-9 for a, b in pairwise(times))
    assert made(order, "streams", 4e-3, 1).seconds() >= times[0] - 1e-9
    assert {*ways, "streams"} == {*TRANSPORTS}


def test_messages_vary_around_what_they_take() -> None:
    """A spread changes no action, and messages both ways."""
    plain = made("1f1b", "rendezvous", 4e-3)
    varying = Made(**{**vars(plain), "spread": 0.5})
    took = [one.messages.arrived - one.messages.posted for one in
            (plain.observed(), varying.observed())]  # fmt: skip
    assert (took[1] < took[0].min()).any()
    assert took[1].max() > took[0].min()
