"""Searches that end by their effort where a caller gives them seconds, in which a busy machine does
less."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

EFFORT = 1e-3


def by_effort(optimize: Callable[..., Any]) -> Callable[..., Any]:
    """The same search, by effort."""

    def search(*args: Any, **how: Any) -> Any:
        del how["time_limit"]
        return optimize(*args, **how, effort=EFFORT)

    return search
