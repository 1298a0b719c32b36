"""What is to be planned, read from texts."""

from __future__ import annotations

from debubble.core.errors import ParameterError
from debubble.planner.candidate import Training
from debubble.planner.cost.published_efficiencies import shipped_factors
from debubble.planner.frameworks.megatron.runtime import MEGATRON
from debubble.planner.frameworks.table import find_framework
from debubble.planner.hardware.cluster import Cluster, find_gpu, read_bytes
from debubble.planner.model.files import read_model
from debubble.planner.model.transformer import Model
from debubble.planner.request import check_precision
from debubble.planner.search.evaluate import Asked

LARGEST = 10_000_000
"""Most GPUs, sequences or tokens that a plan is made for."""

SEQUENCE = 4096
"""Tokens of a sequence where nobody says."""


def ask(
    model: str | Model,
    gpu: str,
    gpus: int,
    batch: int,
    sequence: int | None = None,
    *,
    precision: str = "bf16",
    memory: str | None = None,
    imbalance: float = 1.0,
    framework: str | None = None,
) -> Asked:
    """A question from names, files and numbers.

    Parameters
    ----------
    model, gpu
        Names, or files, see :func:`debubble.planner.model.files.read_model` and
        :func:`debubble.planner.hardware.cluster.find_gpu`; or a model that was read.
    gpus, batch, sequence
        Number of GPUs, sequences per step, tokens per sequence; of the latter :data:`SEQUENCE`
        unless given, or as many as the model has learned positions.
    precision
        ``"bf16"``, ``"fp16"`` or ``"fp8"``.
    memory
        Memory of one GPU, such as ``"72GB"``; the default is all that it has.
    imbalance
        Tokens of the busiest experts over the mean.
    framework
        Who runs it, and so what is kept for how long, see
        :data:`debubble.planner.frameworks.table.FRAMEWORKS`; Megatron-LM unless given.
    """
    if not 1 <= imbalance <= 1000:
        raise ParameterError(f"imbalance is {imbalance:g}; it is from 1, balanced, to 1000")
    found = find_gpu(gpu)
    check_precision(precision, found)
    limit = found.memory if memory is None else read_bytes(memory)
    known = read_model(model) if isinstance(model, str) else model
    length = min(SEQUENCE, known.positions or SEQUENCE) if sequence is None else sequence
    if known.positions and length > known.positions:
        raise ParameterError(
            f"a sequence of {length:,} tokens, and {known.name} has {known.positions:,} learned "
            f"positions; the nearest that works is {known.positions:,}"
        )
    runtime = MEGATRON if framework is None else find_framework(framework).runtime
    training = Training(batch, length, precision, imbalance=imbalance, runtime=runtime)
    return Asked(known, Cluster(found, gpus), training, shipped_factors(), limit)
