"""PipeOffload (arXiv 2503.01328): memory and time of half and full offload."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import debubble as db
from debubble import Costs, Schedule
from debubble.core.actions import COPY_KINDS, kinds_of
from debubble.schedules.forms import closed_forms
from debubble.schedules.pipeoffload import chunk_slots
from tests.conftest import EXPLORES

# h, k at s = 4096 as printed in Fig. 1 of the paper for an A100 (220 TFLOP/s, 15 GB/s).
PRINTED = [(4096, 1.70), (5120, 1.40), (6144, 1.19), (7168, 1.03), (8192, 0.92), (10240, 0.74)]


def make(name: str, p: int, v: int, m: int) -> Schedule:
    return db.make(name, ranks=p, microbatches=m, chunks=v)


def without_copies(schedule: Schedule) -> Schedule:
    rows = [[cell for cell in row if "LOAD" not in cell] for row in schedule.rows()]
    return Schedule.from_text(rows, schedule.placement, schedule.microbatches)


def at_ratio(k: float, v: int, **times: float) -> Costs:
    """Costs with which a copy out and one back take k times a chunk's F, I and W."""
    costs = Costs(**times)
    table = costs.resolve(db.Placement.loop(2, v))
    period = float(table.duration[[0, 1, 2], 0].sum())
    return Costs(**times, host_bandwidth=(1 / v) / (k * period / 2))


@pytest.mark.parametrize(("hidden", "printed"), PRINTED)
def test_ratio_of_copies_to_compute_for_a_transformer(hidden: int, printed: float) -> None:
    k = 10 / (3 * (6 * hidden + 4096)) * 220e12 / 15e9
    assert k == pytest.approx(printed, abs=0.011)


def test_chunks_take_half_a_slot_per_rank_and_slots_of_their_own() -> None:
    assert chunk_slots(4, 2) == [0, 3]
    assert chunk_slots(8, 4) == [0, 5, 10, 15]
    for p in range(1, 20):
        for v in range(1, 9):
            slots = chunk_slots(p, v)
            assert sorted(slot % v for slot in slots) == list(range(v))
            assert (np.diff(slots) >= p / 2).all()


@pytest.mark.parametrize("name", ["pipeoffload-half", "pipeoffload-full"])
@pytest.mark.parametrize(("p", "v"), [(2, 2), (4, 2), (4, 4), (8, 2), (8, 4), (16, 2), (5, 4)])
def test_free_copies_change_nothing_but_memory(name: str, p: int, v: int) -> None:
    schedule = make(name, p, v, 4 * p)
    bare = db.simulate(without_copies(schedule))
    timeline = db.simulate(schedule)
    assert timeline.makespan == bare.makespan
    assert (timeline.peak_activation <= bare.peak_activation).all()
    # Bubble below that of 1F1B, v(d − 1)(T_F + T_I + T_W) with times of one stage.
    assert timeline.makespan - 3 * v * schedule.microbatches < 3 * v * (p - 1)


@pytest.mark.slow
@pytest.mark.parametrize("p", [4, 8, 16, 32] if EXPLORES else [4, 8, 16])
@pytest.mark.parametrize("v", [2, 4, 8])
def test_half_the_copies_save_more_than_half_of_the_memory(p: int, v: int) -> None:
    half = db.simulate(make("pipeoffload-half", p, v, 4 * p)).peak_activation.max()
    everything = db.simulate(without_copies(make("pipeoffload-half", p, v, 4 * p)))
    # M = p units; the formula is asymptotic: chunks in transit come on top.
    formula = (v + 2) / (8 * v) * p
    assert formula <= half <= formula + 3 / v
    if p >= 8:
        assert half < everything.peak_activation.max() / 2


@pytest.mark.parametrize("p", [3, 4, 8, 16, 32])
@pytest.mark.parametrize("v", [1, 2, 4, 8])
def test_full_offload_holds_three_chunks(p: int, v: int) -> None:
    timeline = db.simulate(make("pipeoffload-full", p, v, 4 * p))
    assert timeline.peak_activation.max() * v == 3


@pytest.mark.parametrize(("p", "v"), [(4, 2), (6, 2), (8, 2), (8, 4), (16, 2)])
@pytest.mark.parametrize(
    "times", [{}, {"F": 10, "I": 11, "W": 7}, {"F": 4, "I": 4, "W": 2}], ids=str
)
def test_full_offload_is_free_up_to_one_and_never_beyond(
    p: int, v: int, times: dict[str, float]
) -> None:
    extra = {}
    for m in (4 * p, 8 * p):
        schedule = make("pipeoffload-full", p, v, m)
        bare = db.simulate(without_copies(schedule), Costs(**times)).makespan
        for k in (0.25, 0.5, 0.75, 1.0, 1.25):
            extra[k, m] = db.simulate(schedule, at_ratio(k, v, **times)).makespan / bare - 1
    for k in (0.25, 0.5, 0.75, 1.0):
        assert extra[k, 8 * p] < 0.01
    if not times:
        assert all(extra[k, m] == 0 for k, m in extra if k <= 1)
    # The stream of copies is what takes the time: 25 % too much to copy, no bubble to hide it in.
    assert extra[1.25, 8 * p] > extra[1.25, 4 * p] > 0.03


def test_a_shared_link_halves_what_can_be_offloaded() -> None:
    schedule = make("pipeoffload-full", 8, 2, 64)
    bare = db.simulate(without_copies(schedule)).makespan
    for k, free in ((0.45, True), (0.6, False)):
        costs = at_ratio(k, 2)
        shared = Costs(host_bandwidth=costs.host_bandwidth, host_link_shared_by=2)
        assert db.simulate(schedule, costs).makespan == bare
        assert (db.simulate(schedule, shared).makespan < 1.02 * bare) == free


@pytest.mark.parametrize("v", [1, 3])
def test_half_of_the_chunks_is_a_whole_number(v: int) -> None:
    with pytest.raises(db.ParameterError, match="an even number of chunks"):
        make("pipeoffload-half", 4, v, 8)


def test_every_activation_that_leaves_returns_and_short_lived_ones_stay() -> None:
    schedule = make("pipeoffload-full", 4, 2, 8)
    kinds = kinds_of(schedule.actions)
    assert (kinds == COPY_KINDS[0]).sum() == (kinds == COPY_KINDS[1]).sum()
    last = [cell for cell in schedule.rows()[3] if "OFFLOAD" in cell]
    assert {cell[0] for cell in last} == {"3"}


@pytest.mark.parametrize("name", ["pipeoffload-half", "pipeoffload-full"])
@pytest.mark.parametrize(("k", "sharing"), [(0.5, 1), (1.0, 1), (0.5, 2), (1.0, 2)])
def test_bounds_hold_while_copies_are_hidden(name: str, k: float, sharing: int) -> None:
    for p, v in ((2, 2), (5, 4), (8, 2), (9, 6)):
        for m in (1, p, 3 * p + 1):
            costs = replace(at_ratio(k, v, F=10, I=11, W=7), host_link_shared_by=sharing)
            schedule = make(name, p, v, m)
            forms = closed_forms(schedule, costs)
            # Two ranks that share a link wait for each other's copies.
            hidden = k * sharing <= 1
            assert [item.form.quantity for item in forms] == ["makespan"] * hidden
            assert all(db.simulate(schedule, costs).makespan <= item.value for item in forms)
