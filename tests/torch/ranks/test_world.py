"""A rank that dies, hangs, raises or mismatches ends the run on all ranks, with a reason."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from torch import Tensor, nn

import debubble as db
from debubble import Schedule
from debubble.lowering.transfers import add_transfers
from debubble.torch.errors import RunError
from debubble.torch.models.build import StagedModel, mlp
from debubble.torch.ranks.progress_table import ProgressTable, RankState
from debubble.torch.ranks.world import World, run_local
from debubble.torch.run.run import Settings, run
from tests.forkserver import forked
from tests.patience import patience
from tests.torch.world import ByValue

pytestmark = pytest.mark.processes

SCHEDULE = db.make("1f1b", ranks=4, microbatches=4)


@cache
def short() -> int:
    """Seconds after which a rank that hangs is noticed."""
    return round(patience(2))


class Trouble(nn.Module):
    """A layer that does something else in the process of a rank."""

    def __init__(self, act: Callable[[], None]) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 32)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        if multiprocessing.parent_process() is not None:
            self.act()
        return self.layer(x)


def boom() -> None:
    raise KeyError("boom")


def failure(
    act: Callable[[], None] | None = None,
    schedule: Schedule = SCHEDULE,
    runtime: str = "debubble",
    timeout: float = patience(60),
    log: Path | None = None,
) -> str:
    def model(stages: int) -> StagedModel:
        if log is not None and multiprocessing.parent_process() is not None:
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
        made = mlp(stages)
        if act is not None:
            made.stages[1][0] = Trouble(act)  # type: ignore[index, operator]
        return made

    with pytest.raises(RunError) as caught:
        run(schedule, Settings(ByValue(model), steps=0, runtime=runtime, timeout=timeout))
    assert multiprocessing.active_children() == []
    return str(caught.value)


@pytest.mark.parametrize("runtime", ["debubble", "torch"])
def test_a_rank_that_is_killed(
    runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def die() -> None:
        (path,) = tmp_path.glob("debubble-*/progress")
        states = ProgressTable(SCHEDULE.ranks, str(path)).rows[:, ProgressTable.STATE]
        while runtime == "debubble" and (states[2:] != RankState.WAITING).any():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)

    message = failure(die, runtime=runtime)
    first, others = message.splitlines()
    if runtime == "debubble":
        assert first == "rank 1 died of SIGKILL at action 1: 1F0"
        assert "rank 2 waits at action 0: 2RECV_F0 from rank 1" in others
    else:
        assert first.startswith("rank 1 died of SIGKILL at ")


def test_pytorch_does_not_log_its_schedule(tmp_path: Path) -> None:
    log = tmp_path / "log"
    failure(lambda: os.kill(os.getpid(), signal.SIGKILL), runtime="torch", log=log)
    assert log.read_text().count("\n") < 5


def test_a_rank_that_hangs() -> None:
    message = failure(lambda: time.sleep(3600), timeout=short())
    first, others = message.splitlines()
    assert first == f"nothing has moved for {short()} s: rank 1 hangs at action 1: 1F0"
    assert re.search(r"rank 0 waits at action \d+: 0RECV_B0 from rank 1; rank 2 waits", others)
    assert others.endswith(f"--timeout {2 * short()} waits longer")


@pytest.mark.parametrize("runtime", ["debubble", "torch"])
def test_an_exception_in_the_model(runtime: str) -> None:
    first = failure(boom, runtime=runtime).splitlines()[0]
    assert re.match(
        r"rank 1 failed: KeyError: 'boom' \(test_world.py, line \d+\); it was at ", first
    )
    if runtime == "debubble":
        assert first.endswith("it was at action 1: 1F0")


def lowered(change: Callable[[list[list[str]]], None]) -> Schedule:
    """1F1B with transfers, changed by hand."""
    rows = add_transfers(SCHEDULE, policy="just-in-time").rows()
    change(rows)
    return Schedule.from_text(rows, SCHEDULE.placement, SCHEDULE.microbatches)


def test_swapped_receives_are_noticed() -> None:
    rows = [
        "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1",
        "1RECV_F1 1RECV_F0 1F0 1B0 1SEND_B0 1F1 1B1 1SEND_B1",
    ]
    schedule = Schedule.from_text([row.split() for row in rows], db.Placement.linear(2), 2)
    message = failure(schedule=schedule, timeout=patience(10))
    assert "rank 1 failed: 1RECV_F1 got 0SEND_F0 from rank 0 in place of 0SEND_F1" in message


def test_a_receive_before_its_consumer_is_missing() -> None:
    def drop(rows: list[list[str]]) -> None:
        rows[1].remove("1RECV_F0")

    message = failure(schedule=lowered(drop), timeout=patience(10))
    assert "rank 1 failed: 1F0 has no input; nothing was received for it" in message


def test_a_send_that_is_missing() -> None:
    def drop(rows: list[list[str]]) -> None:
        rows[2].remove("2SEND_F3")

    first, others = failure(schedule=lowered(drop), timeout=short()).splitlines()
    assert first == f"nothing has moved for {short()} s"
    assert re.search(r"rank 3 waits at action \d+: 3RECV_F3 from rank 2", others)


def test_a_send_before_its_producer() -> None:
    def move(rows: list[list[str]]) -> None:
        rows[0].remove("0SEND_F0")
        rows[0].insert(0, "0SEND_F0")

    message = failure(schedule=lowered(move), timeout=patience(10))
    assert "rank 0 failed: 0SEND_F0 has nothing to send; it comes before its comp" in message


def large(world: World) -> bytes:
    world.begin(0)
    return bytes(1 << 20)


def test_results_that_do_not_fit_into_a_pipe_arrive() -> None:
    results = run_local(large, 3, lambda *_: "", timeout=patience(60), device="cpu")
    assert [len(result) for result in results] == [1 << 20] * 3


LOADS = """
import sys
from debubble.torch.ranks.world import run_local

def loaded(world):
    return [name for name in sys.modules if name in ("debubble.torch.run.job", __name__)]

if __name__ == "__main__":
    print(run_local(loaded, 2, lambda *_: "", timeout=60, device="cpu"))
"""


def test_ranks_are_copies_of_a_process_that_has_loaded_what_they_need(tmp_path: Path) -> None:
    # The script itself loads nothing of it.
    (script := tmp_path / "loads.py").write_text(LOADS)
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=patience(120), check=True
    )
    assert done.stdout == f"{[['__mp_main__', 'debubble.torch.run.job']] * 2}\n"


def test_a_table_is_shared_with_children(tmp_path: Path) -> None:
    table = ProgressTable(2, f"{tmp_path}/progress")
    process = forked.Process(target=table.report_progress, args=(1, 7, RankState.WAITING))
    process.start()
    process.join()
    assert table.rows[1].tolist() == [0, 7, RankState.WAITING, 1, 0]


def test_more_than_there_is() -> None:
    with pytest.raises(RunError, match="--device cuda: PyTorch finds no CUDA device"):
        run(SCHEDULE, Settings(device="cuda"))
