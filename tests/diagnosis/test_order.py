"""Which order ran, and what it is called."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import debubble as db
from debubble.core.errors import FormatError
from debubble.diagnosis.observed import Observed, ObservedActions
from debubble.diagnosis.order import reconstruct
from debubble.diagnosis.schedule_names import named
from tests.diagnosis.made import Made, one_f_one_b

CASES = [
    ("gpipe", 4, 8, None), ("1f1b", 4, 8, None), ("1f1b", 8, 16, None), ("zb-h1", 4, 8, None),
    ("zb-h2", 4, 8, None), ("interleaved-1f1b", 4, 8, 2), ("interleaved-1f1b", 2, 8, 4),
    ("looped-bfs", 4, 8, 2), ("zb-v", 4, 8, None), ("interleaved-zb", 4, 8, 2),
]  # fmt: skip


@pytest.mark.parametrize(("name", "ranks", "microbatches", "chunks"), CASES)
def test_registered_orders_are_named(
    name: str, ranks: int, microbatches: int, chunks: int | None
) -> None:
    schedule = db.make(name, ranks=ranks, microbatches=microbatches, chunks=chunks)
    orders = reconstruct(Made(schedule.rows(), steps=2, copies=1).observed())
    assert orders.name.text == name
    assert orders.name.differences == ()
    assert orders.schedules[0] == schedule
    assert orders.left_out == {}


def test_an_order_near_a_registered_one() -> None:
    programs = one_f_one_b(4, 8)
    programs[1][4], programs[1][5] = programs[1][5], programs[1][4]
    name = reconstruct(Made(programs).observed()).name
    assert name.text == "1f1b"
    assert name.differences == ("rank 1: action 4 is 1B1, not 1F3, and 1 more stand elsewhere",)
    assert name.nearest == db.make("1f1b", ranks=4, microbatches=8)


def test_an_order_of_somebodys_own() -> None:
    """Every rank runs its microbatches one by one: nothing registered is near."""
    programs = [[f"{rank}{kind}{m}" for m in range(8) for kind in "FB"] for rank in range(4)]
    name = reconstruct(Made(programs).observed()).name
    assert (name.text, name.differences, name.nearest) == ("custom", (), None)


def test_overlapped_pairs_are_groups() -> None:
    """Rows that run together, as a reader gives them."""
    schedule = db.make("dualpipe-v", ranks=2, microbatches=8)
    timeline = db.simulate(schedule, db.Costs(F=1, B=2, O=2.5, p2p=0.01))
    table = timeline.actions()
    kinds = {kind.name: int(kind) for kind in db.Kind}
    pair = np.full(len(table), -1)
    starts = dict.fromkeys(zip(table.rank.tolist(), table.start.tolist(), strict=True))
    number = {key: index for index, key in enumerate(starts)}
    for key, index in number.items():
        at = (table.rank == key[0]) & (table.start == key[1])
        if at.sum() == 2:
            pair[at] = index
    rows = ObservedActions.of(
        step=np.zeros(len(table)), copy=np.zeros(len(table)), rank=table.rank, stage=table.stage,
        kind=[kinds[kind] for kind in table.kind], microbatch=table.microbatch, pair=pair,
        start=table.start, end=table.end,
    )  # fmt: skip
    orders = reconstruct(Observed("made", 2, 1, (0,), rows))
    assert orders.schedules[0] == schedule
    assert orders.name.text == "dualpipe-v"


def test_steps_without_all_actions_are_left_out() -> None:
    orders = reconstruct(Made(one_f_one_b(4, 8), dropped=3, copies=1).observed())
    assert orders.left_out == {"steps of a copy in which actions are missing": 1}
    assert orders.step.tolist() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("rank", range(4))
@pytest.mark.parametrize("copies", [1, 2])
def test_a_rank_without_a_file(rank: int, copies: int) -> None:
    observed = Made(one_f_one_b(4, 8), copies=copies, missing=((0, rank),)).observed()
    orders = reconstruct(observed)
    assert orders.schedules[0] == db.make("1f1b", ranks=4, microbatches=8)
    assert len(orders.step) == 6 * copies


def test_what_cannot_have_run() -> None:
    observed = Made(one_f_one_b(2, 4), copies=1).observed()
    nothing = replace(observed, actions=ObservedActions.of())
    with pytest.raises(FormatError, match="no actions of a pipeline"):
        reconstruct(nothing)
    backwards = observed.actions.take(observed.actions.kind == int(db.Kind.B))
    with pytest.raises(FormatError, match="cannot have run"):
        reconstruct(replace(observed, actions=backwards))


def test_naming_is_about_the_order_alone() -> None:
    schedule = db.make("1f1b", ranks=4, microbatches=8)
    assert named(replace(schedule, name="mine")).text == "1f1b"
