"""What connects the ranks of a pipeline."""

from __future__ import annotations

import multiprocessing
import os
import select
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from weakref import WeakSet

import pytest
import torch
from torch.nn import functional

import debubble.torch as dt
from debubble.torch.ranks import process_group as team
from tests.missing import missing
from tests.patience import patience
from tests.torch.loop import mlp, vectors
from tests.torch.world import in_ranks


def test_no_thread_of_a_link_outlives_the_interpreter(monkeypatch: Any) -> None:
    """One that drops a tensor after it aborts the process."""
    from torch.distributed import HashStore

    if not os.path.isdir("/proc/self/task"):
        missing("threads are looked up in /proc")
    monkeypatch.setattr(team, "_CHANNELS", WeakSet())
    before = set(os.listdir("/proc/self/task"))
    link = team.Channel(HashStore(), 0, 1, timedelta(seconds=10))
    assert link.gather("step") == ["step"]
    assert set(os.listdir("/proc/self/task")) - before
    team._end_channels()
    assert not set(os.listdir("/proc/self/task")) - before


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_sums_have_equal_bits_on_all_ranks(size: int) -> None:
    """A tree adds in one sequence, whichever rank asks."""
    from torch.distributed import HashStore

    store, limit = HashStore(), timedelta(seconds=60)
    numbers = [0.1 * 3**rank for rank in range(size)]

    def work(rank: int) -> tuple[list[float], float]:
        link = team.Channel(store, rank, size, limit)
        found = link.add([numbers[rank], 1.0])
        largest = link.sum(torch.tensor(numbers[rank]), largest=True)
        link.sum(torch.zeros(1))  # all have their messages before a connection closes
        return found, float(largest)

    with ThreadPoolExecutor(size) as threads:
        first, *others = threads.map(work, range(size))
    assert all(other == first for other in others)
    assert first == (pytest.approx([sum(numbers), size]), pytest.approx(max(numbers)))


def test_a_step_exchanges_two_rows_of_numbers() -> None:
    """One as it begins, one for the loss: PyTorch's schedules need none, so each is overhead."""

    def work(rank: int) -> list[str]:
        pipe = dt.Pipeline("1f1b", mlp(2), functional.mse_loss, microbatches=4)
        calls: list[str] = []
        for name in ("sum", "gather"):
            own = getattr(team.Channel, name)
            setattr(team.Channel, name, lambda *args, name=name, own=own, **how: (
                calls.append(name), own(*args, **how))[1])  # fmt: skip
        x, y = vectors(4, 0)
        pipe.step(x, target=y)
        return calls

    assert in_ranks(2, work) == [["sum", "sum"]] * 2


@pytest.mark.parametrize("fails", [False, True])
def test_processes_that_a_rank_of_the_tests_begins_end_with_it(fails: bool, tmp_path: Any) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)

    def work(_: int) -> None:
        # As Megatron's checkpoints begin a manager. All who have the pipe must end to close it.
        multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
        os.open(pipe, os.O_WRONLY)
        multiprocessing.get_context("fork").Process(target=time.sleep, args=(300,)).start()
        assert not fails

    in_ranks(1, work, fails=True)
    assert select.select([reader], [], [], patience(10))[0]
    assert os.read(reader, 1) == b""
    os.close(reader)
