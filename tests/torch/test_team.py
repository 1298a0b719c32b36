"""What connects the ranks of a pipeline."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any
from weakref import WeakSet

import pytest

from debubble.torch import team


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="threads are listed on Linux only")
def test_no_thread_of_a_link_outlives_the_interpreter(monkeypatch: Any) -> None:
    """One that drops a tensor after it aborts the process."""
    from torch.distributed import HashStore

    monkeypatch.setattr(team, "_LINKS", WeakSet())
    before = set(os.listdir("/proc/self/task"))
    link = team.Link(HashStore(), 0, 1, timedelta(seconds=10))
    assert link.words("step") == ["step"]
    assert set(os.listdir("/proc/self/task")) - before
    team._end_links()
    assert not set(os.listdir("/proc/self/task")) - before
