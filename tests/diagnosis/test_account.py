"""Where the time of a step went, to the last microsecond."""

from __future__ import annotations

import numpy as np
import pytest

from debubble.diagnosis.account import CAUSES
from debubble.diagnosis.diagnose import Diagnosis, diagnose
from tests.diagnosis import twins
from tests.diagnosis.diagnosed import of_planted, plain
from tests.diagnosis.made import Made, one_f_one_b
from tests.diagnosis.planted import PLANTED

EXACT = {"noise": 0.0, "steps": 1, "copies": 1}


def assert_closed(found: Diagnosis) -> None:
    assert [one.rank for one in found.accounts] == list(range(found.schedule.ranks))
    for one in found.accounts:
        assert set(one.causes) <= set(CAUSES)
        assert one.compute > 0
        assert min(one.causes.values(), default=0.0) >= 0
        assert one.compute + sum(one.causes.values()) == pytest.approx(one.step, abs=1e-9)
        assert one.step == pytest.approx(found.run.step_times.mean(), abs=1e-9)


@pytest.mark.parametrize("name", [name for name in PLANTED if name != "missing rank"])
def test_every_account_is_closed(name: str) -> None:
    assert_closed(of_planted(name, 0))


def test_ranks_without_a_file_have_no_account() -> None:
    found = of_planted("missing rank", 0)
    missing = {rank for _, rank in found.observed.missing}
    assert {one.rank for one in found.accounts} == set(range(4)) - missing


def test_a_plain_run_by_hand() -> None:
    """1F1B, 2 ranks, 2 microbatches, F 10 ms, B 20 ms, messages 1 ms.

    Rank 0 runs F0 at 0, F1 at 10, waits for B0 of rank 1, which runs F0 at 11 and B0 at 21: until
    41 for the pipeline to fill, until 42 for the message. It ends with B1 at 72 + 1 + 20.
    """
    found = diagnose(Made(one_f_one_b(2, 2), latency=lambda *_: 1e-3, **EXACT).observed())
    first, second = found.accounts
    ms = {cause: 1e3 * time for cause, time in first.causes.items()}
    assert 1e3 * first.compute == pytest.approx(60)
    # F0 10, message 1, F0 to B0 on rank 1: 11 to 41; F1 41, B1 51 to 71; message 1, B1 72 to 92.
    assert ms == pytest.approx({"fill": 21, "drain": 9, "transfer": 1 + 1})
    ms = {cause: 1e3 * time for cause, time in second.causes.items()}
    assert 1e3 * second.compute == pytest.approx(60)
    assert ms == pytest.approx({"fill": 10, "transfer": 1 + 1, "drain": 20})


def test_a_plain_pipeline_fills_and_drains() -> None:
    """1F1B's own bubble on p ranks: on every rank (p - 1)(F + B), and nothing between."""
    found = plain(latency=lambda *_: 0.0, **EXACT)
    for one in found.accounts:
        assert set(one.causes) == {"fill", "drain"}
        assert sum(one.causes.values()) == pytest.approx(3 * 30e-3)
        assert one.causes["fill"] == pytest.approx((3 * 10 + (3 - one.rank) * 10) * 1e-3)


def test_forwards_alone_fill_and_drain() -> None:
    """Rank r begins r forwards late and is done that much after the first one."""
    rows = [[f"{rank}F{i}" for i in range(6)] for rank in range(3)]
    found = diagnose(Made(rows, latency=lambda *_: 0.0, **EXACT).observed())
    for one in found.accounts:
        wanted = {"fill": one.rank * 10e-3, "drain": (2 - one.rank) * 10e-3}
        assert one.causes == pytest.approx({key: time for key, time in wanted.items() if time})


def test_what_an_order_costs_is_the_orders() -> None:
    found = of_planted("swapped order", 0)
    assert found.findings[0].cause == "order"
    for one in found.accounts:
        assert one.causes["order"] == pytest.approx(found.findings[0].seconds)
    assert "order" not in of_planted("nothing", 0).accounts[0].causes


def test_waits_have_the_cause_of_what_is_waited_for() -> None:
    """Rank 3 takes half as long again: others wait for what it takes on top."""
    slow = plain(time=lambda _, at: 1.5 if at.rank == 3 else 1.0, **EXACT)
    causes = [one.causes.get("slow-stage", 0.0) for one in slow.accounts]
    # Its excess over the others: half of 16 actions of 10 and 20 ms.
    assert causes[3] == pytest.approx(8 * 30e-3 * 0.5, rel=1e-6)
    assert causes[2] > 0.05


def test_a_pause_between_actions_is_no_launch_gap() -> None:
    def gap(_: object, at: object) -> float:
        return 5e-3 if (at.rank, at.kind, at.microbatch) == (0, "F", 2) else 0.0  # type: ignore[attr-defined]

    late = plain(gap=gap, **EXACT)
    assert late.accounts[0].causes["launch-gap"] == pytest.approx(5e-3)


@pytest.mark.parametrize(
    "made",
    [twins.stage_imbalance(), twins.interleaved(), twins.slow_worker()],
    ids=["ST", "interleaved", "AR"],
)
def test_twins_of_public_runs_close(made: Made) -> None:
    assert_closed(diagnose(made.observed()))


def test_long_runs_are_sampled() -> None:
    """A fraction of the steps says where the time of a mean step went."""
    from debubble.diagnosis.account import _chosen

    assert _chosen(10, 100).tolist() == list(range(10))
    some = _chosen(1000, 1_000_000)
    assert len(some) == 60
    assert np.diff(some).min() >= 16
