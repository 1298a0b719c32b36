"""When ranks hang, they write what they sent and received, and ``debubble hang`` reads that."""

from __future__ import annotations

import os
import signal
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn
from torch.nn import functional

import debubble.torch as dt
from debubble.diagnosis.hang.answer import HangReport
from debubble.diagnosis.hang.dumps import read_dumps
from debubble.diagnosis.hang.explain import explain_hang
from debubble.interchange.files import load
from tests.patience import patience
from tests.torch.loop import mlp, vectors
from tests.torch.world import in_ranks


@cache
def short() -> int:
    """Seconds after which a rank that hangs is noticed."""
    return round(patience(2))


class Stops(nn.Module):
    """Sleeps forever, or dies, in one of its forwards."""

    def __init__(self, how: str, call: int) -> None:
        super().__init__()
        self.layer, self.how, self.left = nn.Linear(32, 32).double(), how, call

    def forward(self, x: Tensor) -> Tensor:
        self.left -= 1
        if self.left == 0 and self.how == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.left == 0:
            time.sleep(1000)
        return self.layer(x)


def hung(folder: Path, how: str, schedule: str) -> tuple[HangReport, list[Any]]:
    """What is told of a run of three ranks whose second stops in its second step, at 1F1."""
    limit = short()

    def work(rank: int) -> None:
        os.chdir(folder)
        stages = [Stops(how, 6) if stage == 1 else mlp(1)[0] for stage in range(3)]
        pipe = dt.Pipeline(schedule, stages, functional.mse_loss, microbatches=4, timeout=limit)
        for step in range(3):
            x, y = vectors(4, step)
            pipe.step(x, target=y)

    ended = in_ranks(3, work, fails=True)
    (found,) = folder.iterdir()
    return explain_hang(read_dumps(str(found)), load(found / "schedule.json")), ended


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_a_rank_that_sleeps_is_named_with_its_action(tmp_path: Path, schedule: str) -> None:
    found, ended = hung(tmp_path, "sleeps", schedule)
    assert (found.hang.kind, found.hang.stand.rank, found.hang.stand.action) == ("rank", 1, "1F1")
    assert {stand.rank for stand in found.hang.waiting} == {0, 2}
    assert found.missing == ()
    told = [words for words in ended if isinstance(words, str)]
    assert all("debubble hang " in words for words in told), told


def test_a_rank_that_dies_is_missed_at_its_action(tmp_path: Path) -> None:
    found, _ = hung(tmp_path, "dies", "1f1b")
    assert (found.hang.kind, found.hang.stand.rank) == ("rank", 1)
    assert found.hang.stand.action in ("1F0", "1F1"), found.hang.text
    assert "wrote no dump" in found.hang.text
    assert found.missing == (1,)
