"""Faults to plant in made runs, and the cause that a diagnosis has to name first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from debubble.diagnosis.findings import Finding
from tests.diagnosis.made import At, Made, gpipe, one_f_one_b
from tests.diagnosis.transports import TRANSPORTS

RANKS, MICROBATCHES = 4, 8


@dataclass(frozen=True)
class Planted:
    """A run with a fault, or with nothing but transfers.

    Parameters
    ----------
    made
        The run.
    cause
        The cause that is to be named first; None for a run without a fault.
    where
        What the finding has to say of where it is.
    changes
        Changes for ``--set`` that remove the fault; empty where there are none.
    healthy
        The run without the fault; None where it is not the same job.
    """

    made: Made
    cause: str | None
    where: dict[str, Any]
    changes: tuple[str, ...] = ()
    healthy: Made | None = None

    def named_first(self, findings: Sequence[Finding]) -> bool:
        """Whether the first finding is the fault; without one, whether none is but transfers."""
        if self.cause is None:
            return all(one.cause == "transfer" and self.changes for one in findings)
        if not findings or findings[0].cause != self.cause:
            return False
        return all(findings[0].where.get(key) == value for key, value in self.where.items())


def _made(seed: int, **changes: Any) -> Made:
    return Made(one_f_one_b(RANKS, MICROBATCHES), seed=seed, **changes)


def _rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(1000 + seed)


def clean(seed: int) -> Planted:
    """A run without a fault."""
    return Planted(_made(seed), None, {})


def slow_stage(seed: int) -> Planted:
    """One stage with more work, on all copies."""
    stage, factor = int(_rng(seed).integers(RANKS)), _rng(seed).uniform(1.15, 2.0)
    made = _made(seed, time=lambda _, at: factor if at.rank == stage else 1.0)
    changes = (f"stage{stage}*={1 / factor}",)
    return Planted(made, "slow-stage", {"stage": stage}, changes, _made(seed))


def slow_worker(seed: int) -> Planted:
    """One rank of one copy."""
    bad, factor = (int(_rng(seed).integers(3)), int(_rng(seed).integers(RANKS))), 1.3

    def time(_: np.random.Generator, at: At) -> float:
        return factor if (at.copy, at.rank) == bad else 1.0

    made = _made(seed, copies=3, time=time)
    # Other copies, which are quicker for it, are not the slowest.
    changes = (f"rank{bad[1]}*={1 / factor}",)
    where = {"copy": bad[0], "rank": bad[1]}
    return Planted(made, "slow-worker", where, changes, _made(seed, copies=3))


def slow_copy(seed: int) -> Planted:
    """All ranks of one copy."""
    bad = int(_rng(seed).integers(2))
    made = _made(seed, time=lambda _, at: 1.15 if at.copy == bad else 1.0)
    changes = (f"copy{bad}*={1 / 1.15}",)
    return Planted(made, "slow-copy", {"copy": bad}, changes, _made(seed))


def slow_link(seed: int) -> Planted:
    """One pair of neighbours whose messages take long."""
    low = int(_rng(seed).integers(RANKS - 1))
    made = _made(seed, latency=lambda a, b: 4e-3 if min(a, b) == low else 0.2e-3)
    changes = (f"p2p.{low}-{low + 1}*={0.2 / 4}",)
    return Planted(made, "slow-link", {"link": [low, low + 1]}, changes, _made(seed))


def jitter(seed: int) -> Planted:
    """One rank whose actions take now longer, now shorter, in the mean what they should."""
    bad = int(_rng(seed).integers(RANKS))

    def time(rng: np.random.Generator, at: At) -> float:
        return float(rng.lognormal(-0.08, 0.4)) if at.rank == bad else 1.0

    changes = (f"rank{bad}.F=10", f"rank{bad}.B=20")
    return Planted(_made(seed, time=time), "jitter", {"rank": bad}, changes, _made(seed))


def garbage(seed: int, known: bool = False) -> Planted:
    """Forwards that stand still now and then."""

    def pause(rng: np.random.Generator, at: At) -> float:
        return 25e-3 if at.kind == "F" and rng.random() < 0.06 else 0.0

    made = _made(seed, pause=pause, pauses_known=known)
    return Planted(made, "garbage-collection", {}, healthy=_made(seed))


def known_pauses(seed: int) -> Planted:
    """The same with a trace that tells them."""
    return garbage(seed, known=True)


def lengths(seed: int) -> Planted:
    """Microbatches of different lengths: forwards and backwards are long together."""
    drawn = _rng(seed).lognormal(0.0, 0.3, size=(6, 2, MICROBATCHES))

    def time(_: np.random.Generator, at: At) -> float:
        return float(drawn[at.step, at.copy, at.microbatch])

    return Planted(_made(seed, time=time), "sequence-length", {})


def swapped(seed: int) -> Planted:
    """One rank that warms up one forward less than 1F1B: backwards before forwards."""
    programs = one_f_one_b(RANKS, MICROBATCHES)
    rank = int(_rng(seed).integers(RANKS - 1))
    cells = programs[rank]
    for at in range(RANKS - rank - 1, len(cells) - 1, 2):
        if cells[at][1] == "F" and cells[at + 1][1] == "B":
            cells[at], cells[at + 1] = cells[at + 1], cells[at]
    return Planted(Made(programs, seed=seed), "order", {}, healthy=_made(seed))


def early_receive(seed: int) -> Planted:
    """Ranks that post the receive of the input after next before they send a result."""
    programs = one_f_one_b(6, 8)
    made, healthy = Made(programs, seed=seed, early=(1, 2, 3)), Made(programs, seed=seed)
    return Planted(made, "head-of-line", {}, healthy=healthy)


def host_gaps(seed: int) -> Planted:
    """A rank whose host is late."""
    bad = int(_rng(seed).integers(RANKS))

    def gap(rng: np.random.Generator, at: At) -> float:
        return float(rng.uniform(1e-3, 4e-3)) if at.rank == bad else 0.0

    return Planted(_made(seed, gap=gap), "launch-gap", {"rank": bad}, ("gaps=0",), _made(seed))


def skew(seed: int) -> Planted:
    """Clocks that are off by milliseconds and run apart; nothing else is wrong."""
    rng = _rng(seed)
    made = _made(seed, offset=tuple(rng.uniform(-20e-3, 20e-3, RANKS)),
                 drift=tuple(rng.uniform(-1e-4, 1e-4, RANKS)))  # fmt: skip
    return Planted(made, None, {})


def skewed_stage(seed: int) -> Planted:
    """A slow stage on clocks that are off."""
    planted, clocks = slow_stage(seed), skew(seed).made
    made = replace(planted.made, offset=clocks.offset, drift=clocks.drift)
    return replace(planted, made=made)


def dropped(seed: int) -> Planted:
    """The first kernels of the first step are not in the trace; nothing else is wrong."""
    return Planted(_made(seed, dropped=2), None, {})


def missing(seed: int) -> Planted:
    """One rank has no file; nothing else is wrong."""
    return Planted(_made(seed, copies=1, missing=((0, int(_rng(seed).integers(RANKS))),)), None, {})


PLANTED: dict[str, Callable[[int], Planted]] = {
    "slow stage": slow_stage,
    "slow worker": slow_worker,
    "slow copy": slow_copy,
    "slow link": slow_link,
    "jitter": jitter,
    "garbage collection": garbage,
    "pauses in the trace": known_pauses,
    "sequence lengths": lengths,
    "swapped order": swapped,
    "early receive": early_receive,
    "host gaps": host_gaps,
    "slow stage, clocks off": skewed_stage,
    "clocks off": skew,
    "dropped kernels": dropped,
    "missing rank": missing,
    "nothing": clean,
}
"""By name how to make a run with a fault from a seed."""


SPREAD = 0.5
"""Standard deviation of the logarithm of a message's time, over transports."""

LONGER = 4
"""Factor of the times of messages, over transports."""


def over(transport: str, order: str, fault: Callable[[int], Planted], seed: int) -> Planted:
    """A fault in a run whose messages go by a transport, and take now longer, now shorter."""

    def going(made: Made) -> Made:
        programs = ORDERS[order](RANKS, MICROBATCHES)
        latency = made.latency
        return replace(made, programs=programs, transport=transport, spread=SPREAD,
                       latency=lambda *link: LONGER * latency(*link))  # fmt: skip

    planted = fault(seed)
    made = going(planted.made)
    if planted.cause is None:
        # Transfers cost what they cost: they may be named, with what they cost.
        return Planted(made, None, {}, ("p2p=0",), replace(made, latency=lambda *_: 0.0))
    healthy = None if planted.healthy is None else going(planted.healthy)
    return replace(planted, made=made, healthy=healthy)


ORDERS = {"1f1b": one_f_one_b, "gpipe": gpipe}

CARRIED = {
    "1f1b": ("slow stage", "slow worker", "slow copy", "slow link", "jitter", "host gaps",
             "nothing"),
    "gpipe": ("slow stage", "slow link", "nothing"),
}  # fmt: skip
"""Faults that are planted over every transport, by order."""

OVER_TRANSPORTS: dict[str, Callable[[int], Planted]] = {
    f"{name}, {order}, {transport}": partial(over, transport, order, PLANTED[name])
    for transport in TRANSPORTS for order, names in CARRIED.items() for name in names
}  # fmt: skip
"""The same by name, over every transport."""
