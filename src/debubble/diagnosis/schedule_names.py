"""Names of schedules that ran: a registered one, one of PyTorch's own, or the nearest."""

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
"""Share of the actions that may stand elsewhere for a schedule to be called the nearest."""

MOST_ACTIONS = 100_000
"""Actions of an order up to which schedules that search for theirs are tried, too."""

CUSTOM = "custom"
NO_PAIR = ~(PAIR_MASK << PAIR_SHIFT)


@dataclass(frozen=True, eq=False)
class ScheduleName:
    """Name of a schedule that ran."""

    text: str
    """Name of the schedule that it is, or is nearest to; ``"custom"`` where there is none."""
    differences: tuple[str, ...] = ()
    """Differences from that schedule, a line for each rank that does; empty where it is it."""
    nearest: Schedule | None = None
    """The schedule of that name, where the order differs from it."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the schedule with which it is that order."""


def named(schedule: Schedule, *, torch: bool = False) -> ScheduleName:
    """Return the name of a schedule that ran.

    Parameters
    ----------
    schedule
        The order, whatever its name.
    torch
        Whether PyTorch's own generators are asked, too, where no registered schedule has the order.
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
    """Yield entries that may have so many chunks, with the options they are commonly used with.

    Those of just as many chunks, with one version of the weights and without costs, come first.
    """
    fits = [entry for entry in entries().values() if entry.chunks in (None, chunks)]
    fits.sort(key=lambda e: (e.chunks is None, e.weight_versions != 1, e.uses_costs))
    for entry in fits:
        yield entry, {}
        names = {option.name for option in entry.options}
        if "published" in names:
            yield entry, {"published": True}
        if "short_last_group" in names:
            yield entry, {"short_last_group": True}
        if "group_size" in names:
            for group in GROUPS:
                yield entry, {"group_size": group}


GROUPS = (2, 4, 8, 16, 32)
"""Microbatches per group that are tried where an order leaves a choice."""


def _table(entry: Entry, ranks: int, chunks: int) -> tuple[tuple[int, ...], ...] | None:
    try:
        return entry.placement(ranks, chunks).table
    except DebubbleError:
        return None


def _made(
    entry: Entry, ranks: int, microbatches: int, chunks: int, options: dict[str, Any]
) -> Schedule | None:
    """Return a schedule of these sizes; None where there is none."""
    try:
        return make(
            entry.name, ranks=ranks, microbatches=microbatches,
            chunks=chunks if entry.chunks is None else None, **options,
        )  # fmt: skip
    except DebubbleError:
        return None


def _distance(one: Schedule, other: Schedule) -> int:
    """Return the number of places where programs differ; all if their lengths do."""
    if not np.array_equal(one.offsets, other.offsets):
        return len(one)
    return int(np.count_nonzero(one.actions != other.actions))


def _differences(schedule: Schedule, other: Schedule) -> Iterator[str]:
    """Yield the first place at which every rank differs, in words."""
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
