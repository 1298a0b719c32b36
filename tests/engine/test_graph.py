"""Graphs as objects: made once for a schedule, and gone with it."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import debubble as db
from debubble.engine.graph import compile_graph


def test_a_schedule_is_lowered_once_per_mode() -> None:
    schedule = db.make("1f1b", ranks=2, microbatches=2)
    one, two = compile_graph(schedule), compile_graph(schedule)
    assert one.first is two.first
    assert compile_graph(schedule, "channel").first is not one.first


def test_schedule_and_graph_are_freed_at_once() -> None:
    gc.disable()
    try:
        schedule = db.make("1f1b", ranks=2, microbatches=2)
        timeline = db.simulate(schedule)
        assert db.check(schedule).ok
        assert timeline.makespan > 0
        gone = weakref.ref(schedule), weakref.ref(timeline.graph)
        del schedule, timeline
        assert [reference() for reference in gone] == [None, None]
    finally:
        gc.enable()


def test_unknown_modes_get_a_hint() -> None:
    schedule = db.make("1f1b", ranks=2, microbatches=2)
    with pytest.raises(db.ParameterError, match="did you mean 'channel'"):
        compile_graph(schedule, "chanel")  # type: ignore[arg-type]


def test_evaluating_reuses_a_buffer() -> None:
    graph = compile_graph(db.make("1f1b", ranks=2, microbatches=3))
    vector = graph.cost_vector(db.Costs(F=1, B=2).resolve(graph.schedule.placement))
    buffer = np.empty(len(graph) + 1)
    assert graph.evaluate(vector, out=buffer) is buffer
    assert buffer.max() == (3 + 1) * 3
