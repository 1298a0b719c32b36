"""Interleaved 1F1B over slices: re-simulated numbers, formulas over a grid, limits."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import numpy as np
import pytest

import debubble as db
from debubble.core.sequence import moved, show
from debubble.schedules.interleaved import forwards_and_backwards
from debubble.schedules.looped import grouped_table
from debubble.schedules.one_f_one_b import warm_alternate_drain
from debubble.schedules.registry import find
from tests.forms import hold
from tests.pairs import covering

NAMES = ("seq1f1b-interleaved", "seqpipe", "seqsmartvpp")


@pytest.mark.parametrize(
    ("name", "peak", "late"),
    [("seqpipe", 50, 23.8), ("seq1f1b-interleaved", 26, 27.0), ("seqsmartvpp", 19, 67.4)],
)
def test_numbers_of_eight_ranks(name: str, peak: int, late: float) -> None:
    schedule = db.make(name, ranks=8, microbatches=16, chunks=2, slices=4)
    timeline = db.simulate(schedule, db.Costs(F=4, B=8))
    assert timeline.peak_activation[0] * 8 == peak
    assert timeline.makespan - timeline.busy.max() == 21
    # With a fifth of a slice's forward for a transfer, half the ramp pays once per group.
    timeline = db.simulate(schedule, db.Costs(F=4, B=8, p2p=0.2))
    assert timeline.makespan - timeline.busy.max() == pytest.approx(late)


@pytest.mark.parametrize("name", NAMES)
def test_order_is_chunk_by_chunk_and_back_with_slices_in_reverse(name: str) -> None:
    schedule = db.make(name, ranks=1, microbatches=2, chunks=2, slices=2)
    program = next(iter(schedule))
    parts = {
        kind: [(a.stage, *divmod(a.microbatch, 2)) for a in program if a.kind == kind]
        for kind in (db.Kind.F, db.Kind.B)
    }
    chunks = (0, 1, 0, 1)
    assert parts[db.Kind.F] == [
        (chunk, number, part) for number, chunk in zip((0, 0, 1, 1), chunks, strict=True)
        for part in (0, 1)
    ]  # fmt: skip
    assert parts[db.Kind.B] == [
        (1 - chunk, number, part) for number, chunk in zip((0, 0, 1, 1), chunks, strict=True)
        for part in (1, 0)
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["seqpipe", "seqsmartvpp"])
def test_text_shows_the_order_of_rank_0(name: str) -> None:
    found = re.search(r"Rank 0 with p = 2, m = 2, s = 2::\n\n    (.*)", find(name).text)
    assert found is not None
    program = next(iter(db.make(name, ranks=2, microbatches=2, slices=2)))
    letters = (a.kind.name.lower() if a.stage >= 2 else a.kind.name for a in program)
    cells = [
        f"{letter}{a.microbatch // 2}.{a.microbatch % 2}"
        for letter, a in zip(letters, program, strict=True)
    ]
    assert found[1].split() == cells


def test_without_chunks_it_is_seq1f1b() -> None:
    for p, m, s in ((4, 8, 4), (3, 2, 2), (5, 6, 1)):
        one = db.make("seq1f1b", ranks=p, microbatches=m, slices=s)
        for name in ("seq1f1b-interleaved", "seqsmartvpp"):
            other = db.make(name, ranks=p, microbatches=m, chunks=1, slices=s)
            assert [show(one.program(r)) for r in range(p)] == [
                show(other.program(r)) for r in range(p)
            ]


def test_with_one_slice_it_is_flexible_interleaved() -> None:
    for p, m, v in ((4, 8, 2), (3, 7, 3), (5, 3, 2)):
        one = db.make("flexible-interleaved", ranks=p, microbatches=m, chunks=v)
        for name in ("seq1f1b-interleaved", "seqpipe"):
            assert db.make(name, ranks=p, microbatches=m, chunks=v, slices=1) == one


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_forms_hold_on_a_grid(name: str) -> None:
    rng = np.random.default_rng(0)
    checked = 0
    sizes = product((1, 2, 3, 4, 5, 6, 8), (1, 2, 3, 5, 8), (1, 2, 3), (1, 2, 3, 4, 6))
    for p, m, v, s in covering(sizes, strength=3):
        F, B = rng.uniform(0.2, 2, 2)
        costs = db.Costs(F=F, B=B, attention=rng.choice([0.0, 0.4]))
        cut = rng.choice(["flops", "tokens"])
        schedule = db.make(
            name, ranks=p, microbatches=m, chunks=v, slices=s, costs=costs, cut=str(cut)
        )
        assert db.check(schedule).ok
        checked += hold(schedule, costs, f"{name} p={p} m={m} v={v} s={s}")
    assert checked > 150


@pytest.mark.parametrize("group_size", [1, 2, 3, 5, 8])
def test_larger_groups_hold_more_and_are_as_fast(group_size: int) -> None:
    costs = db.Costs(F=4, B=8)
    schedule = db.make(
        "seq1f1b-interleaved", ranks=4, microbatches=8, slices=4, group_size=group_size
    )
    timeline = db.simulate(schedule, costs)
    assert timeline.makespan == 8 * 2 * 12 + 3 * 3
    assert hold(schedule, costs, f"g = {group_size}") == 2


def waiting(p: int, s: int, m: int, v: int = 2) -> float | None:
    """Bubble in groups of p // s microbatches, slices of F = 1 and B = 2; None for a deadlock."""
    size = p // s
    forwards, backwards = forwards_and_backwards(grouped_table(m, v, size), p, v, s)
    programs = [
        moved(
            warm_alternate_drain(
                forwards, backwards, 2 * (p - 1 - rank) + (v - 1) * size * s + s - 1
            ),
            rank,
        )
        for rank in range(p)
    ]
    schedule = db.Schedule.from_programs(
        "down", db.Placement.loop(p, v), m, programs, slices=s
    )  # fmt: skip
    if not db.check(schedule).ok:
        return None
    timeline = db.simulate(schedule, db.Costs(F=s, B=2 * s))
    return float(timeline.makespan - timeline.busy.max())


def test_groups_of_too_few_slices_wait_or_lock_up() -> None:
    assert [waiting(4, 2, m) for m in (8, 16)] == [9, 9]
    assert [waiting(5, 2, m) for m in (8, 10, 16)] == [42, 51, 78]
    assert waiting(6, 4, 16) is None
    up = db.make("seq1f1b-interleaved", ranks=5, microbatches=16, slices=2)
    timeline = db.simulate(up, db.Costs(F=2, B=4))
    assert timeline.makespan - timeline.busy.max() == 12


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cut": "dp"}, "needs a cut into slices of the same 'flops' or 'tokens'; cut"),
        ({"slices": 3, "group_size": 1}, "group_size is 1; the nearest that works is 2"),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises(db.ParameterError, match=message):
        db.make("seq1f1b-interleaved", ranks=4, microbatches=8, **options)
