"""MaxText's circular pipeline: the iterations of its lockstep, and bounds from it."""

from __future__ import annotations

import numpy as np
import pytest

import debubble as db
from debubble.core.actions import kinds_of, microbatches_of, stages_of
from tests.forms import hold


@pytest.mark.parametrize(("p", "m", "v"), [(2, 4, 2), (4, 8, 2), (4, 12, 3), (3, 7, 2), (4, 5, 1)])
@pytest.mark.parametrize("delay", [False, True])
def test_every_action_runs_in_its_iteration(p: int, m: int, v: int, delay: bool) -> None:
    apart = 2 if delay else 1
    schedule = db.make("maxtext-circular", ranks=p, microbatches=m, chunks=v, delay=delay)
    timeline = db.simulate(schedule, db.Costs(F=1, B=1, p2p=apart - 1))
    actions = schedule.actions
    chunk, rank = np.divmod(stages_of(actions), p)
    iteration = chunk * m + microbatches_of(actions) + apart * rank
    total = m * v + apart * (p - 1)
    forward = kinds_of(actions) == db.Kind.F
    assert timeline.start[forward].tolist() == iteration[forward].tolist()
    # The backward is the reverse of the forward.
    assert (2 * total - timeline.end[~forward]).tolist() == iteration[~forward].tolist()
    assert timeline.makespan == 2 * total


@pytest.mark.slow
def test_forms_hold_on_a_grid() -> None:
    rng = np.random.default_rng(0)
    checked = 0
    for p in (1, 2, 3, 4, 5):
        for m in (4, 5, 8, 10, 16):
            for v in (1, 2, 3):
                for delay in (False, True):
                    try:
                        schedule = db.make(
                            "maxtext-circular", ranks=p, microbatches=m, chunks=v, delay=delay
                        )
                    except db.ParameterError:
                        assert v > 1
                        assert m < p * (1 + delay)
                        continue
                    assert db.check(schedule).ok
                    for latency in (0, rng.uniform(0, 2), rng.uniform(0, 2)):
                        F, B = rng.uniform(0.5, 2, 2)
                        costs = db.Costs(F=F, B=B, p2p=latency)
                        checked += hold(schedule, costs, f"p={p} m={m} v={v} {costs}")
    assert checked > 500


def test_order_is_breadth_first() -> None:
    both = [
        db.make(name, ranks=3, microbatches=6, chunks=2)
        for name in ("maxtext-circular", "looped-bfs")
    ]
    assert both[0] == both[1]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"microbatches": 3}, "microbatches is 3; the nearest that works is 4"),
        ({"microbatches": 7, "delay": True}, "microbatches is 7; the nearest that works is 8"),
    ],
)
def test_refusals(parameters: dict[str, int], message: str) -> None:
    with pytest.raises(db.ParameterError, match=message):
        db.make("maxtext-circular", ranks=4, **parameters)  # type: ignore[arg-type]
