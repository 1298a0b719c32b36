"""Profiles of Megatron's own schedules, with our names and with none."""

from __future__ import annotations

from pathlib import Path

import pytest

from debubble.core.kinds import Kind
from debubble.diagnosis.observed import Observed
from debubble.diagnosis.readers.folder import read
from tests import wheels

pytest.importorskip("torch")

from tests.megatron import real
from tests.planner import megatron

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(request: pytest.FixtureRequest) -> Path:
    return megatron.fetch(wheels.folder_of(request, "megatron"))


@pytest.mark.parametrize("chunks", [1, 2])
def test_what_ran_is_read(wheel: Path, tmp_path: Path, chunks: int) -> None:
    wanted = real.trace(wheel, tmp_path, ranks=2, chunks=chunks, microbatches=4)
    name = "1f1b" if chunks == 1 else "interleaved-1f1b"
    for style in real.STYLES:
        found = read(tmp_path / style)
        assert (found.ranks, found.order_assumed) == (2, "" if style == "named" else name)
        assert_ran(found, wanted)


def assert_ran(found: Observed, wanted: list[list[str]]) -> None:
    """Assert that both steps of every rank have these actions in sequence."""
    rows = found.actions
    for step in (0, 1):
        for rank in (0, 1):
            mine = rows.take((rows.step == step) & (rows.rank == rank))
            read_back = [
                f"{stage}{Kind(kind).name}{unit}"
                for kind, stage, unit in zip(mine.kind, mine.stage, mine.microbatch, strict=True)
            ]
            assert read_back == wanted[rank]
