"""Sequence slices in the engine: their order, times, memory and transfers, on random orders."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from debubble import Costs, Kind, Placement, Schedule, check, make, simulate
from debubble.core.actions import Action, pack
from debubble.core.errors import ScheduleError
from debubble.engine.graph import P2P_MODES
from debubble.lowering.transfers import add_transfers
from tests import oracle
from tests.strategies import costs_for, cuts

PLACEMENTS = [
    Placement.linear(1), Placement.linear(3), Placement.v(2), Placement.loop(2, 2),
    Placement.bidirectional(2),
]  # fmt: skip


def random_order(
    placement: Placement, microbatches: int, slices: int, split: bool, rng: np.random.Generator
) -> Schedule:
    """Whatever can run next on a random rank, until all is done."""
    units = microbatches * slices
    backward = Kind.I if split else Kind.B
    work = [
        Action(stage, kind, unit)
        for stage in range(placement.stages)
        for kind in ((Kind.F, Kind.I, Kind.W) if split else (Kind.F, Kind.B))
        for unit in range(units)
    ]

    def needs(action: Action) -> list[Action]:
        stage, kind, unit = action
        if kind == Kind.W:
            return [Action(stage, Kind.I, unit)]
        if kind == Kind.F:
            before = [Action(stage - 1, Kind.F, unit)] if stage else []
            return before + ([Action(stage, Kind.F, unit - 1)] if unit % slices else [])
        before = [Action(stage, Kind.F, unit)]
        if stage < placement.stages - 1:
            before.append(Action(stage + 1, backward, unit))
        if (unit + 1) % slices:
            before.append(Action(stage, backward, unit + 1))
        return before

    def home(action: Action) -> int:
        copy = action.microbatch // slices * placement.copies // microbatches
        return placement.table[copy][action.stage]

    done: set[Action] = set()
    programs: list[list[int]] = [[] for _ in range(placement.ranks)]
    while len(done) < len(work):
        ready = [a for a in work if a not in done and all(need in done for need in needs(a))]
        action = ready[rng.integers(len(ready))]
        done.add(action)
        programs[home(action)].append(int(pack(action.kind, action.stage, action.microbatch)[0]))
    arrays = [np.array(program, dtype=np.int64) for program in programs]
    return Schedule.from_programs("random", placement, microbatches, arrays, slices=slices)


@st.composite
def orders(draw: st.DrawFn) -> Schedule:
    slices = draw(st.sampled_from([1, 2, 4]))
    schedule = random_order(
        draw(st.sampled_from(PLACEMENTS)), draw(st.integers(1, 3)), slices, draw(st.booleans()),
        np.random.default_rng(draw(st.integers(0, 99))),
    )  # fmt: skip
    changes: dict[str, Any] = {"exchange": draw(st.booleans())}
    if draw(st.booleans()):
        changes["cut"] = draw(cuts(slices))
    return replace(schedule, **changes)


@settings(max_examples=40)
@given(orders(), st.data())
def test_any_valid_order_runs_as_in_the_oracle(schedule: Schedule, data: st.DataObject) -> None:
    costs = data.draw(costs_for(schedule))
    timeline = simulate(schedule, costs)
    expected = oracle.simulate(schedule, costs)
    assert timeline.makespan == expected.makespan
    position = 0
    for rank in range(schedule.ranks):
        for index in range(len(schedule.program(rank))):
            assert timeline.end[position] == expected.end[rank, index]
            position += 1
    # Random orders run; their losses come in any order.
    report = check(schedule)
    assert report.ok
    assert {warning.code for warning in report.warnings} <= {"loss-order"}


@settings(max_examples=30)
@given(orders(), st.data())
def test_explicit_transfers_change_nothing(schedule: Schedule, data: st.DataObject) -> None:
    costs = data.draw(costs_for(schedule))
    lowered = add_transfers(schedule)
    assert check(lowered).ok
    assert simulate(lowered, costs).makespan == simulate(schedule, costs).makespan
    overlapped, channel, *meeting = (simulate(schedule, costs, mode).makespan for mode in P2P_MODES)
    assert overlapped <= channel
    assert min(meeting) >= simulate(schedule, costs).busy.max()


def memory_by_hand(schedule: Schedule, costs: Costs, rank: int) -> float:
    """Largest memory of a rank, counted tensor by tensor."""
    table = costs.resolve(schedule.placement)
    shares = schedule.slicing.shares
    held: dict[tuple[str, int, int], float] = {}
    largest = 0.0
    for action in list(schedule)[rank]:
        stage, kind, unit = action
        number, part = divmod(unit, schedule.slices)
        place = oracle.copy_of(schedule, unit) * schedule.stages + stage
        activation = table.activation[place] * shares[part]
        if kind == Kind.F:
            held["activation", stage, unit] = activation
            held["kv", stage, unit] = costs.kv * shares[part]
        if kind in (Kind.I, Kind.B) and ("gradients", stage, number * schedule.slices) not in held:
            for other in range(schedule.slices):
                held["gradients", stage, number * schedule.slices + other] = (
                    costs.kv * shares[other]
                )
        largest = max(largest, sum(held.values()))
        if kind in (Kind.I, Kind.B):
            del held["kv", stage, unit]
            # The first slice is the last to come back: its entry marks that gradients are there.
            held["gradients", stage, unit] = 0.0
            if part == 0:
                for other in range(schedule.slices):
                    del held["gradients", stage, unit + other]
        if kind == Kind.I:
            held["activation", stage, unit] = activation * costs.kept_for_weight
        if kind in (Kind.W, Kind.B):
            del held["activation", stage, unit]
    assert not held
    return largest


@settings(max_examples=40)
@given(orders(), st.sampled_from([0.0, 0.5, 3.0]), st.sampled_from([0.0, 0.5, 1.0]))
def test_keys_values_and_their_gradients_are_held_as_long_as_needed(
    schedule: Schedule, kv: float, kept: float
) -> None:
    costs = Costs(kv=kv, kept_for_weight=kept)
    use = simulate(schedule, costs).memory
    assert use.peak == pytest.approx(
        [memory_by_hand(schedule, costs, rank) for rank in range(schedule.ranks)]
    )
    assert use.left == pytest.approx(0, abs=1e-9)


def of_text(*rows: str, slices: int = 2, microbatches: int = 1) -> Schedule:
    return Schedule.from_text(
        [row.split() for row in rows], Placement.linear(len(rows)), microbatches, slices=slices
    )


@pytest.mark.parametrize("mode", P2P_MODES)
@pytest.mark.parametrize(
    ("row", "early", "late"),
    [
        ("0F0.1 0F0.0 0B0.1 0B0.0", "0F0.1", "0F0.0"),
        ("0F0.0 0F0.1 0B0.0 0B0.1", "0B0.0", "0B0.1"),
        ("0F0.0 0F0.1 0I0.0 0I0.1 0W0.0 0W0.1", "0I0.0", "0I0.1"),
        ("0F0.0 0B0.0 0F0.1 0B0.1", "0B0.0", "0B0.1"),
    ],
)
def test_slices_out_of_order_are_refused_by_name(
    mode: Any, row: str, early: str, late: str
) -> None:
    with pytest.raises(ScheduleError) as caught:
        simulate(of_text(row), p2p_mode=mode)
    message = str(caught.value)
    assert early in message
    assert late in message
    (problem,) = (p for p in check(of_text(row)).problems if p.code == "order")
    assert problem.actions == (early, late)
    assert problem.fix == f"move {late} before {early}"


def test_missing_slices_are_named() -> None:
    with pytest.raises(ScheduleError, match=r"0F0\.1 \(rank 0\) waits for 0F0\.0, which no rank"):
        simulate(of_text("0F0.1 0B0.1"))
    with pytest.raises(ScheduleError, match=r"0B0\.0 \(rank 0\) waits for 0I0\.1, which no rank"):
        simulate(of_text("0F0.0 0F0.1 0B0.0"))
    report = check(of_text("0F0.0 0B0.0"))
    assert [p.message for p in report.problems] == ["0F0.1 and 0B0.1 are missing"]


def test_out_of_range_counts_microbatches() -> None:
    with pytest.raises(ScheduleError, match=r"0F1\.0 is out of range; .* microbatches to 0"):
        simulate(of_text("0F0.0 0F0.1 0B0.1 0B0.0 0F1.0"))


def test_deadlocks_across_ranks_name_slices() -> None:
    rows = ("0F0.0 0B0.1 0F0.1 0B0.0", "1F0.0 1F0.1 1B0.1 1B0.0")
    with pytest.raises(ScheduleError, match=r"0B0\.1 \(rank 0\) waits for 0F0\.1 \(rank 0\)"):
        simulate(of_text(*rows))
    assert check(of_text(*rows)).problems[0].actions == ("0B0.1", "0F0.1")


def test_microbatches_are_never_torn_between_copies() -> None:
    schedule = random_order(
        Placement.bidirectional(2), 3, 2, split=False, rng=np.random.default_rng(0)
    )
    assert schedule.copies_of(np.arange(6)).tolist() == [0, 0, 0, 0, 1, 1]


def test_the_longest_path_has_slices_in_its_text() -> None:
    timeline = simulate(make("seq1f1b", ranks=2, microbatches=1, slices=2), Costs(p2p=0.5))
    assert str(timeline.critical_path()[0]) == "0F0.0 on rank 0 [0, 0.5]"
    assert "F of stage 0, slice 1" in timeline.graph.cost_names()
    assert "p2p 0 → 1" in timeline.sensitivity()


def test_uneven_slices_have_transfers_of_their_own() -> None:
    schedule = replace(make("terapipe", ranks=2, microbatches=1, slices=2), cut=(0.25, 0.75))
    costs = Costs(F=0, I=0, W=0, message=8)
    for mode, makespan in (("overlapped", 12), ("channel", 16), ("blocking", 16)):
        timeline = simulate(schedule, replace(costs, bandwidth=1.0), mode)
        assert timeline.makespan == makespan, mode
    assert "p2p 0 → 1, slice 1" in timeline.graph.cost_names()


def test_one_slice_is_no_slice() -> None:
    for name, plain in (("seq1f1b", "1f1b"), ("slimpipe", "eager-1f1b"), ("mepipe", "zb-h1")):
        chunks = 1 if name in ("slimpipe", "mepipe") else None
        sliced = make(name, ranks=4, microbatches=6, slices=1, chunks=chunks)
        assert sliced == make(plain, ranks=4, microbatches=6)
