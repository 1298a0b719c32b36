"""Families of each sort, alone or in pairs with modes: every mode with every sort of schedule.

A full grid of families, modes and laws says nothing more than this when families of one sort go
through the same code: it takes minutes, and each new family, mode or law multiplies it. So a law
is tested with some families of each sort, others for each law; all of them come to explore.
"""

from __future__ import annotations

import heapq
import math
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import combinations
from typing import Any, TypeVar

import numpy as np
import pytest

from debubble import schedules
from debubble.core.actions import COPY_KINDS, Kind, kinds_of, pairs_of
from debubble.schedules.registry import Entry
from tests.conftest import EXPLORES
from tests.small import smallest

Sort = tuple[bool, ...]
Test = TypeVar("Test", bound=Callable[..., None])
Item = TypeVar("Item")


def covering(
    cases: Iterable[Item],
    values: Callable[[Any], Iterable[object]] = tuple,
    strength: int = 2,
    at_most: int | None = None,
) -> list[Item]:
    """Few of many cases with every pair of values that comes in any of them; all to explore.

    `values` are those that tell a case apart, one of each sort; a `strength` of 3 keeps every
    three of them that come together. `at_most` so many cases have as many of these as they can.
    """
    every = list(cases)
    if EXPLORES:
        return every
    parts = [
        set(combinations(((at, str(value)) for at, value in enumerate(values(case))), strength))
        for case in every
    ]
    missing = set().union(*parts)
    # What a case adds only becomes less: one that adds as much as the next was said to is best.
    queue = [(-len(part), number) for number, part in enumerate(parts)]
    heapq.heapify(queue)
    chosen = []
    while missing and len(chosen) != at_most:
        _, number = heapq.heappop(queue)
        added = len(parts[number] & missing)
        if queue and -added > queue[0][0]:
            heapq.heappush(queue, (-added, number))
        elif added:
            chosen.append(number)
            missing -= parts[number]
    return [every[number] for number in sorted(chosen)]


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


def combined() -> dict[Sort, list[Entry]]:
    """The sorts that combine three or more of these, or have copies to the host."""
    return {sort: families for sort, families in sorts().items() if sum(sort) >= 3 or sort[-1]}


def chosen(families: list[Entry], test: Callable[..., None]) -> list[Entry]:
    """A third of the families of a sort, which are others in every test; all to explore."""
    turn = zlib.crc32(f"{test.__module__}.{test.__name__}".encode()) % len(families)
    turned = families[turn:] + families[:turn]
    return turned if EXPLORES else turned[: math.ceil(len(families) / 3)]


def paired(
    values: Sequence[Any], of_sorts: Iterable[list[Entry]]
) -> Iterator[tuple[Entry, Any, bool]]:
    """Pairs of families and values, and whether a pair is the first of its sort.

    Every family comes, and every value comes with every sort of schedule.
    """
    for turn, families in enumerate(of_sorts):
        # Where there are more families than values these come round again, and the other way.
        for number in range(max(len(families), len(values))):
            value = values[(turn + number) % len(values)]
            yield families[number % len(families)], value, number == 0


def _parametrized(name: str, some: Iterable[tuple[Entry, Any, bool]]) -> pytest.MarkDecorator:
    rows = [
        pytest.param(
            entry, value, id=f"{entry.name}-{value}", marks=() if first else pytest.mark.slow
        )
        for entry, value, first in some
    ]
    return pytest.mark.parametrize(("entry", name), rows)


def _alone(of_sorts: Iterable[list[Entry]]) -> pytest.MarkDecorator:
    rows = [
        pytest.param(entry, id=entry.name, marks=() if number == 0 else pytest.mark.slow)
        for families in of_sorts
        for number, entry in enumerate(families)
    ]
    return pytest.mark.parametrize("entry", rows)


def each_sort(test: Test) -> Test:
    """Parametrize `entry` with families of each sort: for laws that all of a sort obey alike.

    One of each sort is enough for ``make quick``.
    """
    return _alone(chosen(families, test) for families in sorts().values())(test)


def each_sort_and(name: str, values: Sequence[Any]) -> Callable[[Test], Test]:
    """Parametrize `entry` with families of each sort and `name` with some values, in pairs."""

    def decorate(test: Test) -> Test:
        families = [chosen(some, test) for some in sorts().values()]
        return _parametrized(name, paired(values, families))(test)

    return decorate


each_family = _alone(sorts().values())
"""Parametrize `entry` with all families: for what the order of actions itself decides."""


def each_family_with_some(name: str, values: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrize `entry` with all families and `name` with one value for each, in turn.

    For laws with random cases, in which each test says something else; in pairs to explore.
    """
    if EXPLORES:
        return each_family_and(name, values)
    rows = [
        (family, turn == 0) for families in sorts().values() for turn, family in enumerate(families)
    ]
    some = [(family, values[at % len(values)], first) for at, (family, first) in enumerate(rows)]
    return _parametrized(name, some)


def each_family_and(name: str, values: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrize `entry` with all families and `name` with some values, in pairs."""
    return _parametrized(name, paired(values, sorts().values()))
