"""What must hold for every schedule and all costs."""

from __future__ import annotations

from dataclasses import fields
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from debubble import Costs, Schedule, make, simulate
from debubble.engine.graph import compile_graph
from debubble.engine.timeline import Timeline, evaluate_graph
from debubble.schedules.registry import Entry
from tests import oracle
from tests.kernels import run_by
from tests.pairs import each_family, each_sort
from tests.strategies import ENTRIES, carrying, costs_for, made


def by_position(schedule: Schedule, times: dict[tuple[int, int], float]) -> list[float]:
    return [
        times[rank, index]
        for rank in range(schedule.ranks)
        for index in range(len(schedule.program(rank)))
    ]


def equals_the_oracle(schedule: Schedule, costs: Costs) -> None:
    expected = oracle.simulate(schedule, costs)
    timeline = simulate(schedule, costs)
    assert timeline.makespan == expected.makespan
    assert timeline.end.tolist() == by_position(schedule, expected.end)
    assert timeline.start.tolist() == by_position(schedule, expected.start)


@each_family
@settings(max_examples=4)
@given(data=st.data())
def test_engine_equals_the_oracle(entry: Entry, data: st.DataObject) -> None:
    schedule = data.draw(carrying(data.draw(made(entry))))
    equals_the_oracle(schedule, data.draw(costs_for(schedule)))


@pytest.mark.slow
@settings(max_examples=16)
@given(data=st.data(), entry=st.sampled_from(ENTRIES))
def test_engine_equals_the_oracle_on_many_ranks(entry: Entry, data: st.DataObject) -> None:
    schedule = data.draw(made(entry, ranks=16, microbatches=64))
    equals_the_oracle(schedule, data.draw(costs_for(schedule)))


@each_family
@settings(max_examples=4)
@given(data=st.data())
def test_every_case_is_complete_and_leaves_no_memory(entry: Entry, data: st.DataObject) -> None:
    schedule = data.draw(made(entry))
    costs = data.draw(costs_for(schedule))
    timeline = simulate(schedule, costs)
    assert timeline.graph.completed == schedule.units * schedule.stages
    assert np.allclose(timeline.memory.left, 0, atol=1e-9)


@each_sort
@settings(max_examples=4)
@given(data=st.data())
def test_makespan_is_above_every_bound(entry: Entry, data: st.DataObject) -> None:
    schedule = data.draw(made(entry))
    costs = data.draw(costs_for(schedule))
    timeline = simulate(schedule, costs)
    assert timeline.makespan >= timeline.ideal - 1e-9
    assert timeline.makespan >= timeline.stage_time.max() - 1e-9
    assert (timeline.stage_time >= timeline.busy - 1e-9).all()
    table = timeline.table
    row = schedule.placement.table[0]
    hops = sum(table.transfer(a, b) + table.transfer(b, a) for a, b in pairwise(row))
    one_way = table.duration[0, : schedule.stages].sum()
    back = np.minimum(table.duration[1], table.duration[3])[: schedule.stages].sum()
    if costs.O is None:
        assert timeline.makespan >= one_way + back + hops - 1e-9


@pytest.mark.slow
@each_sort
@settings(max_examples=4)
@given(data=st.data(), factor=st.sampled_from([0.25, 2.0, 1024.0]))
def test_scaling_all_times_scales_the_makespan(
    entry: Entry, data: st.DataObject, factor: float
) -> None:
    schedule = data.draw(made(entry))
    costs = data.draw(costs_for(schedule))
    graph = compile_graph(schedule)
    makespan = evaluate_graph(graph, costs).makespan
    assert evaluate_graph(graph, costs.scaled(factor)).makespan == makespan * factor


@pytest.mark.slow
@each_sort
@settings(max_examples=4)
@given(data=st.data())
def test_raising_a_cost_never_lowers_the_makespan(entry: Entry, data: st.DataObject) -> None:
    schedule = data.draw(made(entry))
    costs = data.draw(costs_for(schedule))
    graph = compile_graph(schedule)
    timeline = evaluate_graph(graph, costs)
    raised = timeline.costs.copy()
    raised[data.draw(st.integers(1, len(raised) - 1))] += data.draw(st.sampled_from([0.25, 7.0]))
    assert graph.evaluate(raised).max() >= timeline.makespan


@each_sort
@settings(max_examples=4)
@given(data=st.data())
def test_critical_path_is_contiguous_and_pays_the_makespan(
    entry: Entry, data: st.DataObject
) -> None:
    schedule = data.draw(made(entry))
    timeline = simulate(schedule, data.draw(costs_for(schedule)))
    steps = timeline.critical_path()
    assert steps[0].start == 0
    assert steps[-1].end == timeline.makespan
    for before, after in pairwise(steps):
        assert after.start >= before.end
        if after.waited_for == "rank":
            assert after.start == before.end
    names = timeline.graph.cost_names()
    paid = timeline.sensitivity()
    assert len(set(names)) == len(names)
    value = dict(zip(names, timeline.costs, strict=True))
    assert sum(value[name] * count for name, count in paid.items()) == pytest.approx(
        timeline.makespan
    )


@pytest.mark.slow
@each_sort
@settings(max_examples=4)
@given(data=st.data())
def test_slack_is_zero_on_the_critical_path_and_never_negative(
    entry: Entry, data: st.DataObject
) -> None:
    schedule = data.draw(made(entry))
    timeline = simulate(schedule, data.draw(costs_for(schedule)))
    assert timeline.slack.min() == 0
    last = int(np.argmax(timeline.end))
    assert timeline.slack[last] == 0


@pytest.mark.slow
@each_sort
@settings(max_examples=4)
@given(data=st.data())
def test_memory_curve_agrees_with_the_peak(entry: Entry, data: st.DataObject) -> None:
    schedule = data.draw(made(entry, ranks=6, microbatches=16))
    timeline = simulate(schedule, data.draw(costs_for(schedule)))
    for rank in range(schedule.ranks):
        times, held = timeline.memory_curve(rank)
        assert (np.diff(times) >= 0).all()
        assert held[-1] == pytest.approx(0, abs=1e-9)
        if (timeline.duration > 0).all():
            assert held.max() == pytest.approx(timeline.peak_activation[rank])


def test_rounded_sums_do_not_hold_memory_twice() -> None:
    costs = Costs.per_rank(F=10, I=11, W=7, O=25, p2p=0.37)
    timeline = simulate(make("dualpipe-v", ranks=8, microbatches=200), costs)
    peaks = [timeline.memory_curve(rank)[1].max() for rank in range(8)]
    assert peaks == pytest.approx(timeline.peak_activation.tolist())


def compiled_and_interpreted(schedule: Schedule, costs: Costs) -> list[Timeline]:
    results = []
    for compiled in (True, False):
        with run_by(compiled=compiled):
            timeline = simulate(schedule, costs)
            _ = timeline.peak_activation, timeline.slack, timeline.makespan
            results.append(timeline)
    return results


@pytest.mark.slow
@each_sort
@settings(max_examples=4, deadline=None)
@given(data=st.data())
def test_compiled_kernels_equal_their_python_source(entry: Entry, data: st.DataObject) -> None:
    schedule = data.draw(made(entry, ranks=6, microbatches=16))
    one, two = compiled_and_interpreted(schedule, data.draw(costs_for(schedule)))
    for name in ("first", "second", "lag", "cost", "node"):
        assert np.array_equal(getattr(one.graph, name), getattr(two.graph, name)), name
    assert np.array_equal(one.node_end, two.node_end)
    assert np.array_equal(one.slack, two.slack)
    for spec in fields(one.memory):
        assert np.array_equal(getattr(one.memory, spec.name), getattr(two.memory, spec.name))


@settings(max_examples=6)
@given(data=st.data())
def test_many_cost_vectors_at_once_equal_one_by_one(data: st.DataObject) -> None:
    entry = data.draw(st.sampled_from(ENTRIES))
    schedule = data.draw(made(entry, ranks=6, microbatches=16))
    graph = compile_graph(schedule)
    costs = data.draw(costs_for(schedule))
    base = graph.cost_vector(costs.resolve(schedule.placement, schedule.slicing))
    factors = np.random.default_rng(0).integers(1, 9, size=(11, len(base)))
    matrix = base * factors
    assert graph.makespans(matrix).tolist() == [graph.evaluate(row).max() for row in matrix]
