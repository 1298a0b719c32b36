"""Conditions for continuous integration: a measure of a run above a limit, or above a baseline."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from debubble.core.errors import FormatError, ParameterError
from debubble.core.units import number
from debubble.interchange.text import read_text

MAX_BASELINE = 1 << 26
"""Bytes of a baseline."""

_CONDITION = re.compile(r"([a-z-]+)\s*>\s*(\+?)\s*(\d{1,15}(?:\.\d{0,15})?)\s*(%|ms)?", re.ASCII)

FORM = (
    "write bubble>30%, bubble>+3% (points more than a --baseline, or than the plan), step>2000ms, "
    "step>+5%, slowdown>10% or gain>5%"
)


class DiagnosisMeasure(NamedTuple):
    """Measure of a diagnosis that a condition can compare."""

    unit: str
    """Unit of its values."""
    read: Callable[[Mapping[str, Any]], float]
    """Function from the data of a diagnosis to its value."""


MEASURES = {
    "bubble": DiagnosisMeasure("%", lambda data: 100 * float(data["bubble_ratio"])),
    "step": DiagnosisMeasure("ms", lambda data: 1e3 * float(data["step"])),
    "slowdown": DiagnosisMeasure("%", lambda data: 100 * (float(data["slowdown"]["total"]) - 1)),
    "gain": DiagnosisMeasure(
        "%",
        lambda data: (
            100 * max((float(one["gain"] or 0.0) for one in data["findings"]), default=0.0)
        ),
    ),
}
"""Measures by name. Percentages are shares of a step, so + adds percentage points."""


@dataclass(frozen=True)
class Condition:
    """Condition that holds if a measure is above a limit."""

    text: str
    """The condition as written."""
    measure: str
    """A key of :data:`MEASURES`."""
    limit: float
    """Limit in the measure's unit, or in percent of the base if `relative`."""
    more: bool
    """True if the limit is added to a base."""
    relative: bool
    """True if the limit is a share of the base."""

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Parse a condition.

        Raises
        ------
        ParameterError
            When the text is not a condition.
        """
        match = _CONDITION.fullmatch(text.strip())
        if match is None or match[1] not in MEASURES:
            raise ParameterError(f"--fail-if '{text}' is no condition; {FORM}")
        unit, more = MEASURES[match[1]].unit, bool(match[2])
        relative = more and unit == "ms" and match[4] == "%"
        if match[4] not in (None, unit) and not relative:
            raise ParameterError(f"--fail-if '{text}': {match[1]} is in {unit}")
        return cls(text.strip(), match[1], float(match[3]), more, relative)

    def failed(self, data: Mapping[str, Any], baseline: Baseline | None) -> str:
        """Return a message if the condition holds for a diagnosis' data, else an empty string."""
        measure = MEASURES[self.measure]
        value, limit, base = measure.read(data), self.limit, ""
        if self.more:
            other = baseline or Baseline.planned(data)
            of = measure.read(other.data)
            limit = of * (1 + self.limit / 100) if self.relative else of + self.limit
            base = f"; {other.name} has {_with_unit(of, measure.unit)}"
        if value <= limit:
            return ""
        return f"{self.text}: {self.measure} is {_with_unit(value, measure.unit)}{base}"


def _with_unit(value: float, unit: str) -> str:
    return f"{number(value, 4)} {unit}"


@dataclass(frozen=True)
class Baseline:
    """Data of a diagnosis, as of ``debubble trace --json``, to compare another with."""

    name: str
    data: Mapping[str, Any]

    @classmethod
    def planned(cls, data: Mapping[str, Any]) -> Baseline:
        """Return the run's schedule with its median times, which has no slowdown."""
        return cls("the plan", {**data["plan"], "slowdown": {"total": 1.0}, "findings": []})

    @classmethod
    def read(cls, path: str) -> Baseline:
        """Read the baseline in a file.

        Raises
        ------
        FormatError
            When the file is not the output of a diagnosis.
        """
        text = read_text(path, MAX_BASELINE)
        try:
            data = json.loads(text)
            sound = all(math.isfinite(measure.read(data)) for measure in MEASURES.values())
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            sound = False
        if not sound:
            raise FormatError(
                f"{path}: not what 'debubble trace --json' prints of a run with points in time; "
                f"make one with 'debubble trace RUN --json > baseline.json'"
            )
        return cls(f"baseline {path}", data)
