"""Losses that a stage adds on its own, such as the balance of a mixture of experts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

_ADDED: ContextVar[list[Tensor] | None] = ContextVar("added losses", default=None)


def add_loss(value: Tensor) -> None:
    """Add a scalar to the loss of the microbatch whose forward runs.

    Called in the forward of a stage. The value counts like the microbatch's own loss; where nobody
    collects losses, in a forward without a backward for instance, it is dropped.

    Parameters
    ----------
    value
        One number, with the graph that leads to the weights.
    """
    added = _ADDED.get()
    if added is not None:
        added.append(value)


@contextmanager
def added_losses() -> Iterator[list[Tensor]]:
    """Collect what :func:`add_loss` gets."""
    found: list[Tensor] = []
    token = _ADDED.set(found)
    try:
        yield found
    finally:
        _ADDED.reset(token)
