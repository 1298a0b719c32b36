"""Makespan and bubble time of DualPipe and DualPipe-V against the simulation, on grids of costs."""

from __future__ import annotations

import itertools

import pytest

import debubble as db
from debubble.analysis.summary import summary
from debubble.engine.graph import compile_graph
from debubble.engine.timeline import evaluate_graph
from tests.forms import hold


@pytest.mark.parametrize(("name", "ranks"), [("dualpipe", 4), ("dualpipe", 8), ("dualpipe-v", 3)])
@pytest.mark.parametrize("more", [0, 6])
def test_formulas_are_exact_where_they_say_so_and_bounds_elsewhere(name, ranks, more):
    graph = compile_graph(db.make(name, ranks=ranks, microbatches=2 * ranks + more), "overlapped")
    for F, I, W, share in itertools.product((1, 2, 3), (1, 2, 3), (0.5, 1, 2), (0.8, 1)):
        timeline = evaluate_graph(graph, db.Costs(F=F, I=I, W=W, O=share * (F + I + W)))
        forms = summary(timeline)["closed_forms"]
        assert {form["quantity"] for form in forms} >= {"makespan", "bubble_time"}
        for form in forms:
            if form["accuracy"] == "exact":
                assert form["difference"] == 0, (form, F, I, W)
            elif form["quantity"] != "peak_activation":
                assert form["accuracy"] == "lower bound"
                assert form["difference"] >= 0, (form, F, I, W)


@pytest.mark.parametrize("name", ["dualpipe", "dualpipe-v"])
@pytest.mark.parametrize("whole", [0.8, 1.0, 1.2])
@pytest.mark.parametrize("overhead", [0.0, 0.25])
def test_formulas_hold_where_a_full_backward_is_not_the_sum_of_its_parts(name, whole, overhead):
    schedule = db.make(name, ranks=4, microbatches=12)
    for F, I, W in itertools.product((1, 1.5, 2), (1, 1.5), (0.5, 1)):
        costs = db.Costs(F=F, I=I, W=W, B=whole * (I + W), launch=overhead)
        assert hold(schedule, costs, name) > 0


def test_published_bubbles():
    timeline = db.simulate(db.make("dualpipe", ranks=8, microbatches=20), db.Costs(O=3))
    (form,) = [f for f in summary(timeline)["closed_forms"] if f["quantity"] == "bubble_time"]
    assert form["formula"] == "(p/2 − 1)(O + B − 3W)"
    assert (form["value"], form["simulated"], form["accuracy"]) == (6, 6, "exact")
    timeline = db.simulate(db.make("dualpipe-v", ranks=4, microbatches=16), db.Costs(O=2.75))
    forms = {form["quantity"]: form for form in summary(timeline)["closed_forms"]}
    assert [forms[key]["value"] for key in ("makespan", "bubble_time")] == [95.5, 5.25]
    assert [item["value"] for item in forms["makespan"]["terms"]] == [12, 71.5, 7, 1, 4]


@pytest.mark.parametrize("p", [1, 2, 3, 4, 8])
def test_full_backwards_in_the_end_take_two_more_w_a_rank(p):
    for m, (F, I, W, O) in itertools.product(
        (2 * p, 2 * p + 3), [(1, 1, 1, 2.5), (10, 11, 7, 25), (11, 10, 9, 25)]
    ):
        costs = db.Costs(F=F, I=I, W=W, O=O)
        split, full = (
            db.make("dualpipe-v", ranks=p, microbatches=m, split_drain=drain)
            for drain in (True, False)
        )
        assert db.check(full).ok
        one, two = db.simulate(split, costs), db.simulate(full, costs)
        assert two.makespan - one.makespan == 2 * (p - 1) * W
        assert two.peak_activation.tolist() == one.peak_activation.tolist()
        assert hold(full, costs, f"p={p} m={m}") == hold(split, costs, f"p={p} m={m}")


def test_full_backwards_in_the_end_save_memory_where_activations_come_back():
    # MindSpeed's reason: p backwards in a row on the last rank, none of which frees anything.
    peaks = []
    for drain in (True, False):
        schedule = db.make(
            "dualpipe-v", ranks=4, microbatches=10, split_drain=drain,
            recompute="full", recompute_at="with-backward",
        )  # fmt: skip
        peaks.append(db.simulate(schedule, db.Costs(recompute_kept=0)).peak_activation.tolist())
    assert peaks == [[0.5, 1, 1.5, 2], [0.5] * 4]
