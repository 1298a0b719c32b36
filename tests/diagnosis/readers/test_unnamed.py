"""Forwards and backwards that nobody named: their order is found by how many run ahead."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import debubble as db
from debubble import Kind
from debubble.core.actions import unpack
from debubble.core.errors import FormatError
from debubble.diagnosis.readers.folder import read
from debubble.diagnosis.readers.unnamed_order import (
    BACKWARD,
    FORWARD,
    UnnamedAction,
    assumed_order,
)
from tests.diagnosis.readers import made, made_megatron

CASES = [
    ("1f1b", 2, 4, 1), ("1f1b", 4, 8, 1), ("1f1b", 4, 2, 1), ("interleaved-1f1b", 2, 4, 2),
    ("interleaved-1f1b", 4, 8, 2), ("interleaved-1f1b", 4, 4, 3), ("interleaved-1f1b", 2, 8, 4),
]  # fmt: skip


@pytest.mark.parametrize(("name", "ranks", "microbatches", "chunks"), CASES)
def test_order_of_a_schedule_is_found_by_the_forwards_ahead(
    name: str, ranks: int, microbatches: int, chunks: int
) -> None:
    schedule = db.make(name, ranks=ranks, microbatches=microbatches, chunks=chunks)
    runs: dict[int, list[UnnamedAction]] = {}
    wanted: dict[tuple[int, int], list[tuple[int, int]]] = {}
    rank_of = np.repeat(np.arange(ranks), np.diff(schedule.offsets))
    for at, code in enumerate(schedule.actions.tolist()):
        one, rank = unpack(code), int(rank_of[at])
        kind = FORWARD if one.kind == Kind.F else BACKWARD
        runs.setdefault(rank, []).append(UnnamedAction(at, at + 1, kind))
        wanted.setdefault((rank, kind), []).append((one.stage // ranks, one.microbatch))
    order = assumed_order(runs.items(), ranks)
    assert order is not None
    assert (order.name, order.microbatches, order.chunks) == (name, microbatches, chunks)
    for (_, kind), calls in wanted.items():
        assert order.numbered(kind, ranks) == calls


def test_all_forwards_first_show_no_order() -> None:
    runs = {
        rank: [UnnamedAction(at, at + 1, kind) for at, kind in enumerate([FORWARD] * 4 + [1] * 4)]
        for rank in range(2)
    }
    assert assumed_order(runs.items(), 2) is None
    assert assumed_order((), 2) is None


@pytest.mark.parametrize("calls", [False, True])
@pytest.mark.parametrize(("name", "chunks"), [("1f1b", 1), ("interleaved-1f1b", 2)])
def test_a_profile_of_megatron_without_names_is_read(
    tmp_path: Path, name: str, chunks: int, calls: bool
) -> None:
    run = made.run(name, ranks=2, microbatches=4, chunks=chunks)
    made_megatron.write_unnamed_kineto(run, tmp_path, calls=calls)
    found = read(tmp_path)
    assert (found.format, found.ranks, found.order_assumed) == ("kineto", 2, name)
    rows = found.actions
    wanted = {
        (one.step - 7, one.rank, one.kind, one.stage, one.microbatch): (one.start, one.end)
        for one in run.done
    }
    zero = min(start for start, _ in wanted.values()) - rows.start.min()
    columns = (rows.step, rows.rank, rows.kind, rows.stage, rows.microbatch)
    keys = list(zip(*(each.tolist() for each in columns), strict=True))
    assert sorted(keys) == sorted(wanted)
    times = np.array([wanted[key] for key in keys]) - zero
    # An action of 1F1B is taken to last until its send.
    np.testing.assert_allclose(rows.start, times[:, 0], atol=1e-6)
    np.testing.assert_allclose(rows.end, times[:, 1], atol=made_megatron.HOLD)


@pytest.mark.parametrize("calls", [False, True])
@pytest.mark.parametrize(("name", "chunks"), [("1f1b", 1), ("interleaved-1f1b", 2)])
def test_kernels_belong_to_what_launched_them(
    tmp_path: Path, name: str, chunks: int, calls: bool
) -> None:
    run = made.run(name, ranks=2, microbatches=4, chunks=chunks)
    made_megatron.write_unnamed_kineto(run, tmp_path, calls=calls, device=True)
    found = read(tmp_path)
    assert (found.order_assumed, found.device) == (name, "gpu")
    made.assert_recovered(found, run)


@pytest.mark.parametrize("present", [(0,), (1,), (2,), (3,), (0, 2), (1, 2, 3), (0, 1, 2, 3)])
def test_ranks_may_be_missing(tmp_path: Path, present: tuple[int, ...]) -> None:
    """The size of the job says how many ranks the pipeline has, not the files that are there."""
    run = made.run("1f1b", ranks=4, microbatches=8)
    made_megatron.write_unnamed_kineto(run, tmp_path, plain=True)
    for rank in set(range(4)) - set(present):
        (tmp_path / f"rank-{rank}.json.gz").unlink()
    found = read(tmp_path)
    assert (found.order_assumed, found.ranks) == ("1f1b", 4)
    assert (found.microbatches, len(found.steps)) == (8, 2)
    assert found.missing == tuple((0, rank) for rank in range(4) if rank not in present)


@pytest.mark.parametrize(("name", "chunks"), [("1f1b", 1), ("interleaved-1f1b", 2)])
@pytest.mark.parametrize("plain", [False, True])
def test_a_rank_may_have_a_file_for_every_step(
    tmp_path: Path, name: str, chunks: int, plain: bool
) -> None:
    run = made.run(name, ranks=2, microbatches=4, chunks=chunks)
    steps = {one.step for one in run.done}
    for step in steps:
        part = replace(run, done=tuple(one for one in run.done if one.step == step))
        folder = tmp_path / f"step{step}"
        made_megatron.write_unnamed_kineto(part, folder, plain=plain, zero=0.0)
    found = read(tmp_path)
    assert (found.order_assumed, found.ranks, found.microbatches) == (name, 2, 4)
    assert len(found.steps) == len(steps) == 2
    assert len(found.actions) == len(run.done)


def test_all_files_of_a_rank_must_fit() -> None:
    """The order of the last file does not stand for the others."""
    early = [FORWARD, FORWARD, BACKWARD, FORWARD, BACKWARD, BACKWARD]
    late = [FORWARD, BACKWARD] * 3
    first, other = (
        [UnnamedAction(at, at + 1, kind) for at, kind in enumerate(kinds)]
        for kinds in (early, late)
    )
    assert assumed_order([(0, first), (0, first), (1, other)], 2) is not None
    assert assumed_order([(0, other), (0, first), (1, other)], 2) is None


def test_a_refused_profile_says_what_it_has(tmp_path: Path) -> None:
    run = made.run("gpipe", ranks=2, microbatches=4)
    made_megatron.write_unnamed_kineto(run, tmp_path)
    with pytest.raises(FormatError) as error:
        read(tmp_path)
    text = str(error.value)
    assert "no pipeline in 2 files" in text
    assert "seen: no GPU kernel; sends; no named range" in text
    assert "debubble.megatron.name_steps()" in text
    assert "rank, action, start, end" in text
