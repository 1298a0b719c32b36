"""Planted faults: the right cause comes first. ``benchmarks/planted_faults.py`` has more seeds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from debubble.diagnosis.account import CAUSES
from debubble.diagnosis.changes import Change
from debubble.diagnosis.diagnose import Diagnosis, diagnose
from debubble.diagnosis.observed import PAUSES
from debubble.diagnosis.what_if import with_changes
from tests.diagnosis import twins
from tests.diagnosis.diagnosed import of_planted
from tests.diagnosis.made import At, Made, one_f_one_b
from tests.diagnosis.planted import OVER_TRANSPORTS, PLANTED, Planted

SEEDS = range(2)


def assert_named(planted: Planted, found: Diagnosis) -> None:
    assert planted.named_first(found.findings), found.findings[:1]
    if planted.cause is None:
        return
    first = found.findings[0]
    assert first.gain is not None
    assert first.gain > 0.02
    assert 0 < first.persistence <= 1


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", PLANTED)
def test_the_planted_fault_comes_first(name: str, seed: int) -> None:
    assert_named(PLANTED[name](seed), of_planted(name, seed))


def assert_true(planted: Planted, found: Diagnosis) -> None:
    """What is promised is what the executor takes without the fault."""
    assert planted.healthy is not None
    healthy, faulty = planted.healthy.seconds(), planted.made.seconds()
    answer = with_changes(found.replay, [Change.parse(one) for one in planted.changes])
    assert answer.after == pytest.approx(healthy, rel=0.05)
    if found.findings:
        assert found.findings[0].gain == pytest.approx(1 - healthy / faulty, abs=0.05)


@pytest.mark.parametrize(
    "name", ["slow stage", "slow worker", "slow copy", "slow link", "jitter", "host gaps"]
)
def test_without_the_fault_a_step_takes_what_is_promised(name: str) -> None:
    assert_true(PLANTED[name](1), of_planted(name, 1))


@pytest.mark.slow
@pytest.mark.parametrize("name", OVER_TRANSPORTS)
def test_over_every_transport_what_is_promised_comes_true(name: str) -> None:
    planted = OVER_TRANSPORTS[name](1)
    found = diagnose(planted.made.observed())
    assert_named(planted, found)
    assert_true(planted, found)


@pytest.mark.parametrize(
    "name", ["slow stage", "slow worker", "slow copy", "jitter", "garbage collection",
             "sequence lengths", "swapped order", "host gaps", "nothing"],
)  # fmt: skip
def test_without_messages_and_with_own_zeros(name: str) -> None:
    """A trace of computing alone, on clocks that begin when they like."""
    planted = PLANTED[name](3)
    made = replace(planted.made, arrivals=False, offset=(0, 3e-3, -5e-3, 1e-3))
    assert_named(planted, diagnose(made.observed()))


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_early_receives_show_in_starts_alone(seed: int) -> None:
    """Held-up actions begin one transfer after another message came to their sender."""
    planted = PLANTED["early receive"](seed)
    found = diagnose(replace(planted.made, arrivals=False).observed())
    assert_named(planted, found)
    assert found.findings[0].gain == pytest.approx(
        of_planted("early receive", seed).findings[0].gain, abs=0.02
    )
    assert sum(one.causes["head-of-line"] for one in found.accounts) > 0


@pytest.mark.slow
def test_twins_of_public_runs() -> None:
    found = diagnose(twins.stage_imbalance().observed())
    assert (found.findings[0].cause, found.findings[0].where["stage"]) == ("slow-stage", 3)
    found = diagnose(twins.sequence_lengths(copies=16).observed())
    assert found.findings[0].cause == "sequence-length"
    found = diagnose(twins.slow_worker().observed())
    assert [one.cause for one in found.findings] == ["slow-worker"]
    where = {"rank": 0, "copy": 0, "stage": 0}
    assert found.findings[0].where == where
    found = diagnose(twins.interleaved().observed())
    assert found.name.text == "interleaved-1f1b"
    assert (found.findings[0].cause, found.findings[0].where["stage"]) == ("slow-stage", 15)


def test_one_odd_step_is_no_fault_of_all() -> None:
    """A pause of 100 ms in one of twelve steps and copies."""

    def pause(_: object, at: object) -> float:
        here = (at.step, at.copy, at.rank, at.kind, at.microbatch)  # type: ignore[attr-defined]
        return 0.1 if here == (2, 0, 1, "F", 4) else 0.0

    planted = PLANTED["nothing"](0)
    found = diagnose(replace(planted.made, pause=pause, pauses_known=True, steps=4).observed())
    first = found.findings[0]
    assert first.cause == "garbage-collection"
    assert first.persistence == pytest.approx(1 / 8)


def test_a_slow_link_of_one_copy() -> None:
    """The only link of two ranks: other copies say what it should take."""
    slow = Made(one_f_one_b(2, 8), copies=3, latency=lambda *_: 0.2e-3, late=(1, 5e-3))
    first = diagnose(slow.observed()).findings[0]
    assert (first.cause, first.where) == ("slow-link", {"link": [0, 1], "copy": 1})


@pytest.mark.parametrize("stood", [(4,), (3, 5), (1, 3, 6), (0, 2, 5, 7)])
@pytest.mark.parametrize(("copies", "steps"), [(1, 1), (2, 2)])
def test_few_pauses_that_the_trace_does_not_tell(
    copies: int, steps: int, stood: tuple[int, ...]
) -> None:
    """Single forwards of one rank in every step, and all later ones wait."""

    def pause(_: object, at: At) -> float:
        here = (at.copy, at.rank, at.kind) == (0, 1, "F") and at.microbatch in stood
        return 40e-3 if here and at.step == 0 else 0.0

    planted = Made(one_f_one_b(4, 8), copies=copies, steps=steps, pause=pause)
    first = diagnose(planted.observed()).findings[0]
    assert (first.cause, first.where["rank"]) == ("garbage-collection", 1)
    assert f"{len(stood)} forward" in first.text


def test_a_few_slow_backwards_are_no_garbage_collection() -> None:
    def pause(_: object, at: At) -> float:
        return 40e-3 if (at.rank, at.kind) == (1, "B") and at.microbatch in (2, 5) else 0.0

    planted = Made(one_f_one_b(4, 8), copies=1, steps=1, pause=pause)
    assert diagnose(planted.observed()).findings[0].cause == "jitter"


def test_allocations_that_the_trace_tells() -> None:
    observed = PLANTED["pauses in the trace"](0).made.observed()
    memory = np.full(len(observed.pauses), PAUSES.index("memory"), dtype=np.int32)
    found = diagnose(replace(observed, pauses=replace(observed.pauses, cause=memory)))
    assert found.findings[0].cause == "memory"


@pytest.mark.parametrize("arrivals", [True, False])
def test_transfers_that_take_what_their_links_take(arrivals: bool) -> None:
    made = Made(one_f_one_b(4, 8), latency=lambda *_: 8e-3, arrivals=arrivals)
    assert diagnose(made.observed()).findings[0].cause == "transfer"


def test_every_cause_of_the_contract_has_a_fault_that_makes_it() -> None:
    """Those that are no fault are in the account of every run; the two above are not planted."""
    causes = {"memory", "transfer"} | {planted(0).cause for planted in PLANTED.values()}
    spent = {cause for one in of_planted("slow stage", 0).accounts for cause in one.causes}
    assert spent >= {"fill", "drain", "peer"}
    assert causes - {None} | {"fill", "drain", "peer"} == set(CAUSES)
