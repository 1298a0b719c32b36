"""The thread that looks at the store."""

from __future__ import annotations

import threading
import time
from typing import Any

from debubble.torch.ranks import watch
from debubble.torch.ranks.first_failure import FirstFailure
from debubble.torch.ranks.process_group import name_ranks
from debubble.torch.ranks.watch import StoreWatch
from tests.patience import patience


class Slow:
    """A store whose calls take long."""

    def __init__(self) -> None:
        self.called = threading.Event()

    def set(self, *_: Any) -> None:
        self.called.set()
        time.sleep(0.3)

    def check(self, *_: Any) -> bool:
        return False


def test_a_call_of_the_store_is_over_when_watching_is(monkeypatch: Any) -> None:
    """Threads that are in such calls when a process ends abort it."""
    monkeypatch.setattr(watch, "PERIOD", 0.01)
    store = Slow()
    watched = StoreWatch(0, 2, store, 10, lambda *_: "")
    assert store.called.wait(patience(10))
    watched.stop()
    assert not any(thread.name == "debubble-watch" for thread in threading.enumerate())


def test_a_failure_is_the_cause_of_those_of_other_pipelines_for_a_while(monkeypatch: Any) -> None:
    from torch.distributed import HashStore, PrefixStore

    store = HashStore()
    first, other = (
        FirstFailure(PrefixStore(name, store), name, timeout=10) for name in ("0-2", "1-3")
    )
    assert first.claim("rank 1 (global rank 2) failed") == ""
    assert first.claim("rank 0 (global rank 0) failed") == ""
    assert other.claim("rank 1 (global rank 3) failed") == "rank 1 (global rank 2) failed"
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 100)
    assert other.claim("a later failure") == ""
    assert first.claim("what that causes") == "a later failure"


def test_ranks_are_named_as_far_as_a_user_needs_it() -> None:
    alone = [(0, "a", ""), (1, "a", "")]
    assert name_ranks(alone, 2) == ("rank 0", "rank 1")
    assert name_ranks([(0, "a", ""), (1, "b", "")], 2) == ("rank 0 (on a)", "rank 1 (on b)")
    part = [(1, "a", "tp 1"), (3, "a", "tp 1")]
    assert name_ranks(part, 4) == ("rank 0 (global rank 1, tp 1)", "rank 1 (global rank 3, tp 1)")
