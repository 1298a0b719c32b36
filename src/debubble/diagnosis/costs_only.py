"""Diagnosis of traces with sums of times and no points in time: costs without causes."""

from __future__ import annotations

from typing import Any

from debubble.analysis.layout import definitions, wrap
from debubble.core.units import number
from debubble.diagnosis.observed import Observed
from debubble.interchange.cost_files import costs_data

KINDS = ("F", "B", "I", "W")


def has_only_costs(observed: Observed) -> bool:
    """Return True if a trace has the costs of actions but not their times."""
    return observed.costs is not None and not len(observed.actions)


def cost_file(observed: Observed) -> dict[str, Any]:
    """Return the costs as data of a cost file."""
    assert observed.costs is not None
    data = costs_data(observed.costs)
    if not data.get("memory"):
        data.pop("memory", None)
    return {"ranks": observed.ranks, **data}


def to_dict(observed: Observed) -> dict[str, Any]:
    """Return the data of a diagnosis, limited to costs."""
    return {
        "format": observed.format, "ranks": observed.ranks, "copies": observed.copies,
        "stages": None, "microbatches": None, "steps": 0,
        "schedule": {"name": observed.order_assumed or None, "differences": []},
        "costs": cost_file(observed), "slowdown": None, "account": [], "findings": [],
        "clocks": [], "replay_error": None, "left_out": dict(observed.left_out),
    }  # fmt: skip


def report(observed: Observed, width: int) -> str:
    """Return a report of the costs, in lines of a given width."""
    assert observed.costs is not None
    lines = wrap(
        f"{observed.format}: sums of times on {observed.ranks} ranks, without the times of single "
        "actions: costs, but no causes and gains", width,
    )  # fmt: skip
    lines.append("")
    rows = []
    for kind in KINDS:
        value = getattr(observed.costs, kind)
        if value is not None:
            values = value if isinstance(value, tuple | list) else (value,)
            text = ", ".join(number(each, 4) for each in values)
            rows.append((kind, observed.costs.time_unit, f"{text}: by stage, per microbatch"))
    rows += [("read as", "", ", ".join(f"{k}: {v}" for k, v in observed.taken_for.items()))]
    left = "; ".join(f"{count:,} × {reason}" for reason, count in observed.left_out.items())
    rows += [("skipped", "", left)] if left else []
    return "\n".join([*lines, *definitions(rows, width)])
