"""Why an order cannot run, in words: the shortest chain of actions that wait for each other."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from itertools import accumulate

import numpy as np

from debubble.core.actions import (
    STAGE_SHIFT,
    Action,
    Kind,
    group_bounds,
    kinds_of,
    microbatches_of,
    stages_of,
    unpack,
)
from debubble.core.embedding_and_head import first_stages
from debubble.core.errors import ScheduleError
from debubble.core.schedule import Schedule
from debubble.engine.kernels import sweep

SEARCH_LIMIT = 400
"""Remaining actions up to which every one is tried as the start of the shortest cycle.

Cycles of one or two waits are found among any number; longer ones, beyond this limit, only
through the action each rank is stuck at.
"""


def explain(schedule: Schedule, outcome: int, position: int) -> ScheduleError:
    """The error for a sweep that ended with `outcome` at ``actions[position]``."""
    action = unpack(int(schedule.actions[position])) if len(schedule) else Action(0, Kind.F, 0)
    rank = schedule.rank_of(position) if len(schedule) else 0
    text = schedule.text(action)
    where = f"rank {rank}, action {position - int(schedule.offsets[rank])}: {text}"
    if outcome == sweep.OUT_OF_RANGE:
        return ScheduleError(
            f"{where} is out of range; stages go to {schedule.stages - 1}, "
            f"microbatches to {schedule.units // schedule.slices - 1}"
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
    if outcome == sweep.BAD_GROUP:
        return ScheduleError(
            f"{where} is in a bad overlapped group; its members are two to 16 of F, I, W, B and R "
            "of different stages or microbatches: (0F1;0B0)OVERLAP_F_B"
        )
    if outcome == sweep.BAD_STEP:
        return ScheduleError(f"{where} steps an iteration that was stepped before; remove one")
    misplaced = _first_misplaced(schedule)
    if misplaced is not None:
        return explain(schedule, *misplaced)
    if outcome == sweep.ORDER and action.kind == Kind.R and _after_backward(schedule, position):
        return ScheduleError(f"{where} recomputes what its backward has used; move it before that")
    return explain_stuck(schedule)


def _after_backward(schedule: Schedule, position: int) -> bool:
    """Whether the rank has run the backward of an action's microbatch before it."""
    before = schedule.actions[schedule.offsets[schedule.rank_of(position)] : position]
    kinds = kinds_of(before[before >> STAGE_SHIFT == schedule.actions[position] >> STAGE_SHIFT])
    return bool(np.isin(kinds, (Kind.I, Kind.B)).any())


def _first_misplaced(schedule: Schedule) -> tuple[int, int] | None:
    """Outcome and position of the first action out of range or on another rank's stage."""
    actions = schedule.actions
    stages, units = stages_of(actions), microbatches_of(actions)
    compute = kinds_of(actions) < Kind.OPT
    outside = compute & ((stages >= schedule.stages) | (units >= schedule.units))
    if outside.any():
        return sweep.OUT_OF_RANGE, int(np.argmax(outside))
    places = np.where(compute, schedule.copies_of(units) * schedule.stages + stages, 0)
    ranks = np.repeat(np.arange(schedule.ranks), np.diff(schedule.offsets))
    wrong = compute & (schedule.placement.ranks_of_stages[places] != ranks)
    return (sweep.WRONG_RANK, int(np.argmax(wrong))) if wrong.any() else None


def explain_stuck(schedule: Schedule) -> ScheduleError:
    """The error for an order in which some action waits for one that never comes."""
    waits = _Waits(schedule)
    if waits.missing is not None:
        waiting, wanted = waits.missing
        text = schedule.text(wanted)
        return ScheduleError(
            f"{waits.text(waiting)} waits for {text}, which no rank runs; add {text}",
            (schedule.text(waits.actions[waiting]), text),
        )
    cycle = waits.with_halves(waits.shortest_cycle())
    steps = []
    for a, b in zip(cycle, cycle[1:] + cycle[:1], strict=True):
        behind = waits.ranks[a] == waits.ranks[b] and b < a
        verb = "runs after" if behind else "waits for"
        if waits.together(a, b):
            verb = "runs together with"
        steps.append(f"{waits.text(a)} {verb} {waits.text(b)}")
    return ScheduleError(
        "a deadlock: these actions wait for each other: " + ", ".join(steps),
        tuple(waits.text(position) for position in cycle),
    )


def dependencies(schedule: Schedule, action: Action) -> list[Action]:
    """What the data of an action comes from; a backward may come from I or from B.

    A slice's forward attends to the slice before it, and its backward collects gradients from the
    slice behind it.
    """
    stage, kind, unit = action
    if kind == Kind.F:
        found = [Action(stage - 1, Kind.F, unit)] if stage else []
        if unit % schedule.slices > 0:
            found.append(Action(stage, Kind.F, unit - 1))
        return found
    if kind == Kind.W:
        return [Action(stage, Kind.I, unit)]
    last = schedule.stages - 1
    shards = first_stages(schedule.placement).tolist() if schedule.vocabulary else []
    if kind == Kind.S:
        return [Action(last, Kind.F, unit)]
    if kind == Kind.T:
        return [Action(shard, Kind.S, unit) for shard in shards]
    if kind not in (Kind.I, Kind.B, Kind.R):
        return []
    found = [Action(stage, Kind.F, unit)]
    if takes_gradient(schedule, kind) and stage < schedule.stages - 1:
        found.append(Action(stage + 1, Kind.I, unit))
    if stage == last and takes_gradient(schedule, kind):
        given = Kind.T if schedule.vocabulary == 1 else Kind.S
        found += [Action(shard, given, unit) for shard in shards]
    if kind != Kind.R and (unit + 1) % schedule.slices > 0:
        found.append(Action(stage, Kind.I, unit + 1))
    return found


def takes_gradient(schedule: Schedule, kind: Kind) -> bool:
    """Whether actions of a kind wait for the gradient of the next stage."""
    late = kind == Kind.R and schedule.recompute_after == "gradient"
    return late or kind in (Kind.I, Kind.B)


class _Waits:
    """The part of an order that cannot run, and who waits for whom in it."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.actions = [unpack(code) for code in schedule.actions.tolist()]
        self.ranks = np.repeat(np.arange(schedule.ranks), np.diff(schedule.offsets)).tolist()
        self.where: dict[Action, int] = {}
        self.steps: dict[int, list[int]] = {}
        for position, action in enumerate(self.actions):
            if action.kind == Kind.OPT:
                self.steps.setdefault(action.microbatch, []).append(position)
            else:
                self.where.setdefault(action, position)
        self.missing: tuple[int, Action] | None = None
        self.sources = [self._sources(position) for position in range(len(self.actions))]
        # The members of a group start together: the first waits for all that the others do.
        self.leads: dict[int, list[int]] = {}
        self.group_of = group_bounds(schedule.actions)[0].tolist()
        own = [list(sources) for sources in self.sources]
        for position, lead in enumerate(self.group_of):
            if lead < position and self.ranks[lead] == self.ranks[position]:
                self.leads.setdefault(lead, own[lead])
                self.sources[lead] = self.sources[lead] + own[position]
        self.own = own
        self.done = self._run()

    def text(self, position: int) -> str:
        return f"{self.schedule.text(self.actions[position])} (rank {self.ranks[position]})"

    def together(self, one: int, other: int) -> bool:
        """Whether two actions are the first and another member of a group."""
        return other > one and one in self.leads and self.group_of[other] == one

    def with_halves(self, cycle: list[int]) -> list[int]:
        """A cycle with the member of a group wherever the first waits for its sake."""
        found = []
        for position, source in zip(cycle, cycle[1:] + cycle[:1], strict=True):
            found.append(position)
            if position in self.leads and source in self.sources[position]:
                found += [] if source in self.leads[position] else [self._member(position, source)]
        return found

    def _member(self, lead: int, source: int) -> int:
        """The member of a group that waits for an action."""
        member = lead + 1
        while source not in self.own[member]:
            member += 1
        return member

    def _sources(self, position: int) -> list[int]:
        """Positions of the actions whose data an action waits for."""
        action = self.actions[position]
        if action.kind == Kind.OPT:
            return self._before_step(position)
        found = []
        for wanted in dependencies(self.schedule, action):
            spot = self.where.get(wanted)
            if spot is None and wanted.kind == Kind.I:
                spot = self.where.get(wanted._replace(kind=Kind.B))
            if spot is not None:
                found.append(spot)
            elif self.missing is None:
                self.missing = (position, wanted)
        return found

    def _before_step(self, position: int) -> list[int]:
        """What ranks whose gradients a step needs do just before theirs of the same iteration."""
        ranks: Iterable[int] = range(self.schedule.ranks)
        if self.schedule.sync == "local":
            return []
        if self.schedule.sync == "post-validation":
            ranks = [rank for rank in ranks if rank == self.ranks[position] - 1]
        action = self.actions[position]
        steps = [step for step in self.steps[action.microbatch] if self.ranks[step] in ranks]
        stepping = {self.ranks[step] for step in steps}
        for rank in ranks:
            if rank not in stepping and self.missing is None:
                first = self.schedule.placement.stages_on(rank)[:1] or (0,)
                self.missing = (position, Action(first[0], Kind.OPT, action.microbatch))
        begins = set(self.schedule.offsets.tolist())
        return [step - 1 for step in steps if step != position and step not in begins]

    def _run(self) -> list[bool]:
        """Run what can run; which actions did."""
        done = [False] * len(self.actions)
        offsets = self.schedule.offsets.tolist()
        heads = offsets[:-1].copy()
        moved = True
        while moved:
            moved = False
            for rank, head in enumerate(heads):
                position = head
                while position < offsets[rank + 1] and all(
                    done[source] for source in self.sources[position]
                ):
                    done[position] = True
                    position += 1
                moved = moved or position > head
                heads[rank] = position
        return done

    def shortest_cycle(self) -> list[int]:
        """The cycle with the fewest data waits, each followed by the action it is queued behind."""
        rest = [position for position, done in enumerate(self.done) if not done]
        edge = self._one_wait(rest) or self._two_waits(rest)
        if edge is not None:
            cycle = self._cycle_through(edge)
            assert cycle is not None
            return cycle
        heads = [position for position in rest if position == 0 or self._is_head(position)]
        starts = rest if len(rest) <= SEARCH_LIMIT else heads
        found = [self._cycle_through(start) for start in starts]
        cycles = [cycle for cycle in found if cycle is not None]
        assert cycles, "a stuck order without missing actions has a cycle"
        return min(cycles, key=len)

    def _is_head(self, position: int) -> bool:
        return self.done[position - 1] or self.ranks[position - 1] != self.ranks[position]

    def _waits(self, rest: list[int]) -> list[tuple[int, int]]:
        return [(a, b) for a in rest for b in self.sources[a] if not self.done[b]]

    def _one_wait(self, rest: list[int]) -> int | None:
        """An action that waits for a later one of its own rank."""
        for a, b in self._waits(rest):
            if self.ranks[a] == self.ranks[b] and b >= a:
                return a
        return None

    def _two_waits(self, rest: list[int]) -> int | None:
        """An action whose source is queued behind one that waits for something behind it."""
        reach: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for a, b in self._waits(rest):
            reach.setdefault((self.ranks[a], self.ranks[b]), []).append((a, b))
        for (here, there), waits in reach.items():
            back = sorted(reach.get((there, here), []))
            starts = [z for z, _ in back]
            farthest = list(accumulate((w for _, w in back), max))
            for a, b in waits:
                ahead = bisect_right(starts, b)
                if ahead and farthest[ahead - 1] >= a:
                    return a
        return None

    def _cycle_through(self, start: int) -> list[int] | None:
        """A cycle from an action back to it with the fewest data waits.

        Going to what is queued ahead on the same rank is free, going to a source costs one.
        """
        parent: dict[int, tuple[int, bool]] = {}
        queue: deque[tuple[int, int, bool]] = deque(
            (source, start, True) for source in self.sources[start] if not self.done[source]
        )
        while queue:
            position, before, by_data = queue.popleft()
            if position in parent:
                continue
            parent[position] = (before, by_data)
            if position == start:
                return self._path(parent, start)
            if not (position == 0 or self._is_head(position)):
                queue.appendleft((position - 1, position, False))
            queue.extend((s, position, True) for s in self.sources[position] if not self.done[s])
        return None

    @staticmethod
    def _path(parent: dict[int, tuple[int, bool]], start: int) -> list[int]:
        """The corners of a cycle: where a data wait begins or ends."""
        path: list[int] = []
        position, by_data_behind = start, True
        while True:
            before, by_data = parent[position]
            if by_data or by_data_behind:
                path.append(position)
            position, by_data_behind = before, by_data
            if position == start:
                break
        return [start, *(corner for corner in path[::-1] if corner != start)]
