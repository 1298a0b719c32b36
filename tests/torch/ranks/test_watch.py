"""The thread that looks at the store."""

from __future__ import annotations

import threading
import time
from typing import Any

from debubble.torch.ranks import watch
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
