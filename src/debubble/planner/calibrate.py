"""Efficiencies: the share of modelled kernel speed that training reaches, from measured steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from debubble.core.errors import ParameterError
from debubble.planner.gpus import Gpu

if TYPE_CHECKING:
    from debubble.planner.candidate import Candidate, Training
    from debubble.planner.cluster import Cluster
    from debubble.planner.model import Model

DEFAULT = 0.86
"""Efficiency of a GPU without any measured step."""


@dataclass(frozen=True)
class Factor:
    """One efficiency: of a GPU, a tensor-parallel degree and a precision, and where it is from."""

    gpu: str
    tp: int
    precision: str
    efficiency: float
    source: str = ""


@dataclass(frozen=True)
class Factors:
    """Efficiencies, of which the nearest counts: the same GPU, precision and degree if there is."""

    table: tuple[Factor, ...] = ()
    error: float = 0.1

    def efficiency(self, gpu: Gpu, tp: int, precision: str) -> float:
        """Share of the modelled speed of kernels that training reaches."""
        found = self.nearest(gpu, tp, precision)
        return DEFAULT if found is None else found.efficiency

    def nearest(self, gpu: Gpu, tp: int, precision: str) -> Factor | None:
        """The factor that counts: of the same GPU, then precision, then the nearest degree."""
        own = [factor for factor in self.table if factor.gpu == gpu.name]
        same = [factor for factor in own if _kind(factor.precision) == _kind(precision)]
        exact = [factor for factor in same if factor.precision == precision]
        pool = exact or same
        return min(
            pool,
            key=lambda factor: (abs(factor.tp.bit_length() - tp.bit_length()), -factor.tp),
            default=None,
        )


def _kind(precision: str) -> str:
    return "16" if precision in ("bf16", "fp16") else precision


def shipped_factors() -> Factors:
    """Efficiencies of published steps."""
    return Factors()


def calibrated(
    factors: Factors, model: Model, cluster: Cluster, training: Training, candidate: Candidate,
    seconds: float,
) -> Factors:  # fmt: skip
    """Factors with the efficiency that a measured step says for its GPU, degree and precision.

    Raises
    ------
    ParameterError
        When no efficiency explains the time.
    """
    from debubble.planner.step import step_time

    key = Factor(cluster.gpu.name, candidate.degrees.tp, training.precision, 1.0)
    rest = tuple(
        item for item in factors.table
        if (item.gpu, item.tp, item.precision) != (key.gpu, key.tp, key.precision)
    )  # fmt: skip

    def with_efficiency(value: float) -> Factors:
        return replace(factors, table=(*rest, replace(key, efficiency=value)))

    def step(value: float) -> float:
        return step_time(model, cluster, training, candidate, with_efficiency(value)).seconds

    low, high = LIMITS
    if not step(high) <= seconds <= step(low):
        raise ParameterError(
            f"{seconds:g} s is no time of this plan: between {step(high):.3g} s and {step(low):.3g}"
            f" s are possible; check the configuration it was measured with"
        )
    # Nearly all time goes with 1 / efficiency, so a secant in it meets the time in few steps.
    slow, fast = 1 / low, 1 / high
    a, b, at_a, at_b = slow, fast, step(low), step(high)
    for _ in range(30):
        middle = b + (seconds - at_b) * (a - b) / (at_a - at_b)
        at = step(1 / middle)
        if abs(at - seconds) <= 1e-6 * seconds:
            break
        if at > seconds:
            a, at_a = middle, at
        else:
            b, at_b = middle, at
    return with_efficiency(1 / middle)


LIMITS = (0.1, 1.6)
"""Efficiencies within which a measured step can be explained."""
