"""Closed forms of a schedule with full recompute, and of one whose activations are offloaded."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from debubble.core.actions import STAGE_SHIFT, Kind, kinds_of, pairs_of
from debubble.core.cost_table import CostTable
from debubble.core.kinds import COPY_KINDS, GRADIENT_KINDS
from debubble.core.schedule import Schedule
from debubble.engine.recompute import recompute_share
from debubble.engine.validate import has
from debubble.schedules._entry import ClosedForm, Entry

_WEAKER = {"exact": "upper bound", "upper bound": "upper bound"}
"""Accuracy of a formula for times when R does not wait for the gradient; others say nothing."""


def with_recompute(
    forms: tuple[ClosedForm, ...], case: SimpleNamespace, schedule: Schedule, table: CostTable
) -> tuple[ClosedForm, ...]:
    """The closed forms that hold for a schedule; with recomputes `case` gets its I, B and q.

    Notes
    -----
    Let every microbatch of every stage be recomputed right before its backward, at the same costs
    everywhere, and no actions overlap. When R waits for the gradient, it and the backward are one
    longer backward, so that forms of times hold with I + R for I and B + R for B. When R waits
    for its own forward only, the same order has fewer waits, and what was exact is an upper bound.

    A rank holds the most forwards when a full backward comes next. That is when R brings back one
    activation, so that a peak of n activations becomes q·n + (1 − q) with q = recompute_kept. Where
    W comes later than I, activations also stay for W, and the form is left out. Nothing is known
    of other places of R.
    """
    share = recompute_share(schedule)
    if not share.any():
        return forms
    R, kept = table.duration[Kind.R], table.checkpoint
    same = bool(np.ptp(R) == 0 and np.ptp(kept) == 0)
    if not same or not np.all(share >= 1) or not _just_before(schedule):
        return ()
    case.I, case.B, case.q = case.I + R[0], case.B + R[0], kept[0] / case.unit if case.unit else 0
    longer_backward = table.duration.copy()
    longer_backward[list(GRADIENT_KINDS)] += R
    case.table = replace(table, duration=longer_backward)
    split = bool((kinds_of(schedule.actions) == Kind.W).any())
    longer = ", with I + R for I" if split else ", with B + R for B"
    late = schedule.recompute_after == "gradient"
    found = []
    for form in forms:
        if form.quantity == "peak_activation":
            found += [] if split else [_peak(form, "v·s" if schedule.slices > 1 else "v")]
        elif late or form.accuracy in _WEAKER:
            accuracy = form.accuracy if late else _WEAKER[form.accuracy]
            found.append(replace(form, text=form.text + longer, accuracy=accuracy))
    return tuple(found)


_LATER = {"exact": "lower bound", "lower bound": "lower bound"}
_LESS = {"exact": "upper bound", "upper bound": "upper bound"}
"""Accuracy of a formula for times, and for memory, where activations are away for a while."""


def with_offload(
    forms: tuple[ClosedForm, ...], entry: Entry, schedule: Schedule
) -> tuple[ClosedForm, ...]:
    """What forms say where activations leave their ranks and the formulas do not know it.

    The order is the same with more waits: nothing is over sooner, and no rank holds more.
    """
    if entry.copies_activations or not has(schedule, COPY_KINDS):
        return forms
    weaker = [
        (form, (_LESS if form.quantity == "peak_activation" else _LATER).get(form.accuracy))
        for form in forms
    ]
    return tuple(replace(form, accuracy=accuracy) for form, accuracy in weaker if accuracy)


def _just_before(schedule: Schedule) -> bool:
    """Whether no actions overlap and every R stands right before its backward."""
    kinds, cells = kinds_of(schedule.actions), schedule.actions >> STAGE_SHIFT
    spots = np.flatnonzero(kinds == Kind.R)
    after = np.minimum(spots + 1, len(kinds) - 1)
    backward = np.isin(kinds[after], GRADIENT_KINDS)
    follows = backward & (cells[after] == cells[spots])
    return not pairs_of(schedule.actions).any() and bool(follows.all())


def _peak(form: ClosedForm, parts: str) -> ClosedForm:
    """A peak of forwards as one of checkpoints and one activation."""

    def value(case: Any) -> float | list[float]:
        peak = case.q * np.asarray(form.of(case)) + (1 - case.q) * case.unit
        found: float | list[float] = peak.tolist()
        return found

    conditions = [text for text in (form.condition, "q = recompute_kept") if text]
    return replace(
        form,
        text=f"q·({form.text}) + (1 − q)/{parts if len(parts) == 1 else f'({parts})'}",
        value=value,
        condition="; ".join(conditions),
    )
