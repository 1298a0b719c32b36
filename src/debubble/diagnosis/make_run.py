"""Make the arrays of a run from its observed actions and messages."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import group_bounds
from debubble.core.kinds import FORWARD_KINDS
from debubble.diagnosis.observed import Indices, Messages, Observed
from debubble.diagnosis.order import Orders
from debubble.diagnosis.run import ON_CLOCK, OTHERS, Run


def run_of(observed: Observed, orders: Orders) -> Run:
    """Return the complete steps of an observed run."""
    schedule = orders.schedules[0]
    actions = observed.actions
    shape = (len(orders.step), len(schedule))
    at = np.stack(orders.rows)
    unknown: dict[str, Any] = {name: np.full(shape, np.nan) for name in (*ON_CLOCK, *OTHERS)}
    unknown |= {"lead": np.zeros(shape), "inside": np.full(shape, np.nan)}
    run = Run(
        orders.schedules, orders.step, orders.copy, orders.order, observed.steps,
        _hosts(observed), pauses=observed.pauses, locations=observed.locations,
        backend=observed.backend, device=observed.device, **unknown,
    )  # fmt: skip
    for _, here, column in run.by_order:
        cells, rows = np.ix_(here, column), at[here]
        for name in ("start", "end", "issued", "waited", "busy"):
            getattr(run, name)[cells] = np.where(rows >= 0, getattr(actions, name)[rows], np.nan)
    _join_groups(run)
    _match(run, observed.messages, schedule.slices)
    return run


def _join_groups(run: Run) -> None:
    """Set the times of all members of an overlapped group to those of the group."""
    first, behind = group_bounds(run.schedule.actions)
    for begin in np.unique(first[behind - first > 1]).tolist():
        part = slice(begin, int(behind[begin]))
        starts = run.start[:, part].copy()
        upto = np.full(len(starts), -np.inf)
        computed = np.zeros(len(starts))
        for member in range(part.start, part.stop):
            # What no member before it has computed is its own.
            own = np.maximum(run.end[:, member] - np.fmax(run.start[:, member], upto), 0.0)
            after = run.start[:, member] >= upto
            run.lead[:, member] = np.where(after, computed, 0.0)
            run.inside[:, member] = np.where(after & (computed > 0), upto, np.nan)
            computed = computed + own
            upto = np.fmax(upto, run.end[:, member])
        run.end[:, part] = run.end[:, part].max(axis=1, keepdims=True)
        run.start[:, part] = run.end[:, part] - computed[:, None]
        together = (starts == starts[:, :1]).all(axis=1)
        run.start[together, part] = starts[together]
        run.lead[together, part], run.inside[together, part] = 0.0, np.nan
        run.issued[:, part] = run.issued[:, part].min(axis=1, keepdims=True)


def _hosts(observed: Observed) -> tuple[str, ...]:
    workers = observed.ranks * observed.copies
    if observed.clocks == "ranks":
        return tuple(f"rank {number}" for number in range(workers))
    if observed.clocks == "one" or len(observed.hosts) != workers:
        return ("",) * workers
    return observed.hosts


def _match(run: Run, messages: Messages, slices: int) -> None:
    """Set the message times of a run at the actions that receive the messages."""
    if not len(messages):
        return
    receives = np.flatnonzero(run.source >= 0)
    producer = run.source[receives]
    forward = np.isin(run.kind[producer], FORWARD_KINDS)
    keys = _keys(forward, run.stage[producer], run.unit[producer])
    sort = np.argsort(keys)
    row_of = {pair: row for row, pair in enumerate(zip(run.step.tolist(), run.copy.tolist(),
                                                       strict=True))}  # fmt: skip
    pairs = zip(messages.step.tolist(), messages.copy.tolist(), strict=True)
    row = np.array([row_of.get(pair, -1) for pair in pairs])
    unit = messages.microbatch.astype(np.int64) * slices + messages.slice
    wanted = _keys(np.isin(messages.kind, FORWARD_KINDS), messages.stage.astype(np.int64), unit)
    spot = np.minimum(np.searchsorted(keys, wanted, sorter=sort), len(keys) - 1)
    column = receives[sort[spot]]
    real = (row >= 0) & (keys[sort[spot]] == wanted)
    columns = {"sent": "sent", "posted": "posted", "waited": "began", "arrived": "arrived"}
    for name, mine in columns.items():
        getattr(run, mine)[row[real], column[real]] = getattr(messages, name)[real]


def _keys(forward: NDArray[np.bool_], stage: Indices, unit: Indices) -> Indices:
    """Return one number for every sent result."""
    return (unit << 21) | (stage << 1) | forward
