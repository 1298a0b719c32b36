"""Why an order cannot run, in words: the shortest chain of actions that wait for each other."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from debubble.core.actions import Action, Kind, unpack
from debubble.core.errors import ScheduleError
from debubble.core.schedule import Schedule
from debubble.engine.kernels import compile as sweep

SEARCH_LIMIT = 3000
"""Remaining actions up to which every one is tried as the start of the shortest cycle."""


def explain(schedule: Schedule, outcome: int, position: int) -> ScheduleError:
    """The error for a sweep that ended with `outcome` at ``actions[position]``."""
    action = unpack(int(schedule.actions[position])) if len(schedule) else Action(0, Kind.F, 0)
    rank = schedule.rank_of(position) if len(schedule) else 0
    where = f"rank {rank}, action {position - int(schedule.offsets[rank])}: {action}"
    if outcome == sweep.OUT_OF_RANGE:
        return ScheduleError(
            f"{where} is out of range; stages go to {schedule.stages - 1}, "
            f"microbatches to {schedule.units - 1}"
        )
    if outcome == sweep.WRONG_RANK:
        homes = sorted({row[action.stage] for row in schedule.placement.table})
        return ScheduleError(
            f"{where} is on the wrong rank; stage {action.stage} lives on rank "
            + " and ".join(map(str, homes))
        )
    if outcome == sweep.DUPLICATE:
        return ScheduleError(
            f"{where} runs twice, or beside another backward of the same microbatch; remove one"
        )
    if outcome == sweep.BAD_PAIR:
        return ScheduleError(
            f"{where} is in a bad overlapped pair; a pair is one forward, then one backward: "
            "(0F1;0B0)OVERLAP_F_B"
        )
    if outcome == sweep.BAD_STEP:
        return ScheduleError(f"{where} steps an iteration that was stepped before; remove one")
    return explain_stuck(schedule)


def explain_stuck(schedule: Schedule) -> ScheduleError:
    """The error for an order in which some action waits for one that never comes."""
    waits = _Waits(schedule)
    if waits.missing is not None:
        waiting, wanted = waits.missing
        return ScheduleError(
            f"{waits.text(waiting)} waits for {wanted}, which no rank runs; add {wanted}",
            (str(waits.actions[waiting]), str(wanted)),
        )
    cycle = waits.shortest_cycle()
    lines = [f"{waits.text(a)} {reason} {waits.text(b)}" for a, reason, b in cycle]
    head = "a deadlock: these actions wait for each other" if len(cycle) > 1 else "a deadlock"
    return ScheduleError(f"{head}: " + ", ".join(lines), tuple(waits.text(a) for a, _, _ in cycle))


def dependencies(schedule: Schedule, action: Action) -> list[Action]:
    """What the data of an action comes from; a backward may come from I or from B."""
    stage, kind, unit = action
    if kind == Kind.F:
        return [Action(stage - 1, Kind.F, unit)] if stage else []
    if kind in (Kind.I, Kind.B):
        own = [Action(stage, Kind.F, unit)]
        if stage < schedule.stages - 1:
            own.append(Action(stage + 1, Kind.I, unit))
        return own
    if kind == Kind.W:
        return [Action(stage, Kind.I, unit)]
    if kind == Kind.R:
        return [Action(stage, Kind.F, unit)]
    return []


@dataclass(frozen=True)
class _Blocked:
    position: int
    rank: int


class _Waits:
    """The part of an order that cannot run, and who waits for whom in it."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.actions = [unpack(code) for code in schedule.actions.tolist()]
        self.ranks = np.repeat(np.arange(schedule.ranks), np.diff(schedule.offsets)).tolist()
        self.where: dict[Action, int] = {}
        for position, action in enumerate(self.actions):
            if action.kind != Kind.OPT:
                self.where.setdefault(action, position)
        self.missing: tuple[int, Action] | None = None
        self.blocked = self._run()

    def text(self, position: int) -> str:
        return f"{self.actions[position]} (rank {self.ranks[position]})"

    def sources(self, position: int) -> list[int]:
        """Positions an action waits for besides its rank's previous one."""
        action = self.actions[position]
        if action.kind == Kind.OPT:
            if self.schedule.sync != "global":
                return []
            return [
                p
                for p, other in enumerate(self.actions)
                if other == (other.stage, Kind.OPT, action.microbatch) and p != position
            ]
        found = []
        for wanted in dependencies(self.schedule, action):
            spot = self.where.get(wanted)
            if spot is None and wanted.kind == Kind.I:
                spot = self.where.get(wanted._replace(kind=Kind.B))
            if spot is None:
                if self.missing is None:
                    self.missing = (position, wanted)
                continue
            found.append(spot)
        return found

    def _run(self) -> list[_Blocked]:
        """Run what can run; the heads of all ranks that cannot go on."""
        offsets = self.schedule.offsets.tolist()
        heads = offsets[:-1].copy()
        done = [False] * len(self.actions)
        moved = True
        while moved:
            moved = False
            for rank in range(len(heads)):
                while heads[rank] < offsets[rank + 1]:
                    position = heads[rank]
                    action = self.actions[position]
                    if action.kind == Kind.OPT:
                        sources = self.sources(position)
                        ready = all(done[s] or heads[self.ranks[s]] == s for s in sources)
                    else:
                        ready = all(done[source] for source in self.sources(position))
                    if not ready or self.missing is not None:
                        break
                    done[position] = True
                    heads[rank] += 1
                    moved = True
        self.done = done
        return [
            _Blocked(heads[rank], rank)
            for rank in range(len(heads))
            if heads[rank] < offsets[rank + 1]
        ]

    def shortest_cycle(self) -> list[tuple[int, str, int]]:
        """The cycle with the fewest waits between actions, as (action, reason, action)."""
        rest = [position for position, done in enumerate(self.done) if not done]
        starts = rest if len(rest) <= SEARCH_LIMIT else [b.position for b in self.blocked]
        best: list[int] | None = None
        for start in starts:
            cycle = self._cycle_through(start, len(best) if best else len(rest) + 1)
            if cycle is not None and (best is None or len(cycle) < len(best)):
                best = cycle
            if best is not None and len(best) <= 2:
                break
        assert best is not None, "a stuck order without missing actions has a cycle"
        steps = []
        for a, b in zip(best, best[1:] + best[:1], strict=True):
            reason = "runs after" if self.ranks[a] == self.ranks[b] and b < a else "waits for"
            steps.append((a, reason, b))
        return steps

    def _cycle_through(self, start: int, limit: int) -> list[int] | None:
        """A shortest cycle through one action: steps are data waits or "behind it in the queue"."""
        parent = {start: start}
        depth = {start: 1}
        queue = deque([start])
        offsets = self.schedule.offsets.tolist()
        while queue:
            position = queue.popleft()
            if depth[position] >= limit:
                return None
            for source in self._waits_of(position, offsets):
                if source == start:
                    path = [position]
                    while path[-1] != start:
                        path.append(parent[path[-1]])
                    return path[::-1]
                if source not in parent:
                    parent[source] = position
                    depth[source] = depth[position] + 1
                    queue.append(source)
        return None

    def _waits_of(self, position: int, offsets: list[int]) -> list[int]:
        data = [source for source in self.sources(position) if not self.done[source]]
        # Behind another in its rank's queue: only those that wait for data themselves matter.
        rank = self.ranks[position]
        first = next(b.position for b in self.blocked if b.rank == rank)
        assert offsets[rank] <= first
        ahead = [
            other
            for other in range(first, position)
            if any(not self.done[source] for source in self.sources(other))
        ]
        return data + ahead
