"""Versions of a module's weights, each with gradients of its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import torch
from torch import Tensor

from debubble.runtime.world import RunError

RATE = 0.1
"""Learning rate of optimizer steps, which are plain stochastic gradient descent."""

Weights: TypeAlias = dict[str, Tensor]
"""One version of weights by name: leaves of autograd."""


class Versions:
    """The newest versions of some weights.

    Parameters
    ----------
    first
        The weights before any optimizer step, which are copied.
    kept
        How many versions are kept.
    """

    def __init__(self, first: Iterable[tuple[str, Tensor]], kept: int) -> None:
        self._kept = kept
        self._after = {0: {name: own_leaf(weight.clone()) for name, weight in first}}
        """By the number of optimizer steps before."""

    def after(self, steps: int) -> Weights:
        """The version after a number of optimizer steps."""
        if steps not in self._after:
            raise RunError(f"the weights after {steps} optimizer steps are not there")
        return self._after[steps]

    def step(self, gradients: Weights) -> None:
        """A new version takes the place of the oldest."""
        last = max(self._after)
        self._after[last + 1] = {
            name: own_leaf(weight.detach() - RATE * gradients[name])
            for name, weight in self._after[last].items()
        }
        self._after.pop(last + 1 - self._kept, None)

    def take_gradients(self) -> Weights:
        """Gradients of all versions together; from now on they are zero."""
        first = next(iter(self._after.values()))
        total = {name: torch.zeros_like(weight) for name, weight in first.items()}
        for version in self._after.values():
            for name, weight in version.items():
                if weight.grad is not None:
                    total[name] += weight.grad
                weight.grad = None
        return total


def own_leaf(tensor: Tensor) -> Tensor:
    """The same numbers, with a gradient of their own."""
    return tensor.detach().requires_grad_()
