"""Planning requests: a model, GPUs, a training, and constraints."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from debubble.core.errors import ParameterError, did_you_mean
from debubble.planner.candidate import PRECISIONS, Candidate, Training
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

MOST_IMBALANCE = 1000


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


@dataclass(frozen=True)
class PlanRequest:
    """A planning problem: model, GPUs, training, efficiencies, memory and constraints."""

    model: Model
    cluster: Cluster
    training: Training
    factors: Factors = field(default_factory=Factors)
    """Efficiencies of kernels."""
    limit: float = math.inf
    """Memory of one GPU in bytes."""
    fixed: Fixed = Fixed()

    def case(self, candidate: Candidate) -> Case:
        """Return one of its candidates as a case."""
        return Case(self.model, self.cluster, self.training, candidate, self.factors)


def plan_request(
    model: str | Model, gpu: str, gpus: int, batch: int, sequence: int | None = None, *,
    precision: str = "bf16", memory: str | float | None = None, imbalance: float = 1.0,
    fixed: Fixed | None = None,
) -> PlanRequest:  # fmt: skip
    """Return a request from names, files and numbers, or with a model that was read.

    `sequence` is :data:`SEQUENCE` tokens unless given, or as many as the model has learned
    positions; `memory` that of one GPU in bytes, or such as ``"72GB"``, by default all that it has;
    `imbalance` tokens of the busiest experts over the mean. The framework of `fixed` decides what
    stays in memory, and how long; Megatron-LM unless given.
    """
    if not 1 <= imbalance <= MOST_IMBALANCE:
        raise ParameterError(
            f"imbalance is {imbalance:g}; it is from 1, balanced, to {MOST_IMBALANCE}"
        )
    found = find_gpu(gpu)
    check_precision(precision, found)
    limit = found.memory if memory is None else read_bytes(str(memory))
    known = read_model(model) if isinstance(model, str) else model
    length = min(SEQUENCE, known.positions or SEQUENCE) if sequence is None else sequence
    if known.positions and length > known.positions:
        raise ParameterError(
            f"a sequence of {length:,} tokens, and {known.name} has {known.positions:,} learned "
            f"positions; the nearest that works is {known.positions:,}"
        )
    fixed = fixed or Fixed()
    runtime = MEGATRON if fixed.framework is None else find_framework(fixed.framework).runtime
    training = Training(batch, length, precision, imbalance=imbalance, runtime=runtime)
    return PlanRequest(known, Cluster(found, gpus), training, shipped_factors(), limit, fixed)


def check_precision(precision: str, gpu: Gpu) -> None:
    """Refuse a precision that is not known, or that a GPU has no products in."""
    if precision not in PRECISIONS:
        raise ParameterError(f"precision is '{precision}'; {did_you_mean(precision, PRECISIONS)}")
    if precision == "fp8" and not gpu.fp8:
        able = ", ".join(name for name, one in GPUS.items() if one.fp8)
        raise ParameterError(
            f"precision is 'fp8', and {gpu.name} has no products in 8 bits; the nearest that works "
            f"is precision bf16, or one of {able}"
        )
