"""Diagnoses of made runs, each made once."""

from __future__ import annotations

from functools import cache

from debubble.diagnosis.diagnose import Diagnosis, diagnose
from tests.diagnosis.made import Made, one_f_one_b
from tests.diagnosis.planted import PLANTED


@cache
def plain(**changes: object) -> Diagnosis:
    """1F1B on four ranks with eight microbatches, and what is to be different."""
    return diagnose(Made(one_f_one_b(4, 8), **changes).observed())  # type: ignore[arg-type]


@cache
def of_planted(name: str, seed: int) -> Diagnosis:
    """A run with a planted fault."""
    return diagnose(PLANTED[name](seed).made.observed())
