"""What the parameters of a schedule may be, and the nearest that work."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from debubble.core.errors import ParameterError
from debubble.schedules._entry import Entry

LIMITS = {
    "ranks": 4096, "microbatches": 1 << 24, "chunks": 256, "iterations": 1 << 16, "slices": 1 << 10,
}  # fmt: skip

NEAREST_SEARCH = 5000
"""How far from a refused value the nearest valid one is looked for."""


def check_constraints(entry: Entry, case: SimpleNamespace) -> None:
    """Raise when a case breaks a constraint, with the nearest value that meets all."""
    for constraint in entry.constraints:
        if constraint.holds(case):
            continue
        value = getattr(case, constraint.parameter)
        near = nearest(entry, case, constraint.parameter)
        hint = f"; the nearest that works is {near}" if near is not None else ""
        instead = constraint.instead(case)
        hint += f"{',' if hint else ';'} or use {instead}" if instead else ""
        raise ParameterError(
            f"'{entry.name}' needs {constraint.text}; {constraint.parameter} is {value}{hint}"
        )


def nearest(entry: Entry, case: SimpleNamespace, parameter: str) -> int | None:
    """The value of one parameter nearest to the given one that meets every constraint."""
    value = getattr(case, parameter)
    if not isinstance(value, int):
        return None
    for distance in range(1, NEAREST_SEARCH):
        for candidate in (value - distance, value + distance):
            if candidate < 1:
                continue
            changed = SimpleNamespace(**vars(case) | {parameter: candidate})
            if all(constraint.holds(changed) for constraint in entry.constraints):
                return candidate
    return None


def check_count(name: str, value: Any) -> None:
    """Refuse a parameter that is no whole number from 1 to its limit."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ParameterError(f"{name} is {value!r}; give a whole number")
    if not 1 <= value <= LIMITS[name]:
        raise ParameterError(f"{name} is {value}; it goes from 1 to {LIMITS[name]:,}")
