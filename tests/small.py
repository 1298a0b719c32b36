"""A small case of every registered schedule."""

from __future__ import annotations

from typing import Any

import debubble as db
from debubble import Schedule
from debubble.core.errors import ParameterError
from debubble.schedules.registry import Entry

RANKS = 4


def smallest(entry: Entry, **options: Any) -> Schedule:
    """The schedule for four ranks with the fewest microbatches from five up that it accepts."""
    for microbatches in range(5, 33):
        try:
            return db.make(entry.name, ranks=RANKS, microbatches=microbatches, **options)
        except ParameterError:
            continue
    raise AssertionError(f"{entry.name} accepts no number of microbatches")
