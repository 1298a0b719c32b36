"""Why a schedule with sends and receives cannot run, in words: who waits for whom."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import KIND_MASK, PAIR_MASK, PAIR_SHIFT, Action, Kind, pack, unpack
from debubble.core.errors import ScheduleError
from debubble.core.schedule import Schedule
from debubble.engine import diagnose
from debubble.engine.kernels import sweep

SEARCH_LIMIT = 512
"""Ranks up to which every one is tried as the start of the shortest circle."""

PARTNERS = {
    Kind.SEND_F: (1, Kind.RECV_F),
    Kind.RECV_F: (-1, Kind.SEND_F),
    Kind.SEND_B: (-1, Kind.RECV_B),
    Kind.RECV_B: (1, Kind.SEND_B),
}
"""Step to the stage at the other end of a transfer, and what is done there."""


def partner(action: Action) -> Action:
    """The other end of a transfer."""
    step, kind = PARTNERS[action.kind]
    return Action(action.stage + step, kind, action.microbatch)


@dataclass(frozen=True, eq=False)
class Stopped:
    """A sweep that came to an end before the programs did.

    Parameters
    ----------
    schedule
        What was compiled.
    blocking
        Whether ranks wait in their groups of transfers.
    next_action
        Position each rank stands at, shape ``(ranks,)``.
    node
        Nodes of the actions emitted so far, shape ``(n,)``.
    """

    schedule: Schedule
    blocking: bool
    next_action: NDArray[np.int64]
    node: NDArray[np.int32]
    _sorted: dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]] = field(default_factory=dict)

    def action(self, position: int) -> Action:
        """The action at a position."""
        return unpack(int(self.schedule.actions[position]))

    def text(self, position: int) -> str:
        """An action and its rank."""
        return f"{self.named(position)} (rank {self.schedule.rank_of(position)})"

    def named(self, position: int) -> str:
        """The action at a position as text."""
        return self.schedule.text(self.action(position))

    def home(self, stage: int, microbatch: int) -> int:
        """The rank that runs a stage for a microbatch."""
        copy = int(self.schedule.copies_of(np.array(microbatch)))
        return self.schedule.placement.table[copy][stage]

    def find(self, rank: int, action: Action) -> int | None:
        """Position of an action in the program of a rank, None when it is not there."""
        if rank not in self._sorted:
            codes = self.schedule.program(rank) & ~(PAIR_MASK << PAIR_SHIFT)
            order = np.argsort(codes, kind="stable")
            self._sorted[rank] = (codes[order], order + int(self.schedule.offsets[rank]))
        codes, positions = self._sorted[rank]
        code = int(pack(action.kind, action.stage, action.microbatch)[0])
        index = int(np.searchsorted(codes, code))
        return int(positions[index]) if index < len(codes) and codes[index] == code else None


def explain(stopped: Stopped, outcome: int, position: int) -> ScheduleError:
    """The error for a sweep that ended with `outcome` at ``actions[position]``."""
    schedule = stopped.schedule
    action = stopped.action(position)
    rank = schedule.rank_of(position)
    text = schedule.text(action)
    where = f"rank {rank}, action {position - int(schedule.offsets[rank])}: {text}"
    if outcome == sweep.STUCK:
        return _explain_stuck(stopped)
    if outcome == sweep.ORDER:
        return _explain_order(stopped, position)
    if outcome == sweep.OTHER_KIND:
        return ScheduleError(
            f"{where} cannot be simulated; remove it: only compute actions, SEND, RECV, OFFLOAD "
            "and RELOAD can"
        )
    if outcome == sweep.DUPLICATE and action.kind > Kind.OPT:
        return ScheduleError(f"{where} runs twice; remove one", (text,))
    if outcome == sweep.NO_TRANSFER:
        other = partner(action).stage
        if 0 <= other < schedule.stages:
            reason = f"stages {action.stage} and {other} both live on rank {rank}"
        else:
            reason = f"stage {action.stage} is the {'first' if other < 0 else 'last'}"
        return ScheduleError(f"{where} has no other end: {reason}; remove it", (text,))
    if outcome == sweep.UNMATCHED:
        wanted = partner(action)
        home, end = stopped.home(wanted.stage, wanted.microbatch), schedule.text(wanted)
        return ScheduleError(f"{where} has no other end; add {end} on rank {home}", (text, end))
    if outcome == sweep.CROSSED:
        other = stopped.home(*partner(action)[::2])
        sender, receiver = (rank, other) if action.kind in (6, 8) else (other, rank)
        return ScheduleError(
            f"{where} overtakes another transfer: rank {receiver} does not receive in the order "
            f"in which rank {sender} sends; bring both in the same order",
            (text, schedule.text(partner(action))),
        )
    return diagnose.explain(schedule, outcome, position)


def _explain_order(stopped: Stopped, position: int) -> ScheduleError:
    """The error for an action that comes before something its own rank has to do first."""
    rank = stopped.schedule.rank_of(position)
    action = stopped.action(position)
    for alternatives in _needs(stopped, action, rank):
        spots = [stopped.find(rank, wanted) for wanted in alternatives]
        found = [spot for spot in spots if spot is not None]
        if any(spot < position for spot in found):
            continue
        if not found:
            wanted = stopped.schedule.text(alternatives[0])
            return ScheduleError(
                f"{stopped.text(position)} waits for {wanted}, which rank {rank} never runs; "
                f"add {wanted}",
                (stopped.named(position), wanted),
            )
        chain = (stopped.text(position), stopped.text(found[0]))
        return ScheduleError(
            f"a deadlock: {chain[0]} waits for {chain[1]}, which comes after it; "
            f"move {stopped.named(found[0])} before it",
            chain,
        )
    assert action.kind == Kind.R
    return ScheduleError(f"{stopped.text(position)} comes after its backward; move it before")


def _needs(stopped: Stopped, action: Action, rank: int) -> list[tuple[Action, ...]]:
    """What a rank has to do before an action; each as the actions that would do."""
    stage, kind, microbatch = action
    slices = stopped.schedule.slices

    def here(stage: int, *kinds: Kind, step: int = 0) -> tuple[Action, ...]:
        return tuple(Action(stage, each, microbatch + step) for each in kinds)

    def input_of(stage: int, receive: Kind, *kinds: Kind) -> tuple[Action, ...]:
        local = stopped.home(stage, microbatch) == rank
        return here(stage, *kinds) if local else here(action.stage, receive)

    if kind == Kind.F:
        needs = [input_of(stage - 1, Kind.RECV_F, Kind.F)] if stage > 0 else []
        if microbatch % slices > 0:
            needs.append(here(stage, Kind.F, step=-1))
        return needs
    if kind in (Kind.I, Kind.B, Kind.R):
        needs = [here(stage, Kind.F)]
        if diagnose.takes_gradient(stopped.schedule, kind) and stage < stopped.schedule.stages - 1:
            needs.append(input_of(stage + 1, Kind.RECV_B, Kind.I, Kind.B))
        if kind != Kind.R and (microbatch + 1) % slices > 0:
            needs.append(here(stage, Kind.I, Kind.B, step=1))
        return needs
    if kind == Kind.W:
        return [here(stage, Kind.I)]
    if kind == Kind.SEND_B:
        return [here(stage, Kind.I, Kind.B)]
    return [here(stage, Kind.F)]


@dataclass(frozen=True)
class _Wait:
    """An action at which a rank stands, and the one on another rank that it waits for."""

    waiting: int
    wanted: Action
    rank: int
    """The rank of the wanted action."""
    spot: int | None
    """Its position, None when the rank never runs it."""


def _explain_stuck(stopped: Stopped) -> ScheduleError:
    """The error for ranks that wait for each other, or for what nobody does."""
    schedule = stopped.schedule
    waits: dict[int, list[_Wait]] = {}
    for rank in range(schedule.ranks):
        if stopped.next_action[rank] == schedule.offsets[rank + 1]:
            continue
        waits[rank] = _waits(stopped, rank)
        for wait in waits[rank]:
            if wait.spot is None:
                wanted = schedule.text(wait.wanted)
                return ScheduleError(
                    f"{stopped.text(wait.waiting)} waits for {wanted}, which rank "
                    f"{wait.rank} never runs; add {wanted}",
                    (stopped.named(wait.waiting), wanted),
                )
    circle = _shortest_circle(waits)
    chain = [
        text
        for wait in circle
        for text in (
            stopped.text(wait.waiting),
            f"{schedule.text(wait.wanted)} (rank {wait.rank})",
        )
    ]
    story = f"{chain[0]} waits for {chain[1]}"
    for waiting, wanted in zip(chain[2::2], chain[3::2], strict=True):
        story += f", which comes after {waiting}, which waits for {wanted}"
    return ScheduleError(f"a deadlock: {story}, which comes after {chain[0]}", tuple(chain))


def _waits(stopped: Stopped, rank: int) -> list[_Wait]:
    """What a rank waits for where it stands."""
    schedule = stopped.schedule
    here, stop = int(stopped.next_action[rank]), int(schedule.offsets[rank + 1])
    kind = int(schedule.actions[here]) & KIND_MASK
    if kind == Kind.OPT:
        everyone = schedule.sync == "global"
        others = range(schedule.ranks) if everyone else range(max(rank - 1, 0), rank)
        steps = [_next_step(stopped, here, other, skip=everyone) for other in others]
        return [wait for wait in steps if wait is not None]

    def wait(position: int, wanted: Action) -> _Wait:
        other = stopped.home(wanted.stage, wanted.microbatch)
        return _Wait(position, wanted, other, stopped.find(other, wanted))

    waits = []
    if kind > Kind.OPT:
        position = here
        while position < stop and int(schedule.actions[position]) & KIND_MASK > Kind.OPT:
            if stopped.node[position] == 0:
                waits.append(wait(position, partner(stopped.action(position))))
            position += 1
        return waits
    behind = here + 1
    while (int(schedule.actions[behind - 1]) >> PAIR_SHIFT) & 1:
        behind += 1
    for position in range(here, behind):
        stage, own, microbatch = stopped.action(position)
        step, send = (-1, Kind.SEND_F) if own == Kind.F else (1, Kind.SEND_B)
        waits_for_none = own != Kind.F and not diagnose.takes_gradient(schedule, own)
        if waits_for_none or not 0 <= stage + step < schedule.stages:
            continue
        found = wait(position, Action(stage + step, send, microbatch))
        done = found.spot is not None and found.spot < stopped.next_action[found.rank]
        if found.rank != rank and not done:
            waits.append(found)
    return waits


def _next_step(stopped: Stopped, waiting: int, rank: int, *, skip: bool) -> _Wait | None:
    """The wait for an optimizer step of a rank, with `skip` None for one that stands at it."""
    schedule = stopped.schedule
    here = int(stopped.next_action[rank])
    rest = schedule.actions[here : schedule.offsets[rank + 1]]
    steps = np.flatnonzero((rest & KIND_MASK) == Kind.OPT)
    if len(steps) == 0:
        stages = schedule.placement.stages_on(rank)
        iteration = stopped.action(waiting).microbatch
        return _Wait(waiting, Action(stages[0] if stages else 0, Kind.OPT, iteration), rank, None)
    if steps[0] == 0 and skip:
        return None
    spot = here + int(steps[0])
    return _Wait(waiting, stopped.action(spot), rank, spot)


def _shortest_circle(waits: dict[int, list[_Wait]]) -> list[_Wait]:
    """The fewest waits that lead from a rank back to it."""
    rank = next(iter(waits))
    visited: set[int] = set()
    while rank not in visited:
        visited.add(rank)
        rank = waits[rank][0].rank
    starts = [rank, *(waits if len(waits) <= SEARCH_LIMIT else ())]
    best: list[_Wait] = []
    for start in starts:
        circle = _circle_through(waits, start, len(best) or len(waits) + 1)
        if circle:
            best = circle
        if len(best) == 2:
            break
    assert best, "ranks that cannot go on wait for each other"
    return best


def _circle_through(waits: dict[int, list[_Wait]], start: int, limit: int) -> list[_Wait]:
    """A circle through one rank with fewer than `limit` waits, empty when there is none."""
    came: dict[int, tuple[int, _Wait]] = {}
    depth = {start: 0}
    queue = deque([start])
    while queue:
        rank = queue.popleft()
        if depth[rank] + 1 >= limit:
            return []
        for wait in waits.get(rank, ()):
            if wait.rank == start:
                path = [wait]
                while rank != start:
                    rank, step = came[rank]
                    path.append(step)
                return path[::-1]
            if wait.rank not in depth:
                depth[wait.rank] = depth[rank] + 1
                came[wait.rank] = (rank, wait)
                queue.append(wait.rank)
    return []
