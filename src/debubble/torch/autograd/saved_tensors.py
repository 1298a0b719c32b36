"""Tensors that autograd saves in a forward: their bytes, and their early release."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node


def storages(tensors: Iterable[Tensor]) -> dict[int, int]:
    """Return the bytes of the storages of tensors, by address."""
    found = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.nbytes():
            found[storage.data_ptr()] = storage.nbytes()
    return found


@cache
def saved_names(kind: type[Node]) -> tuple[str, ...]:
    """Return the names of the tensors that autograd saves in nodes of a class."""
    return tuple(name for name in dir(kind) if name.startswith("_raw_saved_"))


def addresses(node: Node, name: str) -> set[int]:
    """Return the addresses of such tensors' storages, as far as known, without single numbers."""
    found = set()
    for handle in _handles(node, name):
        kept = getattr(handle, "data", None)
        tensor = kept.tensor if isinstance(kept, Slot) else kept
        if isinstance(tensor, Tensor) and tensor.numel() > 1:
            # Sparse tensors and wrappers show no storage, and so are not released.
            with suppress(RuntimeError):
                found.add(tensor.untyped_storage().data_ptr())
    return found


def shows_saved(node: Node) -> bool:
    """Return if :func:`addresses` sees all tensors that a node uses.

    A custom function, or a hook as that of checkpointing, may hold tensors of its own.
    """
    handles = (h for name in saved_names(type(node)) for h in _handles(node, name))
    return not isinstance(node, BackwardCFunction) and all(
        isinstance(getattr(handle, "data", ...), Tensor | Slot | None) for handle in handles
    )


def release(node: Node, name: str) -> None:
    """Release such tensors; the node cannot run again."""
    for handle in _handles(node, name):
        try:
            # A saved tensor that a hook has packed is held no longer; this one keeps nothing.
            handle.register_hooks(_nothing, _gone)
        except RuntimeError:
            kept = getattr(handle, "data", None)
            if isinstance(kept, Slot):
                kept.tensor = None


def _handles(node: Node, name: str) -> Sequence[Any]:
    found = getattr(node, name)
    return found if isinstance(found, list | tuple) else (found,)


def _nothing(_: Tensor) -> None:
    return None


def _gone(_: None) -> Tensor:
    raise AssertionError("nodes on the way to the input run in I alone")


class Slot:
    """Place of a saved tensor in the graph, kept by a hook as long as the graph needs it."""

    def __init__(self, tensor: Tensor | None) -> None:
        self.tensor = tensor


class SavedTensors:
    """Tensors that nodes of autograd's graph hold, as long as they do.

    Those that are `resident`, weights and buffers, do not count.
    """

    def __init__(self, resident: Iterable[Tensor]) -> None:
        self._resident = storages(resident)
        self._slots: list[weakref.ref[Slot]] = []

    def watch(self) -> AbstractContextManager[Any]:
        """Return a context in which the tensors that a forward saves are collected."""
        # Compiled code calls these two, and they are no part of it. To disable them loads the
        # compiler, which takes as long as loading PyTorch: only where tensors are collected.
        hooks = map(torch.compiler.disable, (self._pack, _unpack))
        return torch.autograd.graph.saved_tensors_hooks(*hooks)

    def share(self, more: Iterable[Tensor]) -> None:
        """Count tensors held now, and `more`, no longer: other microbatches share them."""
        self._resident |= storages([*self._kept(), *more])

    def bytes(self, more: Iterable[Tensor] = ()) -> int:
        """Return the bytes of tensors that are still held, and of `more`."""
        kept = storages([*self._kept(), *more])
        return sum(size for address, size in kept.items() if address not in self._resident)

    def _kept(self) -> Iterator[Tensor]:
        slots = (slot for ref in self._slots if (slot := ref()) is not None)
        return (slot.tensor for slot in slots if slot.tensor is not None)

    def _pack(self, tensor: Tensor) -> Slot:
        # An output that is saved holds its node, and the node this slot: detached, it does not.
        slot = Slot(tensor.detach())
        self._slots.append(weakref.ref(slot))
        return slot


def _unpack(slot: Slot) -> Tensor:
    assert slot.tensor is not None, "it was released"
    return slot.tensor
