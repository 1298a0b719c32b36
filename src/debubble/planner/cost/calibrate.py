"""Efficiencies that measured steps imply."""

from __future__ import annotations

from dataclasses import replace

from debubble.core.errors import ParameterError
from debubble.core.units import percent
from debubble.planner.candidate import Candidate, Training
from debubble.planner.cost.flops import flops_per_token
from debubble.planner.cost.published_efficiencies import Factor, Factors
from debubble.planner.cost.step import step_time
from debubble.planner.hardware.cluster import Cluster
from debubble.planner.hardware.kernel_times import PRECISIONS
from debubble.planner.model.transformer import Model


def calibrated(
    factors: Factors, model: Model, cluster: Cluster, training: Training, candidate: Candidate,
    seconds: float,
) -> Factors:  # fmt: skip
    """Factors with the efficiency that a measured step says for its GPU, degree and precision.

    A time that no efficiency explains is refused.
    """

    def step(value: float) -> float:
        known = with_measured(factors, model, cluster, training, candidate, value, seconds)
        return step_time(model, cluster, training, candidate, known).seconds

    _check_possible(model, cluster, training, seconds)
    low, high = LIMITS
    # Nearly all time goes with 1 / efficiency, so a secant in it meets the time in few steps.
    a, b, at_a, at_b = 1 / low, 1 / high, step(low), step(high)
    if not at_b <= seconds <= at_a:
        raise ParameterError(
            f"{seconds:g} s is no time of this plan: between {at_b:.3g} s and {at_a:.3g} s are "
            "possible; check the configuration it was measured with"
        )
    for _ in range(30):
        middle = b + (seconds - at_b) * (a - b) / (at_a - at_b)
        at = step(1 / middle)
        if abs(at - seconds) <= 1e-6 * seconds:
            break
        if at > seconds:
            a, at_a = middle, at
        else:
            b, at_b = middle, at
    return with_measured(factors, model, cluster, training, candidate, 1 / middle, seconds)


def _check_possible(model: Model, cluster: Cluster, training: Training, seconds: float) -> None:
    """Refuse steps that compute more than the GPUs' peak."""
    flops = flops_per_token(model, training.sequence)["causal"] * training.tokens
    peak = cluster.gpu.peak(PRECISIONS[training.precision]) * cluster.gpus
    if flops > peak * seconds:
        mfu, least = percent(flops / peak / seconds), flops / peak
        raise ParameterError(
            f"{seconds:g} s per step is an MFU of {mfu}, of attention the causal half counted; "
            f"100 % is the most, which is {least:.3g} s. Check the batch ({training.batch:,}), the "
            f"sequence ({training.sequence:,}), the GPUs ({cluster.gpus:,} × {cluster.gpu.name}), "
            "and whether the time is of a whole step"
        )


def with_measured(
    factors: Factors, model: Model, cluster: Cluster, training: Training, candidate: Candidate,
    efficiency: float, seconds: float = 0.0,
) -> Factors:  # fmt: skip
    """Factors with a measured efficiency in place of that of the same GPU, degree and software."""
    new = Factor(
        cluster.gpu.name, candidate.degrees.tp, training.precision, efficiency,
        training.runtime.name, "measured", cluster.gpus, seconds, bool(model.experts),
        measured=True,
    )  # fmt: skip
    rest = (item for item in factors.table if not item.measured or item.key != new.key)
    return replace(factors, table=(*rest, new))


LIMITS = (0.1, 1.6)
"""Efficiencies within which a measured step can be explained."""
