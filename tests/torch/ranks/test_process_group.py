"""What connects the ranks of a pipeline."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any
from weakref import WeakSet

from debubble.torch.ranks import process_group as team
from tests.missing import missing


def test_no_thread_of_a_link_outlives_the_interpreter(monkeypatch: Any) -> None:
    """One that drops a tensor after it aborts the process."""
    from torch.distributed import HashStore

    if not os.path.isdir("/proc/self/task"):
        missing("threads are looked up in /proc")
    monkeypatch.setattr(team, "_CHANNELS", WeakSet())
    before = set(os.listdir("/proc/self/task"))
    link = team.Channel(HashStore(), 0, 1, timedelta(seconds=10))
    assert link.words("step") == ["step"]
    assert set(os.listdir("/proc/self/task")) - before
    team._end_channels()
    assert not set(os.listdir("/proc/self/task")) - before
