"""Messages about actions that cannot run: one phrase for each cause."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

import numpy as np

from debubble.core.actions import Action
from debubble.core.errors import ScheduleError
from debubble.core.schedule import Schedule
from debubble.engine.validate import spot_text


class Verb(Enum):
    """Ways in which an action waits for another."""

    WAITS = "waits for"
    RUNS_AFTER = "runs after"
    QUEUED = "is queued behind"
    TOGETHER = "runs together with"


ORDER = (Verb.RUNS_AFTER, Verb.QUEUED)
"""Waits for actions that stand in front on the same rank."""


class WaitStep(NamedTuple):
    """A wait of one action for another: their positions, and its kind."""

    waiting: int
    verb: Verb
    wanted: int


def named(schedule: Schedule, position: int) -> str:
    """Return the text of the action at a position, with its rank."""
    return f"{schedule.text_at(position)} (rank {schedule.rank_of(position)})"


def fault(schedule: Schedule, position: int, reason: str, *others: str) -> ScheduleError:
    """Return the error for an action that cannot be there as it is; `others` are involved, too."""
    chain = (schedule.text_at(position), *others)
    return ScheduleError(f"{spot_text(schedule, position)} {reason}", chain)


def home_of(schedule: Schedule, action: Action) -> int:
    """Return the rank that runs an action of a stage and microbatch."""
    copy = int(schedule.copies_of(np.array(action.microbatch)))
    return schedule.placement.table[copy][action.stage]


def missing(
    schedule: Schedule, position: int, wanted: Action, rank: int | None = None
) -> ScheduleError:
    """Return the error for a wait for an action that is not on its home, or on a given rank."""
    other = schedule.text(wanted)
    rank = home_of(schedule, wanted) if rank is None else rank
    return ScheduleError(
        f"{named(schedule, position)} waits for {other}, which no rank runs; "
        f"add {other} on rank {rank}",
        (schedule.text_at(position), other),
    )


def late(schedule: Schedule, position: int, wanted: int, together: bool) -> ScheduleError:
    """Return the error for an action before, or overlapped with, one of its rank that it needs."""
    chain = named(schedule, position), named(schedule, wanted)
    stands = "runs together with it" if together else "comes after it"
    behind = WaitStep(wanted, Verb.TOGETHER if together else Verb.RUNS_AFTER, position)
    return ScheduleError(
        f"a deadlock: {chain[0]} waits for {chain[1]}, which {stands}; {_move(schedule, behind)}",
        chain,
    )


def deadlock(schedule: Schedule, cycle: Sequence[WaitStep]) -> ScheduleError:
    """Return the error for actions that wait for each other."""
    story = ", ".join(
        f"{named(schedule, link.waiting)} {link.verb.value} {named(schedule, link.wanted)}"
        for link in cycle
    )
    moves = [_move(schedule, link) for link in cycle if link.verb is not Verb.WAITS]
    fix = ", or ".join(moves) if moves else "change the order of one of them"
    return ScheduleError(
        f"a deadlock: these actions wait for each other: {story}; {fix}",
        tuple(named(schedule, link.waiting) for link in cycle),
    )


def _move(schedule: Schedule, link: WaitStep) -> str:
    """Return the change that ends the wait of an action for its turn."""
    here, ahead = schedule.text_at(link.waiting), schedule.text_at(link.wanted)
    if link.verb is Verb.TOGETHER:
        return f"run {here} before {ahead}, not together with it"
    return f"move {here} before {ahead} on rank {schedule.rank_of(link.waiting)}"
