"""Cancellation of a diagnosis between two pieces of its work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_check: ContextVar[Callable[[], None]] = ContextVar("check", default=lambda: None)


def check_cancelled() -> None:
    """Raise the exception that cancels the diagnosis, if any; call before every piece of work."""
    _check.get()()


@contextmanager
def cancelled_by(check: Callable[[], None]) -> Iterator[None]:
    """Call `check` before every piece of work in this context; it raises to cancel."""
    token = _check.set(check)
    try:
        yield
    finally:
        _check.reset(token)
