"""Losses of microbatches, and auxiliary losses such as the balance of a mixture of experts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from debubble.core.errors import ParameterError
from debubble.torch.data.tree import tensors_of

_ADDED: ContextVar[list[Tensor] | None] = ContextVar("added losses", default=None)


def add_loss(value: Tensor) -> None:
    """Add a scalar to the loss of the microbatch whose forward runs.

    Called in the forward of a stage. The value counts like the microbatch's own loss; outside of
    pipelines, in a forward by itself for instance, it is dropped.

    Parameters
    ----------
    value
        One number, with the graph that leads to the weights.

    Raises
    ------
    ParameterError
        When the value is not one number.
    """
    if not isinstance(value, Tensor) or value.numel() != 1:
        what = list(value.shape) if isinstance(value, Tensor) else repr(value)
        raise ParameterError(f"add_loss() got {what}; give a tensor with one number")
    added = _ADDED.get()
    if added is not None:
        added.append(value.reshape(()))


class Loss:
    """Loss function of the training loop, with the keyword arguments of a step."""

    def __init__(self, compute: Callable[..., Tensor]) -> None:
        self._compute = compute
        self._kwargs: dict[str, Any] = {}

    def __call__(self, output: Any, target: Any) -> Tensor:
        """Return the loss of a microbatch."""
        return self._compute(output, target, **self._kwargs)

    def take(self, kwargs: Mapping[str, Any] | None, sharded: bool) -> None:
        """Set the keyword arguments of a step.

        Raises ParameterError when there are some and the output layer is `sharded`: it computes its
        loss itself.
        """
        if kwargs and sharded:
            raise ParameterError(
                f"loss_kwargs has {', '.join(kwargs)}, and a sharded output layer computes its "
                "loss itself; leave them out, or use a schedule that does not shard it"
            )
        self._kwargs = dict(kwargs or {})


class added_losses:  # noqa: N801 - it is called as a function
    """Context that collects the losses that :func:`add_loss` gets."""

    __slots__ = ("_token",)

    def __enter__(self) -> list[Tensor]:
        found: list[Tensor] = []
        self._token = _ADDED.set(found)
        return found

    def __exit__(self, *_: object) -> None:
        _ADDED.reset(self._token)


def zero_of(output: Any) -> Tensor:
    """Return a zero whose gradient is zero everywhere in an output.

    It replaces a loss that counts nowhere: NaN times 0 would be NaN.
    """
    found = torch.zeros(())
    for leaf in tensors_of(output):
        if leaf.requires_grad:
            everywhere = torch.ones_like(leaf, dtype=torch.bool)
            found = found.to(leaf) + leaf.masked_fill(everywhere, 0).sum()
    return found


def check_loss_value(loss: Any, output: Any) -> Tensor:
    """Return a loss as a tensor without dimensions; refuse one that gives no gradient."""
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
