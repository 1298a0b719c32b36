"""Files that the page opens: costs, schedules, and traces of runs and of simulations."""

from __future__ import annotations

import json
from typing import Any

from debubble.analysis.check import check
from debubble.core.costs import COST_FIELDS, Costs
from debubble.core.schedule import Schedule
from debubble.core.units import amount
from debubble.engine.timeline import Timeline
from debubble.interchange.cost_files import CostFile, parse_costs
from debubble.interchange.files import COST_ENDINGS, is_file_name, parse_schedule
from debubble.interchange.read_trace import Recording, is_trace, read_trace
from debubble.interchange.schedule_json import parse_json
from debubble.playground.limits import MAX_ACTIONS, MOST, RefusedError
from debubble.playground.state import File

KINDS = "a cost file (.yaml, .toml, .json), a schedule (.csv, .json) or a trace (.json, .json.gz)"


def upload(file: File) -> dict[str, Any]:
    """Return the kind of a file, and the fields that requests need to use it.

    Returns
    -------
    dict
        ``kind`` is ``"costs"``, ``"schedule"`` or ``"trace"``; ``schedule`` and ``costs`` are files
        for later requests, ``fields`` sizes that the file suggests, and ``problems`` those of the
        schedule.
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
    data = parse_json(file.text, file.name)
    has_costs = isinstance(data, dict) and ("times" in data or "basis" in data)
    return _costs(file) if has_costs else _schedule(file)


def read_schedule(file: File) -> Schedule:
    """Return the schedule in a file, within the limits of the page."""
    if not is_file_name(file.name):
        raise RefusedError(f"'{file.name}' is no schedule file; they end in .json or .csv", "file")
    schedule = parse_schedule(file.text, file.name)
    _check_size(file, schedule)
    return schedule


def recordings(file: File) -> list[Recording]:
    """Return the recordings of a trace, one for each of its groups."""
    found = read_trace(file.text, file.name)
    for recording in found:
        _check_size(file, recording.schedule)
    return found


def items(file: File, costs: Costs) -> list[Schedule | Timeline]:
    """Return the items of a file for a comparison: a schedule, or a trace's timelines.

    `costs` have the memory of activations.
    """
    if is_trace(file.text):
        return [recording.timeline(costs) for recording in recordings(file)]
    return [read_schedule(file)]


def _check_size(file: File, schedule: Schedule) -> None:
    if schedule.ranks > MOST["ranks"] or len(schedule) > MAX_ACTIONS:
        raise RefusedError(
            f"{file.name} has {schedule.ranks:,} ranks and {len(schedule):,} actions; the limits "
            f"are {MOST['ranks']} and {MAX_ACTIONS:,}",
            "file",
        )


def _answer(kind: str, **parts: Any) -> dict[str, Any]:
    return {"kind": kind, "schedule": None, "costs": None, "problems": [], **parts}


def _schedule(file: File) -> dict[str, Any]:
    schedule = read_schedule(file)
    problems = [str(problem) for problem in check(schedule).problems[:5]]
    return _answer(
        "schedule", schedule=file.model_dump(), fields=_sizes(schedule), problems=problems
    )


def _trace(file: File) -> dict[str, Any]:
    found = recordings(file)
    # The last group is what was measured; other schedules are compared on its times.
    last = found[-1]
    for recording in found:
        recording.timeline()
    costs = {"name": f"mean times of {file.name}", "time_unit": last.time_unit,
             "basis": "rank", "times": last.rank_times()}  # fmt: skip
    stem = file.name.removesuffix(".json").removesuffix(".trace") or "trace"
    times = File(name=f"{stem} times.json"[-80:], text=json.dumps(costs))
    return _answer(
        "trace",
        groups=[recording.label for recording in found],
        schedule=file.model_dump(),
        costs=times.model_dump(),
        fields=_sizes(last.schedule),
    )


def _sizes(schedule: Schedule) -> dict[str, int]:
    return {"ranks": schedule.ranks, "microbatches": schedule.microbatches}


def _costs(file: File) -> dict[str, Any]:
    found = parse_costs(file.text, file.name)
    fields = {
        "ranks": found.ranks, "microbatches": found.microbatches, "chunks": found.chunks,
        "memory": found.memory_limit,
    }  # fmt: skip
    return _answer(
        "costs",
        costs=file.model_dump(),
        fields={key: value for key, value in fields.items() if value is not None},
    )


def cost_lines(costs: Costs, file: CostFile) -> list[list[str]]:
    """Return (name, text) of the values of a cost file."""
    basis = "one rank and microbatch" if costs.times_per_rank else "one stage and microbatch"
    lines = [["costs of", basis]]
    if file.time_unit:
        lines.append(["times in", file.time_unit])
    plain = Costs()
    for name in COST_FIELDS:
        value = getattr(costs, name)
        if value is not None and value != getattr(plain, name):
            unit = file.memory_unit if name == "activation" else ""
            lines.append([name.replace("_", " "), _low_to_high(value, unit)])
    return lines


def _low_to_high(value: Any, unit: str) -> str:
    """Return one number, or the least and the most of several, as text."""
    numbers = sorted(_all_numbers(value))
    if not numbers:
        return "–"
    low, high = amount(numbers[0], unit), amount(numbers[-1], unit)
    return low if low == high else f"{low} … {high}"


def _all_numbers(value: Any) -> list[float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [number for part in value for number in _all_numbers(part)]
    return [float(value)] if isinstance(value, int | float) else []
