"""Search for the place where a step first computes a number that is not finite."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from debubble.torch.data.tree import differentiable, tensors_of
from debubble.torch.errors import RunError
from debubble.torch.models.modules import bare, bare_name


class FiniteCheck:
    """Checks of a stage's results, each before another stage gets it.

    What they find is where it begins: all that the stage was given had been checked.
    """

    def __init__(self, number: int, module: nn.Module, slices: int, *, backward: bool) -> None:
        self._number, self._module, self._slices = number, bare(module), slices
        self._backward = backward
        """If gradients are checked: those of scaled losses may overflow."""
        self._first = ""
        """First module of a forward with such an output."""
        for name, weight in self._module.named_parameters():
            for what, value in (("", weight), ("the gradient of ", weight.grad)):
                if value is not None and (backward or not what) and not finite(value):
                    hint = "; call zero_grad()" if what else ""
                    raise RunError(
                        f"{what}{number}.{bare_name(name)} is not finite before the step: it has "
                        f"{count_of(value)}{hint}"
                    )

    @contextmanager
    def modules(self) -> Iterator[None]:
        """Note the first module of a forward whose output is not finite."""
        names = {module: name for name, module in self._module.named_modules()}
        self._first = ""

        def look(module: nn.Module, _: Any, output: Any) -> None:
            if not self._first and module in names and not all(map(finite, trained(output))):
                self._first = bare_name(names[module])

        hook = register_module_forward_hook(look)
        try:
            yield
        finally:
            hook.remove()

    def forward(self, unit: int, given: Any, output: Any, losses: Sequence[Tensor]) -> None:
        """Check a forward: what the training loop gave, what the stage returned, and losses."""
        for tensor in tensors_of(given):
            if tensor.is_floating_point() and tensor.isnan().any():
                raise self._error(unit, f"the data has {count_of(tensor)}")
        where = f", first in its module {self._first}" if self._first else ""
        for tensor in trained(output):
            if not finite(tensor):
                raise self._error(unit, f"its forward returns {count_of(tensor)}{where}")
        for loss in losses:
            if not finite(loss):
                raise self._error(unit, f"the loss of its finite output is {loss.item():g}")

    def backward(self, unit: int, gradients: Sequence[Tensor], *, weights: bool) -> None:
        """Check a backward: gradients of the stage's input, and those of its `weights`."""
        if not self._backward:
            return
        for gradient in gradients:
            if not finite(gradient):
                raise self._error(
                    unit, f"its backward gives its input a gradient with {count_of(gradient)}"
                )
        for name, weight in self._module.named_parameters() if weights else ():
            if weight.grad is not None and not finite(weight.grad):
                what = f"its backward gives {bare_name(name)} a gradient with"
                raise self._error(unit, f"{what} {count_of(weight.grad)}")

    def _error(self, unit: int, what: str) -> RunError:
        return RunError(f"stage {self._number}, microbatch {unit // self._slices}: {what}")


def trained(output: Any) -> list[Tensor]:
    """Return tensors of an output that are part of a graph, and those that are NaN somewhere.

    Others may be infinite on purpose, as attention masks are.
    """
    return [x for x in tensors_of(output) if x.requires_grad or (differentiable(x) and has_nan(x))]


def has_nan(tensor: Tensor) -> bool:
    """Return if a tensor has a NaN."""
    return bool(tensor.detach().isnan().any())


def finite(tensor: Tensor) -> bool:
    """Return if all numbers of a tensor are finite."""
    return not differentiable(tensor) or bool(tensor.detach().isfinite().all())


def count_of(tensor: Tensor) -> str:
    """Return how many numbers of a tensor are NaN or infinite, in words."""
    nan, infinite = int(tensor.isnan().sum()), int(tensor.isinf().sum())
    parts = [f"{count} {what}" for count, what in ((nan, "NaN"), (infinite, "inf")) if count]
    kind = str(tensor.dtype).removeprefix("torch.")
    return f"{' and '.join(parts)} of {tensor.numel()} numbers ({kind} {list(tensor.shape)})"
