"""Microbatches of different lengths, solved and bounded, against every order of small problems."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import debubble as db
from debubble.core.actions import Kind, Program, kinds_of, microbatches_of, stages_of
from debubble.listing import TOLERANCE
from debubble.optimize.anneal.annealer import Annealer, refine
from debubble.optimize.cp_sat.lengths_model import by_work, narrow, telling_ranks
from debubble.optimize.problem import Problem
from debubble.optimize.stop import Stop, WorkLimit
from debubble.optimize.strategies import list_programs
from debubble.optimize.times import action_times
from tests.conftest import EXPLORES
from tests.optimize.problems import fastest

CASES = 2000 if EXPLORES else 16

SHAPES = (
    (1, 1, 3, "split"), (1, 1, 4, "fused"), (1, 2, 2, "fused"), (2, 1, 2, "split"),
    (2, 1, 2, "free"), (2, 1, 2, "fused"), (3, 1, 2, "fused"), (2, 2, 1, "split"),
)  # fmt: skip
"""Ranks, chunks, microbatches and backwards with few orders."""


def unequal(rng: np.random.Generator) -> Problem:
    """A small problem with any lengths, times, memory, transfers and choices."""
    p, v, m, backward = SHAPES[rng.integers(len(SHAPES))]
    place = db.Placement.wave(p, v) if rng.random() < 0.5 else db.Placement.loop(p, v)
    times = {kind: (rng.integers(1, 9, p * v) / 2).tolist() for kind in "FIWR"}
    if backward == "free":
        times["B"] = (rng.integers(1, 13, p * v) / 2).tolist()
    lengths = rng.choice([0.25, 0.5, 1.0, 1.5, 2.0], m)
    if rng.random() < 0.3:
        # Long messages, over links that take none for short ones.
        times |= {"message": 2.0, "bandwidth": 2.0}
    costs = db.Costs(
        **times, p2p=float(rng.choice([0, 0.5])), attention=float(rng.choice([0, 0.25])),
        kept_for_weight=float(rng.choice([0, 0.5, 1])), microbatch=lengths.tolist(),
        activation=(rng.integers(1, 4, p * v) / 2).tolist(),
    )  # fmt: skip
    table = costs.resolve(place).for_microbatches(m)
    asked = Problem(place, table, m, np.full(p, np.inf), backward=backward)
    if m <= 2 and rng.random() < 0.5:
        asked = replace(asked, recompute=tuple((np.arange(p * v) == rng.integers(p * v)).tolist()))
    room = asked.smallest_limits * lengths.max() * float(rng.choice([1, 1.25, 1.5, 10]))
    return replace(asked, limits=room)


@pytest.mark.slow
@pytest.mark.parametrize("group", range(4))
def test_solutions_are_optimal_and_bounds_below_them(group: int) -> None:
    for seed in range(group, CASES, 4):
        asked = unequal(np.random.default_rng(seed))
        best = fastest(asked)
        stop = Stop(work=WorkLimit(seed=seed))
        orders: list[list[Program]] = []
        every = range(asked.ranks)
        bound = narrow(asked, every, 0.0, 2 * best, 20.0, stop, orders.append)
        assert bound <= best * (1 + TOLERANCE), seed
        assert by_work(asked) <= best * (1 + TOLERANCE), seed
        if asked.backward != "free":
            assert bound == pytest.approx(best), seed
            schedule = asked.schedule(orders[-1])
            assert asked.fits(schedule), seed
            assert asked.timeline(schedule).makespan == pytest.approx(best), seed
        for ranks in (telling_ranks(asked), [asked.ranks - 1]):
            part = narrow(asked, ranks, 0.0, 2 * best, 20.0, stop)
            assert part <= bound * (1 + TOLERANCE), (seed, ranks)


@pytest.mark.parametrize("seed", range(12))
def test_times_by_microbatch_are_those_of_the_engine(seed: int) -> None:
    asked = unequal(np.random.default_rng(seed))
    average = replace(asked, table=replace(asked.table, lengths=None), limits=asked.limits * 9)
    schedule = asked.schedule(list_programs(average, ()))
    timeline, packed = asked.timeline(schedule), schedule.actions
    rows = [Kind.F, Kind.I, Kind.W, Kind.B, Kind.R]
    row = np.array([rows.index(kind) for kind in kinds_of(packed).tolist()])
    own = action_times(asked, rows)[row, stages_of(packed), microbatches_of(packed)]
    assert timeline.duration == pytest.approx(own)
    # Before it moves anything, the annealer times an order as the engine does.
    annealer = Annealer(asked, [schedule.program(rank) for rank in range(schedule.ranks)])
    annealer.run(0, 1.0, 1.0, 0.0, annealer.best.copy())
    assert annealer.makespan == pytest.approx(timeline.makespan)


@pytest.mark.slow
def test_annealing_knows_every_length() -> None:
    lengths = [1.6, 0.7, 0.4, 1.2, 0.9, 1.5, 0.6, 1.1]
    schedule = db.make("zb-h1", ranks=4, microbatches=8)
    costs = db.Costs(F=10, I=10, W=10, microbatch=lengths, attention=0.3)
    asked = Problem(schedule.placement, costs.table(schedule), 8, np.full(4, 5.0))
    programs = [schedule.program(rank) for rank in range(4)]
    better = asked.schedule(refine(asked, programs, Stop(), 4))
    assert asked.fits(better)
    assert asked.timeline(better).makespan < 0.9 * asked.timeline(schedule).makespan


@pytest.mark.slow
def test_few_lengths_are_solved() -> None:
    """Two long and two short microbatches beside two average ones: found as proven, 217."""
    costs = db.Costs(F=10, I=12, W=8, microbatch=[0.5, 1, 1.5, 1.5, 1, 0.5])
    result = db.optimize(
        ranks=4, microbatches=6, chunks=1, costs=costs, memory=5, cache=False, published=False,
        workers=1,
    )  # fmt: skip
    assert (result.makespan, result.status) == (217.0, "optimal")
    assert result.timeline.peak_activation.max() <= 5 * (1 + TOLERANCE)
