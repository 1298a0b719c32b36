"""Messages that differ by boundary, and gradients that nobody needs, against the simulator."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import debubble as db
from debubble import CostError, Costs, Schedule
from debubble.analysis.bubbles import bubbles
from debubble.analysis.measures import p2p_volume
from debubble.engine.modes import P2P_MODES
from debubble.schedules.registry import Entry
from debubble.view.transfers import transfer_ends
from tests.engine.agreement import check_drawn, check_mode, close
from tests.pairs import each_sort
from tests.strategies import TIMES, costs_for, made

LENGTHS = st.sampled_from([0.5, 1.0, 2.0])


@st.composite
def differing(draw: st.DrawFn, schedule: Schedule) -> Costs:
    """Costs with a message of its own for every boundary, and maybe a frozen start of the model."""
    stages, m = schedule.stages, schedule.microbatches
    costs = replace(draw(costs_for(schedule)), bandwidth=4.0)
    if stages > 1:
        sizes = draw(st.lists(TIMES, min_size=stages - 1, max_size=stages - 1))
        costs = replace(costs, message=sizes)
    if draw(st.booleans()):
        first = draw(st.integers(0, stages - 1))
        costs = replace(costs, frozen=[float(stage < first) for stage in range(stages)])
    if draw(st.booleans()):
        costs = replace(costs, microbatch=draw(st.lists(LENGTHS, min_size=m, max_size=m)))
    return costs


@each_sort
@settings(max_examples=4)
@given(data=st.data())
def test_engine_equals_the_oracle(entry: Entry, data: st.DataObject) -> None:
    check_drawn(entry, data, differing)


@each_sort
@settings(max_examples=4)
@given(data=st.data())
def test_every_mode_equals_its_oracle(entry: Entry, data: st.DataObject) -> None:
    schedule = data.draw(made(entry, ranks=6, microbatches=12))
    costs = data.draw(differing(schedule))
    mode = data.draw(st.sampled_from(P2P_MODES))
    timeline = check_mode(schedule, costs, mode)
    if mode in ("channel", "overlapped"):
        plain = db.simulate(schedule, costs, mode)
        assert plain.makespan == close(timeline.makespan)


@pytest.mark.parametrize("mode", P2P_MODES)
@pytest.mark.parametrize("name", ["1f1b", "interleaved-1f1b", "zb-v", "seq1f1b"])
def test_equal_boundaries_are_as_one_number(name: str, mode: Any) -> None:
    schedule = db.make(name, ranks=4, microbatches=8)
    one = Costs(F=2, I=2, W=1, p2p=0.25, message=3, bandwidth=8)
    each = replace(one, message=[3] * (schedule.stages - 1))
    plain, own = db.simulate(schedule, one, mode), db.simulate(schedule, each, mode)
    assert own.start.tolist() == close(plain.start.tolist())
    assert own.critical_path()[-1].end == close(plain.critical_path()[-1].end)
    assert bubbles(own).cause.tolist() == bubbles(plain).cause.tolist()
    assert transfer_ends(own).end.tolist() == close(transfer_ends(plain).end.tolist())


def test_one_slow_boundary() -> None:
    schedule = db.make("gpipe", ranks=3, microbatches=1)
    costs = Costs(F=1, B=2, message=[4, 8], bandwidth=2)
    assert db.simulate(schedule, costs).makespan == 3 * (1 + 2) + 2 * (2 + 4)
    slow = Costs(F=1, B=2, message={"default": 0, 1: 8}, bandwidth=2)
    assert db.simulate(schedule, slow).makespan == 9 + 2 * 4


def test_there_is_one_message_for_each_boundary() -> None:
    schedule = db.make("1f1b", ranks=4, microbatches=4)
    with pytest.raises(CostError, match="message has 4 values for 3 boundaries"):
        db.simulate(schedule, Costs(message=[1, 2, 3, 4]))
    with pytest.raises(CostError, match="message names boundary 3; boundaries go to 2"):
        db.simulate(schedule, Costs(message={"default": 1, 3: 2}))


def blocks_sent(stages: int, ranks: int, *, cached: bool) -> list[int]:
    """Blocks over every boundary where each stage attends to the results of all before it."""
    seen: list[set[int]] = [set() for _ in range(ranks)]
    sizes = []
    for stage in range(1, stages):
        needed = set(range(stage))
        sizes.append(len(needed - seen[stage % ranks]) if cached else len(needed))
        seen[stage % ranks] |= needed
    return sizes


@pytest.mark.parametrize(("p", "v"), [(2, 1), (4, 1), (2, 2), (4, 2), (4, 3), (8, 4)])
def test_attention_over_residuals_of_all_blocks(p: int, v: int) -> None:
    C, m = p * v, 2 * p
    name = "interleaved-1f1b" if v > 1 else "1f1b"
    schedule = db.make(name, ranks=p, microbatches=m, **({"chunks": v} if v > 1 else {}))
    counts = {False: C * (C - 1) // 2, True: p * (p - 1) // 2 + (v - 1) * p**2}
    for cached, count in counts.items():
        sizes = blocks_sent(C, p, cached=cached)
        assert sum(sizes) == count
        assert max(sizes) == (p if cached and v > 1 else C - 1)
        timeline = db.simulate(schedule, Costs(message=sizes))
        assert volume(timeline) == 2 * m * count


def volume(timeline: db.Timeline) -> float:
    """Value of the measure of the same name."""
    return p2p_volume(timeline)


def test_volume_counts_sizes_shares_and_lengths() -> None:
    schedule = db.make("seq1f1b", ranks=3, microbatches=3, slices=2)
    costs = Costs(message=[1, 5], microbatch=[0.5, 1, 2])
    assert volume(db.simulate(schedule, costs)) == close(2 * (1 + 5) * (0.5 + 1 + 2))


def test_costs_are_named_as_without_boundaries() -> None:
    schedule = db.make("1f1b", ranks=3, microbatches=4)
    costs = Costs(p2p=0.5, message=[1, 2], bandwidth=4)
    sensitivity = db.simulate(schedule, costs).sensitivity()
    assert Counter(name.split()[0] for name in sensitivity)["p2p"] > 0
    assert np.isfinite(list(sensitivity.values())).all()
