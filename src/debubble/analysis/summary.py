"""What a simulation says, as plain data and as text, beside what formulas say."""

from __future__ import annotations

from typing import Any

import numpy as np

from debubble.analysis.bubbles import CAUSES, bubbles
from debubble.analysis.metrics import (
    MEASURES,
    boundary_transfers,
    conventions,
    number,
    p2p_volume,
    parameter_copies,
    percent,
    table,
)
from debubble.core.actions import Kind, kinds_of
from debubble.core.schedule import Schedule
from debubble.engine.memory import Limit
from debubble.engine.recompute import recompute_share, recomputed_stages
from debubble.engine.timeline import Timeline
from debubble.schedules.registry import FormValue, closed_forms

LISTED_RANKS = 16
"""Ranks up to which a text report has a line for each."""

ROUNDING = 1e-9
"""Share of a value below which a difference from its formula is rounding."""

_SHOWN = (
    "times", "slices", "vocabulary", "optimizer", "p2p", "forwards", "memory", "recompute",
    "replicas", "offload",
)  # fmt: skip
"""Conventions that stand below a text report."""

_TIMES = ("makespan", "stage_time", "busy", "ideal", "bubble_ratio", "overhead")

VERSIONS_SHOWN = 8
"""Ranks whose number of weight versions is listed one by one."""


def summary(timeline: Timeline, limit: Limit | None = None) -> dict[str, Any]:
    """Everything a simulation says, ready for JSON.

    Parameters
    ----------
    timeline
        A simulated schedule.
    limit
        Memory of every rank, or one number for each, to tell which idle time is for lack of it.

    Returns
    -------
    dict
        Sizes of the schedule; ``recompute``, the stages that do, ``"full"`` for all; ``makespan``,
        ``ideal`` and the measures that say how much time is lost; ``stage_time``, ``busy`` and
        ``peak_activation`` with one number per rank, as have all causes in ``idle_by_cause``;
        ``p2p_transfers`` and ``p2p_volume``;
        ``parameter_copies``; ``closed_forms``, a list of formulas with their `value`, the
        `simulated` one and the `difference` (simulated − value; differences that are rounding are
        0); and ``conventions``, which says in words what each number means.

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
    measures: dict[str, Any] = {
        "makespan": timeline.makespan,
        "ideal": timeline.ideal,
        "stage_time": timeline.stage_time.tolist(),
        "busy": timeline.busy.tolist(),
        "bubble_ratio": timeline.bubble_ratio,
        "stage_bubble_rate": timeline.stage_bubble_rate,
        "overhead": timeline.overhead,
        "idle_by_cause": dict(zip(CAUSES, bubbles(timeline, limit).totals.T.tolist(), strict=True)),
        "peak_activation": timeline.peak_activation.tolist(),
        "p2p_transfers": boundary_transfers(schedule),
        "p2p_volume": p2p_volume(timeline),
        "parameter_copies": parameter_copies(schedule),
    }
    words = conventions(timeline)
    forms = _forms(timeline, words)
    return {
        "schedule": schedule.name,
        "ranks": schedule.ranks,
        "chunks": schedule.chunks,
        "stages": schedule.stages,
        "copies": schedule.placement.copies,
        "microbatches": schedule.microbatches,
        "slices": schedule.slices,
        "iterations": schedule.iterations,
        "weight_versions": max(schedule.versions),
        "options": dict(schedule.options),
        "recompute": _recompute(schedule),
        "actions": len(schedule),
        **measures,
        "notes": list(timeline.notes),
        "closed_forms": [_compared(form, measures) for form in forms],
        "conventions": words,
    }


def report(timeline: Timeline, *, time_unit: str = "", limit: Limit | None = None) -> str:
    """The summary for people: aligned text with formulas and simulation side by side.

    Parameters
    ----------
    timeline
        A simulated schedule.
    time_unit
        What times are in, for instance ``"ms"``.
    limit
        As for :func:`summary`.
    """
    data = summary(timeline, limit)
    unit = f" {time_unit}" if time_unit else ""
    lines = [heading(timeline.schedule), ""]
    lines += table(_measures(data, unit), left=(0, 1, 2))
    lines += ["", *_ranks(data), "", f"idle share of rank-time: {_idle(data)}"]
    if data["closed_forms"]:
        lines += ["", *_formulas(data["closed_forms"])]
    words = data["conventions"]
    lines += ["", *(f"{key}: {words[key]}" for key in _SHOWN if key in words)]
    if "closed_forms" in words:
        lines.append(f"closed forms: {words['closed_forms']}")
    lines += [f"note: {note}" for note in data["notes"]]
    return "\n".join(lines)


def heading(schedule: Schedule) -> str:
    """One line that says what was run."""
    placement = schedule.placement
    parts = [
        _count(schedule.ranks, "rank"),
        f"{_count(schedule.stages, 'stage')} ({placement.name})",
        _count(schedule.microbatches, "microbatch"),
    ]
    for amount, nouns in ((schedule.slices, "slices"), (schedule.iterations, "iterations")):
        if amount > 1:
            parts.append(f"{amount:,} {nouns}")
    versions = schedule.versions
    if max(versions) > 1:
        each = ", ".join(map(str, versions)) if len(versions) <= VERSIONS_SHOWN else "…"
        kept = f"{max(versions)} weight versions"
        parts.append(kept if len(set(versions)) == 1 else f"up to {kept} ({each})")
    parts.append(_count(len(schedule), "action"))
    options = ", ".join(
        f"{key} {value}" for key, value in schedule.options.items() if key != "slices"
    )
    return f"{schedule.name}: {', '.join(parts)}{f' · {options}' if options else ''}"


def _forms(timeline: Timeline, words: dict[str, str]) -> list[FormValue]:
    """Closed forms that speak about this timeline; says in `words` which are left out."""
    costs = timeline.table.costs
    schedule = timeline.schedule
    forms = closed_forms(schedule, costs, costs.transfer)
    if not forms and recomputed_stages(schedule):
        words["closed_forms"] = "none for these recomputes"
    why = ""
    if timeline.mode != "overlapped" and timeline.table.link.any():
        why = f"p2p {timeline.mode}"
    elif timeline.table.optimizer.any() and bool((kinds_of(schedule.actions) == Kind.OPT).any()):
        why = "optimizer steps"
    if not why or not any(form.form.quantity in _TIMES for form in forms):
        return forms
    words["closed_forms"] = f"those of times do not count {why} and are left out"
    return [form for form in forms if form.form.quantity not in _TIMES]


def _recompute(schedule: Schedule) -> str | list[int] | None:
    """The stages that recompute, ``"full"`` for all microbatches of all, None for none."""
    if np.all(recompute_share(schedule) >= 1):
        return "full"
    return recomputed_stages(schedule) or None


def _compared(item: FormValue, measures: dict[str, Any]) -> dict[str, Any]:
    """A formula beside the measure it is about; measures nobody simulates have None."""
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
        "quantity": item.form.quantity,
        "formula": item.form.text,
        "accuracy": item.form.accuracy,
        "condition": item.form.condition,
        "value": value,
        "simulated": simulated,
        "difference": difference,
    }


def _measures(data: dict[str, Any], unit: str) -> list[list[str]]:
    transfers = _count(data["p2p_transfers"], "transfer")
    volume = data["conventions"]["p2p_volume"]
    if data["p2p_volume"] != data["p2p_transfers"]:
        transfers = number(data["p2p_volume"])
    rows = [
        ("makespan", f"{number(data['makespan'])}{unit}", MEASURES["makespan"]),
        ("ideal", f"{number(data['ideal'])}{unit}", MEASURES["ideal"]),
        ("bubble ratio", percent(data["bubble_ratio"]), MEASURES["bubble_ratio"]),
        ("stage bubble rate", percent(data["stage_bubble_rate"]), MEASURES["stage_bubble_rate"]),
        ("overhead", percent(data["overhead"]), MEASURES["overhead"]),
        ("peak activation", number(max(data["peak_activation"])), "largest over ranks"),
        ("p2p volume", transfers, volume),
        ("parameter copies", str(data["parameter_copies"]), MEASURES["parameter_copies"]),
    ]
    return [list(row) for row in rows]


def _idle(data: dict[str, Any]) -> str:
    """Shares of rank-time by cause, the causes that there are."""
    whole = data["makespan"] * data["ranks"]
    shares = {cause: sum(times) / whole for cause, times in data["idle_by_cause"].items() if whole}
    told = [f"{cause} {percent(share)}" for cause, share in shares.items() if share > ROUNDING]
    return ", ".join(told) or "never"


def _ranks(data: dict[str, Any]) -> list[str]:
    columns = [data["stage_time"], data["busy"], data["peak_activation"]]
    names = [["rank", "stage time", "busy", "peak activation"]]
    if data["ranks"] <= LISTED_RANKS:
        return table(
            names
            + [
                [str(rank), *map(number, values)]
                for rank, values in enumerate(zip(*columns, strict=True))
            ],
            left=(),
        )
    extremes = (("least", min), ("most", max))
    return table(
        names + [[name, *(number(pick(column)) for column in columns)] for name, pick in extremes],
        left=(),
    )


def _formulas(forms: list[dict[str, Any]]) -> list[str]:
    rows = [["closed form", "formula", "value", "simulated", "difference", "accuracy"]]
    for form in forms:
        accuracy = form["accuracy"]
        if form["condition"]:
            accuracy += f" ({form['condition']})"
        rows.append(
            [
                form["quantity"].replace("_", " "),
                form["formula"],
                _numbers(form["value"]),
                _numbers(form["simulated"]),
                _numbers(form["difference"]),
                accuracy,
            ]
        )
    return table(rows, left=(0, 1, 5))


def _numbers(value: float | list[float] | None) -> str:
    """One number, or the least and the most of one per rank."""
    if value is None:
        return "–"
    if not isinstance(value, list):
        return number(value)
    low, high = number(min(value)), number(max(value))
    return low if low == high else f"{low} … {high}"


def _count(amount: int, noun: str) -> str:
    plural = "es" if noun.endswith("ch") else "s"
    return f"{amount:,} {noun}{plural if amount != 1 else ''}"
