"""Efficiencies that measured steps imply."""

from __future__ import annotations

from dataclasses import replace

from debubble.core.errors import ParameterError
from debubble.core.units import percent
from debubble.planner.case import Case
from debubble.planner.cost.flops import flops_per_token
from debubble.planner.cost.published_efficiencies import Factor, Factors
from debubble.planner.cost.step import step_time
from debubble.planner.hardware.kernel_times import PRECISIONS

LIMITS = (0.1, 1.6)
"""Efficiencies within which a measured step can be explained."""


def calibrated(case: Case, seconds: float) -> Factors:
    """Return the efficiencies of a case with the one that a measured step implies.

    A time that no efficiency explains is refused.
    """

    def step(value: float) -> float:
        return step_time(replace(case, factors=with_measured(case, value))).seconds

    _check_possible(case, seconds)
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
    return with_measured(case, 1 / middle)


def _check_possible(case: Case, seconds: float) -> None:
    """Refuse steps that compute more than the GPUs' peak."""
    training, gpus = case.training, case.cluster.gpus
    flops = flops_per_token(case.model, training.sequence)["causal"] * training.tokens
    peak = case.gpu.peak(PRECISIONS[training.precision]) * gpus
    if flops > peak * seconds:
        mfu, least = percent(flops / peak / seconds), flops / peak
        raise ParameterError(
            f"{seconds:g} s per step is an MFU of {mfu}, of attention the causal half counted; "
            f"100 % is the most, which is {least:.3g} s. Check the batch ({training.batch:,}), the "
            f"sequence ({training.sequence:,}), the GPUs ({gpus:,} × {case.gpu.name}), "
            "and whether the time is of a whole step"
        )


def with_measured(case: Case, efficiency: float) -> Factors:
    """Return the efficiencies with a measured one in place of that with the same key."""
    training = case.training
    new = Factor(
        case.gpu.name, case.degrees.tp, training.precision, efficiency, training.runtime.name,
        "measured", 1, bool(case.model.experts), measured=True,
    )  # fmt: skip
    rest = (item for item in case.factors.table if not item.measured or item.key != new.key)
    return replace(case.factors, table=(*rest, new))
