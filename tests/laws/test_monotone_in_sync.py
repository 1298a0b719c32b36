"""Law of more: the more ranks an optimizer step waits for, the later it is.

``local`` waits for one rank, ``post-validation`` for those before it, too, ``global`` for all.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import debubble as db
from debubble.core.actions import kinds_of
from debubble.core.kinds import STEP_KINDS
from debubble.core.schedule import SYNCS
from debubble.engine.modes import P2P_MODES
from tests.strategies import ENTRIES, costs_for, made

RULES = ("local", "post-validation", "global")


def test_every_rule_is_tried() -> None:
    assert set(RULES) == set(SYNCS)


@given(data=st.data())
def test_a_step_that_waits_for_more_is_no_sooner(data: st.DataObject) -> None:
    entry = data.draw(st.sampled_from(ENTRIES))
    plain = data.draw(made(entry, ranks=4, microbatches=8, chunks=2))
    costs = data.draw(costs_for(plain))
    mode = data.draw(st.sampled_from(P2P_MODES))
    assume(plain.iterations > 1)
    steps = np.isin(kinds_of(plain.actions), STEP_KINDS)
    before = np.zeros(len(plain))
    for rule in RULES:
        timeline = db.simulate(replace(plain, sync=rule), costs, p2p_mode=mode)
        assert np.all(timeline.start[steps] >= before[steps] - 1e-9), rule
        before = timeline.start


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_a_barrier_takes_the_way_to_the_last_rank_and_one_back(ranks: int) -> None:
    schedule = db.make("1f1b", ranks=ranks, microbatches=1, iterations=1)
    costs = db.Costs(F=1, B=2, OPT=4, p2p=0.5)
    ends = {rule: db.simulate(replace(schedule, sync=rule), costs) for rule in RULES}
    # Rank 0 is the last to have its gradients; its norm goes down all links and back by one.
    done = ends["local"].start[np.isin(kinds_of(schedule.actions), STEP_KINDS)][0]
    assert ends["post-validation"].makespan == done + (ranks - 1) * 0.5 + 4
    assert ends["global"].makespan == done + ranks * 0.5 + 4
