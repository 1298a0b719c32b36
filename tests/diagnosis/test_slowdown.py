"""Slowdowns against the definition, walked through by hand."""

from __future__ import annotations

import numpy as np
import pytest

from debubble.diagnosis.diagnose import Diagnosis, diagnose
from debubble.diagnosis.run import Run
from tests.diagnosis import twins
from tests.diagnosis.diagnosed import plain


def walked(run: Run, times: np.ndarray) -> float:
    """Time of all steps without messages, by a walk over the rows of 1F1B."""
    total = np.zeros(run.rows)
    for row in range(run.rows):
        ends: dict[tuple[str, int, int], float] = {}
        clock = [0.0] * run.schedule.ranks
        todo = [list(zip(program, range(*map(int, run.schedule.offsets[r : r + 2])), strict=True))
                for r, program in enumerate(run.schedule)]  # fmt: skip
        while any(todo):
            for rank, program in enumerate(todo):
                while program:
                    action, column = program[0]
                    kind = action.kind.name
                    away = action.stage + (-1 if kind == "F" else 1)
                    there = 0.0
                    if 0 <= away < run.schedule.stages:
                        if (kind, away, action.microbatch) not in ends:
                            break
                        there = ends[kind, away, action.microbatch]
                    clock[rank] = max(clock[rank], there) + times[row, column]
                    ends[kind, action.stage, action.microbatch] = clock[rank]
                    program.pop(0)
        total[row] = max(clock)
    return float(run.slowest(total).sum())


def without_messages(**changes: object) -> Diagnosis:
    return plain(latency=lambda *_: 0.0, steps=2, **changes)


def test_by_the_definition() -> None:
    found = without_messages(time=lambda _, at: 1.6 if at.stage == 3 else 1.0)
    run, times, slow = found.run, found.replay.times, found.slowdown
    ideal = times.copy()
    for step in (0, 1):
        for kind in (0, 3):
            cells = np.ix_(run.step == step, run.kind == kind)
            ideal[cells] = times[cells].mean()
    actual, best = walked(run, times), walked(run, ideal)
    assert slow.total == pytest.approx(actual / best, rel=1e-5)
    stage = run.stage == 3
    assert slow.stage[3] == pytest.approx(walked(run, np.where(stage, times, ideal)) / best, 1e-5)
    copy = (run.copy == 1)[:, None]
    assert slow.copy[1] == pytest.approx(walked(run, np.where(copy, times, ideal)) / best, 1e-5)
    forward = run.kind == 0
    only = walked(run, np.where(forward, times, ideal)) / best
    assert slow.kind["F"] == pytest.approx(only, 1e-5)
    fixed = walked(run, np.where(stage, ideal, times))
    assert slow.last_stage == pytest.approx((actual - fixed) / (actual - best), 1e-3)


def test_equal_stages_have_nothing_to_explain() -> None:
    slow = without_messages(noise=0.0).slowdown
    assert slow.total == pytest.approx(1)
    assert (slow.last_stage, slow.slowest_workers) == (None, None)


def test_twins_of_public_runs() -> None:
    """Published: S 1.18, M_S 1.22 for a heavy last stage; S 1.97, M_S 0, M_W 1.0 for a worker."""
    heavy = diagnose(twins.stage_imbalance().observed()).slowdown
    assert heavy.total == pytest.approx(1.18, abs=0.03)
    assert heavy.last_stage is not None
    assert heavy.last_stage > 1
    assert heavy.stage.index(max(heavy.stage)) == 3
    worker = diagnose(twins.slow_worker().observed()).slowdown
    assert worker.total == pytest.approx(2.0, abs=0.15)
    assert worker.last_stage == pytest.approx(0, abs=0.02)
    assert worker.slowest_workers == pytest.approx(1, abs=0.02)
    # Both its stage and its copy look slow; all others do not.
    assert worker.stage[0] > 1.9
    assert worker.copy[0] > 1.9
    assert max(worker.stage[1:] + worker.copy[1:]) < 1.02
