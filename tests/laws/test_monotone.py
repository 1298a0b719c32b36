"""Law of more: more memory never loses, and a longer time never shortens a fixed order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import debubble as db
from debubble.core.costs import COST_FIELDS
from debubble.core.errors import ParameterError
from debubble.engine.modes import P2P_MODES
from debubble.schedules.registry import Entry, schedules
from tests.laws.test_scale import COSTS
from tests.small import smallest

TIMED = [
    name for name, spec in COST_FIELDS.items()
    if spec.timed and isinstance(getattr(COSTS, name), float)
]  # fmt: skip
"""Times that are one number; the smallest cases have most of them."""


@pytest.mark.parametrize("mode", P2P_MODES)
@pytest.mark.parametrize("name", TIMED)
@settings(max_examples=6)
@given(entry=st.sampled_from(schedules()), more=st.floats(0, 4))
def test_a_longer_time_never_shortens_an_order(
    name: str, mode: str, entry: Entry, more: float
) -> None:
    made = smallest(entry, costs=COSTS)
    longer = replace(COSTS, **{name: getattr(COSTS, name) + more})
    before, after = (db.simulate(made, costs, mode).makespan for costs in (COSTS, longer))
    assert after >= before * (1 - 1e-12)


@pytest.mark.parametrize("entry", schedules(), ids=lambda entry: entry.name)
def test_more_memory_never_loses_an_order_or_time(entry: Entry) -> None:
    best = float("inf")
    for memory in (1, 1.5, 2, 3, 4, 6, 8, 16, 1e6):
        try:
            made = db.make(entry.name, ranks=4, microbatches=8, memory=memory)
            timeline = db.simulate(made)
        except ParameterError:
            timeline = None
        if timeline is None or timeline.peak_activation.max() > memory * (1 + 1e-9):
            assert best == float("inf"), f"{entry.name} is lost at {memory}"
            continue
        assert timeline.makespan <= best * (1 + 1e-9), f"{entry.name} is slower at {memory}"
        best = timeline.makespan


def test_more_memory_never_loses_a_comparison() -> None:
    names = [entry.name for entry in schedules()]
    best: dict[str, float] = {}
    for memory in (1, 2, 3, 4, 5, 6, 8, 12):
        rows = db.compare(names, ranks=4, microbatches=8, memory=memory).rows
        fitting = {row.name: row.makespan for row in rows if row.fits}
        assert best.keys() <= fitting.keys()
        assert all(fitting[name] <= time * (1 + 1e-9) for name, time in best.items())
        best = fitting
