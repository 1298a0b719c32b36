"""Costs from what was observed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import debubble as db
from debubble.diagnosis.diagnose import diagnose
from debubble.diagnosis.times import spreads_of
from debubble.interchange.cost_files import load_costs, save_costs
from tests.diagnosis.diagnosed import of_planted, plain
from tests.diagnosis.made import Made
from tests.laws.executed import Job


def test_medians_are_the_costs(tmp_path: Path) -> None:
    found = plain(time=lambda _, at: 1.5 if at.stage == 2 else 1.0)
    costs = found.costs
    assert costs.time_unit == "ms"
    assert pytest.approx((10, 10, 15, 10), rel=0.02) == costs.F
    assert pytest.approx((20, 20, 30, 20), rel=0.02) == costs.B
    assert costs.p2p == pytest.approx(0.2)
    path = tmp_path / "costs.yaml"
    save_costs(found.cost_file(), str(path))
    file = load_costs(path)
    assert file.costs == costs
    assert (file.ranks, file.microbatches, file.chunks) == (4, 8, None)
    assert len(file.measured["spread"]) == 8


def test_links_that_differ_are_a_matrix() -> None:
    costs = of_planted("slow link", 0).costs
    assert isinstance(costs.p2p, tuple)
    assert np.max(costs.p2p) == pytest.approx(4, rel=0.01)


def test_split_backwards() -> None:
    rows = db.make("zb-h1", ranks=4, microbatches=8).rows()
    costs = diagnose(Made(rows).observed()).costs
    assert pytest.approx((10,) * 4, rel=0.02) == costs.I
    assert pytest.approx((10,) * 4, rel=0.02) == costs.W


def test_spread_drift_and_outliers() -> None:
    def time(_: object, at: object) -> float:
        grows = 1 + 0.1 * at.step  # type: ignore[attr-defined]
        odd = (at.stage, at.microbatch, at.copy) == (1, 3, 0)  # type: ignore[attr-defined]
        return grows * (3 if odd else 1)

    found = {(one.kind, one.stage): one for one in spreads_of(plain(time=time).run)}
    assert found["F", 0].drift == pytest.approx(0.5, abs=0.05)
    assert found["F", 0].outliers == 0
    assert found["F", 1].outliers == 6
    assert found["F", 1].count == 6 * 2 * 8
    one = found["B", 2]
    assert one.p10 < one.median < one.p90
    assert one.mean == pytest.approx(25e-3, rel=0.02)
    assert 0.1 < one.cv < 0.2


def test_overlapped_groups_have_a_time_of_their_own() -> None:
    """Times of a simulation, given as if they had been observed."""
    from debubble.diagnosis.observed import Observed, ObservedActions

    schedule = db.make("dualpipe-v", ranks=2, microbatches=8)
    given = db.Costs(F=1, B=2, O=2.5, p2p=0.01)
    table = db.simulate(schedule, given).actions()
    kinds = {kind.name: int(kind) for kind in db.Kind}
    keys = list(zip(table.rank.tolist(), table.start.tolist(), strict=True))
    pair = [keys.index(key) if keys.count(key) == 2 else -1 for key in keys]
    rows = ObservedActions.of(
        step=np.zeros(len(table)), copy=np.zeros(len(table)), rank=table.rank, stage=table.stage,
        kind=[kinds[kind] for kind in table.kind], microbatch=table.microbatch, pair=pair,
        start=table.start / 1e3, end=table.end / 1e3,
    )  # fmt: skip
    found = diagnose(Observed("made", 2, 1, (0,), rows))
    again = db.simulate(schedule, found.costs)
    assert again.makespan == pytest.approx(db.simulate(schedule, given).makespan, rel=1e-3)
    assert found.replay_error < 1e-3


@pytest.mark.parametrize("name", ["seq1f1b", "terapipe"])
def test_costs_are_those_of_whole_microbatches(name: str) -> None:
    """Not of slices, which every command divides them into."""
    schedule = db.make(name, ranks=3, microbatches=4, slices=2)
    job = Job(schedule, lambda piece, *_: {"F": 5e-3, "B": 10e-3}[piece.kind])
    found = diagnose(job.observed())
    assert pytest.approx((10,) * 3) == found.costs.F
    assert pytest.approx((20,) * 3) == found.costs.B
    assert found.predicted.makespan == pytest.approx(1e3 * job.step())


def test_only_equal_links_are_one_number() -> None:
    found = plain(latency=lambda a, _: 1e-3 * (1 + a))
    links = np.array(found.costs.p2p)
    assert links[2, 3] == pytest.approx(3, rel=0.01)
    assert replace(found.costs, p2p=0.0) != found.costs
