"""Real traces of PyTorch's pipelines: what they did is recovered exactly."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="traces pipelines of PyTorch; install torch")

from debubble import Kind
from debubble.core.actions import COMPUTE_KINDS, TRANSFER_KINDS
from debubble.diagnosis.observed import Observed
from debubble.diagnosis.readers.action_names import actions_named
from debubble.diagnosis.readers.folder import read
from tests.diagnosis.readers.pytorch_runs import trace
from tests.torch.world import in_ranks as in_ranks  # marks the tests

M = 4


def orders(found: Observed, step: int) -> list[list[str]]:
    """What every rank computed in a step, in order."""
    rows = found.actions
    return [
        [
            f"{stage}{Kind(kind).name}{microbatch}"
            for stage, kind, microbatch in zip(
                rows.stage[here], rows.kind[here], rows.microbatch[here], strict=True
            )
        ]
        for rank in range(found.ranks) for here in [(rows.step == step) & (rows.rank == rank)]
    ]  # fmt: skip


def flat(order: list[str], kinds: tuple[Kind, ...]) -> list[str]:
    """The actions of some kinds in an order of cells."""
    return [
        f"{one.stage}{one.kind.name}{one.microbatch}"
        for cell in order for one in actions_named(cell) if one.kind in kinds
    ]  # fmt: skip


def assert_sound(found: Observed) -> None:
    """Actions follow each other, and messages arrive between what makes and what needs them."""
    rows, messages = found.actions, found.messages
    assert (found.clocks, found.copies, found.waits_inside) == ("one", 1, False)
    assert len(set(found.hosts)) == 1
    for rank in range(found.ranks):
        here = np.flatnonzero((rows.rank == rank) & (rows.pair < 0))
        assert (rows.start[here][1:] >= rows.end[here][:-1]).all()
    assert (rows.end >= rows.start).all()
    assert (rows.start >= rows.issued).all()
    assert not np.isnan(np.stack([messages.sent, messages.posted, messages.arrived])).any()
    assert (messages.arrived > messages.sent).all()
    assert (messages.arrived >= messages.posted).all()
    made = by_action(found, rows.end)
    needed = by_action(found, rows.start)
    for step, kind, stage, unit, sent, arrived in zip(
        messages.step.tolist(), messages.kind.tolist(), messages.stage.tolist(),
        messages.microbatch.tolist(), messages.sent.tolist(), messages.arrived.tolist(),
        strict=True,
    ):  # fmt: skip
        after = stage + (1 if kind == Kind.F else -1)
        assert sent >= made[step, kind == Kind.F, stage, unit] - 1e-9
        assert arrived <= needed[step, kind == Kind.F, after, unit] + 1e-9


def by_action(found: Observed, times: np.ndarray) -> dict[tuple[int, ...], float]:
    rows = found.actions
    return {
        (step, kind == Kind.F, stage, unit): time
        for step, kind, stage, unit, time in zip(
            rows.step.tolist(), rows.kind.tolist(), rows.stage.tolist(),
            rows.microbatch.tolist(), times.tolist(), strict=True,
        )
        if kind in (Kind.F, Kind.B, Kind.I)
    }  # fmt: skip


@pytest.mark.parametrize(
    "name", ["ScheduleInterleaved1F1B", "ScheduleZBVZeroBubble", "ScheduleDualPipeV"]
)
def test_the_multi_stage_runtime(tmp_path: Path, name: str) -> None:
    wanted = trace(tmp_path, name, M)
    found = read(tmp_path)
    assert (found.format, found.ranks, len(found.steps)) == ("kineto", 2, 2)
    assert (found.stages, found.microbatches, found.left_out) == (4, M, {})
    assert_sound(found)
    computed = [flat(order, COMPUTE_KINDS) for order in wanted]
    assert orders(found, 0) == orders(found, 1) == computed
    pairs = sum(cell.startswith("(") for order in wanted for cell in order)
    assert len(np.unique(found.actions.pair)) == 2 * pairs + 1
    assert len(found.messages) == sum(len(flat(order, TRANSFER_KINDS)) for order in wanted)
    assert found.order_assumed == ""


def test_gpipe(tmp_path: Path) -> None:
    trace(tmp_path, "ScheduleGPipe", M)
    found = read(tmp_path)
    assert_sound(found)
    for rank, order in enumerate(orders(found, 1)):
        assert order == [f"{rank}{kind}{unit}" for kind in "FB" for unit in range(M)]
    assert len(found.messages) == 2 * 2 * M
    assert found.left_out == {}


def test_1f1b_is_told_by_autograd(tmp_path: Path) -> None:
    trace(tmp_path, "Schedule1F1B", M, steps=3)
    found = read(tmp_path)
    assert_sound(found)
    assert found.order_assumed == "1f1b"
    assert (len(found.steps), found.left_out) == (3, {})
    for step in range(3):
        assert orders(found, step) == [
            ["0F0", "0F1", "0B0", "0F2", "0B1", "0F3", "0B2", "0B3"],
            ["1F0", "1B0", "1F1", "1B1", "1F2", "1B2", "1F3", "1B3"],
        ]
    assert len(found.messages) == 3 * 2 * M


def test_a_cut_file_and_a_missing_one(tmp_path: Path) -> None:
    trace(tmp_path, "ScheduleInterleaved1F1B", M, steps=6)
    path = tmp_path / "rank1_trace.json.gz"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    found = read(tmp_path)
    assert 0 < len(found.steps) < 6
    assert found.left_out["files whose compressed data ends early (read as far as they go)"] == 1
    assert found.left_out["steps that are not complete on every rank"] == 6 - len(found.steps)
    assert orders(found, 0)[0][:3] == ["0F0", "0F1", "2F0"]
    path.unlink()
    found = read(tmp_path)
    assert (found.ranks, found.missing, len(found.steps)) == (2, ((0, 1),), 6)


def test_files_without_a_rank(tmp_path: Path) -> None:
    from debubble.core.errors import FormatError

    trace(tmp_path, "ScheduleGPipe", M)
    for rank in range(2):
        path = tmp_path / f"rank{rank}_trace.json.gz"
        text = gzip.decompress(path.read_bytes()).replace(b'"rank"', b'"tier"')
        path.unlink()
        (tmp_path / f"host_{rank}.pt.trace.json").write_bytes(text)
    with pytest.raises(FormatError, match="none of 2 files say their rank, in distributed"):
        read(tmp_path)
