"""Commands that a sweep can run: one entry of :data:`COMMANDS` each.

An entry is a pure function from the values of its parameters to rows of results. Nothing else knows
the commands: spec files, batches, files of results and pictures follow from this table.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from debubble.analysis.compare import has_choice
from debubble.analysis.measures import MEASURES
from debubble.analysis.question import AS_READ, Question
from debubble.analysis.results import keeps
from debubble.core.costs import Costs
from debubble.core.embedding_and_head import PARTS
from debubble.core.errors import DebubbleError, ParameterError
from debubble.core.given_layers import make_layers
from debubble.interchange import named
from debubble.interchange.files import is_foreign
from debubble.lowering.chain import LOWERINGS
from debubble.optimize.options import OF_FILE, OFFLOAD, RECOMPUTE, SEARCH_OPTIONS
from debubble.planner.answer.searches import ask, search_all
from debubble.planner.options import frameworks_of, request_of
from debubble.sweeps.parameters import (
    COSTS,
    PLAN,
    SCHEDULE,
    SCHEDULES,
    SIMULATION,
    SIZES,
    Parameters,
)
from debubble.sweeps.points import Point
from debubble.sweeps.store import OWN, PointResult

Options: TypeAlias = Mapping[str, Any]
"""Values by dotted name, as read; names of cost files are replaced by what is in them."""

Row: TypeAlias = dict[str, Any]
"""Results by name: numbers and texts; ``error`` where there are none, and why."""


@dataclass(frozen=True)
class Command:
    """A computation that a sweep repeats.

    It raises :class:`~debubble.DebubbleError` where a point has no rows. The parameter
    ``"costs.*"`` is for all names that begin like this. A `brief` one takes milliseconds for a
    point, so that few points need no other processes.
    """

    run: Callable[[Options], list[Row]]
    parameters: Parameters
    required: tuple[str, ...] = ()
    brief: bool = True


def family(options: Options, prefix: str) -> dict[str, Any]:
    """Return the options whose dotted names begin with a prefix, by the rest of their names.

    Examples
    --------
    >>> family({"ranks": 4, "costs.F": 1.0, "costs.head.F": 2.0}, "costs")
    {'F': 1.0, 'head.F': 2.0}
    """
    start = f"{prefix}."
    return {key[len(start) :]: value for key, value in options.items() if key.startswith(start)}


def costs_of(options: Options) -> tuple[Costs, Options]:
    """Return the costs of options, and the options with sizes and limit of their cost file."""
    file, changes = options.get("costs"), family(options, "costs")
    if file is None and not changes:
        return Costs(), options
    costs = Costs() if file is None else file.costs
    found: dict[str, Any] = {}
    for name, value in changes.items():
        part, _, key = name.partition(".")
        if part in PARTS and key:
            found[part] = {**(found.get(part) or getattr(costs, part) or {}), key: value}
        else:
            found[name] = value
    if file is not None:
        given = {key: getattr(file, key) for key in SIZES} | {"memory": file.memory_limit}
        options = {**{key: value for key, value in given.items() if value is not None}, **options}
    return replace(costs, **found), options


def layers_of(options: Options) -> Mapping[str, Any] | None:
    """Return the layers of the cost file; costs that would be theirs are refused."""
    file = options.get("costs")
    layers: Mapping[str, Any] | None = getattr(file, "layers", None) or None
    for name in family(options, "costs"):
        if layers is not None and name.partition(".")[0] in layers:
            raise ParameterError(
                f"costs.{name} is that of layers in the cost file, which are cut into stages; "
                "leave it, or take 'layers' out of the file"
            )
    return layers


def simulate(options: Options) -> list[Row]:
    """Simulate a schedule; return every measure that reports and comparisons have."""
    costs, filled = costs_of(options)
    given = {key: options[key] for key in AS_READ if key in options}
    given |= {"memory": filled["memory"]} if "memory" in filled else {}
    lowerings = {row.name: options.get(row.name) for row in LOWERINGS}
    layers = layers_of(options)
    asked = Question(
        "", costs=costs, lowerings=lowerings, options=family(options, "options"),
        layers=None if layers is None else make_layers(layers, costs), **given,
    )  # fmt: skip
    timeline = named.question(options["schedule"], asked, options.get("costs")).timeline
    measures = {m.key: m.one(timeline) for m in MEASURES if m.reported or m.compared}
    sizes = {"chunks": timeline.schedule.chunks, "stages": timeline.schedule.stages}
    return [sizes | measures | {"fits": keeps(timeline, asked.memory)}]


def compare(options: Options) -> list[Row]:
    """Compare schedules; return a row for each, best first, then those that cannot be made."""
    costs, filled = costs_of(options)
    known = (*AS_READ, "memory", *(row.name for row in LOWERINGS))
    given = {key: filled[key] for key in known if key in filled}
    if not has_choice(name for name in options["schedules"] if not is_foreign(name)):
        # Results have the number of chunks that each schedule has.
        given.pop("chunks", None)
    result = named.compare(
        options["schedules"], costs=costs, options=family(options, "options"),
        layers=layers_of(options), **given,
    )  # fmt: skip
    rows: list[Row] = [
        {"schedule": row.name, "place": place, "ratio": row.ratio, "fits": row.fits,
         "chunks": row.schedule.chunks, "stages": row.schedule.stages, **row.values}
        for place, row in enumerate(result.rows, 1)
    ]  # fmt: skip
    return rows + [{"schedule": name, "error": reason} for name, reason in result.skipped]


def optimize(options: Options) -> list[Row]:
    """Search the fastest schedule; return it with its bound."""
    from debubble.optimize.search import optimize as run

    costs, filled = costs_of(options)
    own = (*SIZES, "memory", "p2p_mode", *_SEARCH)
    given = {key: filled[key] for key in own if key in filled}
    if given.get("layers") == OF_FILE:
        given["layers"] = getattr(options.get("costs"), "layers", None)
        if not given["layers"]:
            raise ParameterError("layers is 'costs', and there is no cost file that has any layers")
    result = run(costs=costs, published=False, **{"workers": 1} | given)
    return [
        {"makespan": result.makespan, "lower_bound": result.lower_bound, "gap": result.gap,
         "status": result.status, "found_by": result.found_by,
         "bubble_ratio": result.timeline.bubble_ratio,
         "peak_activation": float(result.timeline.peak_activation.max())}
    ]  # fmt: skip


_SEARCH: Parameters = {
    **{row.name: row.type for row in SEARCH_OPTIONS if not row.typed_only},
    **{row.name: row.type for row in LOWERINGS if row.in_search},
    "recompute": RECOMPUTE, "offload": OFFLOAD,
}  # fmt: skip

CHOSEN = ("microbatch_size", "microbatches", "schedule", "recompute", "zero")
"""Fields of a plan that are results by the same names."""


def plan(options: Options) -> list[Row]:
    """Return the best plan that fits, as one row of results."""
    values = {**options, "schedule": options.get("schedules")}
    found = search_all(ask(request_of(values), frameworks_of(values)), 1)
    if not found.plans:
        raise ParameterError(f"no plan fits into {found.request.limit / 1e9:.1f} GB")
    best = found.plans[0]
    candidate, fast = best.candidate, best.speed
    return [
        {"framework": best.request.fixed.framework} | asdict(candidate.degrees) | {
            **{name: getattr(candidate, name) for name in CHOSEN},
            "step_time": best.step_time,
            "step_time_error": best.step_error,
            "tokens_per_second": fast.tokens_per_second, "mfu": fast.mfu["causal"],
            "bubble_ratio": best.bubble_ratio, "peak": max(best.peaks),
        }
    ]  # fmt: skip


COMMANDS: dict[str, Command] = {
    "simulate": Command(simulate, {"schedule": SCHEDULE, **SIMULATION}, ("schedule",)),
    "compare": Command(compare, {"schedules": SCHEDULES, **SIMULATION}, ("schedules",)),
    "optimize": Command(optimize, {**SIZES, **COSTS, **_SEARCH}, brief=False),
    "plan": Command(plan, PLAN, ("model", "gpu", "gpus", "batch", "seq"), brief=False),
}
"""Every command by name."""


LONGEST_ERROR = 2000
"""Characters of an error message that are kept."""


def compute(command: str, files: Mapping[str, Any], points: Sequence[Point]) -> list[PointResult]:
    """Compute a batch of points; `files` is the content of files that options name."""
    with warnings.catch_warnings():
        # There would be thousands of the same.
        warnings.simplefilter("ignore")
        return [_compute(COMMANDS[command], files, point) for point in points]


def _compute(command: Command, files: Mapping[str, Any], point: Point) -> PointResult:
    began, error = time.perf_counter(), ""
    rows: list[Row] = []
    try:
        options = {name: _filled(value, files) for name, value in point.options.items()}
        rows = [_plain(row) for row in command.run(options)]
    except DebubbleError as refused:
        error = str(refused)
    except MemoryError:
        error = "not enough memory for this size"
    except Exception as bug:
        # A bug at one point is no reason to lose the others.
        error = f"internal error: {type(bug).__name__}: {bug}"
    found = [{"error": error[:LONGEST_ERROR]}] if error else rows
    return PointResult(*point, found, time.perf_counter() - began)


def _filled(value: Any, files: Mapping[str, Any]) -> Any:
    """Return the value of an option with the content of files in place of their names."""
    if isinstance(value, list):
        return [_filled(item, files) for item in value]
    if not isinstance(value, str):
        return value
    path, colon, function = value.rpartition(":")
    if colon and path in files:
        return f"{files[path]}:{function}"
    return files.get(value, value)


def _plain(row: Row) -> Row:
    """Return a row without numpy's numbers; its names are no columns of the file itself."""
    assert not (set(row) - {"error"}).intersection(OWN), f"results cannot be called {OWN}"
    return {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in row.items()
    }
