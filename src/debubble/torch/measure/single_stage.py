"""F, B, I and W of a stage, or one of its layers, that runs alone; meters of time and FLOPs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from debubble.torch.autograd.backward import run_backward
from debubble.torch.autograd.splitter import Branches, Splitter, run_branches
from debubble.torch.data.batch import added_losses
from debubble.torch.data.tree import differentiable, mapped, tensors_of
from debubble.torch.models.split import find_layers


@dataclass(frozen=True)
class SingleStage:
    """A stage, or one of its layers, with its arguments."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    """Its arguments; tensors that require a gradient get one in the backward."""
    loss: Callable[[Any], Tensor] | None = None
    """Loss of the output, on the last stage."""
    splitter: Splitter = field(default_factory=Splitter)

    def forward(self, split: bool = False, own: bool = False) -> StageForward:
        """Run F; `own` copies the arguments, as every microbatch has its own.

        For a `split` backward inputs get gradients where they can; otherwise I would do nothing.
        """
        args, kwargs = mapped((self.args, self.kwargs), _copy if own else detach)
        inputs = [t for t in tensors_of((args, kwargs)) if t.requires_grad]
        if split and not inputs:
            inputs = [t.requires_grad_() for t in tensors_of(args) if differentiable(t)]
        with added_losses() as added:
            output = self.module(*args, **kwargs)
            if self.loss is not None:
                output = self.loss(output)
        outputs = [t for t in tensors_of(output) if t.requires_grad]
        roots = outputs + [value for value in added if value.requires_grad]
        alone = len(outputs) if self.loss is None else 0
        return StageForward(self.splitter, roots, alone, inputs, tensors_of(args), output)


@dataclass
class StageForward:
    """Result of an F: roots of its backward, of which the first `outputs` want gradients."""

    splitter: Splitter
    roots: list[Tensor]
    outputs: int
    inputs: list[Tensor]
    args: list[Tensor]
    result: Any
    branches: list[Branches] = field(default_factory=list)
    """Work that I leaves to W."""
    seeds: list[Tensor] = field(default_factory=list)
    """Gradients of the roots, where I does nothing and leaves all to W."""

    def gradients(self) -> list[Tensor]:
        """Return some gradient for every root."""
        return [
            torch.randn_like(root) if index < self.outputs else torch.ones_like(root)
            for index, root in enumerate(self.roots)
        ]

    def backward(self, gradients: Sequence[Tensor]) -> None:
        """Run B."""
        if self.roots:
            run_backward(self.roots, gradients)
        self.roots.clear()
        self.result = None

    def backward_input(self, gradients: Sequence[Tensor]) -> None:
        """Run I."""
        if self.roots and self.inputs:
            _, self.branches = self.splitter.backward_input(self.roots, gradients, self.inputs)
            self.roots.clear()
        elif self.roots:
            self.seeds = list(gradients)
        self.result = None

    @property
    def left(self) -> bool:
        """If I left work to W."""
        return bool(self.branches or self.seeds)

    @property
    def kept(self) -> list[Tensor]:
        """Gradients that W needs."""
        pairs = (pair for each in self.branches for pair in (*each.inside, *each.past))
        return [*self.seeds, *(gradient for _, gradient in pairs)]

    def backward_weight(self) -> None:
        """Run W."""
        run_branches(self.branches)
        if self.seeds:
            run_backward(self.roots, self.seeds)
        self.roots.clear()


def layer_parts(part: SingleStage) -> list[SingleStage]:
    """Return the layers of a stage with their arguments."""
    layers = find_layers(part.module)
    called: dict[nn.Module, SingleStage] = {}
    calls = 0

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal calls
        calls += 1
        called[module] = SingleStage(module, *mapped((args, kwargs), detach))

    hooks = [layer.register_forward_pre_hook(note, with_kwargs=True) for layer in layers]
    try:
        part.forward()
    finally:
        for hook in hooks:
            hook.remove()
    # The time of a layer that is called twice, or never, belongs to no one place of the model.
    return [called[layer] for layer in layers] if calls == len(layers) == len(called) else []


def detach(tensor: Tensor) -> Tensor:
    """Return the tensor as a leaf that requires a gradient if it did before."""
    return tensor.detach().requires_grad_(tensor.requires_grad)


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


class Stopwatch:
    """Times between marks in milliseconds; on CUDA times of the stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device if device.type == "cuda" else None
        self._marks: list[Any] = []

    def mark(self) -> None:
        """Mark the present time."""
        if self._device is None:
            self._marks.append(time.perf_counter_ns())
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        self._marks.append(event)

    def read(self) -> list[float]:
        """Return the times from mark to mark, and forget the marks."""
        marks, self._marks = self._marks, []
        pairs = pairwise(marks)
        if self._device is None:
            return [(end - start) / 1e6 for start, end in pairs]
        torch.cuda.synchronize(self._device)
        return [start.elapsed_time(end) for start, end in pairs]


class Flops(TorchDispatchMode):
    """Counter of the FLOPs of all operators, with PyTorch's formulas and one for attention.

    PyTorch's own counter also hooks modules, and I alone does not pass its hooks. Its formulas for
    attention refuse fewer heads of keys than of queries up to 2.11, and none is for CPUs. What a
    formula refuses counts as nothing.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operator and count it."""
        result = func(*args, **(kwargs or {}))
        packet = func._overloadpacket
        formula = ATTENTION.get(packet.__name__) or flop_registry.get(packet)
        if formula is not None:
            with suppress(Exception):
                self.total += formula(*args, **(kwargs or {}), out_val=result)
        return result


def attention_flops(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> int:
    """Return the FLOPs of attention: two products per head of the queries, as if not causal."""
    return _pairs(query, key) * (query.shape[-1] + value.shape[-1])


def attention_backward_flops(
    _gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any
) -> int:
    """Return the FLOPs of attention's backward: five products, one of which is recomputed."""
    return _pairs(query, key) * (3 * query.shape[-1] + 2 * value.shape[-1])


def _pairs(query: Tensor, key: Tensor) -> int:
    """Return twice the number of scores, of shape batch, heads, queries, keys."""
    return 2 * math.prod(query.shape[:-1]) * key.shape[-2]


ATTENTION = {
    f"_scaled_dot_product_{name}{suffix}": formula
    for name in (
        "efficient_attention", "flash_attention", "cudnn_attention",
        "flash_attention_for_cpu", "fused_attention_overrideable",
    )
    for suffix, formula in (("", attention_flops), ("_backward", attention_backward_flops))
}  # fmt: skip
"""Formulas for the fused operators of attention, by name."""
