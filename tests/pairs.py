"""Families and modes in pairs: every family once, and every mode with every sort of schedule.

A full grid of families and modes says nothing more than this when families of one sort go through
the same code: it takes minutes, and each new family or mode multiplies it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

from debubble import schedules
from debubble.core.actions import COPY_KINDS, Kind, kinds_of, pairs_of
from debubble.schedules.registry import Entry
from tests.small import smallest

Sort = tuple[bool, ...]


@cache
def sorts() -> dict[Sort, list[Entry]]:
    """The registered families, by what tells schedules apart in lowering and simulation."""
    found: dict[Sort, list[Entry]] = defaultdict(list)
    for entry in schedules():
        schedule = smallest(entry)
        kinds = set(kinds_of(schedule.actions).tolist())
        sort = (
            schedule.placement.copies > 1,
            schedule.chunks > 1,
            Kind.W in kinds,
            bool(np.any(pairs_of(schedule.actions))),
            schedule.slices > 1,
            schedule.vocabulary > 0,
            bool(kinds.intersection(COPY_KINDS)),
        )
        found[sort].append(entry)
    return dict(found)


def paired(values: Sequence[Any]) -> Iterator[tuple[Entry, Any, bool]]:
    """Pairs of families and values, and whether a pair is the first of its sort.

    Every family comes, and every value comes with every sort of schedule.
    """
    for turn, families in enumerate(sorts().values()):
        # Where there are more families than values these come round again, and the other way.
        for number in range(max(len(families), len(values))):
            value = values[(turn + number) % len(values)]
            yield families[number % len(families)], value, number == 0


def each_family_and(name: str, values: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrize `entry` with the families and `name` with some values, in pairs."""
    return pytest.mark.parametrize(
        ("entry", name),
        [
            pytest.param(
                entry, value, id=f"{entry.name}-{value}", marks=() if first else pytest.mark.slow
            )
            for entry, value, first in paired(values)
        ],
    )


each_family = pytest.mark.parametrize(
    "entry",
    [
        pytest.param(entry, id=entry.name, marks=() if entry is families[0] else pytest.mark.slow)
        for families in sorts().values()
        for entry in families
    ],
)
"""Parametrize `entry` with the families; one of each sort is enough for ``make quick``."""
