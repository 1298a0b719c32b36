"""Results of a simulation as plain data and as text, with closed forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from debubble.analysis.check import caveats
from debubble.analysis.layout import definitions, line_width, table, unstyled, wrap
from debubble.analysis.measures import FULLEST, MEASURES, largest
from debubble.analysis.metrics import (
    conventions,
    in_short,
    result_text,
    transfers_take_time,
    units,
)
from debubble.core.schedule import Schedule, sizes
from debubble.core.units import Scale, counted, memory_scale, number, percent
from debubble.engine.modes import MODE
from debubble.engine.recompute import recompute_share, recomputed_stages
from debubble.engine.timeline import Timeline
from debubble.schedules.forms import (
    TIME_QUANTITIES,
    FormValue,
    Obstacle,
    closed_forms,
    nearest_forms,
)
from debubble.schedules.formula import legend
from debubble.schedules.registry import entries

LISTED_RANKS = 16
"""Ranks up to which a text report has a line for each."""

ROUNDING = 1e-9
"""Share of a value below which a difference from its formula is rounding."""

_FEW = ("makespan", "ideal", "bubble_ratio", "peak_activation")
"""Measures of a report that is not wide."""

VERSIONS_SHOWN = 8
"""Ranks whose number of weight versions is listed one by one."""


def summary(timeline: Timeline) -> dict[str, Any]:
    """Return all results of a simulation, ready for JSON.

    Sizes of the schedule; ``recompute``, the stages that do, ``"full"`` for all; every measure,
    those by rank as lists; ``closed_forms``, formulas with their `value`, its `terms` where the
    formula is a sum of some, the `simulated` value and the `difference` (simulated − value;
    differences that are rounding are 0); ``nearest_forms``, those that do not hold for these costs,
    with the `reason` and what their `value` is for (`nearest`); ``units`` of times and memory; and
    ``conventions``, the meaning of each number.

    Examples
    --------
    >>> import debubble as db
    >>> result = summary(db.simulate(db.make("1f1b", ranks=4, microbatches=8)))
    >>> result["makespan"], result["peak_activation"], result["p2p_volume"]
    (33.0, [4.0, 3.0, 2.0, 1.0], 48.0)
    >>> [(form["quantity"], form["difference"]) for form in result["closed_forms"]]
    [('makespan', 0.0), ('peak_activation', [0.0, 0.0, 0.0, 0.0])]
    """
    schedule = timeline.schedule
    measures = {measure.key: measure.value(timeline) for measure in MEASURES}
    forms, near = _forms(timeline)
    return {
        "schedule": schedule.name,
        **sizes(schedule, "ranks", "chunks", "stages"),
        "copies": schedule.placement.copies,
        **sizes(schedule, "microbatches", "slices", "iterations"),
        "options": dict(schedule.options),
        "recompute": _recompute(schedule),
        "actions": len(schedule),
        **measures,
        "notes": list(caveats(timeline)),
        "closed_forms": [_compared(form, measures) for form in forms],
        "nearest_forms": [
            _compared(form, measures) | obstacle._asdict() for form, obstacle in near
        ],
        "units": units(timeline.table.costs),
        "conventions": conventions(timeline),
    }


def report(
    timeline: Timeline, *, time_unit: str = "", width: int | None = None, wide: bool = True,
    style: Callable[[str, str], str] = unstyled,
) -> str:  # fmt: skip
    """Return the summary as text: aligned numbers, with formulas next to the simulation.

    Times are in `time_unit`, ``"ms"`` for instance, by default in that of the costs; lines have
    `width` characters, by default the terminal's. The first line is the answer; a report that is
    not `wide` has fewer measures.
    `style` puts text in one of the styles ``"head"`` and ``"faint"``, for terminals.
    """
    data = summary(timeline)
    width = width or line_width()
    costs = timeline.table.costs
    unit, memory = time_unit or costs.time_unit, costs.activation_unit
    found = f"{timeline.schedule.name}: {result_text(timeline, unit)}"
    _, _, about = heading(timeline.schedule).partition(": ")
    lines = [style(line, "head") for line in wrap(found, width, 2)]
    lines += [*wrap(about, width, 2), ""]
    lines += definitions(_measures(data, unit, memory, wide), width)
    lines += ["", *_ranks(data, unit, memory), ""]
    lines += wrap(f"idle share of rank-time: {_idle(data)}", width, 2)
    lines += wrap(_buffers(data), width, 2) if data["receive_buffers"] else []
    for key, title in (
        ("closed_forms", "closed forms"),
        ("nearest_forms", "closed forms that do not hold here, with the nearest value they give"),
    ):
        if data[key]:
            lines += ["", *wrap(f"{title}:", width, 2)]
            for form in data[key]:
                lines += _formula(form, unit, memory, width)
    symbols = legend(form["formula"] for form in data["closed_forms"] + data["nearest_forms"])
    if symbols:
        lines += ["", *wrap(f"in formulas: {symbols}", width, 2)]
    words = data["conventions"]
    lines.append("")
    for note in data["notes"]:
        lines += wrap(f"note: {note}", width, 2)
    lines += [style(line, "faint") for text in in_short(words) for line in wrap(text, width, 2)]
    return "\n".join(lines)


def heading(schedule: Schedule) -> str:
    """Return one line with the schedule, its sizes and options."""
    placement = schedule.placement
    parts = [
        counted(schedule.ranks, "rank"),
        f"{counted(schedule.stages, 'stage')} ({placement.name})",
        counted(schedule.microbatches, "microbatch"),
    ]
    for count, nouns in ((schedule.slices, "slices"), (schedule.iterations, "iterations")):
        if count > 1:
            parts.append(f"{count:,} {nouns}")
    versions = schedule.versions
    if max(versions) > 1:
        each = ", ".join(map(str, versions)) if len(versions) <= VERSIONS_SHOWN else "…"
        kept = f"{max(versions)} weight versions"
        kept += " met, none stored" if schedule.newest_weights else ""
        parts.append(kept if len(set(versions)) == 1 else f"up to {kept} ({each})")
    parts.append(counted(len(schedule), "action"))
    entry = entries().get(schedule.name)
    usual = {option.name: option.default for option in entry.options} if entry else {}
    options = ", ".join(
        f"{key} {'/'.join(map(number, value)) if isinstance(value, list) else value}"
        for key, value in schedule.options.items()
        if key != "slices" and (key not in usual or value != usual[key])
    )
    return f"{schedule.name}: {', '.join(parts)}{f' · {options}' if options else ''}"


def _forms(timeline: Timeline) -> tuple[list[FormValue], list[tuple[FormValue, Obstacle]]]:
    """Return closed forms that speak about this timeline, and those that do so nearly."""
    costs = timeline.table.costs
    schedule = timeline.schedule
    obstacles = []
    takes_time = timeline.mode != "overlapped" and transfers_take_time(timeline)
    if takes_time or MODE[timeline.mode].holds_up:
        waits = f"transfers are p2p {timeline.mode}"
        obstacles.append(Obstacle(waits, "with transfers that overlap"))
    return closed_forms(schedule, costs, obstacles), nearest_forms(schedule, costs, obstacles)


def _recompute(schedule: Schedule) -> str | list[int] | None:
    """Return the stages that recompute, ``"full"`` for all microbatches of all, None for none."""
    if np.all(recompute_share(schedule) >= 1):
        return "full"
    return recomputed_stages(schedule) or None


def _compared(item: FormValue, measures: dict[str, Any]) -> dict[str, Any]:
    """Return a formula with the measure it is about, None if that is not simulated."""
    value: float | list[float] = (
        [float(part) for part in item.value] if isinstance(item.value, list) else float(item.value)
    )
    simulated = measures.get(item.form.quantity)
    if isinstance(simulated, list) and not isinstance(value, list):
        simulated = max(simulated)
    difference: float | list[float] | None = None
    if simulated is not None:
        gap = np.asarray(simulated, dtype=np.float64) - np.asarray(value)
        rounding = ROUNDING * np.maximum(np.abs(value), np.abs(simulated))
        difference = np.where(np.abs(gap) <= rounding, 0.0, gap).tolist()
    return {
        **item.form.to_dict(),
        "value": value,
        "terms": [{"term": text, "value": part} for text, part in item.terms],
        "simulated": simulated,
        "difference": difference,
    }


def _measures(
    data: dict[str, Any], unit: str, memory: str, wide: bool
) -> list[tuple[str, str, str]]:
    found = []
    for measure in MEASURES:
        if not measure.reported or not (wide or measure.key in _FEW):
            continue
        value, words = largest(data[measure.key]), data["conventions"].get(measure.key, "")
        scale = Scale(unit if measure.unit == "time" else "")
        if measure.unit == "memory":
            scale = memory_scale(memory, value)
            words = FULLEST
        text = f"{measure.text(value, scale)} {scale.unit}".rstrip()
        if measure.key == "p2p_volume" and value == data["p2p_transfers"]:
            text = counted(data["p2p_transfers"], "transfer")
        found.append((measure.title, text, words))
    return found


def _idle(data: dict[str, Any]) -> str:
    """Return shares of rank-time by cause, the causes that there are."""
    whole = data["makespan"] * data["ranks"]
    shares = {cause: sum(times) / whole for cause, times in data["idle_by_cause"].items() if whole}
    told = [f"{cause} {percent(share)}" for cause, share in shares.items() if share > ROUNDING]
    return ", ".join(told) or "never"


def _buffers(data: dict[str, Any]) -> str:
    """Return the number of receive buffers of all ranks, for each kind of pool."""
    slots = data["receive_buffers"]
    each, two, one = (sum(slots[key]) for key in ("by_stage", "by_direction", "shared"))
    return (
        f"receive buffers: {each} in pools by stage and direction, {two} in one pool of a rank for "
        f"each direction, {one} in one for both"
    )


def _ranks(data: dict[str, Any], unit: str, memory: str) -> list[str]:
    scale = memory_scale(memory, max(data["peak_activation"]))
    times, amounts = (f" [{name}]" if name else "" for name in (unit, scale.unit))
    names = ["rank", f"stage time{times}", f"busy{times}", f"peak activation{amounts}"]
    measures = [data["stage_time"], data["busy"], data["peak_activation"]]
    rows = [(str(rank), *values) for rank, values in enumerate(zip(*measures, strict=True))]
    if data["ranks"] > LISTED_RANKS:
        rows = [("least", *map(min, measures)), ("most", *map(max, measures))]
    texts = [[name, number(t), number(busy), scale.text(peak)] for name, t, busy, peak in rows]
    return table([names, *texts], left=())


def _ends(value: float | list[float] | None) -> list[float]:
    """Return the least and the most of one number per rank."""
    if value is None:
        return []
    return [min(value), max(value)] if isinstance(value, list) else [value]


def _formula(form: dict[str, Any], unit: str, memory: str, width: int) -> list[str]:
    """Return lines with a formula, its value, the simulated one and their difference."""
    quantity = form["quantity"]
    numbers = {key: _ends(form[key]) for key in ("value", "simulated", "difference")}
    scale = Scale(unit if quantity in TIME_QUANTITIES else "")
    if quantity == "peak_activation":
        scale = memory_scale(memory, max(abs(x) for ends in numbers.values() for x in ends))
    value, simulated, difference = (
        f"{' … '.join(dict.fromkeys(map(scale.text, ends)))} {scale.unit}".rstrip() if ends else "–"
        for ends in numbers.values()
    )
    found = f"{value} {form['nearest']}" if "nearest" in form else value
    found += f", simulated {simulated}, difference {difference}"
    accuracy = form["accuracy"]
    if form["condition"]:
        accuracy += f" ({form['condition']})"
    found += f"; {form['reason']}" if "nearest" in form else f"; {accuracy}"
    lines = wrap(f"  {quantity.replace('_', ' ')}  {form['formula']}", width, 4)
    lines += [f"    {line}" for line in wrap(found, width - 4)]
    if form["terms"] and quantity in TIME_QUANTITIES:
        each = ", ".join(f"{item['term']} = {number(item['value'])}" for item in form["terms"])
        lines += [f"    {line}" for line in wrap(f"terms: {each}", width - 4, 2)]
    return lines
