"""A small case of every registered schedule."""

from __future__ import annotations

from functools import cache
from typing import Any

import debubble as db
from debubble import Schedule
from debubble.core.errors import ParameterError
from debubble.schedules.registry import Entry

RANKS = 4


def smallest(entry: Entry, **options: Any) -> Schedule:
    """The schedule for four ranks with the fewest microbatches from five up that it accepts."""
    return _smallest(entry.name, **options)


@cache
def _smallest(name: str, **options: Any) -> Schedule:
    for microbatches in range(5, 33):
        try:
            return db.make(name, ranks=RANKS, microbatches=microbatches, **options)
        except ParameterError:
            continue
    raise AssertionError(f"{name} accepts no number of microbatches")
