"""Model and data of a run: the stages of a model, and the microbatches of one step."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import _pytree as pytree

from debubble.core.errors import ParameterError
from debubble.core.schedule import Schedule
from debubble.torch.data.batch import count_rows, shares_of
from debubble.torch.data.losses import added_losses, check_loss_value
from debubble.torch.data.tree import moved_to
from debubble.torch.models.build import build
from debubble.torch.models.modules import ties_of
from debubble.torch.models.shard_output_layer import output_layer


class RunData:
    """A model and its microbatches under a schedule; each microbatch is asked for once.

    In another process the model is built anew, and the data are those of this one.

    Parameters
    ----------
    model
        A model, see :func:`debubble.torch.models.build.build`.
    schedule
        The schedule that runs it.

    Raises
    ------
    ParameterError
        When data is no pair, stages cannot be sliced, or the output layer cannot be sharded.
    """

    def __init__(self, model: str | Callable[..., Any], schedule: Schedule) -> None:
        self._source = model, schedule.stages
        self.model = made = build(*self._source)
        if schedule.slices > 1 and not all(getattr(s, "slices", False) for s in made.stages):
            raise ParameterError(
                f"the schedule cuts sequences into {schedule.slices} slices, and the model's "
                "stages do not take them; use gpt-tiny, or give them slices = True and "
                "forward(x, start, past)"
            )
        count = schedule.microbatches * schedule.iterations
        self._data = [_pair(made.data(number), number) for number in range(count)]
        rows = [count_rows(target) or count_rows(x) or 1.0 for x, target in self._data]
        self.shares = shares_of(rows, schedule.iterations)
        """Share of every microbatch's loss in that of its iteration: its share of the rows."""
        if schedule.vocabulary:
            self._check_output(schedule.ranks)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "model"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.model = build(*self._source)

    @property
    def ties(self) -> list[list[str]]:
        """Weights that are one object in several stages, by stage and name."""
        return ties_of(dict(enumerate(self.model.stages)))

    @property
    def not_for_pytorch(self) -> str:
        """Reason why PyTorch's runtime cannot take the data, empty when it can."""
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
        """Return the arguments of the first stage, and the target."""
        x, target = self._data[number]
        args = tuple(x) if isinstance(x, tuple | list) else (x,)
        moved: tuple[tuple[Any, ...], Any] = moved_to((args, target), device, dtype)
        return moved

    def microbatches(
        self, device: torch.device | str, dtype: torch.dtype
    ) -> tuple[list[tuple[Any, ...]], list[Any]]:
        """Return the first stage's arguments and the targets of all microbatches."""
        pairs = [self.microbatch(number, device, dtype) for number in range(len(self._data))]
        return [args for args, _ in pairs], [target for _, target in pairs]

    def loss(self, modules: Sequence[Any], number: int, dtype: torch.dtype) -> Tensor:
        """Return a microbatch's loss without a pipeline, on the CPU, with auxiliary losses.

        Modules are the stages, or functions that compute as they do.
        """
        args, target = self.microbatch(number, "cpu", dtype)
        with added_losses() as added:
            output = forward(modules, args)
            loss = check_loss_value(self.model.loss(output, target), output)
            for more in added:
                loss = loss + more
        return loss

    def _check_output(self, ranks: int) -> None:
        """Refuse a model whose output layer cannot be cut along the vocabulary."""
        *earlier, last = self.model.stages
        name, output = output_layer(last, ranks)
        bare = copy.deepcopy(last)
        setattr(bare, name, nn.Identity())
        args, target = self.microbatch(0, "cpu", output.weight.dtype)
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
            found = self.model.loss(logits, target)
            if (
                not isinstance(target, Tensor)
                or target.shape != logits.shape[:-1]
                or target.is_floating_point()
                or not torch.allclose(
                    functional.cross_entropy(logits.flatten(0, -2), target.flatten()), found
                )
            ):
                raise ParameterError(
                    "an output layer can be sharded under the mean cross-entropy of its logits; "
                    "the model has another loss"
                )


def forward(modules: Sequence[Any], args: tuple[Any, ...]) -> Any:
    """Return the output of stages that run one after the other."""
    value: Any = args
    for module in modules:
        value = module(*value) if isinstance(value, tuple | list) else module(value)
    return value


def copied(modules: Mapping[int, nn.Module], device: Any, dtype: torch.dtype) -> Any:
    """Copy stages to a device and type; a weight that several of them have stays one."""
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
