"""The command that runs, for the reports that it saves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_WORDS: ContextVar[tuple[str, ...]] = ContextVar("words", default=())


@contextmanager
def run_as(words: Iterable[str]) -> Iterator[None]:
    """Note the words after ``debubble`` while that command runs."""
    token = _WORDS.set(("debubble", *words))
    try:
        yield
    finally:
        _WORDS.reset(token)


def command() -> str:
    """Return the command as a shell takes it, empty where Python called."""
    import shlex

    return shlex.join(_WORDS.get())
