"""Losses that a stage adds on its own, such as the balance of a mixture of experts."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from torch import Tensor

from debubble.core.errors import ParameterError

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


class added_losses:  # noqa: N801 - it is called as a function
    """A context that collects what :func:`add_loss` gets."""

    __slots__ = ("_token",)

    def __enter__(self) -> list[Tensor]:
        found: list[Tensor] = []
        self._token = _ADDED.set(found)
        return found

    def __exit__(self, *_: object) -> None:
        _ADDED.reset(self._token)


def single(loss: Any, output: Any) -> Tensor:
    """The loss as a tensor without dimensions; one that gives no gradient is refused."""
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        what = list(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise ParameterError(
            f"loss_fn returned {what}; return one number, the mean over the microbatch"
        )
    if isinstance(output, Tensor) and output.requires_grad and not loss.requires_grad:
        raise ParameterError(
            "loss_fn returned a number that has no gradient; compute it from the output without "
            "detach(), item() or no_grad()"
        )
    return loss.reshape(())
