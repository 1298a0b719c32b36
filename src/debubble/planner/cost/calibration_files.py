"""Files of measurements that scale the modeled times: steps, a log of Megatron, or a profile."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from statistics import median
from typing import Any

from debubble.core.errors import FormatError, ParameterError, did_you_mean
from debubble.core.kinds import Kind
from debubble.core.placement import Placement
from debubble.core.units import read_number
from debubble.interchange import syntax
from debubble.interchange.cost_files import CostFile, parse_costs
from debubble.interchange.layouts import Layout, read_layout
from debubble.interchange.text import check_keys, read_text, shown
from debubble.planner.candidate import Candidate, Degrees
from debubble.planner.case import Case
from debubble.planner.cost.calibrate import calibrated, with_measured
from debubble.planner.cost.layer_times import layer_times
from debubble.planner.cost.published_efficiencies import Factors
from debubble.planner.hardware.cluster import find_gpu
from debubble.planner.hardware.gpus import GPUS, Gpu
from debubble.planner.hardware.kernel_times import PRECISIONS
from debubble.planner.model.files import own_model
from debubble.planner.model.transformer import Model
from debubble.planner.request import PlanRequest

MAX_BYTES = 16 << 20
"""Most bytes of a file."""
LOG_LINE = re.compile(r"elapsed time per iteration \(ms\):\s*([0-9]+(?:\.[0-9]+)?)")
BATCH = re.compile(r"global batch size:\s*([0-9]{1,18})\b")
LONGEST = 1e6
"""Seconds that no step takes."""
WARM_UP = 3
"""Iterations of a log that are left out where it has more than twice as many."""

LARGEST, MOST_ACTIONS = 10**7, 4 * 10**6
"""Limits of any number, and of the actions of the schedule that ran."""

DEGREES = tuple(item.name for item in fields(Degrees))
STEP_KEYS = (
    *DEGREES, "microbatch_size", "schedule", "layers", "recompute", "zero", "gpus", "batch",
    "sequence", "precision", "seconds", "log",
)  # fmt: skip
"""Keys of one step in a YAML file."""


NEEDED = ("model", "gpu", "gpus", "tp", "pp", "global_batch", "step_s")
"""Columns that a table of steps has."""
COLUMNS = {
    "gpus": "gpus", "tp": "tp", "pp": "pp", "vp": "chunks", "cp": "cp", "ep": "ep", "dp": "dp",
    "micro_batch": "microbatch_size", "global_batch": "batch", "seq": "sequence",
    "recompute": "recompute", "zero": "zero", "schedule": "schedule", "precision": "precision",
    "step_s": "seconds",
}  # fmt: skip
"""Columns of a step's options, each with its key of :data:`STEP_KEYS`."""
SHAPES = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "experts", "topk")
"""Columns of the model that ran."""


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
        * ``.csv`` with the columns :data:`COLUMNS`; a row with the columns :data:`SHAPES` is of
          the model that they describe, any other of the command's.
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


def parse_rows(text: str, path: str) -> list[dict[str, str]]:
    """Parse the text of a CSV file with the columns :data:`NEEDED` into its rows."""
    reader = csv.DictReader(io.StringIO(text))
    try:
        names = reader.fieldnames or []
        rows = list(reader)
    except csv.Error as error:
        raise FormatError(f"{path}, line {reader.line_num}: not CSV: {error}") from None
    missing = [name for name in NEEDED if name not in names]
    if missing:
        raise FormatError(f"{path}: no column {', '.join(missing)}; these are needed: "
                          f"{', '.join(NEEDED)}")  # fmt: skip
    return [{key: value or "" for key, value in row.items() if key} for row in rows]


def _from_rows(text: str, path: str, request: PlanRequest) -> Factors:
    rows = [(index, row) for index, row in enumerate(parse_rows(text, path)) if row["step_s"]]
    if not rows:
        raise FormatError(f"{path}: no row has a step_s")
    for index, row in rows:
        where = f"{path}: row {index}"
        cells = {key: _cell(row.get(column, "")) for column, key in COLUMNS.items()}
        step = {key: value for key, value in cells.items() if value is not None}
        try:
            cluster = replace(request.cluster, gpu=_gpu_of(row["gpu"]))
            model = _model_of(row, where) or request.model
            factors = _from_step(step, where, replace(request, cluster=cluster, model=model))
        except ParameterError as error:
            raise FormatError(f"{where}: {error}") from None
        request = replace(request, factors=factors)
    return request.factors


def _cell(text: str) -> int | float | str | None:
    """Return the number or word of a cell, without a remark in brackets; None for an empty one."""
    word = text.partition("(")[0].strip().lower()
    number = read_number(word)
    if math.isnan(number):
        return word if word not in ("", "none") else None
    return int(number) if number == int(number) else number


def _gpu_of(text: str) -> Gpu:
    """Return the GPU whose name begins a cell, such as ``"H100-80GB-SXM"``."""
    known = [name for name in GPUS if text.lower().startswith(name)]
    return find_gpu(max(known, key=len, default=text))


def _model_of(row: Mapping[str, str], where: str) -> Model | None:
    """Return the model that columns describe; None where they describe none."""
    one = {column: _cell(row.get(column, "")) for column in SHAPES}
    if one["hidden"] is None:
        return None
    part = {"width": one["ffn"]}
    if one["experts"] is not None:
        part |= {"count": one["experts"], "top_k": one["topk"]}
    attention = {"heads": one["heads"], "kv_heads": one["kv_heads"] or one["heads"]}
    if isinstance(one["hidden"], int) and isinstance(one["heads"], int):
        attention["head_dim"] = one["hidden"] // max(one["heads"], 1)
    shape = {
        "hidden": one["hidden"], "vocabulary": one["vocab"], "layers": one["layers"],
        "attention": attention, "mlp" if one["experts"] is None else "experts": part,
    }  # fmt: skip
    return own_model(shape, where)


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


def measured_run(given: Mapping[str, Any], where: str, request: PlanRequest) -> Case:
    """Return a step's run from its keys or options, with defaults for those left out.

    Degrees are 1 unless given, `dp` is what is left of the GPUs, and the schedule 1F1B,
    interleaved where there are chunks. A wrong value is refused with its key.
    """
    given = {key: value for key, value in given.items() if value is not None}
    model, training = request.model, request.training

    def whole(key: str, default: int) -> int:
        value = given.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST:
            raise FormatError(f"{where}.{key}: {shown(value)}; give a whole number")
        return value

    numbers = {key: max(whole(key, 1), 1) for key in DEGREES if key != "dp"}
    gpus, batch = whole("gpus", request.cluster.gpus), whole("batch", training.batch)
    training = replace(
        training, batch=batch, sequence=whole("sequence", training.sequence),
        precision=str(given.get("precision", training.precision)),
    )  # fmt: skip
    if training.precision not in PRECISIONS:
        hint = did_you_mean(training.precision, PRECISIONS)
        raise FormatError(f"{where}.precision: {shown(training.precision)}; {hint}")
    size = numbers["tp"] * numbers["cp"] * numbers["pp"]
    dp = whole("dp", gpus // size)
    if not gpus or dp * size != gpus:
        raise FormatError(f"{where}: tp x cp x pp is {size}, which does not divide {gpus}")
    degrees = Degrees(**numbers, dp=dp)
    micro = max(whole("microbatch_size", 1), 1)
    if batch % (micro * dp) or not batch:
        raise FormatError(f"{where}: batch {batch} is no multiple of {micro} x dp {dp}")
    if degrees.stages > len(model.layers) + 2:
        raise FormatError(f"{where}: pp x chunks is {degrees.stages}; {model.name} has no more than"
                          f" {len(model.layers)} layers, embedding and head to split")  # fmt: skip
    if 2 * degrees.stages * (batch // (micro * dp)) > MOST_ACTIONS:
        raise FormatError(f"{where}: batch {batch} makes more than {MOST_ACTIONS:,} actions")
    default = "interleaved-1f1b" if degrees.chunks > 1 else "1f1b"
    layout = Layout(spread(len(model.layers), degrees.stages), model.mtp)
    if "layers" in given:
        layout = _layout(given["layers"], where, degrees.stages, model)
    candidate = Candidate(
        degrees, micro, batch // (micro * dp), str(given.get("schedule", default)), layout.cut,
        str(given.get("recompute", "none")), whole("zero", 1), mtp_stage=layout.mtp_stage,
    )  # fmt: skip
    cluster = replace(request.cluster, gpus=gpus)
    return Case(model, cluster, training, candidate, request.factors)


def _layout(value: Any, where: str, stages: int, model: Model) -> Layout:
    """Return the layers of every stage, from a list or Megatron-LM's layout."""
    layers, mtp = len(model.layers), model.mtp
    try:
        counts = value if isinstance(value, list | tuple) else ()
        found = read_layout(value) if isinstance(value, str) else Layout(tuple(counts), mtp)
    except ParameterError as error:
        raise FormatError(f"{where}.layers: {error}") from None
    if not all(type(count) is int and count >= 0 for count in found.cut) or (
        (len(found.cut), sum(found.cut), found.mtp) != (stages, layers, mtp)
    ):
        also = f", and {mtp} m" if isinstance(value, str) and mtp else ""
        raise FormatError(
            f"{where}.layers: {shown(value)}; give a whole number for each of {stages} stages, "
            f"{layers} in all{also}"
        )
    return found


def spread(layers: int, stages: int) -> tuple[int, ...]:
    """Return layers per stage as frameworks spread them by default.

    Evenly; else with embedding and head counted as a layer each; else the first stages get more.
    """
    if layers % stages == 0:
        return (layers // stages,) * stages
    each, rest = divmod(layers + 2, stages)
    if rest == 0 and stages > 1:
        return (each - 1, *(each,) * (stages - 2), each - 1)
    each, rest = divmod(layers, stages)
    return tuple(each + (stage < rest) for stage in range(stages))


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
