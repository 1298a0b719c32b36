"""Transfers in batches, as NCCL takes them, on a stand-in for its stream."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

import pytest
from torch import distributed as dist

import debubble as db
import debubble.torch as dt
from debubble.torch.errors import RunError
from debubble.torch.ranks import watch
from debubble.torch.ranks.process_group import Ranks
from tests.conftest import EXPLORES
from tests.pairs import combined
from tests.patience import patience
from tests.small import RANKS, smallest
from tests.torch.loop import cross_entropy, gpt, text
from tests.torch.test_training import Wanted, trained
from tests.torch.world import in_ranks


class Stream:
    """Runs batches one after the other: the next begins when all transfers of one are over."""

    def __init__(self) -> None:
        self.posted = 0
        self.looked: list[int] = []
        """How many batches were posted whenever the host waited until one was over."""
        self.stuck = False
        """Whether the device gets no further, of which the host knows nothing."""
        self._queue: SimpleQueue[tuple[list[Any], threading.Event]] = SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def __call__(self, operations: list[Any]) -> list[Any]:
        """Stands for ``torch.distributed.batch_isend_irecv``."""
        self.posted += 1
        over = threading.Event()
        self._queue.put((operations, over))
        return [Batch(self, over)]

    def _run(self) -> None:
        while True:
            operations, over = self._queue.get()
            if self.stuck:
                continue
            works = [
                dist.isend(one.tensor, group=one.group, group_dst=one.group_peer)
                if one.op is dist.isend
                else dist.irecv(one.tensor, group=one.group, group_src=one.group_peer)
                for one in operations
            ]
            for work in works:
                work.wait()
            over.set()


class Batch:
    """One piece of work of a stream."""

    def __init__(self, stream: Stream, over: threading.Event) -> None:
        self.stream, self.over = stream, over

    def wait(self, timeout: timedelta | None = None) -> None:
        """With a timeout the host waits; without, the stream of the caller."""
        if timeout is not None:
            self.stream.looked.append(self.stream.posted)
        elif self.stream.stuck:
            return
        if not self.over.wait(None if timeout is None else timeout.total_seconds()):
            raise dist.DistBackendError("Work timed out in blocking wait.")


def on_streams(work: Callable[[int, Stream], Any]) -> Callable[[int], Any]:
    """Let pipelines of a process send in batches."""

    def inside(rank: int) -> Any:
        stream, made = Stream(), Ranks.of
        watch.CONNECTING += (__file__,)
        dist.batch_isend_irecv = stream

        def of(*args: Any) -> Ranks:
            return replace(made(*args), batched=True)

        Ranks.of = of  # type: ignore[method-assign,assignment]
        return work(rank, stream)

    return inside


def test_schedules_of_every_sort_train() -> None:
    entries = db.schedules() if EXPLORES else [of_sort[-1] for of_sort in combined().values()]
    schedules = [smallest(entry) for entry in entries]
    wanted = Wanted(schedules)

    def work(rank: int, stream: Stream) -> dict[str, list[str]]:
        # In the first step forms go beside; from the second on all is in batches.
        found = {one.name: trained(one, wanted.of(one), steps=2) for one in schedules}
        assert stream.posted > len(schedules)
        return found

    for found in in_ranks(RANKS, on_streams(work)):
        assert found == {schedule.name: [] for schedule in schedules}


@pytest.mark.parametrize("name", ["1f1b", "interleaved-1f1b", "zb-v", "dualpipe-v"])
def test_the_host_waits_for_nothing_before_all_is_posted(name: str) -> None:
    made = db.make(name, ranks=2, microbatches=4)

    def work(rank: int, stream: Stream) -> tuple[int, list[int]]:
        model = gpt(made.stages)
        pipe = dt.Pipeline(made, lambda stage: model[stage], cross_entropy)
        x, y = text(4, 0)
        for _ in range(2):
            before = stream.posted
            stream.looked.clear()
            pipe.step(x, target=y)
        return stream.posted - before, [count - before for count in stream.looked]

    for posted, looked in in_ranks(2, on_streams(work)):
        assert looked == [posted] * posted


def test_who_waits_for_whom_is_said() -> None:
    made = db.make("1f1b", ranks=2, microbatches=4)
    limit = round(patience(2))

    def work(rank: int, stream: Stream) -> str:
        model = gpt(2)
        group = dist.new_group()  # it ends with the step; ranks still meet in the world's
        pipe = dt.Pipeline(
            made, lambda stage: model[stage], cross_entropy, timeout=limit, group=group
        )
        x, y = text(4, 0)
        pipe.step(x, target=y)
        stream.stuck = True
        with pytest.raises(RunError) as raised:
            pipe.step(x, target=y)
        return str(raised.value)

    said = in_ranks(2, on_streams(work))
    assert said[0] == said[1]
    assert said[0].startswith(f"nothing has moved for {limit} s: rank "), said[0]
    print(said[0])
