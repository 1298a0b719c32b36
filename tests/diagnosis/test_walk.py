"""Walks, against the simulator in every mode that both have."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import debubble as db
from debubble.core.actions import begins_group
from debubble.diagnosis.p2p_modes import FITTED_MODES, OVERLAPPED, FittedMode, rules_of
from debubble.diagnosis.walk import any_walk, walk_of
from debubble.engine.modes import MODE, check_mode

NAMES = ("gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-v", "dualpipe-v", "dualpipe")
SIMULATED = [mode for mode in FITTED_MODES if mode.name in MODE]


def times_of(schedule: db.Schedule) -> tuple[np.ndarray, np.ndarray, db.Costs]:
    """Times of actions and messages, and the costs that they are of."""
    costs = db.Costs(F=10, B=20, p2p=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # orders made for other costs
        actions = db.simulate(schedule, costs).duration
    rules = rules_of(OVERLAPPED, schedule)
    assert rules is not None
    return actions[None, :], np.where(rules.source >= 0, 3.0, 0.0)[None, :], costs


@pytest.mark.parametrize("mode", SIMULATED, ids=lambda mode: mode.name)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore:.*the schedule was computed:UserWarning")
def test_a_walk_is_what_the_simulator_says(name: str, mode: FittedMode) -> None:
    schedule = db.make(name, ranks=4, microbatches=8)
    times, messages, costs = times_of(schedule)
    walk = walk_of(schedule, mode)
    assert walk is not None
    timeline = db.simulate(schedule, costs, check_mode(mode.name))
    assert walk.lengths(times, messages) == pytest.approx([timeline.makespan])
    assert walk.ends(times, messages)[0] == pytest.approx(timeline.end)


def test_a_message_that_waits_for_turns() -> None:
    """Two ranks, two forwards: the second one of rank 0 waits until rank 1 takes the first."""
    schedule = db.make("gpipe", ranks=2, microbatches=2)
    turns = next(mode for mode in FITTED_MODES if mode.name == "turns")
    rules = rules_of(turns, schedule)
    assert rules is not None
    text = [schedule.text(db.Action.parse(cell)) for row in schedule.rows() for cell in row]
    at = {cell: place for place, cell in enumerate(text)}
    first, second = at["1F0"], at["1F1"]
    assert (rules.source[first], rules.held[first]) == (at["0F0"], at["0F1"])
    assert (rules.posted[first], rules.posted[second]) == (-1, first)


def test_an_order_that_cannot_run_in_a_mode() -> None:
    schedule = db.make("zb-v", ranks=4, microbatches=8)
    turns = next(mode for mode in FITTED_MODES if mode.name == "turns")
    assert walk_of(schedule, turns) is None
    assert any_walk(schedule, turns).graph.first.tolist() == (
        any_walk(schedule, OVERLAPPED).graph.first.tolist()
    )


def test_an_input_that_a_group_needs_late() -> None:
    """The backward of a pair runs after its forward: its input may come until then."""
    schedule = db.make("dualpipe-v", ranks=2, microbatches=6)
    times, messages, _ = times_of(schedule)
    walk = any_walk(schedule, OVERLAPPED)
    late = messages.copy()
    second = ~begins_group(schedule.actions) & (messages[0] > 0)
    late[0, second] += 5.0
    leads = np.zeros_like(times)
    leads[0, second] = 5.0
    assert walk.ends(times, late, leads) == pytest.approx(walk.ends(times, messages))
