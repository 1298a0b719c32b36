"""Move recomputes into the time in which their ranks wait, as in Mario (PPoPP'25)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import Program
from debubble.core.costs import Costs
from debubble.core.schedule import Schedule
from debubble.engine.graph import P2PMode
from debubble.engine.kernels.recompute import fill_waits
from debubble.engine.memory import ROUNDING, measure_memory, memory_limits
from debubble.engine.timeline import Timeline, simulate
from debubble.lowering.best_lowering import Setting

ROUNDS = 8
"""Maximum number of passes over the gaps: filling some moves others."""

LEVELS = 32
"""About how many amounts of memory are tried between that of recomputes just in time and of none at
all."""

OVERLAPPED: P2PMode = "overlapped"

PART = 0.5
"""Share of a recompute that has to fit into a wait when none has room for all of it."""


def in_bubbles(schedule: Schedule, plain: Schedule, setting: Setting) -> Iterator[Schedule]:
    """Ever faster orders with recomputes moved into waits, with ever more memory.

    Waits are those in the mode of the setting, and those that would be there if transfers kept no
    rank busy: where ranks meet or queue, it takes a simulation to tell which of them can be filled.
    `plain` is the order without recomputes.
    """
    costs = setting.costs or Costs()
    whole = float(measure_memory(plain, costs.table(plain)).peak.max())
    given = memory_limits(setting.memory, schedule.ranks)

    def simulated(mode: P2PMode) -> Callable[[Schedule], Timeline]:
        return lambda schedule: simulate(schedule, costs, mode)

    asked = simulated(setting.p2p_mode)
    fastest = asked(schedule).makespan
    for mode in dict.fromkeys((setting.p2p_mode, OVERLAPPED)):
        in_mode = simulated(mode)
        for order in _climbed(in_mode(schedule), given, whole, in_mode):
            time = asked(order).makespan
            if time < fastest:
                fastest = time
                yield order


def _climbed(
    start: Timeline,
    given: NDArray[np.float64] | None,
    whole: float,
    simulated: Callable[[Schedule], Timeline],
) -> Iterator[Schedule]:
    """Orders with recomputes in waits, with what `start` holds and up to a limit.

    The levels in between depend on the order and not on the limit, so that a higher limit has all
    that a lower one has: each is the least with which a recompute moves where it could not before.
    """
    least = start.peak_activation
    most = least if given is None else np.maximum(least, given)
    step = max(whole - float(least.min()), 0.0) / LEVELS
    best, level, limit = start, 0.0, least
    while True:
        refused = np.full(len(limit), np.inf)
        for order in dict.fromkeys((start, best)):
            found = into_waits(order, limit * (1 + ROUNDING), simulated, refused)
            yield found.schedule
            if found.makespan < best.makespan:
                best = found
        needed = float(refused[limit < most].min(initial=np.inf))
        level = max(needed, level + step)
        if needed == np.inf or level > most.max() * (1 + ROUNDING):
            return
        limit = np.clip(level, least, most)


def into_waits(
    start: Timeline,
    limit: NDArray[np.float64],
    simulated: Callable[[Schedule], Timeline],
    refused: NDArray[np.float64] | None = None,
) -> Timeline:
    """Return recomputes moved into waits, round by round, as long as that makes it faster.

    `limit` is that of every rank's memory, and `refused` is lowered to the least memory, of every
    rank, that it did not allow. A recompute that fits into a wait delays nothing: every action can
    still start when it did. One that only fits in part may pay off or not, which the next
    simulation says.
    """
    refused = np.full(len(limit), np.inf) if refused is None else refused
    best = current = start
    for _ in range(ROUNDS):
        before = best.makespan
        for share in (1.0, PART):
            order = _filled(current, limit, share, refused)
            if order is None:
                continue
            found = simulated(replace(current.schedule, actions=order))
            if found.graph.has_copies and (found.peak_activation > limit).any():
                # Where activations leave their ranks, other times make other peaks.
                continue
            if found.makespan <= current.makespan:
                current = found
            if found.makespan < best.makespan * (1 - ROUNDING):
                best = found
        if best.makespan == before:
            break
    return best


def _filled(
    timeline: Timeline, limit: NDArray[np.float64], share: float, refused: NDArray[np.float64]
) -> Program | None:
    """Return the actions with recomputes moved into waits; None when there is none to move."""
    schedule = timeline.schedule
    count = len(schedule)
    deltas = [timeline.memory.deltas(schedule, rank) for rank in range(schedule.ranks)]
    place = np.zeros(count, dtype=np.int64)
    moved = fill_waits.run(
        20 * count, schedule.actions, schedule.offsets, timeline.start, timeline.end,
        *(np.concatenate(column) for column in zip(*deltas, strict=True)), limit, share,
        np.zeros(count), np.zeros(count), place, refused,
    )  # fmt: skip
    if not moved:
        return None
    stays = place == np.arange(count)
    return schedule.actions[np.argsort(2 * place + stays, kind="stable")]
