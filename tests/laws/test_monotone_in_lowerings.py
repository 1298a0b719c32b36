"""What gives a lowering more to choose from, or takes less time, never makes the result worse."""

from __future__ import annotations

from dataclasses import replace

import debubble as db
from debubble.engine.modes import P2P_MODES, P2PMode
from debubble.lowering.chain import lower
from debubble.schedules.registry import Entry
from tests.lowerings import Case, cases, no_worse, quality
from tests.pairs import each_family_and
from tests.small import smallest

each_with_modes = each_family_and("p2p_mode", P2P_MODES)


def reached(schedule: db.Schedule, case: Case, p2p_mode: P2PMode) -> tuple[float, float] | None:
    """Excess and makespan of a schedule with lowerings, None where they do not go with it."""
    try:
        made = lower(schedule, **case.lowering, **case.setting, p2p_mode=p2p_mode)
        return quality(made, case.costs, case.memory, p2p_mode)
    except (db.ParameterError, db.ScheduleError):
        return None


@each_with_modes
def test_bubbles_are_no_slower_than_just_in_time(entry: Entry, p2p_mode: P2PMode) -> None:
    for case in cases(f"bubbles {entry.name} {p2p_mode}", 2, "recompute"):
        moved, in_time = (
            reached(smallest(entry), case._replace(lowering={**case.lowering, **at}), p2p_mode)
            for at in ({"recompute_at": "bubbles"}, {"recompute_at": "just-in-time"})
        )
        if in_time is not None:
            assert no_worse(moved, in_time), case


@each_with_modes
def test_a_faster_host_is_no_slower(entry: Entry, p2p_mode: P2PMode) -> None:
    for case in cases(f"host {entry.name} {p2p_mode}", 2, "offload"):
        # What fits into memory may no longer when copies are back sooner.
        case = case._replace(memory=None)
        costs = replace(case.costs, host_bandwidth=2 * case.costs.host_bandwidth)
        slow = reached(smallest(entry), case, p2p_mode)
        fast = reached(smallest(entry), case._replace(costs=costs), p2p_mode)
        if slow is not None:
            assert no_worse(fast, slow), case


@each_with_modes
def test_more_memory_is_no_slower(entry: Entry, p2p_mode: P2PMode) -> None:
    for case in cases(f"memory {entry.name} {p2p_mode}", 2):
        less = reached(smallest(entry), case, p2p_mode)
        for more in (0.25, 1, 2.5):
            if case.memory is None or less is None or less[0] > 0:
                continue
            found = reached(smallest(entry), case._replace(memory=case.memory + more), p2p_mode)
            assert no_worse(found, less), (case, more)
