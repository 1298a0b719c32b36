"""Twins of public runs in the formats of their files, against the definitions of the paper."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import ceil
from pathlib import Path

import numpy as np
import pytest

import debubble as db
from debubble.diagnosis.diagnose import read_trace
from tests.diagnosis import twins
from tests.diagnosis.made import Made
from tests.diagnosis.readers import made as files
from tests.diagnosis.readers.made import Done, MadeRun


def as_run(made: Made, name: str, **options: int) -> MadeRun:
    """A made run as one that can be written in every format."""
    observed = made.observed()
    rows = observed.actions
    names = ("step", "copy", "rank", "kind", "stage", "microbatch", "start", "end")
    columns = zip(*(getattr(rows, name).tolist() for name in names), strict=True)
    done = tuple(Done(*row[:3], db.Kind(row[3]), *row[4:]) for row in columns)
    schedule = db.make(
        name,
        ranks=observed.ranks,
        microbatches=observed.microbatches,
        **options,  # type: ignore[arg-type]
    )
    return MadeRun(schedule, done)


@dataclass(frozen=True)
class Figures:
    """S, M_S and M_W of a run of 1F1B by their definitions; messages take no time."""

    run: MadeRun

    def total(self, ideal: set[tuple[int, int]]) -> float:
        """Time of all steps with mean times on some ranks, as (copy, rank)."""
        found: dict[int, float] = {}
        means: dict[tuple[int, str], list[float]] = {}
        for one in self.run.done:
            means.setdefault((one.step, one.kind.name), []).append(one.end - one.start)
        mean = {key: float(np.mean(values)) for key, values in means.items()}
        rows: dict[tuple[int, int], list[Done]] = {}
        for one in self.run.done:
            rows.setdefault((one.step, one.copy), []).append(one)
        for (step, copy), done in rows.items():
            ends: dict[tuple[str, int, int], float] = {}
            free = dict.fromkeys(range(self.run.schedule.ranks), 0.0)
            # By when they began: all that an action waits for comes before it.
            for one in sorted(done, key=lambda one: one.start):
                kind, away = ("F", -1) if one.kind == db.Kind.F else ("B", 1)
                there = ends.get((kind, one.stage + away, one.microbatch), 0.0)
                fixed = (copy, one.rank) in ideal
                length = mean[step, kind] if fixed else one.end - one.start
                end = max(free[one.rank], there) + length
                ends[kind, one.stage, one.microbatch] = free[one.rank] = end
            found[step] = max(found.get(step, 0.0), *free.values())
        return sum(found.values())

    def shares(self) -> tuple[float, float, float]:
        """The three of them."""
        ranks = range(self.run.schedule.ranks)
        copies = range(1 + max(one.copy for one in self.run.done))
        workers = set(product(copies, ranks))
        actual, ideal = self.total(set()), self.total(workers)
        only_rank = [self.total({w for w in workers if w[1] != rank}) for rank in ranks]
        only_copy = [self.total({w for w in workers if w[0] != copy}) for copy in copies]
        slow = sorted(workers, key=lambda w: -min(only_copy[w[0]], only_rank[w[1]]))
        slow = slow[: ceil(0.03 * len(workers))]
        last = {(copy, ranks[-1]) for copy in copies}
        lost = actual - ideal
        return actual / ideal, (actual - self.total(last)) / lost, (
            (actual - self.total(set(slow))) / lost
        )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "published", "cause"),
    [
        (twins.sequence_lengths(), (1.5374, 0.6877, 0.0251), "sequence-length"),
        (twins.slow_worker(), (1.9730, -0.0012, 1.0017), "slow-worker"),
        (twins.stage_imbalance(), (1.1787, 1.2194, 0.0314), "slow-stage"),
    ],
    ids=["SE", "AR", "ST"],
)
def test_slowdowns_of_twins(
    tmp_path: Path, made: Made, published: tuple[float, ...], cause: str
) -> None:
    """What the paper defines, of a file as NDTimeline writes it; near what it publishes."""
    run = as_run(made, "1f1b")
    files.write_ndtimeline(run, tmp_path / "timeline.json.gz")
    found = read_trace(tmp_path)
    slow = found.slowdown
    figures = (slow.total, slow.last_stage, slow.slowest_workers)
    assert figures == pytest.approx(Figures(run).shares(), abs=0.02)
    assert figures[0] == pytest.approx(published[0], abs=0.05)
    assert figures[1] == pytest.approx(published[1], abs=0.15)
    assert found.findings[0].cause == cause
    assert found.replay_error < 0.01
    assert found.left_out == {}


def test_interleaved_ranks_with_their_own_zeros(tmp_path: Path) -> None:
    """As Primus writes it of Megatron's schedules: calls without microbatches and chunks."""
    run = as_run(twins.interleaved(), "interleaved-1f1b", chunks=2)
    files.write_primus(run, tmp_path)
    found = read_trace(tmp_path)
    assert (found.name.text, found.schedule.stages) == ("interleaved-1f1b", 16)
    assert found.observed.order_assumed == "interleaved-1f1b"
    assert len(found.clocks.intervals) == 8 * 6
    assert all(one.low <= one.high for one in found.clocks.intervals)
    assert found.clocks.half_width <= 0.75e-3
    assert found.replay_error <= 0.01
    assert (found.findings[0].cause, found.findings[0].where["stage"]) == ("slow-stage", 15)
