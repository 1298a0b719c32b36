"""Law of self: what is slow in every step takes as long as where costs say that it does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import debubble as db
from debubble.core.actions import kinds_of
from debubble.core.kinds import KINDS, TIMED_KINDS, Kind
from debubble.engine.ensembles import spread_of
from debubble.engine.jitter import Jitter
from tests.kinds import schedule_with
from tests.laws.costs import small
from tests.strategies import ENTRIES

FACTOR = 3.0
COSTS = db.Costs(F=1, I=1.25, W=0.75, B=2.25, R=0.5, OPT=32, p2p=0.25, unshard=0.5, reduce_grad=0.5,
                 host_bandwidth=8, head={"F": 0.5, "I": 0.25, "W": 0.25})  # fmt: skip

NAMES = [entry.name for entry in ENTRIES]
MODES = ("overlapped", "pair")


def orders(name: str) -> Iterator[db.Schedule]:
    """A schedule of a name, and one with optimizer steps by every rule."""
    made = small(name, COSTS)
    yield made
    for sync in ("global", "local", "post-validation"):
        try:
            sizes = {"ranks": made.ranks, "microbatches": made.microbatches}
            yield db.make(name, **sizes, iterations=2, sync=sync, costs=COSTS)  # type: ignore[arg-type]
        except db.ParameterError:
            continue


def without_head(schedule: db.Schedule) -> db.Costs:
    """The costs without a head on the last stage, which is slow with it but no cost of a stage."""
    return COSTS if schedule.vocabulary else replace(COSTS, head=None)


def slowed(timeline: db.Timeline, **slow: float) -> float:
    found = spread_of(timeline, Jitter(samples=1, slow=slow))
    return found.mean


def slow_stage(costs: db.Costs, stage: int, stages: int) -> db.Costs:
    """Costs of which every time of one stage is longer."""
    names = [KINDS[kind].cost for kind in TIMED_KINDS]
    times = {name: [getattr(costs, name)] * stages for name in names}
    for row in times.values():
        row[stage] *= FACTOR
    return replace(costs, **times)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NAMES)
def test_a_slow_stage_is_one_whose_costs_are_larger(name: str, mode: db.P2PMode) -> None:
    for schedule in orders(name):
        costs = without_head(schedule)
        timeline = db.simulate(schedule, costs, p2p_mode=mode)
        for stage in range(schedule.stages):
            other = slow_stage(costs, stage, schedule.stages)
            wanted = db.simulate(schedule, other, p2p_mode=mode).makespan
            found = slowed(timeline, **{f"stage{stage}": FACTOR})
            assert found == pytest.approx(wanted, rel=1e-12), f"{schedule}, stage {stage}"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NAMES)
def test_a_slow_link_is_one_whose_costs_are_larger(name: str, mode: db.P2PMode) -> None:
    for schedule in orders(name):
        costs = without_head(schedule)
        timeline = db.simulate(schedule, costs, p2p_mode=mode)
        for one in range(1, schedule.ranks):
            for other in range(one):
                links = np.full((schedule.ranks,) * 2, costs.p2p)
                links[one, other] = links[other, one] = FACTOR * links[one, other]
                slow = replace(costs, p2p=links)
                wanted = db.simulate(schedule, slow, p2p_mode=mode).makespan
                found = slowed(timeline, **{f"link{one}-{other}": FACTOR})
                assert found == pytest.approx(wanted, rel=1e-12), f"{schedule}, {one}-{other}"


@pytest.mark.parametrize(
    "kind",
    [kind for kind in Kind if KINDS[kind].cost and KINDS[kind].color],
    ids=lambda kind: kind.name,
)
def test_kinds_of_a_rank_are_slow_with_the_rank_alone(kind: Kind) -> None:
    """An action that computes is slow with its rank, and with its stage where it has one."""
    schedule = schedule_with(kind)
    # Nothing else takes any time, so that the slow one is all there is.
    base = {KINDS[each].cost: 0.0 for each in TIMED_KINDS} | {"OPT": 0.0}
    value = {"F": 1.0, "I": 1.0, "W": 1.0} if KINDS[kind].cost == "head" else 1.0
    timeline = db.simulate(schedule, db.Costs(**base | {KINDS[kind].cost: value}))
    assert timeline.makespan > 0
    stages = {f"stage{stage}": FACTOR for stage in range(schedule.stages)}
    ranks = {f"rank{rank}": FACTOR for rank in range(schedule.ranks)}
    others = {KINDS[each].cost for each in np.unique(kinds_of(schedule.actions))}
    assert KINDS[kind].cost in others
    of_stages = 1 if KINDS[kind].per.of_rank else FACTOR
    assert slowed(timeline, **stages) == of_stages * timeline.makespan
    assert slowed(timeline, **ranks) == FACTOR * timeline.makespan
