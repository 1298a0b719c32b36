"""What modules are wrapped in, and whether a backward through them can be split."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.parallel import DistributedDataParallel

from debubble.torch.models.sharded import is_sharded

WRAPPED = ("_orig_mod.", "_checkpoint_wrapped_module.")
"""What wrappers put into names of parameters."""


def bare_name(name: str) -> str:
    """The name of a parameter without what wrappers of its module put in."""
    for part in WRAPPED:
        name = name.replace(part, "")
    return name


def bare(module: nn.Module) -> nn.Module:
    """What is inside of DDP and ``torch.compile``."""
    while True:
        inner = getattr(module, "_orig_mod", None)
        if isinstance(module, DistributedDataParallel):
            inner = module.module
        if not isinstance(inner, nn.Module):
            return module
        module = inner


def ties_of(modules: Mapping[int, nn.Module]) -> list[list[str]]:
    """Weights that are one object in several stages, by stage and name."""
    names: dict[int, list[str]] = {}
    for stage, module in sorted(modules.items()):
        for name, weight in bare(module).named_parameters():
            names.setdefault(id(weight), []).append(f"{stage}.{bare_name(name)}")
    return [same for same in names.values() if len(same) > 1]


def without_sync(module: nn.Module) -> AbstractContextManager[None]:
    """A context in which a forward does not make DDP exchange gradients in its backward."""
    if isinstance(module, DistributedDataParallel):
        context: AbstractContextManager[None] = module.no_sync()
        return context
    return nullcontext()


@contextmanager
def evaluating(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Have modules in eval mode, and then every part in the mode that it was in.

    After forwards alone ``fully_shard`` leaves some weights gathered; parameters are the shards.
    """
    modules = list(modules)
    before = [(part, part.training) for module in modules for part in module.modules()]
    for module in modules:
        module.eval()
    try:
        yield
    finally:
        for part, training in before:
            part.training = training
            if is_sharded(part):
                part.reshard()


def reason_fused(module: nn.Module) -> str:
    """Why the backward of a module cannot be split; empty when nothing is seen against it."""
    parts = list(module.modules())
    if any(hasattr(part, "_orig_mod") or part._compiled_call_impl is not None for part in parts):
        return "it is compiled, and a compiled backward is one piece"
    if any(is_sharded(part) for part in parts):
        return "fully_shard looks after whole backwards"
    if any(isinstance(part, DistributedDataParallel) for part in parts[1:]):
        return "a part of it is wrapped in DDP"
    if any(getattr(part, "gradient_checkpointing", False) is True for part in parts) or any(
        hasattr(part, "_checkpoint_wrapped_module") for part in parts
    ):
        return "it is checkpointed, and I and W would each compute the forward again"
    return ""


@contextmanager
def saving_seen() -> Iterator[list[str]]:
    """Note whether a forward changes what autograd saves, as activation checkpointing does."""
    seen: list[str] = []
    enter = saved_tensors_hooks.__enter__

    @functools.wraps(enter)
    def noted(self: saved_tensors_hooks) -> None:
        seen.append(type(self).__name__)
        enter(self)

    saved_tensors_hooks.__enter__ = noted  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        saved_tensors_hooks.__enter__ = enter  # type: ignore[method-assign]


def custom_function(roots: Sequence[Tensor]) -> str:
    """The name of a custom ``autograd.Function`` that computes with weights; empty for none.

    That of reentrant checkpointing does so unseen: it runs a whole backward of its own.
    """
    stack = [root.grad_fn for root in roots if root.grad_fn is not None]
    seen = set(stack)
    while stack:
        node = stack.pop()
        children = [child for child, _ in node.next_functions if child is not None]
        if isinstance(node, BackwardCFunction):
            name = node.name().removesuffix("Backward")
            leaves = (getattr(child, "variable", None) for child in children)
            if name == "CheckpointFunction" or any(isinstance(x, nn.Parameter) for x in leaves):
                return name
        for child in children:
            if child not in seen:
                seen.add(child)
                stack.append(child)
    return ""


def reason_not_split(seen: Sequence[str], roots: Sequence[Tensor]) -> str:
    """Why a backward cannot be split, by its first forward; empty when nothing is against it.

    That are the hooks which :func:`saving_seen` saw, and the graph behind what the forward made.
    """
    if seen:
        return f"its forward changes what autograd saves ({seen[0]}), as checkpointing does"
    custom = custom_function(roots)
    return f"the custom autograd.Function {custom} computes with its weights" if custom else ""


def autocast_of(device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    """Contexts like the caller's autocast, for every action and thread.

    Casts of weights are not kept: one of a forward without gradients would serve one with them.
    """
    kind = device.type
    if not torch.is_autocast_enabled(kind):
        return nullcontext
    dtype = torch.get_autocast_dtype(kind)
    return lambda: torch.autocast(kind, dtype, cache_enabled=False)
