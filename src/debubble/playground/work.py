"""Simulations of the page's schedules, and files to download."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from threading import Lock
from typing import Any

from debubble.analysis.compare import Comparison, Row, compare, has_choice
from debubble.analysis.layout import Column
from debubble.analysis.summary import summary
from debubble.core.costs import Costs
from debubble.core.errors import DebubbleError
from debubble.core.units import number, percent, rough_percent
from debubble.engine.jit import load_compiler
from debubble.engine.memory import Limit
from debubble.engine.timeline import Timeline
from debubble.interchange.cost_files import CostFile
from debubble.interchange.files import text_of
from debubble.interchange.text import shown
from debubble.interchange.trace_events import trace_text
from debubble.lowering.sharding import MAX_ACTIVE
from debubble.playground.limits import MAX_ACTIONS, RefusedError
from debubble.playground.state import ExportRequest, PageState, Wanted, cost_named
from debubble.playground.uploads import cost_lines
from debubble.playground.uploads import items as read_items
from debubble.schedules import registry
from debubble.schedules.registry import Entry
from debubble.view.captions import MAX_NAME, printable
from debubble.view.page import page
from debubble.view.timeline_data import encode

PREDICTED, MEASURED = ", predicted", ", measured"
"""Ends of the labels of the two groups in the trace of a run."""

MAX_OPTION = 1 << 20
"""Largest number as an option of a schedule."""

DRAWING = Lock()
"""Lock for drawings: matplotlib is not made for threads."""


def warm_up() -> None:
    """Load compiled kernels, for which the first request would wait."""
    load_compiler()
    wanted = [Wanted(name=name) for name in ("1f1b", "zb-v", "dualpipe-v")]
    simulate(PageState.model_validate({"schedules": wanted, "ranks": 4, "microbatches": 64}))


def simulate(state: PageState) -> dict[str, Any]:
    """Return timelines, ranking and problems of all schedules of a state.

    Returns
    -------
    dict
        ``timelines``, for the component, in the order of ``table``, the ranking of
        :class:`debubble.Comparison`, recorded ones first; ``labels`` of every timeline, ``places``,
        its index in the request, and ``parts``, its group in a trace; ``headline``; ``cards``, the
        numbers and formulas of every timeline; ``costs``, the values of a cost file; and
        ``problems``, each with ``index``, ``message``, ``field`` and ``nearest``.
    """
    state, file = state.with_costs()
    problems: list[dict[str, Any]] = []
    places: list[tuple[int, int]] = []
    items: list[Any] = []
    size = 0
    for index, wanted in enumerate(state.schedules):
        try:
            found, actions = _items(wanted, state, file.costs)
        except DebubbleError as error:
            problems.append({"index": index, **RefusedError.of(error).to_dict()})
            continue
        size += actions
        items += found
        places += [(index, part) for part in range(len(found))]
    _check_total(size, state)
    answer: dict[str, Any] = {
        "problems": problems, "timelines": None, "places": [], "parts": [], "labels": [],
        "table": None, "cards": [], "headline": "No schedule can run with these settings.",
        "costs": cost_lines(file.costs, file) if state.costs.file else [],
    }  # fmt: skip
    if not items:
        return answer
    result, labels = _compared(items, state, file)
    by_label = dict(zip(labels, places, strict=True))
    for label, reason in result.skipped:
        # The page shows a problem of a field next to it; others have to name the schedule, and a
        # file of costs that is there instead of fields.
        field = cost_named(reason)
        if field and state.costs.file:
            reason, field = f"{label} cannot use {state.costs.file.name}: {reason}", ""
        elif not field:
            reason = f"{label}: {reason}"
        refused = RefusedError(reason, field)
        problems.append({"index": by_label[label][0], **refused.to_dict()})
    # Recorded rows in the order of their traces, predicted above measured, then the ranking.
    recorded = sorted(
        (row for row in result.rows if row.timeline.measured), key=lambda row: by_label[row.name]
    )
    rows = [*recorded, *(row for row in result.rows if not row.timeline.measured)]
    if not rows:
        return answer
    timelines = [row.timeline for row in rows]
    ranked = _without_predictions(result)
    payload = encode(timelines, limit=state.memory, time_unit=result.time_unit)
    for row, encoded in zip(rows, payload["timelines"], strict=True):
        # The label tells several of one schedule apart.
        encoded["name"] = printable(row.name, MAX_NAME)
    return answer | {
        "timelines": payload,
        "labels": [row.name for row in rows],
        "places": [by_label[row.name][0] for row in rows],
        "parts": [by_label[row.name][1] for row in rows],
        "table": _table(result, rows, ranked.best, payload),
        "headline": _run_headline(rows) or ranked.headline,
        "cards": [summary(timeline) for timeline in timelines],
    }


def _table(
    result: Comparison, rows: Sequence[Row], best: Row | None, payload: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a comparison as plain data, with its rows in another order, and columns of text.

    The idle time of the timelines in `payload` has a column for every cause.
    """
    columns = list(replace(result, rows=tuple(rows)).columns())
    place = [column.title for column in columns].index("bubble ratio") + 1
    columns[place:place] = _idle_columns(rows, payload)
    recorded = [row.name for row in rows if row.timeline.measured]
    return result.to_dict() | {
        "best": best.name if best and not best.timeline.measured else None,
        "rows": [row.to_dict() for row in rows],
        "recorded": recorded,
        "columns": [{"title": column.title, "cells": column.cells} for column in columns],
        "notes": [*result.notes, *(f"{name}: times as in the trace" for name in recorded)],
    }


IDLE_TITLES = {name: f"waits for {name}" for name in ("data", "p2p", "memory")}
"""Headings of causes of idle time that are waits."""


def _idle_columns(rows: Sequence[Row], payload: Mapping[str, Any]) -> list[Column]:
    """Return the share of time that ranks are idle, a column for each cause that there is."""
    found = []
    for place, cause in enumerate(payload["causes"]):
        idle = [sum(data["idle"][place]) for data in payload["timelines"]]
        if any(idle):
            shares = [
                time / (row.schedule.ranks * row.makespan) if row.makespan else 0.0
                for time, row in zip(idle, rows, strict=True)
            ]
            title = IDLE_TITLES.get(cause, cause)
            found.append(Column((title,), tuple(map(percent, shares))))
    return found


def _without_predictions(result: Comparison) -> Comparison:
    """Return the ranking without predictions of runs, which are no rivals of their measurements."""
    measured = [row.name for row in result.rows if row.name.endswith(MEASURED)]
    predicted = {name.removesuffix(MEASURED) + PREDICTED for name in measured}
    rows = tuple(row for row in result.rows if row.name not in predicted)
    first = measured[0] if measured else result.baseline
    return replace(result, rows=rows, baseline=first) if predicted else result


def _run_headline(rows: Sequence[Row]) -> str:
    """Return the headline of a single run with its prediction; empty for anything else."""
    if len(rows) != 2 or not all(row.timeline.measured for row in rows):
        return ""
    predicted, measured = rows
    name = measured.name.removesuffix(MEASURED)
    if predicted.name != name + PREDICTED or not predicted.makespan:
        return ""
    off = measured.makespan / predicted.makespan - 1
    side = "longer" if off >= 0 else "shorter"
    return (
        f"{name} took {number(measured.makespan)} ms, {rough_percent(abs(off))} {side} than "
        f"predicted ({number(predicted.makespan)} ms)"
    )


def _compared(
    items: Sequence[Any], state: PageState, file: CostFile
) -> tuple[Comparison, list[str]]:
    """Return the comparison, and the label of each item."""
    labels: list[str] = []
    unit = file.time_unit
    if not state.costs.file and all(isinstance(item, Timeline) for item in items):
        unit = "ms"
    options = state.options
    if not has_choice(item[0] for item in items if isinstance(item, tuple)):
        # The page sends its number of chunks even if no schedule has a choice.
        del options["chunks"]
    result = compare(
        items, **options, costs=file.costs, **state.lowering, time_unit=unit,
        memory_unit=file.memory_unit, layers=file.layers or None,
        progress=lambda label, _index, _count: labels.append(label),
    )  # fmt: skip
    return result, labels


def _items(wanted: Wanted, state: PageState, costs: Costs) -> tuple[list[Any], int]:
    """Return items to compare, and an upper bound of their actions; none is made yet."""
    if wanted.file is not None:
        found = read_items(wanted.file, costs)
        made = [item.schedule if isinstance(item, Timeline) else item for item in found]
        return found, sum(map(len, made))
    entry = registry.find(wanted.name)
    own: dict[str, Any] = {k: value for k, value in wanted.options.items() if value is not None}
    _check_options(entry, own)
    chunks = entry.chunks or wanted.chunks or state.chunks or entry.default_chunks
    case = entry.case(
        ranks=state.ranks, microbatches=state.microbatches, chunks=chunks, memory=state.memory,
        iterations=state.iterations, **own,
    )  # fmt: skip
    for constraint in entry.constraints:
        if not constraint.holds(case):
            value = getattr(case, constraint.parameter)
            raise RefusedError(
                f"{entry.name} needs {constraint.text}; {constraint.parameter} is {value}",
                constraint.parameter,
                registry.nearest(entry, case, constraint.parameter),
            )
    if wanted.chunks is not None and entry.chunks is None:
        own = {"chunks": wanted.chunks} | own
    return [(entry.name, own)], _most_actions(entry, case, state)


def _most_actions(entry: Entry, case: Any, state: PageState) -> int:
    """Return the most actions of a schedule with all that lowerings add."""
    actions = entry.most_actions(case)
    stages = entry.placement(case.ranks, case.chunks).stages
    iterations = case.iterations or 1
    lowering = state.lowering
    if lowering["recompute"]:
        actions += case.microbatches * case.slices * iterations * stages
    if lowering["sharding"] == "ddp":
        actions += stages * iterations
    elif lowering["sharding"] == "fsdp":
        # Weights may be gathered for every action and dropped after it.
        gathers = 1 if case.chunks <= MAX_ACTIVE else actions
        actions += stages * iterations + 2 * gathers * (stages * iterations if gathers == 1 else 1)
    return actions


def _check_options(entry: Entry, options: dict[str, Any]) -> None:
    known = {option.name: option for option in entry.options}
    for key, value in options.items():
        if key not in known:
            raise RefusedError(f"{entry.name} has no option {shown(key)}; leave it out", key)
        fix = ""
        if not known[key].fits(value):
            fix = "give " + " or ".join(_TYPES.get(name, name) for name in known[key].types)
        elif isinstance(value, int) and abs(value) > MAX_OPTION:
            fix = f"the limit is {MAX_OPTION:,}"
        elif key == "slices" and not 1 <= value <= registry.LIMITS["slices"]:
            fix = f"give 1 to {registry.LIMITS['slices']:,}"
        if fix:
            raise RefusedError(f"{key} of {entry.name} is {shown(value)}; {fix}", key)


_TYPES = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text",
          "None": "nothing"}  # fmt: skip


def _check_total(size: int, state: PageState) -> None:
    if size > MAX_ACTIONS:
        most = max(1, state.microbatches * MAX_ACTIONS // size)
        raise RefusedError(
            f"the schedules have up to {size:,} actions together; the limit is {MAX_ACTIONS:,}; "
            "use fewer microbatches, slices, iterations or schedules",
            "microbatches",
            most if most < state.microbatches else None,
        )


def export(wanted: ExportRequest) -> tuple[bytes, str, str]:
    """Return a file: its content, media type and name."""
    state = wanted.state
    if wanted.index >= len(state.schedules):
        raise RefusedError(
            f"there is no schedule {wanted.index}; they go from 0 to {len(state.schedules) - 1}",
            "index",
        )
    state, file = state.with_costs()
    items, actions = _items(state.schedules[wanted.index], state, file.costs)
    _check_total(actions, state)
    if wanted.part >= len(items):
        raise RefusedError(f"there is no part {wanted.part}; parts go from 0 to {len(items) - 1}")
    result, _ = _compared([items[wanted.part]], state, file)
    if not result.rows:
        raise RefusedError(result.skipped[0][1])
    return _file(result.rows[0], wanted.format, result.time_unit, state.memory)


def _file(row: Row, form: str, unit: str, memory: Limit | None) -> tuple[bytes, str, str]:
    timeline, name = row.timeline, stem(row.name)
    if form == "html":
        with DRAWING:
            text = page([timeline], time_unit=unit, limit=memory)
        return text.encode(), "text/html", f"{name}.html"
    if form == "chrome-trace":
        text = "".join(trace_text(timeline, unit))
        return text.encode(), "application/json", f"{name}.trace.json"
    content = text_of(timeline.schedule, form, p2p_mode=timeline.mode).encode()
    if form == "json":
        return content, "application/json", f"{name}.json"
    ending = "-with-transfers" if form == "torch-csv-comms" else ""
    return content, "text/csv", f"{name}{ending}.csv"


def stem(label: str) -> str:
    """Return a file name for a label, without signs that file systems or headers mind.

    Examples
    --------
    >>> stem("interleaved-1f1b (chunks=4)")
    'interleaved-1f1b-chunks-4'
    """
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", label.removesuffix(".csv").removesuffix(".json"))
    return plain.strip("-.")[:60] or "schedule"
