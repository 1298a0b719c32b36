"""Files of measurements that scale the modeled times: steps, a log of Megatron, or a profile."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from debubble.core.errors import FormatError, ParameterError
from debubble.core.kinds import Kind
from debubble.core.placement import Placement
from debubble.interchange import syntax
from debubble.interchange.cost_files import CostFile, parse_costs
from debubble.interchange.text import check_keys, read_text, shown
from debubble.planner.candidate import Candidate
from debubble.planner.case import Case
from debubble.planner.cost.calibrate import calibrated, with_measured
from debubble.planner.cost.layer_times import layer_times
from debubble.planner.cost.measured_rows import numbered_rows, read_row
from debubble.planner.cost.measured_run import STEP_KEYS, measured_run
from debubble.planner.cost.published_efficiencies import Factors
from debubble.planner.request import PlanRequest

MAX_BYTES = 16 << 20
"""Most bytes of a file."""
LOG_LINE = re.compile(r"elapsed time per iteration \(ms\):\s*([0-9]+(?:\.[0-9]+)?)")
BATCH = re.compile(r"global batch size:\s*([0-9]{1,18})\b")
LONGEST = 1e6
"""Seconds that no step takes."""
MOST_TENSOR = 64
"""Largest tensor-parallel degree for which a measured row may count."""
WARM_UP = 3
"""Iterations of a log that are left out where it has more than twice as many."""


def calibrate_from(
    path: str, request: PlanRequest, candidate: Candidate | None = None, text: str | None = None,
    missing: Sequence[str] = (),
) -> Factors:  # fmt: skip
    """Return the efficiencies that a file of measurements implies.

    Parameters
    ----------
    path
        * ``.yaml`` or ``.json`` with ``steps``, a list of mappings such as ``{tp: 4, pp: 4,
          chunks: 5, cp: 2, gpus: 64, batch: 128, microbatch_size: 1, seconds: 14.66}``; ``log`` may
          hold a line of Megatron in place of ``seconds``. Missing keys are the command's.
        * The same endings with ``times``: a cost file such as ``debubble profile`` writes, of one
          GPU of the candidate, or ``debubble trace``, of all stages of it.
        * ``.csv`` with the columns of :mod:`debubble.planner.cost.measured_rows`; a row that
          names or describes no model is of the command's.
        * Anything else is a log of Megatron with lines "elapsed time per iteration (ms): 14660.0".
    request
        Its efficiencies count where the file has none.
    candidate, missing
        The run of a log or profile, or the options that are missing; not needed for others.
    text
        The file's text, if the file is not to be read.

    Raises
    ------
    FormatError, ParameterError
        When the file is wrong, or options are missing; the message names the fault.
    """
    if text is None:
        text = read_text(path, MAX_BYTES)
    if path.endswith(".csv"):
        return _from_rows(text, path, request)
    is_log = not path.endswith((".yaml", ".yml", ".json"))
    data = None if is_log else syntax.parse(text, path)
    if is_log or (isinstance(data, Mapping) and "times" in data):
        seconds = log_seconds(text, path, request.training.batch) if is_log else 0.0
        if candidate is None:
            options = ", ".join(missing) or "all of how it ran"
            raise ParameterError(
                f"{path} says seconds, not how they came about; give {options}, too"
            )
        run = request.case(candidate)
        return calibrated(run, seconds) if is_log else _from_profile(text, path, run)
    steps = data.get("steps") if isinstance(data, Mapping) else None
    if not isinstance(steps, list) or not steps:
        raise FormatError(f"{path}: give steps, a list of mappings with tp, pp, … and seconds")
    for index, step in enumerate(steps):
        factors = _from_step(step, f"{path}: steps[{index}]", request)
        request = replace(request, factors=factors)
    return request.factors


def log_seconds(text: str, where: str, batch: int | None = None) -> float:
    """Return the median seconds of the iterations in a log of Megatron, without the first ones.

    A log without any, or with another batch, is refused.
    """
    times = [float(found) / 1e3 for found in LOG_LINE.findall(text)]
    if not times:
        raise FormatError(f"{where}: no line 'elapsed time per iteration (ms): …'")
    batches = {int(found) for found in BATCH.findall(text)}
    if batch is not None and batches and batch not in batches:
        raise FormatError(f"{where}: global batch size {max(batches)}; the plan has {batch}")
    return median(times[WARM_UP:] if len(times) > 2 * WARM_UP else times)


def _from_rows(text: str, path: str, request: PlanRequest) -> Factors:
    rows = [(line, row) for line, row in numbered_rows(text, path) if row["step_s"].strip()]
    if not rows:
        raise FormatError(f"{path}: no row has a step_s")
    kinds = set()
    for line, row in rows:
        where = f"{path}: line {line}"
        try:
            found = read_row(row, where, request)
            if found.seconds is None:
                raise FormatError(f"{where}: step_s '{row['step_s']}'; give a positive number")
            factors = calibrated(found.case, found.seconds)
        except ParameterError as error:
            message = str(error).removeprefix(f"{where}: ")
            raise FormatError(f"{where}: {message}") from None
        kinds.add(_kind(found.request))
        request = replace(request, factors=factors)
    if not _has_measured(request):
        raise FormatError(
            f"{path}: no row is of {_kind(request)}, as the plan is; rows are of "
            f"{', '.join(sorted(kinds))}"
        )
    return request.factors


def _kind(request: PlanRequest) -> str:
    """Return in words what an efficiency is of."""
    training = request.training
    experts = "experts" if request.model.experts else "no experts"
    return (
        f"{request.cluster.gpu.name} with {training.runtime.title}, {training.precision} and "
        f"{experts}"
    )


def _has_measured(request: PlanRequest) -> bool:
    """Return whether a measured efficiency counts for a plan of a request."""
    training, gpu = request.training, request.cluster.gpu.name
    experts = bool(request.model.experts)
    found = (
        request.factors.nearest(gpu, 1 << power, training, experts=experts)
        for power in range(MOST_TENSOR.bit_length())
    )
    return any(one is not None and one.measured for one in found)


def _from_step(step: Any, where: str, request: PlanRequest) -> Factors:
    if not isinstance(step, Mapping):
        raise FormatError(f"{where}: {shown(step)}; give a mapping with tp, pp, … and seconds")
    check_keys(step, where, STEP_KEYS)
    if "log" in step:
        seconds = log_seconds(str(step["log"]), where)
    elif isinstance(step.get("seconds"), int | float) and 0 < step["seconds"] < LONGEST:
        seconds = float(step["seconds"])
    else:
        raise FormatError(f"{where}: give seconds, or log with a line of Megatron")
    return calibrated(measured_run(step, where, request), seconds)


SECONDS = {"": 1e-3, "ms": 1e-3, "s": 1.0, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
"""Seconds of each unit of time that a cost file may name; profiles are in ms."""


def _of_layers(profile: CostFile, path: str) -> float:
    """Return the seconds of the median layer of a profile."""
    times = {kind: profile.layers.get(kind) for kind in "FIW"}
    if any(not isinstance(value, list | tuple) or not value for value in times.values()):
        raise FormatError(f"{path}: layers needs lists F, I and W; profile stages that are lists of"
                          " layers")  # fmt: skip
    return sum(median(map(float, value or ())) for value in times.values())


def _of_stages(profile: CostFile, path: str, candidate: Candidate) -> float:
    """Return a layer's seconds on the median stage, without embedding and head where possible."""
    degrees = candidate.degrees
    for flag, ran, planned in (
        ("--pp", profile.ranks, degrees.pp), ("--chunks", profile.chunks, degrees.chunks),
    ):  # fmt: skip
        if ran not in (None, planned):
            raise ParameterError(f"{path}: {ran} is what ran; give it as {flag}, not {planned}")
    table = profile.costs.resolve(Placement.loop(degrees.pp, degrees.chunks)).duration
    times = (table[Kind.F] + table[Kind.B]).tolist()
    each = [time / count for time, count in zip(times, candidate.layers, strict=True) if count]
    return float(median(each[1:-1] or each))


def _from_profile(text: str, path: str, run: Case) -> Factors:
    """Return the efficiency with which a layer takes as long as the median one of a profile."""
    profile = parse_costs(text, path)
    if profile.time_unit not in SECONDS:
        units = ", ".join(filter(None, SECONDS))
        raise FormatError(f"{path}: time_unit {profile.time_unit!r}; give one of {units}")
    # A profile is of layers, a trace of the stages of so many ranks.
    if profile.layers or profile.ranks is None:
        measured = _of_layers(profile, path)
    else:
        measured = _of_stages(profile, path, run.candidate)
    measured *= SECONDS[profile.time_unit]

    def layer(value: float) -> float:
        known = replace(run, factors=with_measured(run, value))
        found = [layer_times(known, item) for item in dict.fromkeys(run.model.layers)]
        return median(times.F + times.I + times.W for times in found)

    # A layer's time is a / efficiency + b, whatever communication b it has.
    slow, fast = layer(0.5), layer(1.0)
    kernels, rest = slow - fast, 2 * fast - slow
    if measured <= rest:
        raise FormatError(f"{path}: a layer takes {measured:.3g} s, less than its communication")
    return with_measured(run, kernels / (measured - rest))
