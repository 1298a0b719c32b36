"""Names of observed schedules: a registered one, one of PyTorch's own, or the nearest."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from debubble.core.actions import PAIR_MASK, PAIR_SHIFT, Program, cells
from debubble.core.errors import DebubbleError
from debubble.core.schedule import Schedule
from debubble.interchange import torch_builtin
from debubble.schedules.registry import Entry, entries, make

NEAR = 0.3
"""Maximum share of actions at other places in the nearest schedule."""

MOST_ACTIONS = 100_000
"""Maximum number of actions for comparisons with schedules that need a search."""

CUSTOM = "custom"
NO_PAIR = ~(PAIR_MASK << PAIR_SHIFT)


@dataclass(frozen=True, eq=False)
class ScheduleName:
    """Name of an observed schedule."""

    text: str
    """Name of the equal or nearest schedule; ``"custom"`` without one."""
    differences: tuple[str, ...] = ()
    """Differences from that schedule, a line for each differing rank; empty if they are equal."""
    nearest: Schedule | None = None
    """Schedule of that name, if the observed one differs from it; else None."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the named schedule."""


def named(schedule: Schedule, *, torch: bool = False) -> ScheduleName:
    """Return the name of an observed schedule.

    If `torch`, also try PyTorch's own generators when no registered schedule is equal.
    """
    best, least = None, NEAR * len(schedule)
    for other in _candidates(schedule, torch):
        far = _distance(schedule, other)
        if far == 0:
            return ScheduleName(other.name, options=other.options)
        if far < least:
            best, least = other, far
    if best is None:
        return ScheduleName(CUSTOM)
    return ScheduleName(best.name, tuple(_differences(schedule, best)), best, best.options)


def like_none(
    ranks: int, microbatches: int, chunks: int, known: Mapping[int, Program]
) -> Schedule | None:
    """Return the registered schedule with the given programs on some ranks, or None."""
    for entry, options in _entries(chunks):
        made = _made(entry, ranks, microbatches, chunks, options)
        if made is not None and all(
            np.array_equal(made.program(rank), program) for rank, program in known.items()
        ):
            return made
    return None


def _candidates(schedule: Schedule, torch: bool) -> Iterator[Schedule]:
    """Yield schedules with the same stages on the same ranks."""
    ranks, microbatches = schedule.ranks, schedule.microbatches
    table = schedule.placement.table
    chunks = max(len(schedule.placement.stages_on(rank, 0)) for rank in range(ranks))
    for entry, options in _entries(chunks):
        if entry.uses_costs and len(schedule) > MOST_ACTIONS:
            continue
        if _table(entry, ranks, chunks) != table:
            continue
        if "slices" in {option.name for option in entry.options}:
            options = options | {"slices": schedule.slices}
        made = _made(entry, ranks, microbatches, chunks, options)
        if made is not None and made.placement.table == table and made.slices == schedule.slices:
            yield made
    if torch and importlib.util.find_spec("torch") is not None:
        for name in torch_builtin.NAMES:
            try:
                made = torch_builtin.load_builtin(
                    f"{torch_builtin.PREFIX}{name}", ranks=ranks, microbatches=microbatches,
                    chunks=chunks,
                )  # fmt: skip
            except DebubbleError:
                continue
            if made.placement.table == table:
                yield replace(made, name=f"{torch_builtin.PREFIX}{name}")


def _entries(chunks: int) -> Iterator[tuple[Entry, dict[str, Any]]]:
    """Yield entries that allow a number of chunks, with their common options.

    Entries with exactly that number, one version of the weights and no costs come first.
    """
    fits = [entry for entry in entries().values() if entry.chunks in (None, chunks)]
    fits.sort(key=lambda e: (e.chunks is None, e.weight_versions != 1, e.uses_costs))
    for entry in fits:
        yield entry, {}
        names = {option.name for option in entry.options}
        yield from ((entry, {name: value}) for name, value in TRIED if name in names)


TRIED = (
    ("published", True), ("short_last_group", True),
    *(("group_size", group) for group in (2, 4, 8, 16, 32)),
)  # fmt: skip
"""Common options, one of which is tried at a time."""


def _table(entry: Entry, ranks: int, chunks: int) -> tuple[tuple[int, ...], ...] | None:
    try:
        return entry.placement(ranks, chunks).table
    except DebubbleError:
        return None


def _made(
    entry: Entry, ranks: int, microbatches: int, chunks: int, options: dict[str, Any]
) -> Schedule | None:
    """Return a schedule of these sizes, or None."""
    try:
        return make(
            entry.name, ranks=ranks, microbatches=microbatches,
            chunks=chunks if entry.chunks is None else None, **options,
        )  # fmt: skip
    except DebubbleError:
        return None


def _distance(one: Schedule, other: Schedule) -> int:
    """Return the number of differing places in programs; all places if lengths differ."""
    if not np.array_equal(one.offsets, other.offsets):
        return len(one)
    return int(np.count_nonzero(one.actions != other.actions))


def _differences(schedule: Schedule, other: Schedule) -> Iterator[str]:
    """Yield the first difference of every differing rank, in words."""
    for rank in range(schedule.ranks):
        mine, wanted = schedule.program(rank), other.program(rank)
        apart = np.flatnonzero(mine != wanted)
        if not len(apart):
            continue
        at = int(apart[0])
        ran, had = cells(mine[at : at + 1] & NO_PAIR), cells(wanted[at : at + 1] & NO_PAIR)
        text = f"rank {rank}: action {at} is {ran[0]}, not {had[0]}"
        more = len(apart) - 1
        yield text + (f", and {more} more stand elsewhere" if more else "")
