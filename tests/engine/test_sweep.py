"""The sweep in Python and compiled: the same graphs, and the same refusals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numba
import numpy as np
import pytest

import debubble as db
from debubble.core.errors import ScheduleError
from debubble.core.schedule import Schedule
from debubble.engine import jit
from debubble.engine.compile import compile_programs
from debubble.engine.event_graph import ARRAYS
from debubble.engine.kernels.sweep import sweep
from debubble.engine.modes import P2P_MODES, P2PMode
from debubble.lowering.sharding import add_sharding
from debubble.lowering.transfers import add_transfers

CASES: dict[str, Callable[[], Schedule]] = {
    "work": lambda: db.make("zb-v", ranks=4, microbatches=8),
    "steps": lambda: db.make("1f1b", ranks=4, microbatches=8, iterations=2),
    "norms": lambda: db.make(
        "zb-h1", ranks=4, microbatches=8, iterations=2, sync="post-validation"
    ),
    "groups": lambda: db.make("dualpipe", ranks=4, microbatches=8),
    "slices": lambda: db.make("seq1f1b", ranks=4, microbatches=8, slices=2),
    "transfers": lambda: add_transfers(db.make("1f1b", ranks=4, microbatches=8)),
    "copies": lambda: db.make(
        "1f1b", ranks=4, microbatches=8, offload="full", costs=db.Costs(host_bandwidth=1)
    ),
    "collectives": lambda: add_sharding(db.make("1f1b", ranks=4, microbatches=8), mode="fsdp"),
    "shards": lambda: db.make("vocab-1", ranks=4, microbatches=8),
}
SLOW = ("transfers", "copies", "collectives", "shards")
"""Those for which compiling takes long."""
LARGE = 500
"""Bytes of bytecode from which on compiling a helper twice matters: a quarter of a second."""
each = pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in CASES],
)


def _compiled(
    schedule: Schedule, mode: P2PMode, monkeypatch: pytest.MonkeyPatch
) -> tuple[object, ...]:
    with monkeypatch.context() as patch:
        patch.setattr(sweep, "run", lambda _work, *args, **_types: sweep.compiled(*args))
        return ARRAYS(compile_programs(schedule, mode))


def _interpreted(
    schedule: Schedule, mode: P2PMode, monkeypatch: pytest.MonkeyPatch
) -> tuple[object, ...]:
    with monkeypatch.context() as patch:
        patch.setattr(sweep, "run", lambda _work, *args, **_types: sweep.interpret(*args))
        return ARRAYS(compile_programs(replace(schedule), mode))


@pytest.mark.parametrize("mode", P2P_MODES)
@each
def test_graphs_are_the_same(name: str, mode: P2PMode, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = CASES[name]()
    compiled = _compiled(schedule, mode, monkeypatch)
    for one, other in zip(compiled, _interpreted(schedule, mode, monkeypatch), strict=True):
        assert np.array_equal(one, other)


def _refusal(make: Callable[[], object]) -> str:
    try:
        make()
    except ScheduleError as error:
        return str(error)
    return ""


@each
def test_refusals_are_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = CASES[name]()
    refused = 0
    for position in range(1, int(schedule.offsets[1]), 5):
        actions = schedule.actions.copy()
        actions[[0, position]] = actions[[position, 0]]
        swapped = replace(schedule, actions=actions)
        found = _refusal(lambda swapped=swapped: _compiled(swapped, "overlapped", monkeypatch))
        again = _refusal(lambda swapped=swapped: _interpreted(swapped, "overlapped", monkeypatch))
        assert again == found
        refused += bool(found)
    assert refused


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dualpipe", "dualpipe-v", "1f1b", "vocab-1"])
def test_more_costs_than_16_bits_can_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With little room for costs the schedule is compiled once more, with wider indices."""
    schedule = db.make(name, ranks=4, microbatches=16)
    costs = db.Costs(O=2.5, p2p=0.125, head={"F": 1})
    plain = db.simulate(schedule, costs)
    monkeypatch.setattr("debubble.engine.compile._FEW_COSTS", len(plain.costs) - 2)
    again = db.simulate(replace(schedule), costs)
    assert (plain.graph.cost.dtype, again.graph.cost.dtype) == (np.uint16, np.uint32)
    assert np.array_equal(plain.node_end, again.node_end)
    assert np.array_equal(plain.graph.cost, again.graph.cost)


@pytest.mark.slow
def test_large_helpers_are_compiled_for_one_type_of_each_argument(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Numba compiles a helper once more for a shorter integer, and for a constant."""
    schedule = db.make("dualpipe", ranks=2, microbatches=4, iterations=2)
    calls: list[tuple[object, ...]] = []
    monkeypatch.setattr(
        sweep, "run",
        lambda _work, *args, **_types: (calls.append(args), sweep.interpret(*args)),
    )  # fmt: skip
    compile_programs(schedule, "overlapped")
    helpers: dict[Any, Any] = {}
    function = numba.njit(_nrt=False)(jit._linked(sweep.py_func, helpers, _nrt=False))
    function.compile(tuple(map(function.typeof_pyval, calls[0])))
    times = {used.__name__: len(found.signatures) for used, found in helpers.items()}
    large = {used.__name__ for used in helpers if len(used.__code__.co_code) > LARGE}
    assert {name for name in large if times[name]} >= {"begin_work", "end_work", "take_turn"}
    assert [name for name in large if times[name] > 1] == []
