"""State of the random numbers, so that a recompute draws the numbers of its forward."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor


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
