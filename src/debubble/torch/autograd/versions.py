"""Older weights for a backward, and the random numbers of a forward for its recompute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from debubble.core.errors import ParameterError


class Versions:
    """The newest versions of a module's weights, each with its own gradients.

    `kept` is their number, with the newest one: the module's parameters.
    """

    def __init__(self, module: nn.Module, kept: int) -> None:
        self._module, self._kept = module, kept
        self._count = -1
        """Number of the newest version."""
        self._begin = 0
        self._seen: tuple[int, ...] = ()
        self._copies: dict[int, dict[str, Tensor]] = {}
        self._used: dict[int, dict[str, Tensor]] = {}

    def start(self) -> None:
        """Begin a step; an optimizer may have changed the weights since the last one."""
        self.refresh()
        self._begin = self._count
        self._used.clear()

    def refresh(self) -> None:
        """Keep the weights as a new version when they have changed."""
        weights = dict(self._module.named_parameters())
        now = tuple(weight._version for weight in weights.values())
        if now == self._seen:
            return
        self._seen = now
        self._count += 1
        self._copies[self._count] = {
            name: weight.detach().clone().requires_grad_(weight.requires_grad)
            for name, weight in weights.items()
        }
        self._copies.pop(self._count - self._kept, None)

    def of(self, iteration: int) -> Mapping[str, Tensor]:
        """Return the version for an iteration: the oldest that is kept when it begins."""
        wanted = max(self._begin + iteration - self._kept + 1, min(self._copies))
        number = min(wanted, self._count)
        found = self._copies[number]
        for name, weight in self._module.named_parameters():
            if weight._post_accumulate_grad_hooks:
                raise ParameterError(
                    f"{name} has a hook for after its gradient is added, and the schedule keeps "
                    "older versions of it, whose gradients are added at the end of a step; use "
                    "register_hook(), or a schedule with one version"
                )
            if weight._backward_hooks:
                found[name]._backward_hooks = weight._backward_hooks
        self._used[number] = found
        return found

    def collect(self) -> None:
        """Add the gradients of all versions to those of the module's own parameters."""
        own = dict(self._module.named_parameters())
        for copy in self._used.values():
            for name, weight in copy.items():
                if weight.grad is not None:
                    there = own[name]
                    there.grad = weight.grad if there.grad is None else there.grad + weight.grad
                    weight.grad = None


@dataclass(frozen=True, eq=False)
class RandomState:
    """States of the generators of the host and of a device."""

    device: torch.device
    host: Tensor
    cuda: Tensor | None

    @classmethod
    def now(cls, device: torch.device) -> RandomState:
        """Return the present state."""
        cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        return cls(device, torch.get_rng_state(), cuda)

    @contextmanager
    def again(self) -> Iterator[None]:
        """Draw random numbers from this state; afterwards the present one is back."""
        with torch.random.fork_rng([] if self.cuda is None else [self.device]):
            torch.set_rng_state(self.host)
            if self.cuda is not None:
                torch.cuda.set_rng_state(self.cuda, self.device)
            yield
