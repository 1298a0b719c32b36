"""Closed forms are shown only where they hold: pairs that are shorter than their halves, limits."""

from __future__ import annotations

import itertools

import pytest

import debubble as db
from debubble.schedules.forms import closed_forms
from tests import forms


@pytest.mark.slow
@pytest.mark.parametrize("name", ["1f1b-overlap", "interleaved-overlap"])
def test_overlapped_forms_are_exact_where_they_are_shown(name: str) -> None:
    shown = {True: 0, False: 0}
    sizes = [(p, m) for p in (1, 2, 3, 5, 8) for m in (2, 4, 10, 16)]
    for (p, m), O in itertools.product(sizes, (0.25, 0.5, 1, 1.5, 2, 2.5, 3, 4)):
        if name == "interleaved-overlap" and m % p and m % p < p:
            continue
        schedule = db.make(name, ranks=p, microbatches=m)
        for F, B in ((1, 2), (2, 1), (1, 1)):
            costs = db.Costs(F=F, B=B, O=O)
            found = [form.form.quantity for form in closed_forms(schedule, costs)]
            shown[max(F, B) <= O] += "makespan" in found
            forms.hold(schedule, costs, f"{name} p={p} m={m} F={F} B={B} O={O}")
    assert shown[True] > 50
    assert shown[False] == 0


@pytest.mark.parametrize("memory", [0.5, 1, 3, 100])
def test_a_published_order_claims_no_memory_limit(memory: float) -> None:
    schedule = db.make("zb-v", ranks=6, microbatches=6, memory=memory, published=True)
    (form,) = [
        form
        for form in closed_forms(schedule, db.Costs())
        if form.form.quantity == "peak_activation"
    ]
    assert form.form.text == "p on every rank"
    assert form.value == 6
    forms.hold(schedule, db.Costs(), f"memory {memory}")
