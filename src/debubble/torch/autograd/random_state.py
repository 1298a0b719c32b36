"""The state of the random numbers, so that a recompute draws what its forward drew."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class RandomState:
    """The states of the generators of the host and of a device."""

    host: Tensor
    device: torch.device
    cuda: Tensor | None

    @classmethod
    def now(cls, device: torch.device) -> RandomState:
        """As it is."""
        cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        return cls(torch.get_rng_state(), device, cuda)

    @contextmanager
    def again(self) -> Iterator[None]:
        """A context in which random numbers are drawn from here; it leaves no trace."""
        before = RandomState.now(self.device)
        self._set()
        try:
            yield
        finally:
            before._set()

    def _set(self) -> None:
        torch.set_rng_state(self.host)
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda, self.device)
