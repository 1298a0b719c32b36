"""Recomputes of no more than a rank holds beyond a cap of whole activations."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import debubble as db
from debubble import Kind, Schedule, make
from debubble.core.actions import Action, begins_group, kinds_of
from debubble.core.kinds import GRADIENT_KINDS
from debubble.lowering.recompute import add_recompute
from debubble.schedules.registry import Entry
from tests.pairs import each_sort
from tests.strategies import made

WORK = (Kind.F, Kind.I, Kind.W, Kind.B)


def recomputed(schedule: Schedule) -> list[int]:
    return [
        int((kinds_of(schedule.program(rank)) == Kind.R).sum()) for rank in range(schedule.ranks)
    ]


def of_ripipe(p: int, v: int, m: int, rank: int) -> int:
    """Recomputes that MindSpeed's --recompute-in-bubble makes on a rank, as its code counts them.

    All are of the first chunk: in the second group, in every group behind it, and in the last one.
    """
    first = max(0, 2 * (p - 1 - rank) + (v - 1) * p + 1 - v * p)
    groups = m // p
    if first == 0 or groups < 3:
        return first if groups > 1 else 0
    between, tail = groups - 3, 2 + 2 * rank
    if between == 0:
        if tail >= p - 1 - 2 * rank:
            between, tail = 1, 0
    else:
        tail = 1
    return first + between * max(0, p - 1 - 2 * rank) + tail


@pytest.mark.parametrize(
    ("p", "v", "m"), [(4, 2, 8), (8, 2, 16), (4, 4, 8), (8, 4, 16), (8, 2, 24)]
)
def test_a_cap_of_pv_is_ripipe(p: int, v: int, m: int) -> None:
    sizes = {"ranks": p, "microbatches": m, "chunks": v}
    costs = db.Costs(F=1, B=2, recompute_kept=0)
    plain = db.simulate(make("interleaved-1f1b", **sizes), costs)
    capped = make(
        "interleaved-1f1b", **sizes, recompute="full", recompute_at="bubbles", recompute_cap=p * v,
        costs=costs,
    )  # fmt: skip
    assert db.check(capped).ok
    assert recomputed(capped) == [of_ripipe(p, v, m, rank) for rank in range(p)]
    timeline = db.simulate(capped, costs)
    assert plain.peak_activation.max() * v == pytest.approx(v * p + p - 1)
    assert timeline.peak_activation.max() * v == pytest.approx(p * v)
    # Bubbles have room for all of it.
    assert timeline.makespan == plain.makespan


@pytest.mark.parametrize(("p", "v", "m"), [(4, 2, 16), (8, 2, 48), (8, 4, 32)])
def test_with_more_groups_it_takes_fewer_recomputes_than_ripipe(p: int, v: int, m: int) -> None:
    plain = make("interleaved-1f1b", ranks=p, microbatches=m, chunks=v)
    counts = recomputed(add_recompute(plain, cap=p * v))
    theirs = [of_ripipe(p, v, m, rank) for rank in range(p)]
    assert all(ours <= other for ours, other in zip(counts, theirs, strict=True))
    assert sum(counts) < sum(theirs)


def most_held(schedule: Schedule, rank: int, dropped: set[tuple[int, int]]) -> int:
    """Most whole activations that a rank holds, where some are recomputed for their backward."""
    program = [
        (a.kind, (a.stage, a.microbatch), first)
        for a, first in zip(
            list(schedule)[rank], begins_group(schedule.program(rank)).tolist(), strict=True
        )
        if a.kind in WORK
    ]
    last = {cell: place for place, (_, cell, _) in enumerate(program)}
    begins = [place for place, (_, _, first) in enumerate(program) if first]
    held: set[tuple[int, int]] = set()
    most = 0
    for begin, end in pairwise([*begins, len(program)]):
        group = program[begin:end]
        held |= {cell for kind, cell, _ in group if kind in GRADIENT_KINDS}
        held |= {cell for kind, cell, _ in group if kind == Kind.F and cell not in dropped}
        most = max(most, len(held))
        held -= {cell for place, (_, cell, _) in enumerate(group, begin) if last[cell] == place}
    return most


def cells_of(program: Iterable[Action], kind: Kind) -> set[tuple[int, int]]:
    return {(a.stage, a.microbatch) for a in program if a.kind == kind}


@each_sort
@settings(max_examples=4)
@given(data=st.data())
def test_nobody_holds_more_than_the_cap(entry: Entry, data: st.DataObject) -> None:
    schedule = data.draw(made(entry, ranks=4, microbatches=12))
    cap = data.draw(st.integers(1, 12))
    capped = add_recompute(schedule, cap=cap)
    for rank, (before, after) in enumerate(zip(schedule, capped, strict=True)):
        dropped = cells_of(after, Kind.R)
        least = most_held(schedule, rank, cells_of(before, Kind.F))
        assert most_held(schedule, rank, dropped) <= max(cap, least)
        assert dropped or most_held(schedule, rank, set()) <= cap


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("1f1b", {"ranks": 4, "microbatches": 6}),
        ("interleaved-1f1b", {"ranks": 2, "microbatches": 4, "chunks": 2}),
        ("zb-h1", {"ranks": 3, "microbatches": 6}),
        ("gpipe", {"ranks": 2, "microbatches": 6}),
    ],
)
def test_no_fewer_recomputes_do(name: str, sizes: dict[str, Any]) -> None:
    schedule = make(name, **sizes)
    for cap in range(1, 6):
        capped = add_recompute(schedule, cap=cap)
        for rank, (before, after) in enumerate(zip(schedule, capped, strict=True)):
            dropped = cells_of(after, Kind.R)
            if not dropped or most_held(schedule, rank, dropped) > cap:
                continue
            for fewer in combinations(sorted(cells_of(before, Kind.F)), len(dropped) - 1):
                assert most_held(schedule, rank, set(fewer)) > cap


def test_files_and_flags_keep_the_cap(tmp_path: Path) -> None:
    schedule = make(
        "interleaved-1f1b", ranks=4, microbatches=8, chunks=2, recompute="full", recompute_cap=8
    )
    assert schedule.options["recompute_cap"] == 8
    schedule.save(tmp_path / "x.json")
    again = db.load(tmp_path / "x.json")
    assert again == schedule
    assert again.name == "interleaved-1f1b"
    compared = db.compare(
        ["interleaved-1f1b"], ranks=4, microbatches=8, recompute="full", recompute_cap=8
    )
    assert compared.rows[0].schedule == schedule


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recompute": "full", "recompute_cap": 0}, "recompute_cap is 0; give a whole number"),
        ({"recompute": "full", "recompute_cap": True}, "recompute_cap is True; give a whole"),
        ({"recompute_cap": 4}, "recompute_cap is 4 and no stage recomputes; give recompute='full'"),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises(db.ParameterError, match=message):
        make("1f1b", ranks=4, microbatches=8, **options)
