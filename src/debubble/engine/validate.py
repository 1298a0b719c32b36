"""Refuse actions that do not exist, before anything is looked up by their numbers.

A schedule may hold any packed integers: a file names stages and microbatches, Python makes arrays
of its own. Everything that takes a stage, microbatch or kind as an index runs behind
:func:`refuse_outside`, and everything that simulates behind :func:`refuse_invalid`, so that no
kernel has to test an index. Looking takes about a nanosecond per action, once per schedule, two
where there are more than 64 places; it returns which kinds of actions there are, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from debubble.core.actions import KIND_MASK, Kind, unpack
from debubble.core.errors import ScheduleError
from debubble.core.kinds import STEP_KINDS, kind_bits
from debubble.core.schedule import Schedule
from debubble.engine.kernels import validate as kernels

MOST = 1 << 40
"""More microbatches than a packed action can name, and a number that arrays can hold."""

assert len(Kind) == kernels.KINDS


class InvalidActions(NamedTuple):
    """Positions of the first strays of a schedule, None where there are none."""

    outside: int | None
    """An action of a kind, stage, microbatch or iteration that does not exist."""
    away: int | None
    """One before that on a rank on which its stage does not live."""


class Scan(NamedTuple):
    """Facts from one pass over the actions of a schedule."""

    kinds: int
    """Bit k stands for actions of kind k."""
    grouped: bool
    """Whether any actions are overlapped."""
    strays: InvalidActions
    """Actions that do not exist or are misplaced."""


def scan(schedule: Schedule) -> Scan:
    """Look through the actions of a schedule; the same schedule is looked through once."""
    survey: Scan | None = schedule.derived.get(Scan)
    if survey is None:
        placement = schedule.placement
        sizes = schedule.units, schedule.microbatches, schedule.iterations
        given = (
            schedule.actions, schedule.offsets, placement.ranks_of_stages, placement.stages,
            *(min(size, MOST) for size in sizes), schedule.slices, placement.copies,
        )  # fmt: skip
        state = np.empty(kernels.STATES, dtype=np.int64)
        kernels.scan_actions.run(len(schedule), *given, state)
        doubtful, kinds, grouped = state.tolist()
        strays = InvalidActions(None, None)
        if doubtful >= 0:
            found = np.empty(kernels.STRAYS, dtype=np.int64)
            kernels.find_strays.run(len(schedule), *given, doubtful, found)
            strays = InvalidActions(*(None if at < 0 else at for at in found.tolist()))
        survey = schedule.derived[Scan] = Scan(kinds, bool(grouped), strays)
    return survey


def has(schedule: Schedule, kinds: Iterable[Kind]) -> bool:
    """Return whether a schedule has an action of some kinds."""
    return bool(scan(schedule).kinds & kind_bits(kinds))


def refuse_outside(schedule: Schedule) -> None:
    """Raise for the first action of a kind, stage, microbatch or iteration that does not exist.

    Raises ScheduleError: the message says where it stands, and how far the numbers go.
    """
    position = scan(schedule).strays.outside
    if position is not None:
        raise ScheduleError(f"{spot_text(schedule, position)} {outside_text(schedule, position)}")


def refuse_invalid(schedule: Schedule) -> None:
    """Raise as :func:`refuse_outside`, and for the first action on the wrong rank.

    Raises ScheduleError: the message says where the action stands, and where it belongs.
    """
    refuse_outside(schedule)
    position = scan(schedule).strays.away
    if position is not None:
        stage = unpack(int(schedule.actions[position])).stage
        homes = sorted({row[stage] for row in schedule.placement.table})
        raise ScheduleError(
            f"{spot_text(schedule, position)} is on the wrong rank; stage {stage} lives on rank "
            + " and ".join(map(str, homes))
        )


def outside_text(schedule: Schedule, position: int) -> str:
    """Return text on the number or kind of an action that does not exist, and on the range."""
    code = int(schedule.actions[position])
    if code & KIND_MASK >= kernels.KINDS:
        return "has a kind that does not exist; write one of F, I, W, B, …"
    last = f"microbatches to {schedule.units // schedule.slices - 1}"
    if code >= 0 and code & KIND_MASK in STEP_KINDS:
        last = f"iterations to {schedule.iterations - 1}"
    return f"is out of range; stages go to {schedule.stages - 1}, {last}"


def spot_text(schedule: Schedule, position: int) -> str:
    """Return the rank of the action at a position, its place in that program, and its text."""
    rank = schedule.rank_of(position)
    place = position - int(schedule.offsets[rank])
    return f"rank {rank}, action {place}: {schedule.text_at(position)}"
