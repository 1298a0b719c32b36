"""Work of the server: simulations, and files to download."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from threading import Lock
from typing import Any

from debubble.analysis.compare import Comparison, Row, compare
from debubble.analysis.summary import summary
from debubble.core.costs import Costs
from debubble.core.errors import DebubbleError
from debubble.core.units import number, percent
from debubble.engine.memory import Limit
from debubble.engine.timeline import Timeline
from debubble.interchange.cost_files import CostFile
from debubble.interchange.text import shown
from debubble.lowering.sharding import MAX_ACTIVE
from debubble.playground.limits import MAX_ACTIONS, RefusedError
from debubble.playground.state import Export, State, Wanted, cost_named
from debubble.playground.uploads import cost_lines
from debubble.playground.uploads import items as read_items
from debubble.schedules import registry
from debubble.schedules.registry import Entry
from debubble.view.timeline_data import encode
from debubble.view.words import MAX_NAME, printable

PREDICTED, MEASURED = ", predicted", ", measured"
"""Endings of the labels of the two groups in the trace of a run."""

MAX_OPTION = 1 << 20

DRAWING = Lock()
"""Drawings are made one at a time: matplotlib is not made for threads."""


def warm_up() -> None:
    """Load what the first request would have to wait for: compiled kernels."""
    import numba  # noqa: F401 - from here on kernels run compiled

    names = ("1f1b", "zb-v", "dualpipe-v")
    wanted = [Wanted(name=name) for name in names]
    state = State.model_validate({"schedules": wanted, "ranks": 4, "microbatches": 64})
    simulate(state)


def simulate(state: State) -> dict[str, Any]:
    """All schedules of a state: timelines, a ranking, and what is wrong with those that failed.

    Returns
    -------
    dict
        ``timelines``, for the component, in the order of ``table``, the ranking of
        :class:`debubble.Comparison`, recorded ones first; ``labels`` of every timeline, ``places``,
        its index in the request, and ``parts``, which of a trace's groups it is; ``headline``;
        ``cards``, the numbers and formulas of every timeline; ``costs``, what a cost file says; and
        ``problems``, each with ``index``, ``message``, ``field`` and ``nearest``.
    """
    file = state.read_costs()
    problems: list[dict[str, Any]] = []
    places: list[tuple[int, int]] = []
    items: list[Any] = []
    size = 0
    for index, wanted in enumerate(state.schedules):
        try:
            found, actions = _items(wanted, state, file.costs)
        except DebubbleError as error:
            refused = error if isinstance(error, RefusedError) else RefusedError(str(error))
            problems.append({"index": index, **refused.to_dict()})
            continue
        size += actions
        items += found
        places += [(index, part) for part in range(len(found))]
    _check_size(size, state)
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
        # A problem of a field stands beside it and is about the value; others name the schedule.
        field = cost_named(reason)
        refused = RefusedError(reason if field else f"{label}: {reason}", field)
        problems.append({"index": by_label[label][0], **refused.to_dict()})
    rows = _ordered(result.rows, by_label)
    if not rows:
        return answer
    timelines = [row.timeline for row in rows]
    table = result.to_dict()
    ranked = _without_predictions(result)
    best = ranked.best
    table["best"] = best.name if best else None
    table["rows"] = [row.to_dict() for row in rows]
    table["columns"] = [
        {"title": column.title, "cells": column.cells}
        for column in replace(result, rows=tuple(rows)).columns()
    ]
    table["notes"] += [
        f"{row.name}: times as in the trace" for row in rows if row.timeline.measured
    ]
    payload = encode(timelines, limit=state.memory, time_unit=result.time_unit)
    for row, encoded in zip(rows, payload["timelines"], strict=True):
        # What tells several of one schedule apart.
        encoded["name"] = printable(row.name, MAX_NAME)
    return answer | {
        "timelines": payload,
        "labels": [row.name for row in rows],
        "places": [by_label[row.name][0] for row in rows],
        "parts": [by_label[row.name][1] for row in rows],
        "table": table,
        "headline": _run_headline(rows) or ranked.headline,
        "cards": [summary(timeline) for timeline in timelines],
    }


def _ordered(rows: Sequence[Row], by_label: Mapping[str, tuple[int, int]]) -> list[Row]:
    """The recorded rows as their traces have them, predicted above measured, then the ranking."""
    recorded = [row for row in rows if row.timeline.measured]
    recorded.sort(key=lambda row: by_label[row.name])
    return [*recorded, *(row for row in rows if not row.timeline.measured)]


def _without_predictions(result: Comparison) -> Comparison:
    """The same ranking without what runs were predicted to take: no rival of what they took."""
    measured = [row.name for row in result.rows if row.name.endswith(MEASURED)]
    predicted = {name.removesuffix(MEASURED) + PREDICTED for name in measured}
    rows = tuple(row for row in result.rows if row.name not in predicted)
    first = measured[0] if measured else result.baseline
    return replace(result, rows=rows, baseline=first) if predicted else result


def _run_headline(rows: Sequence[Row]) -> str:
    """Headline of one run beside its prediction: measured against predicted time, no ranking."""
    if len(rows) != 2 or not all(row.timeline.measured for row in rows):
        return ""
    predicted, measured = rows
    name = measured.name.removesuffix(MEASURED)
    if predicted.name != name + PREDICTED or not predicted.makespan:
        return ""
    off = measured.makespan / predicted.makespan - 1
    side = "longer" if off >= 0 else "shorter"
    return (
        f"{name} took {number(measured.makespan)} ms, {percent(abs(off))} {side} than predicted "
        f"({number(predicted.makespan)} ms)"
    )


def _compared(items: Sequence[Any], state: State, file: CostFile) -> tuple[Comparison, list[str]]:
    """The comparison, and what it calls each item."""
    labels: list[str] = []
    unit = file.time_unit
    if not state.costs.file and all(isinstance(item, Timeline) for item in items):
        unit = "ms"
    result = compare(
        items, **state.options, costs=file.costs, **state.lowering, time_unit=unit,
        memory_unit=file.memory_unit,
        progress=lambda label, _index, _count: labels.append(label),
    )  # fmt: skip
    return result, labels


def _items(wanted: Wanted, state: State, costs: Costs) -> tuple[list[Any], int]:
    """Items to compare, and an upper bound of their actions; no order is made yet."""
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


def _most_actions(entry: Entry, case: Any, state: State) -> int:
    """The most actions of a schedule with all that is added to it."""
    actions = entry.most_actions(case)
    stages = entry.placement(case.ranks, case.chunks).stages
    iterations = case.iterations or 1
    lowering = state.lowering
    if lowering["recompute"]:
        actions += case.microbatches * case.slices * iterations * stages
    if lowering["sharding"] == "ddp":
        actions += stages * iterations
    elif lowering["sharding"] == "fsdp":
        # Weights may be gathered for every action and dropped behind it.
        gathers = 1 if case.chunks <= MAX_ACTIVE else actions
        actions += stages * iterations + 2 * gathers * (stages * iterations if gathers == 1 else 1)
    return actions


def _check_options(entry: Entry, options: dict[str, Any]) -> None:
    known = {option.name: option for option in entry.options}
    for key, value in options.items():
        if key not in known:
            raise RefusedError(f"{entry.name} has no option {shown(key)}; leave it out", key)
        if not known[key].fits(value):
            kinds = " or ".join(_TYPES.get(name, name) for name in known[key].types)
            raise RefusedError(f"{key} of {entry.name} is {shown(value)}; give {kinds}", key)
        if isinstance(value, int) and abs(value) > MAX_OPTION:
            raise RefusedError(
                f"{key} of {entry.name} is {value:,}; the limit is {MAX_OPTION:,}", key
            )
        if key == "slices" and not 1 <= value <= registry.LIMITS["slices"]:
            raise RefusedError(
                f"slices of {entry.name} is {value:,}; give 1 to {registry.LIMITS['slices']:,}", key
            )


_TYPES = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text",
          "None": "nothing"}  # fmt: skip


def _check_size(size: int, state: State) -> None:
    if size > MAX_ACTIONS:
        most = max(1, state.microbatches * MAX_ACTIONS // size)
        raise RefusedError(
            f"the schedules have up to {size:,} actions together; the limit is {MAX_ACTIONS:,}; "
            "use fewer microbatches, slices, iterations or schedules",
            "microbatches",
            most if most < state.microbatches else None,
        )


def export(wanted: Export) -> tuple[bytes, str, str]:
    """A file: its content, media type and name."""
    state = wanted.state
    if wanted.index >= len(state.schedules):
        raise RefusedError(
            f"there is no schedule {wanted.index}; they go from 0 to {len(state.schedules) - 1}",
            "index",
        )
    file = state.read_costs()
    items, actions = _items(state.schedules[wanted.index], state, file.costs)
    _check_size(actions, state)
    if wanted.part >= len(items):
        raise RefusedError(f"there is no part {wanted.part}; parts go from 0 to {len(items) - 1}")
    result, _ = _compared([items[wanted.part]], state, file)
    if not result.rows:
        raise RefusedError(result.skipped[0][1])
    return _file(result.rows[0], wanted.format, result.time_unit, state.memory)


def _file(row: Row, form: str, unit: str, memory: Limit | None) -> tuple[bytes, str, str]:
    timeline, name = row.timeline, stem(row.name)
    if form == "html":
        from debubble.view.page import page

        with DRAWING:
            text = page([timeline], time_unit=unit, limit=memory)
        return text.encode(), "text/html", f"{name}.html"
    if form == "chrome-trace":
        from debubble.interchange.chrome_trace import trace_text

        text = "".join(trace_text(timeline, unit))
        return text.encode(), "application/json", f"{name}.trace.json"
    from debubble.interchange.files import text_of

    content = text_of(timeline.schedule, form, p2p_mode=timeline.mode).encode()
    if form == "json":
        return content, "application/json", f"{name}.json"
    ending = "-with-transfers" if form == "torch-csv-comms" else ""
    return content, "text/csv", f"{name}{ending}.csv"


def stem(label: str) -> str:
    """A file name for a label, without what file systems and headers mind.

    Examples
    --------
    >>> stem("interleaved-1f1b (chunks=4)")
    'interleaved-1f1b-chunks-4'
    """
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", label.removesuffix(".csv").removesuffix(".json"))
    return plain.strip("-.")[:60] or "schedule"
