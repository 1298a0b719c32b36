"""``debubble optimize``: find a schedule that is faster than the published ones."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from debubble.analysis.question import OPTIONS
from debubble.cli.app import command
from debubble.cli.jitter import read_jitter
from debubble.cli.options import (
    AsJson,
    Inputs,
    Setup,
    Text,
    positive,
    switch,
    takes,
    with_setup,
    writes,
)
from debubble.cli.output import check_writable, json_text, note, print_json
from debubble.cli.pictures import check_picture
from debubble.cli.progress import overwritten_line
from debubble.core.errors import ParameterError
from debubble.interchange.text import read_count
from debubble.lowering.chain import read_stages

SWEEP = "sweep"
OF_FILE = "costs"

LONGEST_LABEL = 200
"""Characters of a name in a cost file."""


@with_setup
def optimize(
    setup: Setup,
    layers: Annotated[
        Text,
        takes(
            "N|costs",
            "Cut layers into the stages as is fastest: N equal ones, costs then are of an even "
            "cut; or, with 'costs', those of the cost file's section layers.",
        ),
    ] = None,
    placement: Annotated[
        str, takes("SHAPE", "wave (two chunks: a V), loop, any, or the stages' ranks: 0,1,1,0.")
    ] = "any",
    backward: Annotated[str, takes("HOW", "split, fused, or free: whichever is faster.")] = "free",
    time_limit: Annotated[
        Text, takes("S", "Seconds to use; without it, a fixed amount of work.")
    ] = None,
    effort: Annotated[str, takes("X", "Multiplies the fixed amount of work.")] = "1",
    seed: Annotated[str, takes("N", "Seed of everything random.")] = "0",
    workers: Annotated[str, takes("N", "Threads.")] = "2",
    no_cache: Annotated[
        bool, switch("--no-cache", "Neither read nor keep results on disk.")
    ] = False,
    robust: Annotated[
        Text, takes("TIMES", "Least p95 of the step time where times vary as --jitter: normal:3%.")
    ] = None,
    as_json: AsJson = False,
    output: Annotated[Text, writes("Schedule (.json, .csv) or picture (.png, …).")] = None,
) -> None:
    """Find the fastest schedule within the memory of every rank.

    Says how much faster any schedule could be, and shows the published ones beside it. --memory is
    one limit, one per rank (3/3/2/2), or 'sweep' for makespan against memory. --recompute is none,
    full, stages, or free: whichever stages are best; --offload none, stages, or free. Ctrl-C ends
    the search with the best so far.
    """
    sweeping = setup["memory"] == SWEEP
    _refuse_others(setup)
    recompute = _stages("--recompute", setup["recompute"] or "none", ("none", "full", "free"))
    away = _stages("--offload", setup["offload"] or "none", ("none", "free"))
    # A search reads more values of these than the lowerings have.
    given = setup.but(recompute=None, offload=None)
    inputs = (given.but(memory=None) if sweeping else given).read(f", or '{SWEEP}'")
    if output is not None:
        _check_output(output, sweeping)
        if (recompute, away) != ("none", "none") and output.lower().endswith(".csv"):
            raise ParameterError(f"'{output}': a CSV has no recomputes and copies; use .json")
    options: dict[str, Any] = {
        "ranks": _needed(inputs, "ranks"), "microbatches": _needed(inputs, "microbatches"),
        "chunks": inputs.size("chunks"), "costs": inputs.costs, "placement": _shape(placement),
        "backward": backward, "recompute": recompute, "offload": away, "p2p_mode": inputs.mode,
        "effort": positive("--effort", effort),
        "time_limit": None if time_limit is None else positive("--time-limit", time_limit),
        "seed": read_count("--seed", seed, 0, LARGEST),
        "workers": read_count("--workers", workers, 1, 256),
        "layers": None if layers is None else _layers(layers, inputs),
        "cache": not no_cache,
    }  # fmt: skip
    if options["chunks"] is None:
        del options["chunks"]
    if robust is not None:
        if sweeping:
            raise ParameterError(f"--robust is for one memory limit, not for '{SWEEP}'; leave it")
        options["robust"] = read_jitter(robust)
    with overwritten_line() as line:
        if sweeping:
            from debubble.optimize.pareto import sweep

            result: Any = sweep(
                time_unit=inputs.costs.time_unit,
                progress=lambda limit: line(f"memory {limit:g}"),
                **options,
            )
        else:
            import debubble

            result = debubble.optimize(memory=inputs.memory, report=_reporting(line), **options)
    wrote = None
    try:
        if output is not None:
            wrote = _write(result, output, inputs)
    finally:
        # What took long to find is printed even where it cannot be written.
        if as_json:
            data = result.to_dict()
            print_json(data | {"costs": _own_costs(data, inputs) or inputs.source or None})
        else:
            print(result)
            if inputs.source:
                print(f"costs: {inputs.source}")
        sys.stdout.flush()
        _say_without_solver(result)
    if wrote is not None:
        note(f"wrote {wrote}")


LARGEST = 999_999_999
"""Largest whole number of an option that has no limit of its own."""


def _stages(flag: str, text: str, words: tuple[str, ...]) -> str | list[int]:
    if text.strip() in words:
        return text.strip()
    try:
        if text.strip() == "full":
            raise ParameterError
        return read_stages(flag, text)
    except ParameterError:
        raise ParameterError(
            f"{flag} is '{text}'; give {', '.join(words)}, or stages such as 0,1,4-7"
        ) from None


def _shape(text: str) -> str | list[int]:
    if "," not in text:
        return text
    return [read_count("--placement", part.strip(), 0, LARGEST) for part in text.split(",")]


def _layers(text: str, inputs: Inputs) -> Any:
    """A number of equal layers, or the costs of every layer in the cost file."""
    if text.strip() != OF_FILE:
        return read_count("--layers", text, 0, LARGEST)
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
        flag = {"ranks": "-p", "microbatches": "-m"}[key]
        raise ParameterError(f"{key} is missing; give {flag}, such as {flag} 8")
    return size


def _refuse_others(setup: Setup) -> None:
    """Refuse options of a question that a search does not read."""
    for row in OPTIONS:
        if not row.in_search and setup[row.name]:
            raise ParameterError(f"{row.flag} is for published schedules; leave it out")


def _check_output(path: str, sweeping: bool) -> None:
    from debubble.interchange.files import is_file_name

    if sweeping:
        if not path.lower().endswith((".png", ".svg", ".pdf")):
            raise ParameterError(f"'{path}': a frontier is drawn as .png, .svg or .pdf")
    elif not is_file_name(path):
        check_picture(path, {})
    check_writable(path)


def _write(result: Any, path: str, inputs: Inputs) -> str:
    """Write what was asked for; what was written, in words."""
    from debubble.interchange.files import is_file_name, write_text
    from debubble.interchange.layouts import cut_text

    if is_file_name(path):
        result.schedule.save(path)
        if result.costs is not None:
            costs = str(Path(path).with_suffix(".costs.json"))
            text = json_text(_own_costs(result.to_dict(), inputs))
            write_text(costs, text + "\n")
            modules = Path(path).with_suffix(".modules.json")
            text = cut_text(result.schedule.placement, result.layers)
            write_text(modules, text)
            return (
                f"{path}, the modules of its stages in {modules}, and what they cost: "
                f"debubble simulate {path} --costs {costs}"
            )
    elif hasattr(result, "timeline"):
        result.timeline.save(path, time_unit=inputs.costs.time_unit)
    else:
        result.save(path)
    return path


def _own_costs(data: dict[str, Any], inputs: Inputs) -> dict[str, Any] | None:
    """The content of a cost file for a result whose layers were cut; None for others."""
    costs: dict[str, Any] | None = data.get("costs")
    if costs is None:
        return None
    if inputs.costs.activation_unit:
        costs["memory"]["unit"] = inputs.costs.activation_unit
    cut = f"cut into {' '.join(map(str, data['layers']))} layers"
    labels = {"name": cut, "source": inputs.source, "time_unit": inputs.costs.time_unit}
    return {key: text[:LONGEST_LABEL] for key, text in labels.items() if text} | costs


def _say_without_solver(result: Any) -> None:
    """Suggest OR-Tools where the result is not proven optimal and no solver is installed."""
    from debubble.optimize.strategies import has_solver

    if getattr(result, "status", "") != "optimal" and not has_solver():
        note("without OR-Tools nothing is solved exactly and no patterns are sought; "
             "'pip install ortools' may find faster orders and better bounds")  # fmt: skip


def _reporting(line: Any) -> Callable[[float, float, str], None]:
    """What says on a line how far a search is."""
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
        "optimize -p 2 -m 4 -v 2 --memory sweep -o frontier.png",
        "optimize -p 4 -m 8 -v 2 --memory 1.5 --times F=5,I=6,W=4 --recompute free",
    ],
)
