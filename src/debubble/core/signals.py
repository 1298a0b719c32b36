"""Signals that are handled in another way for a while."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def on_signal(number: int, handle: Callable[[int, Any], None] | signal.Handlers) -> Iterator[None]:
    """Handle a signal in another way; only the main thread can, and others change nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, handle)
    try:
        yield
    finally:
        signal.signal(number, before or signal.SIG_DFL)
