"""Closed forms beside what the simulator finds."""

from __future__ import annotations

import numpy as np

from debubble import Costs, Schedule, simulate
from debubble.analysis.measures import MEASURES
from debubble.schedules.forms import closed_forms

VALUE = {measure.key: measure.value for measure in MEASURES}


def hold(schedule: Schedule, costs: Costs, case: str) -> int:
    """Assert that exact forms are exact and bounds are bounds; how many there were to check."""
    forms = closed_forms(schedule, costs)
    if not forms:
        return 0
    timeline = simulate(schedule, costs)
    for item in forms:
        measured = np.asarray(VALUE[item.form.quantity](timeline))
        formula = np.asarray(item.value)
        if formula.ndim == 0:
            measured = measured.max()
        note = f"{case}: {item.form.text}"
        if item.form.accuracy == "exact":
            assert np.allclose(measured, formula, rtol=1e-9), note
        elif item.form.accuracy == "upper bound":
            assert np.all(measured <= formula + 1e-9), note
        elif item.form.accuracy == "lower bound":
            assert np.all(measured >= formula - 1e-9), note
    return len(forms)
