"""What autograd keeps of a forward, in bytes: every storage once, weights not counted."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn


def storages(tensors: Iterable[Tensor]) -> dict[int, int]:
    """Bytes of the storages that tensors are views of, by their address."""
    found = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.nbytes():
            found[storage.data_ptr()] = storage.nbytes()
    return found


def held_by(module: nn.Module) -> Iterator[Tensor]:
    """Parameters and buffers."""
    yield from module.parameters()
    yield from module.buffers()


class Saved:
    """The tensors that nodes of autograd's graph keep, for as long as they do.

    Parameters
    ----------
    resident
        What is there anyway: weights and buffers.
    """

    def __init__(self, resident: Iterable[Tensor]) -> None:
        self._resident = storages(resident)
        self._slots: list[weakref.ref[_Slot]] = []

    def watch(self) -> AbstractContextManager[Any]:
        """A context in which everything that a forward saves is noted."""
        return torch.autograd.graph.saved_tensors_hooks(self._pack, _unpack)

    def share(self, more: Iterable[Tensor]) -> None:
        """Count what is kept now, and `more`, no longer: it belongs to others, too."""
        slots = [slot for ref in self._slots if (slot := ref()) is not None]
        self._resident |= storages([slot.tensor for slot in slots]) | storages(more)

    def bytes(self, more: Iterable[Tensor] = ()) -> int:
        """Bytes of what is still kept, and of `more`."""
        slots = [slot for ref in self._slots if (slot := ref()) is not None]
        kept = storages([slot.tensor for slot in slots]) | storages(more)
        return sum(size for address, size in kept.items() if address not in self._resident)

    # Compiled code calls these two, and they are no part of it.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _pack(self, tensor: Tensor) -> _Slot:
        slot = _Slot(tensor)
        self._slots.append(weakref.ref(slot))
        return slot


class _Slot:
    """One saved tensor: it lives as long as the node of the graph that saved it needs it."""

    def __init__(self, tensor: Tensor) -> None:
        # An output with its node would keep that node, and the node this slot.
        self.tensor = tensor.detach()


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _unpack(slot: _Slot) -> Tensor:
    return slot.tensor
