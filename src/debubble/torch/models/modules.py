"""Wrappers of modules, saved state, and reasons why a backward cannot be split.

Modules and tensors of ``fully_shard`` are recognized without loading it, which takes half as long
as loading PyTorch; without it loaded, nothing is sharded.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.parallel import DistributedDataParallel

from debubble.core.errors import ParameterError, did_you_mean

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor


def is_sharded(module: nn.Module) -> TypeGuard[FSDPModule]:
    """Return if ``fully_shard`` was applied to a module."""
    loaded = sys.modules.get("torch.distributed.fsdp")
    return loaded is not None and isinstance(module, loaded.FSDPModule)


def is_dtensor(tensor: Tensor) -> TypeGuard[DTensor]:
    """Return if a tensor is a ``DTensor``, of which each rank has a part."""
    loaded = sys.modules.get("torch.distributed.tensor")
    return loaded is not None and isinstance(tensor, loaded.DTensor)


def replica_groups(module: nn.Module) -> list[dist.ProcessGroup]:
    """Return the groups over which gradients of a stage are averaged, one after the other."""
    if isinstance(module, DistributedDataParallel):
        return [module.process_group]
    spread = next((weight for weight in module.parameters() if is_dtensor(weight)), None)
    return [] if spread is None else list(spread.device_mesh.get_all_groups())


WRAPPED = ("_orig_mod.", "_checkpoint_wrapped_module.")
"""Parts that wrappers add to names of parameters."""


def bare_name(name: str) -> str:
    """Return the name of a parameter without the parts that wrappers add."""
    for part in WRAPPED:
        name = name.replace(part, "")
    return name


def bare(module: nn.Module) -> nn.Module:
    """Return the module inside of DDP and ``torch.compile``."""
    while True:
        inner = getattr(module, "_orig_mod", None)
        if isinstance(module, DistributedDataParallel):
            inner = module.module
        if not isinstance(inner, nn.Module):
            return module
        module = inner


def names_of(modules: Mapping[int, nn.Module]) -> dict[str, Tensor]:
    """Return parameters by stage and name, as ``state_dict`` of a pipeline names them."""
    return {
        f"{stage}.{bare_name(name)}": weight
        for stage, module in modules.items()
        for name, weight in bare(module).named_parameters(remove_duplicate=False)
    }


def ties_of(modules: Mapping[int, nn.Module]) -> list[list[str]]:
    """Return lists of names, by stage, of weights that are one object, in one stage or several."""
    names: dict[int, list[str]] = {}
    for name, weight in names_of(dict(sorted(modules.items()))).items():
        names.setdefault(id(weight), []).append(name)
    return [same for same in names.values() if len(same) > 1]


def without_sync(module: nn.Module) -> AbstractContextManager[None]:
    """Return a context for forwards whose backward does not make DDP exchange gradients."""
    if isinstance(module, DistributedDataParallel):
        context: AbstractContextManager[None] = module.no_sync()
        return context
    return nullcontext()


@contextmanager
def evaluating(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Put modules in eval mode for a time; afterwards every part is in its mode before.

    After forwards alone ``fully_shard`` leaves some weights gathered, which are released.
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


@contextmanager
def restored(modules: Sequence[nn.Module], device: torch.device) -> Iterator[None]:
    """Compute with modules, without gradients of before, for a time.

    Gradients, buffers and random numbers are as before afterwards.
    """
    gradients = {weight: weight.grad for module in modules for weight in module.parameters()}
    buffers = [{name: each.clone() for name, each in m.named_buffers()} for m in modules]
    for weight in gradients:
        weight.grad = None
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        for weight, gradient in gradients.items():
            weight.grad = gradient
        with torch.no_grad():
            for module, kept in zip(modules, buffers, strict=True):
                for name, buffer in module.named_buffers():
                    buffer.copy_(kept[name])


def reason_fused(module: nn.Module) -> str:
    """Return why the backward of a module cannot be split, as far as it shows; empty if it can."""
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
        return CHECKPOINTED
    return ""


CHECKPOINTED = "it is checkpointed, and I and W would each compute the forward again"
HOOKED = "its forward sets a hook on the gradient of an activation, which I and W would both run"


@contextmanager
def saving_seen() -> Iterator[list[str]]:
    """Note reasons not to split the backward of a forward that show while it runs.

    It sets hooks on the tensors that autograd saves, as activation checkpointing does, or on the
    gradient of an activation.
    """
    seen: list[str] = []

    def noting(call: Callable[..., Any], reason: Callable[[Any], str]) -> Callable[..., Any]:
        @functools.wraps(call)
        def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
            seen.extend(filter(None, [reason(self)]))
            return call(self, *args, **kwargs)

        return noted

    places: Sequence[tuple[Any, str, Callable[[Any], str]]] = (
        (saved_tensors_hooks, "__enter__", _of_saved), (Tensor, "register_hook", _of_gradient),
        (Tensor, "retain_grad", _of_gradient),
    )  # fmt: skip
    calls = [getattr(owner, name) for owner, name, _ in places]
    for (owner, name, reason), call in zip(places, calls, strict=True):
        setattr(owner, name, noting(call, reason))
    try:
        yield seen
    finally:
        for (owner, name, _), call in zip(places, calls, strict=True):
            setattr(owner, name, call)


def _of_saved(hooks: saved_tensors_hooks) -> str:
    kind = type(hooks).__name__
    return f"its forward changes what autograd saves ({kind}), as checkpointing does"


def _of_gradient(tensor: Tensor) -> str:
    return "" if tensor.is_leaf else HOOKED


def custom_function(roots: Sequence[Tensor]) -> str:
    """Return the name of a custom ``autograd.Function`` that uses weights; empty for none.

    Reentrant checkpointing counts, too: it runs a whole backward of its own.
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
    """Return why a backward cannot be split, by its first forward; empty if it can.

    Reasons are those that :func:`saving_seen` noted, and the graph below the outputs.
    """
    if seen:
        return seen[0]
    custom = custom_function(roots)
    return f"the custom autograd.Function {custom} computes with its weights" if custom else ""


def autocast_of(device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    """Return a maker of contexts like the caller's autocast, for every action.

    Casts of weights are not cached: one of a forward without gradients would serve one with them.
    """
    kind = device.type
    if not torch.is_autocast_enabled(kind):
        return nullcontext
    dtype = torch.get_autocast_dtype(kind)
    return lambda: torch.autocast(kind, dtype, cache_enabled=False)


NamedModules = Iterable[tuple[str, nn.Module]]
"""Modules with the prefixes of their names."""


def named_parameters(modules: NamedModules) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield every parameter once."""
    seen: set[int] = set()
    for prefix, module in modules:
        for name, weight in bare(module).named_parameters():
            if id(weight) not in seen:
                seen.add(id(weight))
                yield f"{prefix}.{bare_name(name)}", weight


def state_of(modules: NamedModules) -> dict[str, Any]:
    """Return parameters and buffers by name."""
    return {
        f"{prefix}.{bare_name(name)}": value
        for prefix, module in modules
        for name, value in bare(module).state_dict().items()
    }


def load_state(modules: NamedModules, state: Mapping[str, Any]) -> None:
    """Load parameters and buffers; `state` may have more."""
    if not isinstance(state, Mapping):
        raise ParameterError(
            f"the state is {type(state).__name__}; give what state_dict() returned, or was saved"
        )
    modules = list(modules)
    missing = [name for name in state_of(modules) if name not in state]
    if missing:
        more = f" and {len(missing) - 1} more" if missing[1:] else ""
        hint = did_you_mean(missing[0], state) if state else "it is empty"
        raise ParameterError(f"the state has no '{missing[0]}'{more}; {hint}")
    for prefix, module in modules:
        inner = bare(module)
        own = {name: f"{prefix}.{bare_name(name)}" for name in inner.state_dict()}
        try:
            inner.load_state_dict({name: state[full] for name, full in own.items()})
        except RuntimeError as error:
            what = str(error).splitlines()[-1].strip().rstrip(".")
            raise ParameterError(f"the state does not fit stage {prefix}: {what}") from None
