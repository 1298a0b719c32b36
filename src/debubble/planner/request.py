"""Planning requests: a model, GPUs, a training, and constraints."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from debubble.core.errors import ParameterError, did_you_mean
from debubble.core.hashed_once import hashed_once
from debubble.planner.candidate import NARROW, PRECISIONS, Candidate, Training
from debubble.planner.case import Case
from debubble.planner.cost.published_efficiencies import Factors, shipped_factors
from debubble.planner.frameworks.megatron.runtime import MEGATRON
from debubble.planner.frameworks.table import find_framework
from debubble.planner.hardware.cluster import Cluster, find_gpu, read_bytes
from debubble.planner.hardware.gpus import GPUS, Gpu
from debubble.planner.model.files import read_model
from debubble.planner.model.transformer import Model

LARGEST = 10_000_000
"""Most GPUs, sequences or tokens that a plan is made for."""

SEQUENCE = 4096
"""Tokens of a sequence unless given."""

LEAST = 1e6
"""Bytes of a GPU below which a unit was forgotten."""

MOST_IMBALANCE = 1000

GRADIENTS, MOMENTS = {"fp32": 4, "bf16": 2}, {"fp32": 4, "bf16": 2, "fp8": 1}
"""Kinds of gradients, and of Adam's moments, each with its bytes per number."""
WEIGHTS, OFFLOADS = ("bf16", "fp8", "fp4"), ("none", "optimizer")
"""Kinds of weights, and what the host's memory may have."""


SIZES = {
    "tp": "tensor-parallel degree", "cp": "context-parallel degree",
    "ep": "expert-parallel degree", "dp": "data-parallel degree",
    "pp": "pipeline-parallel degree", "chunks": "number of stages per rank",
    "microbatch_size": "number of sequences per microbatch",
}  # fmt: skip
"""Degrees and other sizes that can be fixed, with their words."""


@dataclass(frozen=True)
class Fixed:
    """Constraints on a :class:`~debubble.planner.candidate.Candidate`; None is open.

    `schedules` are names of registered schedules to choose from; `framework` runs the plan, and
    without one only divisibility counts. Where `layers` are given as a layout, `mtp` are its layers
    of multi-token prediction, on the stage `mtp_stage` (None: the last).
    """

    tp: int | None = None
    cp: int | None = None
    ep: int | None = None
    dp: int | None = None
    pp: int | None = None
    chunks: int | None = None
    microbatch_size: int | None = None
    schedules: tuple[str, ...] | None = None
    recompute: str | None = None
    zero: int | None = None
    layers: tuple[int, ...] | None = None
    framework: str | None = None
    mtp: int | None = None
    mtp_stage: int | None = None


@hashed_once
@dataclass(frozen=True)
class PlanRequest:
    """A planning problem: model, GPUs, training, efficiencies, memory and constraints."""

    model: Model
    cluster: Cluster
    training: Training
    factors: Factors = field(default_factory=Factors)
    """Efficiencies of kernels."""
    limit: float = math.inf
    """Most bytes that the predicted peak of a GPU may have."""
    fixed: Fixed = Fixed()
    capacity: float = math.inf
    """Bytes of a GPU that a process gets, its context included."""
    asked: float = math.inf
    """Most bytes of a GPU that the user wants to use."""

    @property
    def safe(self) -> float:
        """Largest predicted peak with which 9 of 10 real ones are within the capacity, in bytes."""
        return self.capacity / (1 + self.training.runtime.memory_error)

    def case(self, candidate: Candidate) -> Case:
        """Return one of its candidates as a case."""
        return Case(self.model, self.cluster, self.training, candidate, self.factors)


def plan_request(
    model: str | Model, gpu: str, gpus: int, batch: int, sequence: int | None = None, *,
    precision: str = "bf16", memory: str | float | None = None, imbalance: float = 1.0,
    fixed: Fixed | None = None, gradients: str = "fp32", moments: str = "fp32",
    weights: str | None = None, offload: str = "none", graph_pools: float = 0.0,
) -> PlanRequest:  # fmt: skip
    """Return a request from names, files and numbers, or with a model that was read.

    `sequence` is :data:`SEQUENCE` tokens unless given, or as many as the model has learned
    positions; `memory` the most that plans are predicted to need of a GPU, in bytes or such as
    ``"72GB"``. By default it is what a GPU has, less the error of predicted peaks; more than that
    is for a larger GPU, from which the error is taken, too. `imbalance` is tokens of the busiest
    experts over the mean. The framework of `fixed` decides what stays in memory, and how long;
    Megatron-LM unless given.

    `gradients`, `moments` and `weights` are kinds of numbers, of :data:`GRADIENTS`,
    :data:`MOMENTS` and :data:`WEIGHTS`; `offload` names what is in the host's memory;
    `graph_pools` are bytes of a GPU in the pools of CUDA graphs.
    """
    if not 1 <= imbalance <= MOST_IMBALANCE:
        raise ParameterError(
            f"imbalance is {imbalance:g}; it is from 1, balanced, to {MOST_IMBALANCE}"
        )
    found = find_gpu(gpu)
    check_precision(precision, found)
    asked = math.inf if memory is None else read_bytes(str(memory))
    if asked < LEAST:
        raise ParameterError(f"memory is {asked:g} bytes; give a unit, such as {asked:g}GB")
    known = read_model(model) if isinstance(model, str) else model
    length = min(SEQUENCE, known.positions or SEQUENCE) if sequence is None else sequence
    if known.positions and length > known.positions:
        raise ParameterError(
            f"a sequence of {length:,} tokens, and {known.name} has {known.positions:,} learned "
            f"positions; the nearest that works is {known.positions:,}"
        )
    fixed = fixed or Fixed()
    runtime = MEGATRON if fixed.framework is None else find_framework(fixed.framework).runtime
    _check_weights(weights, precision)
    training = Training(
        batch, length, precision, GRADIENTS[gradients], MOMENTS[moments], imbalance=imbalance,
        runtime=runtime, weights=weights, offload_optimizer=offload == "optimizer",
        graph_pools=graph_pools,
    )  # fmt: skip
    capacity = found.memory if memory is None else max(found.memory, asked)
    limit = min(asked, capacity / (1 + runtime.memory_error))
    return PlanRequest(
        known, Cluster(found, gpus), training, shipped_factors(), limit, fixed, capacity,
        asked,
    )  # fmt: skip


def for_framework(request: PlanRequest, name: str | None) -> PlanRequest:
    """Return a request for plans that a framework runs; None for plans that only have to divide."""
    runtime = MEGATRON if name is None else find_framework(name).runtime
    asked = min(request.asked, request.limit if request.limit < request.safe else math.inf)
    own = replace(
        request, fixed=replace(request.fixed, framework=name),
        training=replace(request.training, runtime=runtime),
    )  # fmt: skip
    return replace(own, limit=min(asked, own.safe))


def check_precision(precision: str, gpu: Gpu) -> None:
    """Refuse a precision that is not known, or that a GPU has no products in."""
    if precision not in PRECISIONS:
        raise ParameterError(f"precision is '{precision}'; {did_you_mean(precision, PRECISIONS)}")
    if precision == "bf16" and gpu.sixteen == "fp16":
        raise ParameterError(
            f"precision is 'bf16', and {gpu.name} has no products in bf16; the nearest that works "
            "is precision fp16"
        )
    if precision not in NARROW:
        return
    # Scales of small blocks came with products in 4 bits.
    key, lacks = ("fp8", "no products in 8 bits")
    near = "bf16"
    if precision != "fp8":
        key = "fp4"
        lacks = "no products in 4 bits" if precision == "nvfp4" else "no scales of small blocks"
        near = "fp8" if gpu.fp8 else "bf16"
    if not getattr(gpu, key):
        able = ", ".join(name for name, one in GPUS.items() if getattr(one, key))
        raise ParameterError(
            f"precision is '{precision}', and {gpu.name} has {lacks}; the nearest that works is "
            f"precision {near}, or one of {able}"
        )


def _check_weights(weights: str | None, precision: str) -> None:
    """Check that weights are in 16 bits, or as narrow as the products that multiply them."""
    narrow = NARROW.get(precision)
    if weights in (None, "bf16", narrow):
        return
    near = next((name for name, kind in NARROW.items() if kind == weights), precision)
    nearest = f"weights {narrow or 'bf16'}"
    raise ParameterError(
        f"weights is '{weights}', and products are in {precision}; the nearest that works is "
        f"{nearest}, or precision {near}"
    )
