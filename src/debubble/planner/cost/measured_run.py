"""One measured step by its keys: degrees, schedule, batch and seconds, as a case."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from debubble.core.errors import FormatError, ParameterError, did_you_mean
from debubble.interchange.layouts import Layout, read_layout
from debubble.interchange.text import shown
from debubble.planner.candidate import Candidate, Degrees
from debubble.planner.case import Case
from debubble.planner.hardware.kernel_times import PRECISIONS
from debubble.planner.model.transformer import Model
from debubble.planner.plannable import first_cut
from debubble.planner.request import PlanRequest

LARGEST, MOST_ACTIONS = 10**7, 4 * 10**6
"""Limits of any number, and of the actions of the schedule that ran."""

DEGREES = tuple(item.name for item in fields(Degrees))
STEP_KEYS = (
    *DEGREES, "microbatch_size", "schedule", "layers", "recompute", "zero", "gpus", "batch",
    "sequence", "precision", "seconds", "log",
)  # fmt: skip
"""Keys of one step in a YAML file."""


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
    layout = Layout(default_layers(request, degrees.stages), model.mtp)
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


def default_layers(request: PlanRequest, stages: int) -> tuple[int, ...]:
    """Return layers of every stage as the training's framework spreads them by default."""
    model = request.model
    if model.mtp:
        return first_cut(len(model.layers), stages, model.mtp)
    if not request.training.runtime.balances_head or stages == 1:
        return spread(len(model.layers), stages)
    # nanotron: a stage ends with the block that exceeds its share of the FLOPs of the model.
    own = [model.layer_parameters(layer) for layer in model.layers]
    share, stage, sum_so_far = (sum(own) + model.head_parameters) / stages, 0, 0.0
    counts = [0] * stages
    for parameters in own:
        counts[stage] += 1
        sum_so_far += parameters
        if sum_so_far > share * (stage + 1) and stage < stages - 1:
            stage += 1
    return tuple(counts)


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
