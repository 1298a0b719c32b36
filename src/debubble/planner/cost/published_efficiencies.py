"""Efficiencies of kernels: the share of their modeled speed that training reaches.

Each published one is from one published step: a row of ``published_efficiencies.csv``.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources

from debubble.planner.candidate import Training
from debubble.planner.hardware.gpus import Gpu

DEFAULT = 0.86
"""Efficiency of a GPU without any measured step."""


@dataclass(frozen=True)
class Factor:
    """One efficiency: of a GPU, tensor-parallel degree, precision and software.

    `source` names the step it is from, of so many `gpus` and `seconds`. `experts` is true for a
    model with a mixture of experts, `measured` for a step that the user gave.
    """

    gpu: str
    tp: int
    precision: str
    efficiency: float
    runtime: str = "megatron"
    source: str = ""
    gpus: int = 0
    seconds: float = 0.0
    experts: bool = False
    measured: bool = False

    @property
    def key(self) -> tuple[str, int, str, str, bool]:
        """GPU, degree, precision, software and kind of model that it counts for."""
        return self.gpu, self.tp, self.precision, self.runtime, self.experts


@dataclass(frozen=True)
class Factors:
    """Efficiencies, of which the nearest to a plan counts."""

    table: tuple[Factor, ...] = ()

    @cached_property
    def _hash(self) -> int:
        return hash(self.table)

    def __hash__(self) -> int:
        # Results are looked up by it many times.
        return self._hash

    def efficiency(self, gpu: Gpu, tp: int, training: Training, *, experts: bool) -> float:
        """Return the share of the modeled speed of kernels that training reaches.

        A measured step of the same GPU and software counts for other degrees, too: published
        efficiencies say how they differ from its own degree's.
        """
        found = self.nearest(gpu.name, tp, training, experts=experts)
        if found is None:
            return DEFAULT
        if not found.measured or found.tp == tp:
            return found.efficiency
        rest = Factors(tuple(item for item in self.table if not item.measured))
        here = rest.efficiency(gpu, tp, training, experts=experts)
        there = rest.efficiency(gpu, found.tp, training, experts=experts)
        return found.efficiency * here / there

    def error(self, gpu: Gpu, tp: int, training: Training, *, experts: bool) -> float:
        """Return the relative error of step times that 9 of 10 published steps stay within."""
        found = self.nearest(gpu.name, tp, training, experts=experts)
        if experts:
            return ERRORS["experts"]
        if found is None or found.gpu != gpu.name:
            return ERRORS["other"]
        if _bits(found.precision) != _bits(training.precision):
            return ERRORS["other"]
        if not found.measured:
            return ERRORS["shipped"]
        return ERRORS["measured"] if found.tp == tp else ERRORS["other degree"]

    def origin(self, gpu: Gpu, tp: int, training: Training, *, experts: bool) -> str:
        """Return the origin of an efficiency: a measured step, a published one, or neither."""
        found = self.nearest(gpu.name, tp, training, experts=experts)
        if found is None:
            return f"assumed: no step of {gpu.name} or its generation is known"
        if found.measured:
            scaled = "" if found.tp == tp else f", scaled from tp {found.tp}"
            return f"measured{scaled}"
        own = found.gpu == gpu.name and found.tp == tp and found.precision == training.precision
        other = "" if own else f" on {found.gpu} with tp {found.tp} in {found.precision}"
        return f"published{other}: {found.source}"

    def nearest(self, gpu: str, tp: int, training: Training, *, experts: bool) -> Factor | None:
        """Return the factor that counts for a GPU, one of its generation.

        First that of models with experts, or without; of the same precision (16 bits, 8 or 4); the
        same software; of the GPU itself; one that the user measured; one of the same precision to
        the letter; and of the nearest degree.
        """
        own = [item for item in self.table if _generation(item.gpu) == _generation(gpu)]
        bits = _bits(training.precision)

        def distance(item: Factor) -> tuple[int, ...]:
            degrees = abs(item.tp.bit_length() - tp.bit_length())
            return (
                item.experts != experts, _bits(item.precision) != bits,
                item.runtime != training.runtime.name, item.gpu != gpu, not item.measured,
                item.precision != training.precision, degrees, item.tp,
            )  # fmt: skip

        return min(own, key=distance, default=None)


ERRORS = {"measured": 0.06, "other degree": 0.1, "shipped": 0.1, "other": 0.18, "experts": 0.41}
"""90th percentiles of the relative error, by where the efficiency is from: see
``docs/planner-truth.md``."""


@cache
def _bits(precision: str) -> str:
    return "".join(filter(str.isdigit, precision))


@cache
def _generation(gpu: str) -> str:
    """Return chips of one architecture: H100, H200 and H800, or B200, B300 and both on Grace."""
    names = {"h": "hopper", "b": "blackwell", "g": "blackwell", "a": "ampere"}
    amd = {"mi325": "mi300", "mi350": "mi355"}
    return names.get(gpu[:1], amd.get(gpu[:5], gpu[:5]))


@cache
def shipped_factors() -> Factors:
    """Return the efficiencies of published steps."""
    file = resources.files(__package__) / "published_efficiencies.csv"
    rows = csv.DictReader(file.read_text(encoding="utf-8").splitlines())
    return Factors(
        tuple(
            Factor(
                row["gpu"], int(row["tp"]), row["precision"], float(row["efficiency"]),
                row["runtime"], row["source"], int(row["gpus"]), float(row["seconds"]),
                experts=row["experts"] == "yes",
            )
            for row in rows
        )
    )  # fmt: skip
