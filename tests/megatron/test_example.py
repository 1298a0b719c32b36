"""``examples/megatron`` on the CPU: schedules of ours train as Megatron's own."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

import debubble as db
from debubble.core.actions import kinds_of, microbatches_of, stages_of
from debubble.diagnosis.readers.folder import read
from tests import wheels

pytest.importorskip("torch")

from tests.megatron import gpt

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "examples" / "megatron" / "train.py"
STEPS = 3

RUNS = {
    "zb-v": ["--schedule", "zb-v", "--chunks", "2"],
    "interleaved-1f1b": ["--schedule", "groups.csv", "--chunks", "2"],
    "found": ["--schedule", "best.csv", "--chunks", "2", "--trace", "profiles"],
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with schedules: one with other groups than Megatron has, and one from a search."""
    folder = tmp_path_factory.mktemp("example")
    sizes = {"ranks": 4, "microbatches": 8, "chunks": 2}
    db.make("interleaved-1f1b", **sizes, group_size=8).save(folder / "groups.csv")
    costs = db.Costs(F=[1, 1, 1, 1, 1, 1, 1, 2], B=[2, 2, 2, 2, 2, 2, 2, 4], p2p=0.1)
    found = db.optimize(**sizes, costs=costs, time_limit=1, backward="fused")
    found.schedule.save(folder / "best.csv")
    return folder


@pytest.fixture(scope="module")
def losses(request: pytest.FixtureRequest, folder: Path) -> dict[str, list[float]]:
    """Losses of every run, as its last rank reports them."""
    wheel = gpt.fetch(wheels.folder_of(request, "megatron"), gpt.RELEASES[-1])

    def work(rank: int) -> dict[str, list[float]]:
        import os

        import torch
        from torch import distributed as dist

        os.chdir(folder)
        for name in ("init_process_group", "destroy_process_group"):
            setattr(dist, name, lambda *_: None)
        torch.cuda.set_device = lambda _: None  # type: ignore[assignment]
        main: Any = runpy.run_path(str(SCRIPT))["main"]
        common = ["--steps", str(STEPS), "--hidden", "16"]
        return {
            name: main([*common, *words]) for name, words in {"1f1b": [], **RUNS}.items()
        }  # fmt: skip

    return gpt.in_ranks_of(wheel, 4, work)[-1]


@pytest.mark.parametrize("run", RUNS)
def test_losses_are_those_of_megatrons_1f1b(losses: dict[str, list[float]], run: str) -> None:
    # The norm of all gradients, which clips them, is a sum in the sequence of each rank's weights.
    assert losses[run] == pytest.approx(losses["1f1b"], rel=1e-6)
    assert len(losses[run]) == STEPS


def test_profiles_are_of_the_schedule(losses: dict[str, list[float]], folder: Path) -> None:
    rows, best = read(folder / "profiles").actions, db.load(folder / "best.csv")
    for rank in range(4):
        mine = rows.take(rows.rank == rank)
        ran = list(zip(mine.kind, mine.stage, mine.microbatch, strict=True))
        program = best.program(rank)
        columns = kinds_of(program), stages_of(program), microbatches_of(program)
        assert ran == list(zip(*columns, strict=True))
