"""List scheduling with copies: its orders run as planned, within memory, each faster."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

import debubble as db
from debubble.optimize.programs.list_with_copies import (
    Pass,
    can_list,
    changed,
    orders_with_copies,
    random_rules,
)
from debubble.optimize.programs.offload import without_copies
from debubble.optimize.stage_choices.choices import with_choice
from debubble.optimize.stop import Stop, Work
from tests.optimize.problems import problem


@pytest.mark.parametrize("backward", ["split", "fused"])
@pytest.mark.parametrize("seed", range(6))
def test_orders_run_as_planned_within_memory(seed: int, backward: str) -> None:
    rng, random = np.random.default_rng(seed), Random(seed)
    p, m = int(rng.integers(1, 5)), int(rng.integers(1, 9))
    costs = {kind: rng.integers(1, 6, p).tolist() for kind in "FIW"}
    asked = problem(
        p, m, float(rng.integers(2, 5)), chunks=1, backward=backward, **costs,
        p2p=float(rng.integers(2)), host_bandwidth=1 / float(rng.integers(1, 9)),
        offload_share=float(rng.choice([0.5, 1])), kept_for_weight=float(rng.choice([0.5, 1])),
    )  # fmt: skip
    asked = with_choice(asked, [2, *(2 * int(flag) for flag in rng.random(p - 1) < 0.8)])
    rules = random_rules(asked, random)
    for _ in range(10):
        rules = changed(asked, rules, random)
        found = Pass(asked, rules)
        if found.makespan == np.inf:
            continue
        programs = found.programs()
        schedule = asked.schedule(without_copies(programs)).with_programs(programs)
        assert db.check(schedule, costs=asked.table.costs).ok
        timeline = asked.timeline(schedule)
        assert timeline.makespan == pytest.approx(found.makespan)
        assert asked.fits(schedule)


def test_every_order_is_faster_than_the_one_before() -> None:
    asked = with_choice(problem(4, 8, 3, chunks=1, F=5, I=6, W=4, host_bandwidth=0.1), [2] * 4)
    assert can_list(asked)
    assert not can_list(with_choice(asked, [2, 2, 2, 1]))
    assert not can_list(with_choice(asked, [0] * 4))
    assert not can_list(with_choice(problem(2, 4, 3, host_bandwidth=1), [2] * 4))
    found = []
    for programs in orders_with_copies(asked, 200, Stop(work=Work(seed=1))):
        schedule = asked.schedule(without_copies(programs)).with_programs(programs)
        assert asked.fits(schedule)
        found.append(asked.timeline(schedule).makespan)
    assert found == sorted(found, reverse=True)
    assert len(found) > 1
