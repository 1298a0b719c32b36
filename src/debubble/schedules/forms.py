"""Closed forms of a schedule for given costs: those that hold, and the nearest values of others.

A registered schedule has formulas for plain cases. With recomputes right before their backwards, or
with activations away from their ranks, some of them hold in another form or as a bound; see
:func:`_with_recompute` and :func:`_with_offload`. A formula that does not hold is evaluated for the
nearest simpler case, and the differences to that case are listed as obstacles.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from debubble.core.actions import STAGE_SHIFT, Kind, kinds_of, pairs_of
from debubble.core.cost_fields import CostField
from debubble.core.cost_table import CostTable
from debubble.core.costs import Costs
from debubble.core.kind_relations import COST_KINDS
from debubble.core.kinds import COPY_KINDS, GRADIENT_KINDS
from debubble.core.schedule import Schedule
from debubble.core.spelled_out import NO_KINDS
from debubble.core.units import number
from debubble.engine.recompute import recompute_share
from debubble.engine.validate import has
from debubble.schedules._entry import ClosedForm, Entry
from debubble.schedules._entry import FormValue as FormValue  # part of what is returned here
from debubble.schedules.registry import entries, find

__all__ = [
    "TIME_QUANTITIES", "FormValue", "Obstacle", "closed_forms", "form_case",
    "nearest_forms", "not_in_forms",
]  # fmt: skip

TIME_QUANTITIES = frozenset({"makespan", "stage_time", "bubble_time"})
"""Quantities of closed forms that are times."""


class Obstacle(NamedTuple):
    """Reason for which a form does not hold, and the simpler case: ``"without latency"``."""

    reason: str
    nearest: str


def closed_forms(
    schedule: Schedule, costs: Costs, obstacles: Sequence[Obstacle] = ()
) -> list[FormValue]:
    """Return the closed forms of a schedule that hold for these costs.

    Forms hold for costs that are the same on all stages and, where the schedule is computed from
    costs, that it was computed from. `obstacles` are further properties that forms of times do
    not cover.
    """
    found = _Forms.of(schedule, costs, obstacles)
    return found.holding() if found else []


def nearest_forms(
    schedule: Schedule, costs: Costs, obstacles: Sequence[Obstacle] = ()
) -> list[tuple[FormValue, Obstacle]]:
    """Return the closed forms that would hold for simpler costs, and why not; parameters as above.

    Left out are those of quantities that an exact form is known of, and those that are about other
    sizes or options.
    """
    found = _Forms.of(schedule, costs, obstacles)
    if found is None:
        return []
    timed = any(form.quantity in TIME_QUANTITIES for form in found.known)
    if not timed and recompute_share(schedule).any():
        found.always.append(Obstacle("forwards are recomputed", "without recompute"))
        found.known = found.entry.forms
    holding = found.holding()
    exact = {item.form.quantity for item in holding if item.form.accuracy == "exact"}
    seen = {(item.form.quantity, item.form.text) for item in holding}
    nearest = []
    for form in found.known:
        near = _nearest_case(form, found.case)
        if form.quantity in exact or (form.quantity, form.text) in seen or near is None:
            continue
        simpler, more = near
        here = [*found.always, *found.unknown[part_of(form)], *more]
        if here:
            seen.add((form.quantity, form.text))
            reasons, words = (", ".join(texts) for texts in zip(*here, strict=True))
            nearest.append((FormValue.of(form, simpler), Obstacle(reasons, words)))
    return nearest


def part_of(form: ClosedForm) -> str:
    """Return what a form is about, in the words of :attr:`CostField.changes`."""
    return "times" if form.quantity in TIME_QUANTITIES else "memory"


@dataclass
class _Forms:
    """The forms of a schedule, the case to evaluate them for, and what keeps them from holding."""

    entry: Entry
    case: SimpleNamespace
    known: tuple[ClosedForm, ...]
    always: list[Obstacle]
    """Obstacles of every form."""
    unsure: bool
    """Whether the schedule was made for costs that recomputes and copies have changed since."""
    unknown: dict[str, list[Obstacle]]
    """Obstacles of forms of times and of memory: costs that formulas do not have."""

    def holding(self) -> list[FormValue]:
        """Return the values of the forms that hold."""
        if self.always or self.unsure:
            return []
        return [
            FormValue.of(form, self.case)
            for form in self.known
            if not self.unknown[part_of(form)] and form.holds(self.case)
        ]

    @classmethod
    def of(cls, schedule: Schedule, costs: Costs, obstacles: Sequence[Obstacle]) -> _Forms | None:
        """Look at a schedule and its costs; None for a schedule without any forms."""
        if schedule.name not in entries():
            return None
        entry, always = find(schedule.name), []
        if schedule.iterations > 1:
            several = f"there are {schedule.iterations} iterations"
            always.append(Obstacle(several, "for one of them"))
        by_costs = entry.orders_by_costs(SimpleNamespace(**schedule.options))
        if by_costs and schedule.made_for != costs:
            other = "the schedule was made for other costs"
            always.append(Obstacle(other, "for a schedule made for these"))
        # A sharded head is the same on all ranks.
        plain = replace(costs, head=None) if schedule.vocabulary else costs
        foreign = [spec for spec in not_in_forms(schedule, plain) if len(spec.changes) == 1]
        if not plain.uniform:
            if schedule.vocabulary:
                return None
            owners = "stages or ranks"
            if costs.microbatch is not None:
                owners = "stages, ranks or microbatches"
            always.append(Obstacle(f"the costs of {owners} differ", "for their mean"))
            costs = _mean(schedule, costs)
        case = form_case(schedule, costs)
        known = _with_recompute(entry.forms, case, schedule, case.table)
        known = _with_offload(known, entry, schedule)
        copied = not entry.copies_activations and has(schedule, COPY_KINDS)
        unsure = entry.uses_costs and bool(copied or recompute_share(schedule).any())
        unknown: dict[str, list[Obstacle]] = {"times": [], "memory": []}
        for spec in foreign:
            obstacle = Obstacle(f"formulas know no {spec.name}", f"without {spec.name}")
            for part in _changed(spec, entry):
                unknown[part].append(_WORDS.get(spec.name, obstacle))
        if any(case.table.carried(*carry) for carry in schedule.carries):
            unknown["times"].append(_CARRIES)
        unknown = {part: list(dict.fromkeys(found)) for part, found in unknown.items()}
        unknown["times"] = [*obstacles, *unknown["times"]]
        return cls(entry, case, known, always, unsure, unknown)


def not_in_forms(schedule: Schedule, costs: Costs) -> tuple[CostField, ...]:
    """Return the costs that something of a schedule pays and that no closed form has."""
    return tuple(
        spec
        for spec in costs.not_in_forms
        if spec.name in NO_KINDS
        or spec.name not in COST_KINDS
        or has(schedule, COST_KINDS[spec.name])
    )


def _changed(spec: CostField, entry: Entry) -> tuple[str, ...]:
    """Return what a cost changes: of schedules computed from costs, memory changes the times."""
    return ("times", "memory") if entry.uses_costs and "memory" in spec.changes else spec.changes


_NO_REPLICAS = Obstacle("replicas exchange weights and gradients", "without that")
_WORDS = {
    "OPT": Obstacle("optimizer steps take time", "without optimizer steps"),
    "unshard": _NO_REPLICAS,
    "reduce_grad": _NO_REPLICAS,
    "kv": Obstacle("keys and values are held, too", "without them"),
    "static": Obstacle("ranks hold more than activations", "without that"),
}
"""Words for costs that no formula has."""


_CARRIES = Obstacle("stages carry something to others than the next", "without that")


def form_case(schedule: Schedule, costs: Costs) -> SimpleNamespace:
    """Return the variables of a registered schedule's closed forms, see :class:`ClosedForm`."""
    table = costs.table(schedule)
    kinds = (Kind.F, Kind.I, Kind.W, Kind.B, Kind.S, Kind.T)
    case = find(schedule.name).case(**schedule.options)
    vars(case).update(
        ranks=schedule.ranks, microbatches=schedule.microbatches, chunks=schedule.chunks,
        p=schedule.ranks, m=schedule.microbatches, v=schedule.chunks, s=schedule.slices,
        **{kind.name: float(table.duration[kind, 0]) for kind in kinds},
        O=table.pair((0, 0), (int(Kind.B), 0)), c=costs.transfer, shard=table.shard, table=table,
        unit=float(table.activation[0]), kept=float(table.kept[0]),
        copy=_copy_time(schedule, table),
    )  # fmt: skip
    share = case.kept / case.unit if case.unit else 0.0
    if not np.allclose(table.kept, share * table.activation, rtol=1e-9, atol=0):
        case.kept = math.nan
    return case


def _copy_time(schedule: Schedule, table: CostTable) -> float:
    """Return the time of an OFFLOAD, or a RELOAD, after one of every rank on the same link."""
    target = schedule.copy_targets[schedule.placement.table[0][0]]
    sharing = 1 if target is not None else table.costs.host_link_shared_by
    return sharing * table.copy(Kind.OFFLOAD, 0, target)


_AT_MOST = {"exact": "upper bound", "upper bound": "upper bound"}
_AT_LEAST = {"exact": "lower bound", "lower bound": "lower bound"}
"""Accuracy of a formula for what may be less, and for what may be more; others are left out."""


def _with_recompute(
    forms: tuple[ClosedForm, ...], case: SimpleNamespace, schedule: Schedule, table: CostTable
) -> tuple[ClosedForm, ...]:
    """Return the closed forms that hold for a schedule; with recomputes `case` gets its I, B and q.

    Notes
    -----
    Let every microbatch of every stage be recomputed right before its backward, at the same costs
    everywhere, and no actions overlap. When R waits for the gradient, it and the backward are one
    longer backward, so that forms of times hold with I + R for I and B + R for B. When R waits
    for its own forward only, the schedule has fewer waits, and what was exact is an upper bound.

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
    if not same or not np.all(share >= 1) or not _right_before(schedule):
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
            found += [] if split else [_checkpoint_peak(form, "(v·s)" if case.s > 1 else "v")]
        elif late or form.accuracy in _AT_MOST:
            accuracy = form.accuracy if late else _AT_MOST[form.accuracy]
            found.append(replace(form, text=form.text + longer, accuracy=accuracy))
    return tuple(found)


def _right_before(schedule: Schedule) -> bool:
    """Return whether no actions overlap and every R stands right before its backward."""
    kinds, cells = kinds_of(schedule.actions), schedule.actions >> STAGE_SHIFT
    spots = np.flatnonzero(kinds == Kind.R)
    after = np.minimum(spots + 1, len(kinds) - 1)
    follows = np.isin(kinds[after], GRADIENT_KINDS) & (cells[after] == cells[spots])
    return not pairs_of(schedule.actions).any() and bool(follows.all())


def _checkpoint_peak(form: ClosedForm, parts: str) -> ClosedForm:
    """Return a peak of activations as one of checkpoints and one activation."""

    def value(case: SimpleNamespace) -> float | list[float]:
        peak = case.q * np.asarray(form.of(case)) + (1 - case.q) * case.unit
        found: float | list[float] = peak.tolist()
        return found

    condition = "; ".join(filter(None, (form.condition, "q = recompute_kept")))
    text = f"q·({form.text}) + (1 − q)/{parts}"
    return replace(form, text=text, value=value, condition=condition)


def _with_offload(
    forms: tuple[ClosedForm, ...], entry: Entry, schedule: Schedule
) -> tuple[ClosedForm, ...]:
    """Return the forms as bounds where activations leave their ranks and no formula has that.

    The schedule is the same with more waits: nothing ends sooner, and no rank holds more.
    """
    if entry.copies_activations or not has(schedule, COPY_KINDS):
        return forms
    weaker = {"times": _AT_LEAST, "memory": _AT_MOST}
    found = ((form, weaker[part_of(form)].get(form.accuracy)) for form in forms)
    return tuple(replace(form, accuracy=accuracy) for form, accuracy in found if accuracy)


def _nearest_case(
    form: ClosedForm, case: SimpleNamespace
) -> tuple[SimpleNamespace, list[Obstacle]] | None:
    """Return the nearest case for which a form holds; None if it is about other sizes or options.

    The changes that are tried: no latency, F = I = W of the same sum, and pairs that take as long
    as the longer of their parts.
    """
    third = (case.F + case.I + case.W) / 3
    pair = case.O / (case.F + case.B) if case.F + case.B else 1.0
    equal = {"F": third, "I": third, "W": third, "B": 2 * third, "O": 3 * third * pair}
    latency = Obstacle(f"a transfer takes {number(case.c)}", "without latency")
    differ = Obstacle("F, I and W differ", "for F = I = W of the same sum")
    whole = {"O": max(case.F, case.B)}
    short = Obstacle(
        "an overlapped pair takes less than the longer of its parts",
        f"for O = {number(whole['O'])}",
    )
    changes: list[tuple[dict[str, float], list[Obstacle]]] = [({}, []), (equal, [differ])]
    if whole["O"] > case.O:
        changes.append((whole, [short]))
    for changed, obstacles in changes:
        for transfer in dict.fromkeys((case.c, 0.0)):
            near = SimpleNamespace(**vars(case) | changed | {"c": transfer})
            if form.holds(near):
                return near, [latency, *obstacles] if transfer != case.c else obstacles
    return None


def _mean(schedule: Schedule, costs: Costs) -> Costs:
    """Return costs that are the same everywhere, the means of given ones."""
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
    kinds = (Kind.F, Kind.I, Kind.W, Kind.B, Kind.R)
    each: dict[str, Any] = {kind.name: float(whole[kind]) for kind in kinds}
    kept = float(np.clip(table.kept.sum() / total, 0, 1)) if total else 1.0
    return Costs(
        **each, O=pair, overlap_factor=costs.overlap_factor, p2p=transfer,
        activation=activation, kept_for_weight=kept,
    )  # fmt: skip
