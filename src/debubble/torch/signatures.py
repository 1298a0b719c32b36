"""Numbers for the shapes and types of what a pipeline is given."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree


class Signatures:
    """Counts the inputs of different form that the first stage has seen."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._trains: tuple[bool, ...] = ()

    def number(self, given: Any, device: torch.device) -> int:
        """The number of an input: equal for equal shapes, types and plain values."""
        leaves, spec = pytree.tree_flatten(given)
        cast = torch.is_autocast_enabled(device.type)
        key = (
            spec.__repr__() if len(leaves) > 3 else len(leaves),
            cast and torch.get_autocast_dtype(device.type),
            *(
                (leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else repr(leaf)
                for leaf in leaves
            ),
        )
        return self._numbers.setdefault(key, len(self._numbers))

    def changed(self, modules: Mapping[int, nn.Module]) -> bool:
        """Whether other weights want gradients than before."""
        now = tuple(
            any(weight.requires_grad for weight in module.parameters())
            for module in modules.values()
        )
        changed = now != self._trains and bool(self._trains)
        self._trains = now
        return changed
