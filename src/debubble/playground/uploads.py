"""Files that the page opens: cost files, schedules, and traces of runs and of simulations."""

from __future__ import annotations

import json
from typing import Any

from debubble.core.costs import COST_FIELDS, Costs
from debubble.core.schedule import Schedule
from debubble.core.units import amount
from debubble.engine.timeline import Timeline
from debubble.interchange.cost_files import CostFile, parse_costs
from debubble.interchange.files import COST_ENDINGS, is_file_name, parse
from debubble.interchange.read_trace import Recording, is_trace, read_trace
from debubble.playground.limits import MAX_ACTIONS, MAX_RANKS, RefusedError
from debubble.playground.state import File

KINDS = "a cost file (.yaml, .toml, .json), a schedule (.csv, .json) or a trace (.json, .json.gz)"


def upload(file: File) -> dict[str, Any]:
    """Kind of a file, and the fields that requests need to use it.

    Returns
    -------
    dict
        ``kind`` is ``"costs"``, ``"schedule"`` or ``"trace"``; ``schedule`` and ``costs`` are files
        for later requests, ``fields`` sizes that the file suggests, and ``problems`` what is wrong
        with the order.
    """
    name = file.name.lower()
    if name.endswith(COST_ENDINGS):
        return _costs(file)
    if name.endswith(".csv"):
        return _schedule(file)
    if not name.endswith(".json"):
        raise RefusedError(f"'{file.name}' is no file to read; give {KINDS}", "file")
    if is_trace(file.text):
        return _trace(file)
    from debubble.interchange.schedule_json import parse_json

    data = parse_json(file.text, file.name)
    if isinstance(data, dict) and ("times" in data or "basis" in data):
        return _costs(file)
    return _schedule(file)


def read_schedule(file: File) -> Schedule:
    """The schedule in a file, within what the page shows."""
    if not is_file_name(file.name):
        raise RefusedError(f"'{file.name}' is no schedule file; they end in .json or .csv", "file")
    schedule = parse(file.text, file.name)
    _check_size(file, schedule)
    return schedule


def recordings(file: File) -> list[Recording]:
    """Recordings of a trace, one for each of its groups."""
    found = read_trace(file.text, file.name)
    for recording in found:
        _check_size(file, recording.schedule)
    return found


def items(file: File, costs: Costs) -> list[Schedule | Timeline]:
    """Items of a file for a comparison: a schedule, or the recorded timelines of a trace.

    `costs` say what activations take.
    """
    if is_trace(file.text):
        return [recording.timeline(costs) for recording in recordings(file)]
    return [read_schedule(file)]


def _check_size(file: File, schedule: Schedule) -> None:
    if schedule.ranks > MAX_RANKS or len(schedule) > MAX_ACTIONS:
        raise RefusedError(
            f"{file.name} has {schedule.ranks:,} ranks and {len(schedule):,} actions; the limits "
            f"are {MAX_RANKS} and {MAX_ACTIONS:,}",
            "file",
        )


def _schedule(file: File) -> dict[str, Any]:
    from debubble.analysis.check import check

    schedule = read_schedule(file)
    return {
        "kind": "schedule",
        "schedule": file.model_dump(),
        "costs": None,
        "fields": _sizes(schedule),
        "problems": [str(problem) for problem in check(schedule).problems[:5]],
    }


def _trace(file: File) -> dict[str, Any]:
    found = recordings(file)
    # The last group is what was measured; other schedules are compared on its times.
    last = found[-1]
    for recording in found:
        recording.timeline()
    costs = {"name": f"mean times of {file.name}", "time_unit": last.time_unit,
             "times": last.mean_times()}  # fmt: skip
    stem = file.name.removesuffix(".json").removesuffix(".trace") or "trace"
    return {
        "kind": "trace",
        "groups": [recording.label for recording in found],
        "schedule": file.model_dump(),
        "costs": File(name=f"{stem} times.json"[-80:], text=json.dumps(costs)).model_dump(),
        "fields": _sizes(last.schedule),
        "problems": [],
    }


def _sizes(schedule: Schedule) -> dict[str, int]:
    return {"ranks": schedule.ranks, "microbatches": schedule.microbatches}


def _costs(file: File) -> dict[str, Any]:
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


def cost_lines(costs: Costs, file: CostFile) -> list[list[str]]:
    """Contents of a cost file as (name, text), for values that the page has no fields for."""
    basis = "one rank and microbatch" if costs.times_per_rank else "one stage and microbatch"
    lines = [["costs of", basis]]
    if file.time_unit:
        lines.append(["times in", file.time_unit])
    plain = Costs()
    for name in COST_FIELDS:
        value = getattr(costs, name)
        if value is not None and value != getattr(plain, name):
            unit = file.memory_unit if name == "activation" else ""
            lines.append([name.replace("_", " "), _spread(value, unit)])
    return lines


def _spread(value: Any, unit: str) -> str:
    """One number, or the least and the most of several."""
    numbers = sorted(_numbers(value))
    if not numbers:
        return "–"
    low, high = amount(numbers[0], unit), amount(numbers[-1], unit)
    return low if low == high else f"{low} … {high}"


def _numbers(value: Any) -> list[float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [number for part in value for number in _numbers(part)]
    return [float(value)] if isinstance(value, int | float) else []
