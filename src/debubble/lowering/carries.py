"""Skip connections in a schedule: pairs of stages of which one hands something to the other."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from debubble.core.carries import Carries
from debubble.core.errors import ParameterError
from debubble.core.options import quoted
from debubble.core.schedule import Schedule
from debubble.core.schedule_fields import later
from debubble.core.units import is_whole
from debubble.engine.transfers import refuse_transfers

_PAIR = re.compile(r"\s*([0-9]{1,7})\s*:\s*([0-9]{1,7})\s*")


def read_carries(flag: str, text: str) -> Carries:
    """Return the pairs of stages in a text such as ``0:5,1:4``."""
    found = []
    for part in text.split(","):
        match = _PAIR.fullmatch(part)
        if match is None:
            raise ParameterError(f"{flag} is '{text}'; give pairs of stages, from and to: 0:5,1:4")
        found.append((int(match[1]), int(match[2])))
    return tuple(found)


def add_carries(schedule: Schedule, carries: str | Iterable[Sequence[int]]) -> Schedule:
    """Let stages hand something to later ones that are not their neighbors.

    Parameters
    ----------
    schedule
        A schedule without transfers as actions, which may have carries already.
    carries
        Pairs (from stage, to stage), or a text such as ``0:5,1:4``: at most one from, and one to,
        every stage.

    Returns
    -------
    Schedule
        With one message more for every microbatch and pair whose stages are on two ranks, and one
        for the gradient.

    Raises
    ------
    ParameterError
        When there is no such stage, or a stage has two.
    ScheduleError
        When the schedule has transfers already.

    Examples
    --------
    >>> import debubble as db
    >>> order = db.make("1f1b", ranks=3, microbatches=1, carry=[(0, 2)], transfers="eager")
    >>> for row in order.rows():
    ...     print(" ".join(row))
    0F0 0SEND_F0 0SEND_C0 0RECV_CB0 0RECV_B0 0B0
    1RECV_F0 1F0 1SEND_F0 1RECV_B0 1B0 1SEND_B0
    2RECV_C0 2RECV_F0 2F0 2B0 2SEND_B0 2SEND_CB0
    """
    refuse_transfers(schedule)
    pairs = dict.fromkeys((*schedule.carries, *carries_of(carries)))
    return replace(schedule, carries=tuple(pairs))


def carries_of(given: Any) -> Carries:
    """Return pairs from stage to later stage; a ParameterError for anything else."""
    if isinstance(given, str):
        given = read_carries("carry", given)
    try:
        found = None if isinstance(given, Mapping) else [(one, other) for one, other in given]
    except (TypeError, ValueError):
        found = None
    if found is None or not all(is_whole(stage) for pair in found for stage in pair):
        raise ParameterError(
            f"carry is {quoted(given)}; give pairs of stages, from and to: [(0, 5), (1, 4)]"
        )
    for one, other in found:
        if one >= other:
            low, high = later(one, other)
            raise ParameterError(
                f"carry is {one}:{other}; a stage carries to a later one: {low}:{high}"
            )
    return tuple(found)
