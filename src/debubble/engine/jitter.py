"""Variation from step to step and from copy to copy: jitter, and parts that are always slow."""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from debubble.core.errors import ParameterError, did_you_mean
from debubble.core.options import AnyText, OptionSpec, OptionType, Whole
from debubble.core.units import whole_number
from debubble.engine.kernels.ensembles import INDEX_BITS

Floats = NDArray[np.float64]

MAX_SAMPLES, MAX_REPLICAS, MAX_FACTOR = 1_000_000, 1_000_000, 1e6
LONGEST_TIMES = 10_000_000
"""Most measured times of a jitter."""

ENTRIES = 1 << INDEX_BITS
"""Quantiles of a distribution that samples draw from."""

Times: TypeAlias = str | Sequence[float] | NDArray[Any]
"""A distribution with its standard deviation, ``"normal:3%"``, or measured relative times."""

_PROBABILITIES = (np.arange(ENTRIES) + 0.5) / ENTRIES


@cache
def _standard_normal() -> Floats:
    from statistics import NormalDist

    inverse = NormalDist().inv_cdf
    return np.array([inverse(probability) for probability in _PROBABILITIES.tolist()])


def _normal(deviation: float) -> Floats:
    return 1 + deviation * _standard_normal()


def _lognormal(deviation: float) -> Floats:
    width = math.sqrt(math.log1p(deviation**2))
    return np.asarray(np.exp(width * _standard_normal() - width**2 / 2))


def _gamma(deviation: float) -> Floats:
    """Quantiles of the logarithm, whose density is integrated on a grid."""
    shape = 1 / deviation**2
    reach = 12 * deviation + 20 * deviation**2
    grid = np.linspace(-reach, math.log1p(reach), 1 << 18)
    density = np.exp(shape * (grid - np.expm1(grid)))
    total = np.cumsum((density[1:] + density[:-1]) / 2)
    return np.asarray(np.exp(np.interp(_PROBABILITIES * total[-1], total, grid[1:])))


@dataclass(frozen=True)
class Distribution:
    """A distribution of times around their mean."""

    quantiles: Callable[[float], Floats]
    """From the standard deviation, quantiles of a distribution with mean 1."""
    most: float
    """Largest standard deviation."""
    advice: str
    """Advice in place of a larger number."""


DISTRIBUTIONS = {
    "normal": Distribution(_normal, 0.25, "beyond that times are negative; use lognormal or gamma"),
    "lognormal": Distribution(_lognormal, 1.0, "give measured times"),
    "gamma": Distribution(_gamma, 1.0, "give measured times"),
}
"""Distributions by name."""

_TIMES = re.compile(r"\s*([A-Za-z_]+)\s*(?::\s*([0-9.eE+-]+)\s*(%?)\s*)?")
_WHERE = re.compile(r"(copy\.)?(?:(rank|stage)([0-9]{1,9})|(link)([0-9]{1,9})-([0-9]{1,9}))|(copy)")


@dataclass(frozen=True)
class Slow:
    """Something that takes `factor` times as long in every step."""

    what: str
    """``"rank"``, ``"stage"``, ``"link"``, or ``"copy"`` for all that a copy computes."""
    numbers: tuple[int, ...]
    """Number of the rank or stage, or both ranks of the link."""
    factor: float
    """Its time in normal times."""
    one_copy: bool
    """Whether it is slow in one data-parallel copy only."""


@dataclass(frozen=True)
class Jitter:
    """Variation of compute times, and data-parallel copies that wait for the slowest.

    Parameters
    ----------
    times
        How the time of what a rank computes for a microbatch varies: a distribution with its
        standard deviation, as a share of the mean, ``"normal:3%"``, ``"lognormal:5%"``,
        ``"gamma:10%"``, or measured times of the same thing, which are divided by their mean. None
        for no variation.
    samples
        Steps that are simulated.
    seed
        Of the random numbers. The same seed means the same numbers for the same rank, forward or
        backward, and microbatch in all schedules.
    replicas
        Data-parallel copies of the pipeline: a step waits for the slowest.
    slow
        What is slow in every step, and how many times as long it takes: ``{"rank2": 1.2}``,
        ``"stage3"``, ``"link0-1"`` both ways; ``"copy"`` is all that one of the copies computes,
        and ``"copy.rank2"`` and the like are slow in one copy only.

    Raises
    ------
    ParameterError
        When a value is none of these.
    """

    times: Times | None = None
    samples: int = 1000
    seed: int = 0
    replicas: int = 1
    slow: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, least, most in (
            ("samples", 1, MAX_SAMPLES), ("replicas", 1, MAX_REPLICAS), ("seed", 0, (1 << 64) - 1),
        ):  # fmt: skip
            value = getattr(self, name)
            whole_number(name, value, least, most)
        if not isinstance(self.slow, Mapping):
            raise ParameterError(
                f"slow is {reprlib.repr(self.slow)}; give a mapping such as {{'rank2': 1.2}}"
            )
        # Both refuse what they cannot read.
        assert len(self.slowed) == len(self.slow)
        assert len(self.quantiles) == ENTRIES

    @cached_property
    def slowed(self) -> tuple[Slow, ...]:
        """Parts that are slow in every step, parsed."""
        return tuple(_slow(where, factor) for where, factor in self.slow.items())

    @cached_property
    def quantiles(self) -> Floats:
        """Factors of equal probability, in rising order, whose mean is 1; shape ``(ENTRIES,)``."""
        if self.times is None:
            return np.ones(ENTRIES)
        if isinstance(self.times, str):
            return _of_text(self.times)
        return _of_measured(self.times)

    @property
    def words(self) -> str:
        """Return the variation as text."""
        texts = []
        if isinstance(self.times, str):
            texts.append(self.times)
        elif self.times is not None:
            texts.append(f"{len(self.times):,} measured times")
        texts += [f"{where} × {factor:g}" for where, factor in self.slow.items()]
        if self.replicas > 1:
            texts.append(f"{self.replicas:,} copies, a step waits for the slowest")
        return ", ".join(texts) or "nothing varies"


def _of_text(text: str) -> Floats:
    match = _TIMES.fullmatch(text)
    known = DISTRIBUTIONS.get(match[1]) if match else None
    if match is None or known is None:
        name = match[1] if match else text.partition(":")[0]
        hint = did_you_mean(name, DISTRIBUTIONS)
        raise ParameterError(
            f"jitter is {reprlib.repr(text)}; give a distribution such as normal:3%, or a file of "
            f"measured times; {hint}"
        )
    try:
        deviation = float(match[2]) / (100 if match[3] else 1)
    except (TypeError, ValueError):
        raise ParameterError(
            f"jitter is {reprlib.repr(text)}; give the standard deviation, too: {match[1]}:3%"
        ) from None
    if not 0 <= deviation <= known.most:
        raise ParameterError(
            f"jitter is {reprlib.repr(text)}; {match[1]} goes from 0 to {100 * known.most:g} %: "
            f"{known.advice}"
        )
    if deviation < 1e-9:
        return np.ones(ENTRIES)
    found = known.quantiles(deviation)
    # Mean and standard deviation are exact, which midpoints of quantiles only nearly have.
    found = 1 + (found - found.mean()) * (deviation / found.std())
    found = np.maximum(found, 0.0)
    return np.asarray(found / found.mean())


def _of_measured(times: Sequence[float] | NDArray[Any]) -> Floats:
    try:
        measured = np.asarray(times, dtype=np.float64)
    except (TypeError, ValueError):
        measured = np.zeros((0, 0))
    if measured.ndim != 1 or not 2 <= len(measured) <= LONGEST_TIMES:
        raise ParameterError(
            f"jitter is {reprlib.repr(times)}; give a list of 2 to {LONGEST_TIMES:,} measured times"
        )
    wrong = np.flatnonzero(~((measured >= 0) & np.isfinite(measured)))
    if len(wrong):
        raise ParameterError(
            f"measured time {wrong[0]} of the jitter is {measured[wrong[0]]:g}; times are finite "
            "numbers from 0 up"
        )
    mean = measured.mean()
    if not mean > 0 or not math.isfinite(mean):
        raise ParameterError(f"the measured times of the jitter have the mean {mean:g}; give times")
    found = np.quantile(measured / mean, _PROBABILITIES)
    return np.asarray(found / found.mean())


def _slow(where: Any, factor: Any) -> Slow:
    match = _WHERE.fullmatch(where) if isinstance(where, str) else None
    if match is None:
        raise ParameterError(
            f"slow is {reprlib.repr(where)}; give rank2, stage3, link0-1, copy, or one of the "
            "first three of one copy, such as copy.rank2"
        )
    number = isinstance(factor, int | float | np.number) and not isinstance(factor, bool)
    if not number or not 0 < factor <= MAX_FACTOR:
        raise ParameterError(
            f"slow {where} is {reprlib.repr(factor)}; give how many times as long it takes, up to "
            f"{MAX_FACTOR:,.0f}"
        )
    if match[7]:
        return Slow("copy", (), float(factor), one_copy=True)
    numbers = (match[3],) if match[2] else (match[5], match[6])
    what = match[2] or match[4]
    return Slow(what, tuple(map(int, numbers)), float(factor), one_copy=bool(match[1]))


def _option(
    name: str, values: OptionType, metavar: str, help: str, example: str, **more: Any
) -> OptionSpec:
    return OptionSpec(
        name, values, metavar, help, "Variation", example=example, in_search=False,
        only=("simulate", "compare"), typed_only=True, **more,
    )  # fmt: skip


JITTER_OPTIONS = (
    _option(
        "jitter", AnyText(), "TIMES",
        "Noise: normal:3%, lognormal:5%, gamma:10%, a file.",
        "normal:5%",
    ),
    _option(
        "samples", Whole(MAX_SAMPLES, at_once=True), "N",
        "Simulated steps (1,000, or 10 per replica).", "20", part_of="jitter",
    ),
    _option(
        "seed", Whole(999_999_999, 0, at_once=True), "N",
        "Seed of the random numbers (0).", "7", part_of="jitter", neutral="0",
    ),
    _option(
        "replicas", Whole(MAX_REPLICAS, at_once=True), "N",
        "Data-parallel replicas; the slowest sets the step.", "4", part_of="jitter",
        neutral="1",
    ),
    _option(
        "slow", AnyText(), "WHAT=FACTOR",
        "Slowdowns: rank2=1.2, stage3=1.2, link0-1=3, copy=1.1.", "rank1=1.5", repeated=True,
    ),
)  # fmt: skip
"""Variation of times, as options of a question that together make one :class:`Jitter`."""
