"""What gives a lowering more to choose from, or takes less time, never makes the result worse."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import debubble as db
from debubble.engine.modes import P2P_MODES, P2PMode
from debubble.lowering.chain import lower
from debubble.schedules.registry import Entry
from tests.conftest import EXPLORES
from tests.lowerings import Case, cases, no_worse, quality
from tests.pairs import each_family_with_some
from tests.small import smallest

each_with_modes = each_family_with_some("p2p_mode", P2P_MODES)

TIMES = 2 if EXPLORES else 1
"""Random cases with each family: this many times the fewest."""


def reached(schedule: db.Schedule, case: Case, p2p_mode: P2PMode) -> tuple[float, float] | None:
    """Excess and makespan of a schedule with lowerings, None where they do not go with it."""
    try:
        made = lower(schedule, **case.lowering, **case.setting, p2p_mode=p2p_mode)
        return quality(made, case.costs, case.memory, p2p_mode)
    except (db.ParameterError, db.ScheduleError):
        return None


@each_with_modes
def test_bubbles_are_no_slower_than_just_in_time(entry: Entry, p2p_mode: P2PMode) -> None:
    worse = []
    for case in cases(f"bubbles {entry.name} {p2p_mode}", 2 * TIMES, "recompute"):
        moved, in_time = (
            reached(smallest(entry), case._replace(lowering=case.lowering | at), p2p_mode)
            for at in ({"recompute_at": "bubbles"}, {"recompute_at": "just-in-time"})
        )
        worse += [] if no_worse(moved, in_time) else [(case, moved, in_time)]
    assert worse == []


@each_with_modes
def test_a_faster_host_is_no_slower(entry: Entry, p2p_mode: P2PMode) -> None:
    worse = []
    for case in cases(f"host {entry.name} {p2p_mode}", TIMES, "offload"):
        # What fits into memory may no longer when copies are back sooner.
        found = [
            reached(
                smallest(entry),
                Case(
                    case.lowering,
                    replace(case.costs, host_bandwidth=speed * case.costs.host_bandwidth),
                    None,
                ),
                p2p_mode,
            )
            for speed in (0.25, 0.5, 1)
        ]
        slower = [pair for pair in pairwise(found) if not no_worse(*reversed(pair))]
        worse += [(case, pair) for pair in slower]
    assert worse == []


@each_with_modes
def test_more_memory_is_no_slower(entry: Entry, p2p_mode: P2PMode) -> None:
    worse = []
    for case in cases(f"memory {entry.name} {p2p_mode}", TIMES, "recompute"):
        at = {"recompute_at": "bubbles"}
        for lowering in (case.lowering | at, {"offload": "full"}):
            found = [
                reached(smallest(entry), Case(lowering, case.costs, memory), p2p_mode)
                for memory in (1, 2, 2.25, 4)
            ]
            # What does not fit may be faster than what does with more.
            fits = [None if one is None or one[0] > 0 else one for one in found]
            worse += [
                (lowering, case.costs, found)
                for less, more in zip(fits, found[1:], strict=False)
                if not no_worse(more, less)
            ]
    assert worse == []
