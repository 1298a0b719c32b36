"""Efficiencies of kernels: the share of their modeled speed that training reaches, and the errors.

Published ones are medians over published steps: rows of ``published_efficiencies.csv``. Errors are
those of published steps that gave no efficiency: rows of ``published_errors.csv``, which
``benchmarks/planner_efficiencies.py`` writes (see ``docs/planner-truth.md``).
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from typing import TYPE_CHECKING, NamedTuple

from debubble.core.hashed_once import hashed_once
from debubble.core.units import counted
from debubble.planner.candidate import Training
from debubble.planner.hardware.gpus import Gpu

if TYPE_CHECKING:
    from debubble.planner.case import Case as HasShape

DEFAULT = 0.86
"""Efficiency of a GPU without any measured step."""


class StepRange(NamedTuple):
    """Ratios to a predicted step time between which 9 of 10 unseen steps are."""

    low: float
    high: float

    @property
    def error(self) -> float:
        """Largest share of the predicted time by which a step in the range is off."""
        return max(1 - self.low, self.high - 1)

    @property
    def width(self) -> float:
        """Ratio of its ends."""
        return self.high / self.low


@dataclass(frozen=True)
class Factor:
    """One efficiency: of a GPU, tensor-parallel degree, precision and software.

    `source` names the publications of the `rows` steps that it is the median of. `experts` is true
    for a model with a mixture of experts, `measured` for a step that the user gave.
    """

    gpu: str
    tp: int
    precision: str
    efficiency: float
    runtime: str = "megatron"
    source: str = ""
    rows: int = 0
    experts: bool = False
    measured: bool = False

    @property
    def key(self) -> tuple[str, int, str, str, bool]:
        """GPU, degree, precision, software and kind of model that it counts for."""
        return self.gpu, self.tp, self.precision, self.runtime, self.experts


@hashed_once
@dataclass(frozen=True)
class Factors:
    """Efficiencies, of which the nearest to a plan counts."""

    table: tuple[Factor, ...] = ()

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

    def match(self, gpu: Gpu, tp: int, training: Training, *, experts: bool) -> str:
        """Return what the efficiency that counts has in common with a plan: one of MATCHES."""
        found = self.nearest(gpu.name, tp, training, experts=experts)
        if found is None or found.experts != experts:
            return "nothing"
        if found.runtime != training.runtime.name:
            return "other framework"
        if found.precision != training.precision:
            return "other precision"
        if found.gpu != gpu.name:
            return "other GPU"
        if not found.measured:
            return "published"
        return "measured" if found.tp == tp else "measured, other degree"

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
        if found.runtime != training.runtime.name:
            other += f" by {found.runtime}"
        return f"published{other}: {found.source} ({counted(found.rows, 'step')})"

    def nearest(self, gpu: str, tp: int, training: Training, *, experts: bool) -> Factor | None:
        """Return the factor that counts for a GPU, one of its generation.

        First that of models with experts, or without; of the same precision (16 bits, 8 or 4); the
        same software; of the GPU itself; one that the user measured; one of the same precision to
        the letter; and of the nearest degree.
        """
        return _nearest(self, gpu, tp, training.precision, training.runtime.name, experts)


@lru_cache(maxsize=4096)
def _nearest(
    factors: Factors, gpu: str, tp: int, precision: str, runtime: str, experts: bool
) -> Factor | None:
    own = [item for item in factors.table if generation(item.gpu) == generation(gpu)]
    bits = _bits(precision)

    def distance(item: Factor) -> tuple[int, ...]:
        degrees = abs(item.tp.bit_length() - tp.bit_length())
        return (
            item.experts != experts, _bits(item.precision) != bits, item.runtime != runtime,
            item.gpu != gpu, not item.measured, item.precision != precision, degrees, item.tp,
        )  # fmt: skip

    return min(own, key=distance, default=None)


MATCHES = (
    "measured", "measured, other degree", "published", "other GPU", "other precision",
    "other framework", "nothing",
)  # fmt: skip
"""Levels of agreement between an efficiency and a plan, from most to least."""

MEASURED = {"measured": 0.06, "measured, other degree": 0.1}
"""Shares of the predicted time by which steps are off that are predicted from a measured one of the
same software and GPU: published steps from others of their source (``docs/planner-truth.md``)."""


def shape_of(case: HasShape) -> str:
    """Return the kind of plans whose errors count for a case."""
    if case.model.experts:
        return "experts"
    return "pipelined" if case.degrees.pp > 1 else "one stage"


def match_of(case: HasShape) -> str:
    """Return what the efficiency of a case has in common with it."""
    experts = bool(case.model.experts)
    return case.factors.match(case.gpu, case.degrees.tp, case.training, experts=experts)


WIDER = 1.1
"""Least ratio of the shares by which steps of two matches that follow each other are off."""


@cache
def range_of(runtime: str, chip: str, match: str, shape: str) -> StepRange:
    """Return the range of a runtime's plans of a shape, by the match of their efficiency.

    That of the runtime on a generation of chips where enough of its steps are published, else of
    the runtime, else of all. A match that has less in common has a wider range.
    """
    table = _errors()

    def known(match: str, other: StepRange) -> StepRange:
        keys = ((runtime, chip), (runtime, ""), ("", ""))
        found = (table.get((*key, match, shape)) for key in keys)
        return next((own for own in found if own is not None), other)

    found = known("published", StepRange(1.0, 1.0))
    if match in MEASURED:
        error = MEASURED[match]
        return min(StepRange(1 - error, 1 + error), found, key=lambda own: own.width)
    for further in MATCHES[3 : MATCHES.index(match) + 1]:
        wider = StepRange(found.low**WIDER, found.high**WIDER)
        own = known(further, wider)
        found = StepRange(min(own.low, wider.low), max(own.high, wider.high))
    return found


@cache
def _errors() -> dict[tuple[str, str, str, str], StepRange]:
    file = resources.files(__package__) / "published_errors.csv"
    rows = csv.DictReader(file.read_text(encoding="utf-8").splitlines())
    keys = ("runtime", "generation", "match", "shape")
    return {
        tuple(row[key] for key in keys): StepRange(float(row["low"]), float(row["high"]))  # type: ignore[misc]
        for row in rows
    }


@cache
def _bits(precision: str) -> str:
    return "".join(filter(str.isdigit, precision))


@cache
def generation(gpu: str) -> str:
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
                row["runtime"], row["source"], int(row["rows"]), experts=row["experts"] == "yes",
            )
            for row in rows
        )
    )  # fmt: skip
