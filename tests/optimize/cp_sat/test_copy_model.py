"""Orders that are sought together with their copies: they run as planned, and are faster."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import debubble as db
from debubble.core.actions import Kind, kinds_of
from debubble.engine.timeline import Timeline
from debubble.optimize.incumbent import Incumbent
from debubble.optimize.problem import Problem
from debubble.optimize.programs.offload import without_copies
from debubble.optimize.stage_choices.choices import with_choice
from debubble.optimize.stop import Stop
from debubble.optimize.strategies import begin
from tests.conftest import EXPLORES
from tests.optimize.problems import kinds, problem

pytest.importorskip("ortools")

CASES, SEEDS = (200, ()) if EXPLORES else (12, (128, 178))
"""Random problems; in those of the seeds a copy begins when a wait is over."""

WORK, SECONDS = 2.0, 60.0


def first(asked: Problem) -> Incumbent | None:
    """What the quick strategies find; None where copies have no room."""
    incumbent = Incumbent(asked, Stop())
    begin(incumbent)
    return incumbent if incumbent.schedule is not None else None


def solved(asked: Problem, known: db.Schedule, bound: float) -> tuple[float, Timeline | None]:
    """What the solver takes for the makespan, and the simulation of its order."""
    from debubble.optimize.cp_sat.copy_model import CopyModel

    model = CopyModel(asked, known, bound)
    programs = model.solve(WORK, SECONDS, 1, 0)
    if programs is None:
        return np.inf, None
    schedule = asked.schedule(without_copies(programs)).with_programs(programs)
    return model.solver.objective_value / model.factor, asked.timeline(schedule)


@pytest.mark.slow
def test_few_microbatches_in_little_memory_are_solved() -> None:
    costs: dict[str, Any] = {"F": 5, "I": 6, "W": 4, "host_bandwidth": 0.1}
    asked = with_choice(problem(4, 5, 2, chunks=1, **costs), (2, 2, 2, 2))
    known = first(asked)
    assert known is not None
    assert known.schedule is not None
    planned, timeline = solved(asked, known.schedule, known.bound)
    assert timeline is not None
    assert timeline.makespan == planned < known.makespan
    assert timeline.peak_activation.max() <= 2 * (1 + 1e-9)
    assert {Kind.OFFLOAD, Kind.WAIT_OFFLOAD} <= kinds(timeline.schedule)
    assert known.offer([timeline.schedule.program(rank) for rank in range(4)], "solver")
    assert known.makespan == planned
    assert not any((kinds_of(each) == Kind.OFFLOAD).any() for each in known.programs)


@pytest.mark.slow
def test_orders_run_as_they_were_planned() -> None:
    found = 0
    for seed in (*range(CASES), *SEEDS):
        rng = np.random.default_rng(seed)
        p, v, m = ((2, 1, 3), (2, 1, 4), (3, 1, 3), (2, 2, 2))[rng.integers(4)]
        stages = p * v
        costs: dict[str, Any] = {k: rng.integers(1, 6, stages).tolist() for k in "FIW"}
        costs |= {"p2p": float(rng.integers(2)), "host_bandwidth": 1 / float(rng.integers(1, 6)),
                  "offload_share": float(rng.choice([0.5, 1.0])),
                  "kept_for_weight": float(rng.choice([0.5, 1.0]))}  # fmt: skip
        asked = problem(p, m, 1.0, chunks=v, backward=str(rng.choice(["split", "fused"])), **costs)
        limits = asked.smallest_limits * float(rng.choice([1.2, 1.5, 2.0]))
        ways = [2 * int(flag) for flag in rng.random(stages) < 0.8]
        known = first(with_choice(Problem(asked.placement, asked.table, m, limits,
                                          backward=asked.backward), ways))  # fmt: skip
        if known is None or known.schedule is None or known.done or not known.problem.offload:
            continue
        planned, timeline = solved(known.problem, known.schedule, known.bound)
        if timeline is None:
            continue
        found += 1
        assert db.check(timeline.schedule, costs=asked.table.costs).ok, seed
        assert timeline.makespan <= planned * (1 + 1e-9), seed
        assert timeline.makespan >= known.bound * (1 - 1e-9), seed
        assert np.all(timeline.peak_activation <= limits * (1 + 1e-6)), seed
    assert found
