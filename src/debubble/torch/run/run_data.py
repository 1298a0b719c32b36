"""What a run computes with: a model in stages, and the data of its microbatches."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import _pytree as pytree

from debubble.core.errors import ParameterError
from debubble.core.schedule import Schedule
from debubble.torch.data.batch import rows_of
from debubble.torch.data.losses import added_losses, single
from debubble.torch.data.tree import moved_to
from debubble.torch.models.build import Model
from debubble.torch.models.modules import ties_of
from debubble.torch.models.shard_output_layer import output_layer


class Batches:
    """A model and its microbatches under a schedule; data is asked for once for each.

    Raises ParameterError when data is no pair, stages cannot be sliced, or the output layer cannot
    be sharded.
    """

    def __init__(self, model: Model, schedule: Schedule) -> None:
        self.model = model
        if schedule.slices > 1 and not all(getattr(s, "slices", False) for s in model.stages):
            raise ParameterError(
                f"the schedule cuts sequences into {schedule.slices} slices, and the model's "
                "stages do not take them; use gpt-tiny, or give them slices = True and "
                "forward(x, start, past)"
            )
        count = schedule.microbatches * schedule.iterations
        self._data = [_pair(model.data(number), number) for number in range(count)]
        self.ties = ties_of(dict(enumerate(model.stages)))
        """Weights that are one object in several stages, by stage and name."""
        if schedule.vocabulary:
            _check_output(self, schedule.ranks)

    @property
    def not_for_pytorch(self) -> str:
        """Why PyTorch's runtime cannot take the data, empty when it can."""
        leaves = [pytree.tree_leaves(x) for x, _ in self._data]
        if any(not isinstance(leaf, Tensor) for row in leaves for leaf in row):
            return "the first stage gets more than tensors"
        if any(not isinstance(x, Tensor | tuple | list) for x, _ in self._data):
            return "the first stage gets tensors in a mapping"
        forms = [[(leaf.shape, leaf.dtype) for leaf in row] for row in leaves]
        if any(form != forms[0] for form in forms):
            return "microbatches have different shapes"
        return ""

    def microbatch(
        self, number: int, device: torch.device | str, dtype: torch.dtype
    ) -> tuple[tuple[Any, ...], Any]:
        """Arguments of the first stage, and the target."""
        x, target = self._data[number]
        args = tuple(x) if isinstance(x, tuple | list) else (x,)
        moved: tuple[tuple[Any, ...], Any] = moved_to((args, target), device, dtype)
        return moved

    def microbatches(
        self, device: torch.device | str, dtype: torch.dtype
    ) -> tuple[list[tuple[Any, ...]], list[Any]]:
        """Arguments of the first stage and targets of all microbatches."""
        pairs = [self.microbatch(number, device, dtype) for number in range(len(self._data))]
        return [args for args, _ in pairs], [target for _, target in pairs]

    def shares(self, schedule: Schedule) -> list[float]:
        """Share of every microbatch's loss in that of its iteration: that of its rows."""
        rows = [rows_of(target) or rows_of(x) or 1.0 for x, target in self._data]
        period = schedule.microbatches
        groups = [rows[first : first + period] for first in range(0, len(rows), period)]
        return [count / sum(group) for group in groups for count in group]

    def loss(self, modules: Sequence[Any], number: int, dtype: torch.dtype) -> Tensor:
        """Loss of a microbatch without a pipeline, on the CPU, with auxiliary ones.

        Modules are the stages, or functions that compute as they do.
        """
        args, target = self.microbatch(number, "cpu", dtype)
        with added_losses() as added:
            output = forward(modules, args)
            loss = single(self.model.loss(output, target), output)
            for more in added:
                loss = loss + more
        return loss


def forward(modules: Sequence[Any], args: tuple[Any, ...]) -> Any:
    """What stages compute one after the other."""
    value: Any = args
    for module in modules:
        value = module(*value) if isinstance(value, tuple | list) else module(value)
    return value


def copied(modules: Mapping[int, nn.Module], device: Any, dtype: torch.dtype) -> Any:
    """Copies of some stages by number; a weight that several of them have stays one."""
    copies = copy.deepcopy(dict(modules))
    return {number: module.to(device, dtype) for number, module in copies.items()}


def _pair(found: Any, number: int) -> tuple[Any, Any]:
    if not isinstance(found, tuple | list) or len(found) != 2:
        many = f" of {len(found)}" if isinstance(found, tuple | list) else ""
        raise ParameterError(
            f"data({number}) returned {type(found).__name__}{many}; return (input, target)"
        )
    x, target = found
    if target is None:
        raise ParameterError(f"data({number}) returned no target; return (input, target)")
    return x, target


def _check_output(batches: Batches, ranks: int) -> None:
    """Refuse models whose output layer cannot be cut along the vocabulary."""
    last = batches.model.stages[-1]
    name, output = output_layer(last, ranks)
    bare = copy.deepcopy(last)
    setattr(bare, name, nn.Identity())
    args, target = batches.microbatch(0, "cpu", output.weight.dtype)
    earlier = list(batches.model.stages)[:-1]
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        state = torch.random.get_rng_state()
        logits = forward([*earlier, last], args)
        torch.random.set_rng_state(state)
        hidden = forward([*earlier, bare], args)
        if not isinstance(hidden, Tensor) or not torch.allclose(output(hidden), logits):
            raise ParameterError(
                f"the model's last stage does not apply its output layer last; return "
                f"self.{name}(…) from its forward"
            )
        found = batches.model.loss(logits, target)
        if (
            not isinstance(target, Tensor)
            or target.shape != logits.shape[:-1]
            or target.is_floating_point()
            or not torch.allclose(
                functional.cross_entropy(logits.flatten(0, -2), target.flatten()), found
            )
        ):
            raise ParameterError(
                "an output layer can be sharded under the mean cross-entropy of its logits; the "
                "model has another loss"
            )
