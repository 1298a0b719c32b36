"""A plan's layers, cut as the plan did, are the plan: stages, times, memory, on every surface."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import debubble as db
from debubble.core.given_layers import make_layers
from debubble.interchange.cost_files import CostFile, parse_costs
from debubble.planner.answer.report import costs_yaml, whole_timeline
from debubble.planner.candidate import Candidate, Degrees, Training
from debubble.planner.hardware.cluster import Cluster
from debubble.planner.hardware.gpus import GPUS
from debubble.planner.model.files import read_model
from debubble.planner.request import PlanRequest
from debubble.planner.search.evaluate import Evaluated, finished, timed


def plan(model: str, degrees: Degrees, schedule: str, cut: tuple[int, ...], **more: Any) -> Any:
    size, count = more.pop("size", 1), more.pop("microbatches", 2 * degrees.pp)
    training = Training(size * count * degrees.dp, 4096, **more.pop("training", {}))
    cluster = Cluster(GPUS["h100"], degrees.gpus)
    request = PlanRequest(read_model(model), cluster, training, limit=1e12)
    candidate = Candidate(degrees, size, count, schedule, cut, **more)
    return finished(timed(request, candidate)[0])


PLANS = {
    "dense": lambda: plan("llama-3.1-8b", Degrees(tp=2, pp=4), "1f1b", (8, 9, 8, 7)),
    "chunks": lambda: plan(
        "llama-3.1-8b", Degrees(pp=4, dp=2, chunks=2), "interleaved-1f1b",
        (3, 5, 4, 4, 4, 4, 4, 4), recompute="selective",
    ),
    "V": lambda: plan("llama-3.2-1b", Degrees(pp=2, chunks=2), "zb-v", (4, 4, 5, 3)),
    "some recomputed": lambda: plan(
        "llama-3.1-8b", Degrees(pp=4), "1f1b", (9, 8, 8, 7), recompute="full:3"
    ),
    "all recomputed": lambda: plan(
        "llama-3.1-8b", Degrees(pp=4), "1f1b", (9, 8, 8, 7), recompute="full", zero=3
    ),
    "dense first, then experts": lambda: plan(
        "deepseek-v3", Degrees(tp=2, ep=32, dp=16, pp=8), "1f1b", (8, 8, 8, 8, 8, 8, 7, 6)
    ),
    "predictions apart": lambda: plan(
        "deepseek-v3", Degrees(tp=2, ep=32, dp=16, pp=8), "1f1b", (9, 9, 9, 9, 9, 8, 8, 0),
        mtp_stage=6,
    ),
    "tied": lambda: plan("llama-3.2-1b", Degrees(pp=4), "zb-h1", (4, 5, 4, 3)),
}  # fmt: skip


def file_of(one: Evaluated) -> CostFile:
    return parse_costs(costs_yaml(one), "plan.yaml")


@pytest.mark.parametrize("name", PLANS)
def test_layers_cut_as_in_the_plan_are_its_stages(name: str) -> None:
    one = PLANS[name]()
    file, case = file_of(one), one.case
    layers = make_layers(file.layers, file.costs)
    cut, costs = layers.for_placement(case.placement)
    assert cut == one.candidate.layers
    found, own = (each.resolve(case.placement) for each in (costs, file.costs))
    np.testing.assert_allclose(found.duration, own.duration, rtol=1e-9)
    for part in ("activation", "kept", "checkpoint", "static", "link"):
        np.testing.assert_allclose(
            getattr(found, part), getattr(own, part), rtol=1e-9, err_msg=part
        )
    timeline = one.simulate()
    assert db.simulate(timeline.schedule, costs).makespan == pytest.approx(timeline.makespan)


@pytest.mark.parametrize("name", ["dense", "predictions apart"])
def test_a_comparison_has_the_plan_and_the_same_model_for_all_others(name: str) -> None:
    one = PLANS[name]()
    file = file_of(one)
    result = db.compare(
        ["1f1b", "interleaved-1f1b", "zb-h1", "zb-v", "dualpipe-v"], ranks=file.ranks,
        microbatches=file.microbatches, costs=file.costs, memory=file.memory_limit,
        layers=file.layers,
    )  # fmt: skip
    rows = {row.name: row for row in result.rows}
    assert len(rows) == 5
    assert not result.skipped
    assert rows["1f1b"].makespan == pytest.approx(one.simulate().makespan)
    whole = whole_timeline(one)
    assert rows["1f1b"].timeline.peak_activation == pytest.approx(whole.peak_activation)
    assert result.unlike == ()
    for row in result.rows:
        assert sum(row.layers) == len(one.case.model.layers)
        assert len(row.layers) == row.schedule.stages
        # Weights are there whatever the cut.
        static = row.timeline.table.static.sum()
        assert static == pytest.approx(rows["zb-v"].timeline.table.static.sum(), rel=0.35)


def test_other_orders_of_the_same_stages_keep_the_plans_cut() -> None:
    one = PLANS["dense"]()
    file = file_of(one)
    sizes = {"ranks": file.ranks, "microbatches": file.microbatches}
    result = db.compare(["gpipe", "zb-h1"], costs=file.costs, layers=file.layers, **sizes)
    assert {row.layers for row in result.rows} == {one.candidate.layers}


def test_what_is_found_for_the_layers_is_no_slower_than_the_plan_and_fits() -> None:
    one = PLANS["tied"]()
    file = file_of(one)
    peak = float(whole_timeline(one).peak_activation.max())
    found = db.optimize(
        ranks=4, microbatches=8, costs=file.costs, layers=file.layers, memory=peak * 1.02,
        effort=0.02, cache=False, published=False, chunks=1,
    )  # fmt: skip
    assert found.makespan <= one.simulate().makespan * (1 + 1e-9)
    assert found.timeline.peak_activation.max() <= peak * 1.02
    again = replace(found.timeline.table.costs)
    assert db.simulate(found.schedule, again).makespan == pytest.approx(found.makespan)
    layers = make_layers(file.layers, file.costs)
    held = layers.held_on_ranks(found.schedule.placement, found.layers)
    assert found.timeline.table.static == pytest.approx(held + layers.costs.static)
