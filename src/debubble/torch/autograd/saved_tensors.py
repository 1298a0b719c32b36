"""What autograd keeps of a forward: how many bytes, and how to release some before the others."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node


def storages(tensors: Iterable[Tensor]) -> dict[int, int]:
    """Bytes of the storages that tensors are views of, by their address."""
    found = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.nbytes():
            found[storage.data_ptr()] = storage.nbytes()
    return found


def parameters_and_buffers(module: nn.Module) -> Iterator[Tensor]:
    """Parameters and buffers."""
    yield from module.parameters()
    yield from module.buffers()


@cache
def saved_names(kind: type[Node]) -> tuple[str, ...]:
    """What the nodes of a class call the tensors that autograd saved for their backward."""
    return tuple(name for name in dir(kind) if name.startswith("_raw_saved_"))


def addresses(node: Node, name: str) -> set[int]:
    """Where the storages of such tensors are, numbers aside; those that are known."""
    found = set()
    for handle in _handles(node, name):
        kept = getattr(handle, "data", None)
        tensor = kept.tensor if isinstance(kept, Slot) else kept
        if isinstance(tensor, Tensor) and tensor.numel() > 1:
            # Sparse tensors and wrappers have no storage to tell of, and so are not released.
            with suppress(RuntimeError):
                found.add(tensor.untyped_storage().data_ptr())
    return found


def shows_saved(node: Node) -> bool:
    """Whether :func:`addresses` has all that a node computes with.

    A custom function, or a hook as that of checkpointing, may hold tensors of its own.
    """
    handles = (h for name in saved_names(type(node)) for h in _handles(node, name))
    return not isinstance(node, BackwardCFunction) and all(
        isinstance(getattr(handle, "data", ...), Tensor | Slot | None) for handle in handles
    )


def release(node: Node, name: str) -> None:
    """Let go of such tensors; the node cannot run again."""
    for handle in _handles(node, name):
        try:
            # What a hook takes is held no longer, and this one gives nothing back.
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
    """What a hook keeps in the place of a saved tensor, as long as the graph needs it."""

    def __init__(self, tensor: Tensor | None) -> None:
        self.tensor = tensor


class SavedTensors:
    """The tensors that nodes of autograd's graph keep, for as long as they do.

    Those that are `resident` are there anyway: weights and buffers.
    """

    def __init__(self, resident: Iterable[Tensor]) -> None:
        self._resident = storages(resident)
        self._slots: list[weakref.ref[Slot]] = []

    def watch(self) -> AbstractContextManager[Any]:
        """A context in which everything that a forward saves is noted."""
        # Compiled code calls these two, and they are no part of it. Saying so loads the compiler,
        # which takes as long as loading PyTorch: only here, where something is watched.
        hooks = map(torch.compiler.disable, (self._pack, _unpack))
        return torch.autograd.graph.saved_tensors_hooks(*hooks)

    def share(self, more: Iterable[Tensor]) -> None:
        """Count what is kept now, and `more`, no longer: it belongs to others, too."""
        self._resident |= storages([*self._kept(), *more])

    def bytes(self, more: Iterable[Tensor] = ()) -> int:
        """Bytes of what is still kept, and of `more`."""
        kept = storages([*self._kept(), *more])
        return sum(size for address, size in kept.items() if address not in self._resident)

    def _kept(self) -> Iterator[Tensor]:
        slots = (slot for ref in self._slots if (slot := ref()) is not None)
        return (slot.tensor for slot in slots if slot.tensor is not None)

    def _pack(self, tensor: Tensor) -> Slot:
        # An output with its node would keep that node, and the node this slot.
        slot = Slot(tensor.detach())
        self._slots.append(weakref.ref(slot))
        return slot


def _unpack(slot: Slot) -> Tensor:
    assert slot.tensor is not None, "it was released"
    return slot.tensor
