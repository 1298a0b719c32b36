"""Numbers and words of a plan's answer, the same in the terminal and on pages."""

from __future__ import annotations

import math
from dataclasses import asdict

from debubble.planner.candidate import Candidate

GB = 1e9

CAUSE_NAMES = {
    "compute": "compute", "recompute": "recompute", "tp": "TP communication",
    "cp": "CP communication", "ep": "expert dispatch", "dp": "ZeRO communication",
    "imbalance": "uneven stages", "bubble": "pipeline bubble", "gradients": "gradient reduction",
    "optimizer": "optimizer step", "weights": "weight all-gather",
}  # fmt: skip
"""Causes of :data:`debubble.planner.search.evaluate.CAUSES` in one to three words."""

PARTS = ("weights", "gradients", "optimizer", "activations", "buffers", "logits", "margin")
"""Parts of a rank's memory, in the order of tables and pictures."""

VERDICTS = {"yes": "fits", "maybe": "may not fit", "no": "too large"}
"""Verdicts of a plan on memory, in words."""


def cause_name(cause: str) -> str:
    """Return the name of a cause for display."""
    return CAUSE_NAMES.get(cause, cause.replace("_", " "))


def degrees_text(candidate: Candidate) -> str:
    """Return degrees above one, in words."""
    found = [f"{name} {size}" for name, size in asdict(candidate.degrees).items() if size > 1]
    return ", ".join(found) or "no parallelism"


def three_digits(value: float, digits: int = 3) -> str:
    """Return a number with three significant digits, or as many as given, trailing zeros included.

    Examples
    --------
    >>> three_digits(15), three_digits(0.06237), three_digits(999.9), three_digits(683118)
    ('15.0', '0.0624', '1,000', '683,000')
    """
    if not value:
        return "0"
    rounded = float(f"{value:.{digits - 1}e}")
    decimals = digits - 1 - math.floor(math.log10(abs(rounded)))
    return f"{rounded:,.{max(decimals, 0)}f}"


def _unit(value: float) -> tuple[float, str]:
    """Return the size in seconds and the name of the unit to write a time in."""
    size = abs(float(f"{value:.2e}"))
    if size >= 1 or size == 0:
        return 1.0, "s"
    return (1e-3, "ms") if size >= 1e-3 else (1e-6, "µs")


def seconds(value: float) -> str:
    """Return a time with three digits and its unit.

    Examples
    --------
    >>> seconds(15), seconds(0.0431), seconds(6.2e-5), seconds(1234.5)
    ('15.0 s', '43.1 ms', '62.0 µs', '1,230 s')
    """
    size, unit = _unit(value)
    return f"{three_digits(value / size)} {unit}"


def seconds_range(ends: tuple[float, float]) -> str:
    """Return the range between two times in the unit of the longer one.

    Examples
    --------
    >>> seconds_range((3.57, 5.137)), seconds_range((0.063, 0.7))
    ('3.57 to 5.14 s', '63.0 to 700 ms')
    """
    size, unit = _unit(max(ends))
    return f"{' to '.join(three_digits(end / size) for end in ends)} {unit}"


def gigabytes(value: float) -> str:
    """Return an amount of memory in decimal gigabytes."""
    return f"{value / GB:.1f} GB"
