"""Closed forms that do not hold for a schedule's costs: why, and what they give for the nearest."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from debubble.core.actions import Kind
from debubble.core.cost_fields import CostField
from debubble.core.costs import Costs
from debubble.core.schedule import Schedule
from debubble.core.units import number
from debubble.engine.recompute import recompute_share
from debubble.schedules._entry import ClosedForm
from debubble.schedules._recomputed import with_offload, with_recompute
from debubble.schedules.registry import (
    TIME_QUANTITIES,
    FormValue,
    changed,
    closed_forms,
    entries,
    find,
    form_case,
    not_in_forms,
    part_of,
)


@dataclass(frozen=True)
class NearestForm:
    """A closed form that does not hold."""

    found: FormValue
    """The formula, and its value for the nearest costs for which it holds."""
    reason: str
    """Why it does not hold, in words."""
    nearest: str
    """The simpler case that the value is for, in words that follow it: ``"without latency"``."""


class _Obstacle(NamedTuple):
    """A property of a case that no formula covers, and the words for a case without it."""

    reason: str
    nearest: str


def nearest_forms(
    schedule: Schedule, costs: Costs, transfer: float, in_the_way: tuple[tuple[str, str], ...] = ()
) -> list[NearestForm]:
    """The closed forms that would hold for simpler costs.

    Left out are those of quantities that an exact form is known of, and those that are about other
    sizes or options. Schedule, costs and transfer are as for
    :func:`debubble.schedules.registry.closed_forms`; what is `in_the_way` are further properties
    that forms of times do not cover: reason, and words for a case without.
    """
    if schedule.name not in entries():
        return []
    entry = find(schedule.name)
    always: list[_Obstacle] = []
    if schedule.iterations > 1:
        always.append(_Obstacle(f"there are {schedule.iterations} iterations", "for one of them"))
    if entry.uses_costs and schedule.made_for != costs:
        always.append(
            _Obstacle("the order was made for other costs", "for an order made for these")
        )
    plain = replace(costs, head=None) if schedule.vocabulary else costs
    foreign = [spec for spec in not_in_forms(schedule, plain) if len(spec.changes) == 1]
    if not plain.uniform:
        if schedule.vocabulary:
            return []
        differ = "stages or ranks" if costs.microbatch is None else "stages, ranks or microbatches"
        always.append(_Obstacle(f"the costs of {differ} differ", "for their mean"))
        costs, transfer = _mean(schedule, costs)
    case = form_case(schedule, costs, transfer)
    known = with_offload(with_recompute(entry.forms, case, schedule, case.table), entry, schedule)
    recomputes = bool(recompute_share(schedule).any())
    if recomputes and not any(form.quantity in TIME_QUANTITIES for form in known):
        always.append(_Obstacle("forwards are recomputed", "without recompute"))
        known = entry.forms
    unknown = {
        part: _distinct(_obstacle(spec) for spec in foreign if part in changed(spec, entry))
        for part in ("times", "memory")
    }
    unknown["times"] = [*(_Obstacle(*words) for words in in_the_way), *unknown["times"]]

    holding = () if always else closed_forms(schedule, costs, transfer)
    if in_the_way:
        holding = [item for item in holding if item.form.quantity not in TIME_QUANTITIES]
    told = {item.form.quantity for item in holding if item.form.accuracy == "exact"}
    seen = {(item.form.quantity, item.form.text) for item in holding}
    found = []
    for form in known:
        obstacles = always + unknown[part_of(form)]
        near = _nearest(form, case)
        if form.quantity in told or (form.quantity, form.text) in seen or near is None:
            continue
        simpler, more = near
        if not obstacles and not more:
            continue
        seen.add((form.quantity, form.text))
        obstacles = obstacles + more
        found.append(
            NearestForm(
                FormValue.of(form, simpler),
                ", ".join(obstacle.reason for obstacle in obstacles),
                ", ".join(obstacle.nearest for obstacle in obstacles),
            )
        )
    return found


_UNKNOWN = {
    "OPT": _Obstacle("optimizer steps take time", "without optimizer steps"),
    "unshard": _Obstacle("replicas exchange weights and gradients", "without that"),
    "reduce_grad": _Obstacle("replicas exchange weights and gradients", "without that"),
    "kv": _Obstacle("keys and values are held, too", "without them"),
    "static": _Obstacle("ranks hold more than activations", "without that"),
}
"""Words for costs that formulas know nothing of."""


def _obstacle(spec: CostField) -> _Obstacle:
    name = spec.name
    return _UNKNOWN.get(name) or _Obstacle(f"formulas know no {name}", f"without {name}")


def _distinct(obstacles: Iterable[_Obstacle]) -> list[_Obstacle]:
    return list(dict.fromkeys(obstacles))


def _nearest(
    form: ClosedForm, case: SimpleNamespace
) -> tuple[SimpleNamespace, list[_Obstacle]] | None:
    """The nearest case for which a form holds; None when it is about other sizes or options."""
    third = (case.F + case.I + case.W) / 3
    pair = case.O / (case.F + case.B) if case.F + case.B else 1.0
    equal = {"F": third, "I": third, "W": third, "B": 2 * third, "O": 3 * third * pair}
    no_latency = _Obstacle(f"a transfer takes {number(case.c)}", "without latency")
    differ = _Obstacle("F, I and W differ", "for F = I = W of the same sum")
    whole = {"O": max(case.F, case.B)}
    short = _Obstacle(
        "an overlapped pair takes less than the longer of its parts",
        f"for O = {number(whole['O'])}",
    )
    for changes, obstacles in (
        ({}, []),
        ({"c": 0.0}, [no_latency]),
        (equal, [differ]),
        ({"c": 0.0, **equal}, [no_latency, differ]),
        (whole, [short]),
        ({"c": 0.0, **whole}, [no_latency, short]),
    ):
        if ("c" in changes and case.c == 0) or (short in obstacles and whole["O"] <= case.O):
            continue
        changed = SimpleNamespace(**vars(case) | changes)
        if form.holds(changed):
            return changed, obstacles
    return None


def _mean(schedule: Schedule, costs: Costs) -> tuple[Costs, float]:
    """Costs that are the same everywhere, the means of given ones, and the time of a transfer."""
    table = costs.table(schedule)
    whole = table.duration.reshape(len(Kind), schedule.slices, -1).sum(axis=1).mean(axis=1)
    held = table.activation.reshape(schedule.slices, -1).sum(axis=0)
    activation = None if costs.activation is None else float(held.mean())
    total = float(table.activation.sum())
    links = table.link if table.boundaries is None else table.boundaries.time
    links = links[links > 0]
    transfer = float(links.mean()) if len(links) else 0.0
    pair = costs.O
    if isinstance(pair, Mapping | Sequence):
        times = pair.values() if isinstance(pair, Mapping) else pair
        pair = math.fsum(times) / len(pair)
    if pair is not None and costs.basis == "rank":
        pair = pair / (costs.chunks or schedule.chunks)
    F, I, W, B, R = (float(whole[kind]) for kind in (Kind.F, Kind.I, Kind.W, Kind.B, Kind.R))
    return (
        Costs(
            F=F, I=I, W=W, B=B, R=R, O=pair, overlap_factor=costs.overlap_factor, p2p=transfer,
            activation=activation,
            kept_for_weight=float(np.clip(table.kept.sum() / total, 0, 1)) if total else 1.0,
        ),
        transfer,
    )  # fmt: skip
