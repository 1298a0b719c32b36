"""``debubble optimize``: find a schedule that is faster than the published ones."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from debubble.analysis.layout import line_width, wrap
from debubble.analysis.question import HOW, OPTIONS
from debubble.cli.app import command
from debubble.cli.options import AsJson, Inputs, Setup, Text, switch, with_setup, writes
from debubble.cli.output import check_writable, json_text, note, print_json
from debubble.cli.pictures import check_picture
from debubble.cli.progress import overwritten_line
from debubble.core.errors import ParameterError
from debubble.interchange.files import is_file_name, write_text
from debubble.interchange.jitter import read_jitter
from debubble.interchange.layouts import MODULES, cut_text
from debubble.optimize import strategies
from debubble.optimize.options import OF_FILE, OFFLOAD, RECOMPUTE, SEARCH_OPTIONS
from debubble.optimize.pareto import sweep_memory
from debubble.optimize.search import optimize as search

SWEEP = "sweep"

LONGEST_LABEL = 200
"""Characters of a name in a cost file."""

UNREAD = [row for row in OPTIONS if not row.in_search and not row.only]
"""Options of published schedules, which a search does not read: hidden, and refused."""


@with_setup(more=SEARCH_OPTIONS, hidden=UNREAD)
def optimize(
    setup: Setup,
    no_cache: Annotated[
        bool, switch("--no-cache", "Do not use the cache of results on disk.", "Search")
    ] = False,
    as_json: AsJson = False,
    output: Annotated[Text, writes("Schedule (.json, .csv) or picture (.png, …).")] = None,
) -> None:
    """Search for the fastest schedule within memory.

    Prints a bound that no schedule beats, and published schedules for comparison. --memory is one
    limit, one per rank (3/3/2/2), or 'sweep' for makespan against memory. --recompute is none,
    full, stages (0,1,4-7), or free to choose the best stages; --offload is none, stages, or free.
    Ctrl-C ends the search with the best schedule so far.
    """
    sweeping = setup["memory"] == SWEEP
    for row in UNREAD:
        if setup[row.name]:
            raise ParameterError(f"{row.flag} is for published schedules; leave it out")
    recompute = RECOMPUTE.read("--recompute", setup["recompute"] or "none")
    away = OFFLOAD.read("--offload", setup["offload"] or "none")
    # A search reads more values of these than the lowerings have.
    given = setup.but(recompute=None, offload=None, **{row.name: None for row in SEARCH_OPTIONS})
    inputs = (given.but(memory=None) if sweeping else given).read(f", or '{SWEEP}'")
    chosen = {"recompute": recompute, "offload": away}
    tried = {name for name, value in chosen.items() if value != "none"}
    if output is not None:
        _check_output(output, sweeping)
        if tried and output.lower().endswith(".csv"):
            raise ParameterError(f"'{output}': a CSV has no recomputes and copies; use .json")
    options: dict[str, Any] = {
        "ranks": _needed(inputs, "ranks"), "microbatches": _needed(inputs, "microbatches"),
        "chunks": inputs.size("chunks"), "costs": inputs.costs, "p2p_mode": inputs.mode,
        "carry": inputs.asked.lowerings["carry"], "cache": not no_cache, **chosen,
        **_search_options(setup, inputs),
    }  # fmt: skip
    if sweeping and "robust" in options:
        raise ParameterError(f"--robust is for one memory limit, not for '{SWEEP}'; leave it")
    with overwritten_line() as line:
        if sweeping:
            unit = inputs.costs.time_unit
            result: Any = sweep_memory(
                time_unit=unit, progress=lambda limit: line(f"memory {limit:g}"), **options
            )
        else:
            result = search(memory=inputs.memory, report=_reporting(line), **options)
    notes = [] if sweeping else inputs.unread(*_schedules(result), tried=tried)
    wrote = None
    try:
        if output is not None:
            wrote = _write(result, output, inputs)
    finally:
        # A result that took long is printed even where it cannot be written.
        if as_json:
            data = result.to_dict()
            own = {"costs": _own_costs(data, inputs) or inputs.source or None, "notes": notes}
            print_json(data | own)
        else:
            print(result)
            for text in notes:
                print(*wrap(f"note: {text}", line_width(), 2), sep="\n")
            if inputs.source:
                print(f"costs: {inputs.source}")
        sys.stdout.flush()
        if getattr(result, "status", "") != "optimal" and not strategies.has_solver():
            note("without OR-Tools nothing is solved exactly; "
                 "'pip install ortools' may find faster schedules and better bounds")  # fmt: skip
    if wrote is not None:
        note(f"wrote {wrote}")


def _search_options(setup: Setup, inputs: Inputs) -> dict[str, Any]:
    """Read the typed options that only a search has."""
    found = {
        row.name: row.type.read(row.flag, setup[row.name])
        for row in SEARCH_OPTIONS
        if setup[row.name] is not None
    }
    if found.get("layers") == OF_FILE:
        found["layers"] = _layers_of_file(inputs)
    if "robust" in found:
        found["robust"] = read_jitter({"jitter": found["robust"]})
    return found


def _schedules(result: Any) -> list[Any]:
    """Return the schedule of a result, and the published ones that it is compared with."""
    rows = [] if result.published is None else result.published.rows
    return [result.schedule, *(row.schedule for row in rows)]


def _layers_of_file(inputs: Inputs) -> Any:
    """Return the costs of every layer in the cost file."""
    if inputs.file is None:
        raise ParameterError(
            f"--layers is '{OF_FILE}' and there is no cost file; give one with --costs, or a number"
        )
    if not inputs.file.layers:
        raise ParameterError(
            f"--layers is '{OF_FILE}' and the cost file has no section layers; 'debubble profile' "
            "writes one where all stages are lists of layers; give a number of equal layers"
        )
    return inputs.file.layers


def _needed(inputs: Inputs, key: str) -> int:
    size: int | None = inputs.size(key)
    if size is None:
        raise ParameterError(f"{key} is missing; {HOW[key]}")
    return size


def _check_output(path: str, sweeping: bool) -> None:
    if sweeping and not path.lower().endswith((".png", ".svg", ".pdf")):
        raise ParameterError(f"'{path}': a frontier is drawn as .png, .svg or .pdf")
    if not is_file_name(path):
        check_picture(path, {})
    check_writable(path)


def _write(result: Any, path: str, inputs: Inputs) -> str:
    """Write a result; return the names of the files in words."""
    if not is_file_name(path):
        if hasattr(result, "timeline"):
            result.timeline.save(path, time_unit=inputs.costs.time_unit)
        else:
            result.save(path)
        return path
    result.schedule.save(path)
    if result.costs is None:
        return path
    costs, modules = (str(Path(path).with_suffix(end)) for end in (".costs.json", MODULES))
    write_text(costs, json_text(_own_costs(result.to_dict(), inputs)) + "\n")
    write_text(modules, cut_text(result.schedule.placement, result.layers))
    return (
        f"{path}, the modules of its stages in {modules}, and what they cost: "
        f"debubble simulate {path} --costs {costs}"
    )


def _own_costs(data: dict[str, Any], inputs: Inputs) -> dict[str, Any] | None:
    """Return the content of a cost file for a result whose layers were cut; None for others."""
    costs: dict[str, Any] | None = data.get("costs")
    if costs is None:
        return None
    if inputs.costs.activation_unit:
        costs["memory"]["unit"] = inputs.costs.activation_unit
    cut = f"cut into {' '.join(map(str, data['layers']))} layers"
    labels = {"name": cut, "source": inputs.source, "time_unit": inputs.costs.time_unit}
    return {key: text[:LONGEST_LABEL] for key, text in labels.items() if text} | costs


def _reporting(line: Any) -> Callable[[float, float, str], None]:
    """Make a function that shows on a line how far a search is."""
    began = time.monotonic()

    def report(makespan: float, bound: float, found_by: str) -> None:
        gap = makespan / bound - 1 if bound else 0.0
        seconds = time.monotonic() - began
        line(f"{seconds:5.1f} s  best {makespan:.6g}  gap {100 * gap:.2f} %  {found_by}")

    return report


app = command(
    optimize,
    [
        "optimize -p 4 -m 8 -v 2 --memory 2 --times F=5,I=6,W=4 --no-cache",
        "optimize -p 4 -m 8 -v 2 --memory 3 --rank-times F=10,I=12,W=8 --time-limit 5 -o best.csv",
        "optimize -p 4 -m 16 --layers 26 --rank-times F=13,I=13,W=13 --memory 4 -o best.csv",
        "optimize --costs examples/layers.yaml --layers costs --recompute free -o best.json",
        "optimize -p 4 -m 8 --memory 4 --times F=1,B=2,p2p_carry=0.4 --carry 0:3",
        "optimize -p 2 -m 4 -v 2 --memory sweep -o frontier.png",
        "optimize -p 4 -m 8 -v 2 --memory 1.5 --times F=5,I=6,W=4 --recompute free",
    ],
)
