"""What the server computes: the registry as data, simulations, uploads, files to download."""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock
from typing import Any

from debubble.analysis.compare import Comparison, compare
from debubble.analysis.summary import summary
from debubble.core.costs import Costs
from debubble.core.errors import DebubbleError
from debubble.core.schedule import Schedule
from debubble.playground.limits import MAX_ACTIONS, MAX_RANKS, RefusedError
from debubble.playground.state import Export, File, State, Wanted, cost_named
from debubble.schedules import registry
from debubble.schedules.registry import Entry
from debubble.view.timeline_data import encode

_DRAWING = Lock()
"""Drawings are made one at a time: matplotlib is not made for threads."""


def catalogue() -> list[dict[str, Any]]:
    """Every registered schedule: what it is, what it needs, its formulas and its figure."""
    return [_described(entry) for entry in registry.schedules()]


def _described(entry: Entry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "title": entry.title,
        "year": entry.year,
        "source": entry.source,
        "chunks": entry.chunks,
        "default_chunks": entry.chunks or entry.default_chunks,
        "constraints": [{"field": c.parameter, "text": c.text} for c in entry.constraints],
        "options": [
            {"name": option.name, "type": option.type, "default": option.default}
            for option in entry.options
        ],
        "forms": [
            {"quantity": form.quantity, "text": form.text, "accuracy": form.accuracy,
             "condition": form.condition}
            for form in entry.forms
        ],
        "text": entry.text,
    }  # fmt: skip


def warm_up() -> None:
    """Load what the first request would have to wait for: compiled kernels."""
    import numba  # noqa: F401 - from here on kernels run compiled

    names = ("1f1b", "zb-v", "dualpipe-v")
    state = State(schedules=[Wanted(name=name) for name in names], ranks=4, microbatches=64)
    simulate(state)


def simulate(state: State) -> dict[str, Any]:
    """All schedules of a state: timelines, a ranking, and what is wrong with those that failed.

    Returns
    -------
    dict
        ``timelines``, for the component, in the order of the schedules that could be made, with
        ``places``, the index in the request of each; ``table``, the ranking of
        :class:`debubble.Comparison`; ``cards``, the numbers and formulas of every timeline; and
        ``problems``, each with ``index``, ``message``, ``field`` and ``nearest``.
    """
    costs, unit = state.read_costs()
    problems: list[dict[str, Any]] = []
    items: list[tuple[int, Any]] = []
    size = 0
    for index, wanted in enumerate(state.schedules):
        try:
            item, actions = _item(wanted, state)
        except RefusedError as error:
            problems.append({"index": index, **error.to_dict()})
            continue
        except DebubbleError as error:
            problems.append({"index": index, **RefusedError(str(error)).to_dict()})
            continue
        size += actions
        items.append((index, item))
    _check_size(size, state)
    if not items:
        return {"problems": problems, "timelines": None, "places": [], "table": None, "cards": []}
    result, labels = _compared([item for _, item in items], state, costs, unit)
    reasons = dict(result.skipped)
    places, rows = [], []
    by_name = {row.name: row for row in result.rows}
    for (index, _), label in zip(items, labels, strict=True):
        if label in reasons:
            refused = RefusedError(reasons[label], cost_named(reasons[label]))
            problems.append({"index": index, **refused.to_dict()})
        else:
            places.append(index)
            rows.append(by_name[label])
    timelines = [row.timeline for row in rows]
    return {
        "problems": problems,
        "timelines": encode(timelines, limit=state.memory, time_unit=unit) if timelines else None,
        "places": places,
        "labels": [row.name for row in rows],
        "table": result.to_dict(),
        "cards": [summary(timeline) for timeline in timelines],
    }


def _compared(
    items: list[Any], state: State, costs: Costs, unit: str
) -> tuple[Comparison, list[str]]:
    """The comparison, and what it calls each item."""
    labels: list[str] = []
    result = compare(
        items, ranks=state.ranks, microbatches=state.microbatches, chunks=state.chunks, costs=costs,
        memory=state.memory, p2p_mode=state.mode, time_unit=unit,
        progress=lambda label, _index, _count: labels.append(label),
    )  # fmt: skip
    return result, labels


def _item(wanted: Wanted, state: State) -> tuple[Any, int]:
    """What to compare, and how many actions it has at most."""
    if wanted.file is not None:
        schedule = _parsed(wanted.file)
        return schedule, len(schedule)
    entry = registry.find(wanted.name)
    options = {key: value for key, value in wanted.options.items() if value is not None}
    _check_options(entry, options)
    chunks = entry.chunks or state.chunks or entry.default_chunks
    case = entry.case(
        ranks=state.ranks, microbatches=state.microbatches, chunks=chunks, memory=state.memory,
        **options,
    )  # fmt: skip
    for constraint in entry.constraints:
        if not constraint.holds(case):
            value = getattr(case, constraint.parameter)
            raise RefusedError(
                f"{entry.name} needs {constraint.text}; {constraint.parameter} is {value}",
                constraint.parameter,
                registry.nearest(entry, case, constraint.parameter),
            )
    return (entry.name, options), 3 * state.ranks * state.microbatches * chunks


def _check_options(entry: Entry, options: dict[str, Any]) -> None:
    from debubble.interchange.options import fits

    known = {option.name: option for option in entry.options}
    for key, value in options.items():
        if key in known and not fits(value, known[key]):
            raise RefusedError(f"{key} is {value!r}; it is {known[key].type}", key)
        if isinstance(value, int) and abs(value) > 1 << 20:
            raise RefusedError(f"{key} is {value:,}; that is too large", key)


def _check_size(size: int, state: State) -> None:
    if size > MAX_ACTIONS:
        most = max(1, state.microbatches * MAX_ACTIONS // size)
        raise RefusedError(
            f"the schedules have about {size:,} actions together; the limit is {MAX_ACTIONS:,}",
            "microbatches",
            most,
        )


def _parsed(file: File) -> Schedule:
    from debubble.interchange.files import is_file_name, parse

    if not is_file_name(file.name):
        raise RefusedError(f"'{file.name}' is no schedule file; they end in .json or .csv", "file")
    schedule = parse(file.text, file.name)
    if schedule.ranks > MAX_RANKS or len(schedule) > MAX_ACTIONS:
        raise RefusedError(
            f"{file.name} has {schedule.ranks:,} ranks and {len(schedule):,} actions; the limits "
            f"are {MAX_RANKS} and {MAX_ACTIONS:,}",
            "file",
        )
    return schedule


def upload(file: File) -> dict[str, Any]:
    """What a file is, and what the page has to send to use it.

    Returns
    -------
    dict
        ``kind`` is ``"costs"``, ``"schedule"`` or ``"trace"``; ``schedule`` and ``costs`` are files
        for later requests, and ``fields`` sizes that the file suggests.
    """
    name = file.name.lower()
    if name.endswith((".yaml", ".yml", ".toml")):
        return _costs(file)
    if name.endswith(".csv"):
        return _schedule(file)
    if name.endswith(".json"):
        from debubble.interchange.schedule_json import parse_json

        data = parse_json(file.text, file.name)
        if isinstance(data, list) or (isinstance(data, dict) and "traceEvents" in data):
            from debubble.playground.traces import read_trace

            schedule, costs = read_trace(data, file.name)
            return {**_schedule(schedule), "kind": "trace", "costs": costs.model_dump()}
        if isinstance(data, dict) and ("times" in data or "basis" in data):
            return _costs(file)
        return _schedule(file)
    raise RefusedError(
        f"'{file.name}' is no file to read; give a cost file (.yaml, .toml, .json), a schedule "
        "(.csv, .json) or a trace (.json)",
        "file",
    )


def _schedule(file: File) -> dict[str, Any]:
    from debubble.analysis.check import check

    schedule = _parsed(file)
    report = check(schedule)
    return {
        "kind": "schedule",
        "schedule": file.model_dump(),
        "costs": None,
        "fields": {"ranks": schedule.ranks, "microbatches": schedule.microbatches},
        "problems": [str(problem) for problem in report.problems[:5]],
    }


def _costs(file: File) -> dict[str, Any]:
    from debubble.interchange.cost_files import parse_costs

    found = parse_costs(file.text, file.name)
    fields = {
        "ranks": found.ranks, "microbatches": found.microbatches, "chunks": found.chunks,
        "memory": found.memory_limit,
    }  # fmt: skip
    return {
        "kind": "costs",
        "schedule": None,
        "costs": file.model_dump(),
        "fields": {key: value for key, value in fields.items() if value is not None},
        "problems": [],
        "title": " · ".join(text for text in (found.name, found.source) if text),
    }


def export(wanted: Export) -> tuple[bytes, str, str]:
    """A file: its content, media type and name."""
    state = wanted.state
    if wanted.index >= len(state.schedules):
        raise RefusedError(f"there is no schedule {wanted.index}", "index")
    costs, unit = state.read_costs()
    item, actions = _item(state.schedules[wanted.index], state)
    _check_size(actions, state)
    result, _ = _compared([item], state, costs, unit)
    if not result.rows:
        raise RefusedError(result.skipped[0][1])
    timeline = result.rows[0].timeline
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in timeline.schedule.name)[:60]
    if wanted.format == "html":
        from debubble.view.page import page

        with _DRAWING:
            text = page([timeline], time_unit=unit, limit=state.memory)
        return text.encode(), "text/html", f"{name}.html"
    if wanted.format == "chrome-trace":
        from debubble.interchange.chrome_trace import trace_text

        return _joined(trace_text(timeline, unit)), "application/json", f"{name}.trace.json"
    if wanted.format == "json":
        from debubble.interchange.schedule_json import to_json

        return to_json(timeline.schedule).encode(), "application/json", f"{name}.json"
    from debubble.interchange.torch_csv import to_csv, with_transfers

    lowered = wanted.format == "torch-csv-comms"
    schedule = with_transfers(timeline.schedule) if lowered else timeline.schedule
    return to_csv(schedule, lowered).encode(), "text/csv", f"{name}.csv"


def _joined(pieces: Iterable[str]) -> bytes:
    return "".join(pieces).encode()
