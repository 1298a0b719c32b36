"""The data of a step: cut into units, with what all ranks have to know about them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from debubble.core.errors import ParameterError
from debubble.core.schedule import Schedule
from debubble.torch.batch import Batch, cut, in_units, weights_of
from debubble.torch.team import Team
from debubble.torch.watch import Watch
from debubble.torch.wire import Wire


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


@dataclass(eq=False)
class Feed:
    """Makes batches of what the training loop gives."""

    team: Team
    modules: Mapping[int, nn.Module]
    """This rank's stages."""
    wire: Wire
    """Forgets the forms of what stages hand on where they change."""
    watch: Watch
    """Is told when this rank waits."""
    scale: str
    """What gradients are of: ``"mean"``, ``"sum"`` or ``"tokens"``."""
    signatures: Signatures = field(default_factory=Signatures)
    schedule: Schedule = field(init=False)
    """What is run."""
    scaler: torch.amp.GradScaler | None = None
    """What the loss is scaled with, see :class:`debubble.torch.GradScaler`."""

    def batch(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        target: Any,
        arg_mbs: Sequence[Any] | None,
        kwarg_mbs: Sequence[Mapping[str, Any]] | None,
        target_mbs: Sequence[Any] | None,
        trains: bool,
    ) -> Batch:
        """What a step gets, see :meth:`debubble.torch.Pipeline.step`; all ranks take part.

        Raises ParameterError when it cannot be cut into the schedule's microbatches; on all ranks,
        when it `trains` and there is no target where the last stage is.
        """
        schedule = self.schedule
        first = 0 in self.modules
        last = schedule.stages - 1 in self.modules
        count = schedule.microbatches * schedule.iterations
        if first and not (args or kwargs) and arg_mbs is None and kwarg_mbs is None:
            raise ParameterError(
                "there are no inputs where the first stage is; give its arguments, or arg_mbs="
            )
        if arg_mbs is None and first:
            arg_mbs = cut(args, count, "the batch")
        if kwarg_mbs is None:
            columns = {name: cut(value, count, f"{name}=") for name, value in kwargs.items()}
            kwarg_mbs = [{name: columns[name][i] for name in columns} for i in range(count)]
        if target_mbs is None and target is not None and last:
            target_mbs = cut(target, count, "target")
        # Anything that can be gone through: a list, a generator, a tensor of microbatches.
        arg_mbs, kwarg_mbs, target_mbs = (
            None if parts is None else list(parts) for parts in (arg_mbs, kwarg_mbs, target_mbs)
        )
        for name, parts in (
            ("arg_mbs", arg_mbs), ("kwarg_mbs", kwarg_mbs), ("target_mbs", target_mbs),
        ):  # fmt: skip
            if parts is not None and len(parts) != count:
                raise ParameterError(
                    f"{name} has {len(parts)} microbatches; '{schedule.name}' has {count}"
                )
        given: dict[int, Any] = {}
        if first and arg_mbs is not None:
            given = in_units(
                [part if isinstance(part, tuple) else (part,) for part in arg_mbs], schedule
            )
        targets = in_units(target_mbs, schedule) if last and target_mbs else {}
        by_unit = in_units(kwarg_mbs, schedule) if kwarg_mbs and any(kwarg_mbs) else {}
        batch, there = self._agreed(given, by_unit, targets)
        if trains and not there:
            hint = "step(x, target=y)" if len(args) > 1 else "target=, or target_mbs="
            raise ParameterError(f"there is no target where the last stage is; give {hint}")
        return batch

    def _agreed(
        self, given: dict[int, Any], kwargs: dict[int, Any], targets: dict[int, Any]
    ) -> tuple[Batch, bool]:
        """The batch with what all ranks have to know; and whether there are targets.

        That is: weights, forms of the inputs, and what the loss is scaled by.
        """
        schedule, units = self.schedule, self.schedule.units
        copies = schedule.copies_of(np.arange(units)).tolist()
        table, rank = schedule.placement.table, self.team.rank
        # Signatures, weights, whether there are targets, what the loss is scaled by, and whether a
        # stage begins to train, or ceases to: then it hands on other forms.
        factor = 1.0 if self.scaler is None else float(self.scaler.get_scale())
        row = [0.0] * (2 * units + 3)
        for unit, args in given.items():
            if table[copies[unit]][0] == rank:
                key = (args, kwargs.get(unit), self.modules[0].training)
                row[unit] = float(self.signatures.number(key, self.team.device))
        if self.scale == "tokens" or schedule.slices > 1:
            own = weights_of(targets, schedule, by_tokens=self.scale == "tokens").tolist()
            for unit in targets:
                if table[copies[unit]][schedule.stages - 1] == rank:
                    row[units + unit] = own[unit]
        row[-3], row[-2] = float(bool(targets)), factor
        row[-1] = float(self.signatures.changed(self.modules))
        self.watch.waits()
        row = self.team.link.sum(torch.tensor(row, dtype=torch.float64)).tolist()
        if row[-1]:
            self.wire.forget()
        if row[-2] != factor * self.team.size:
            raise ParameterError(
                f"rank {rank} scales losses by {factor:g}, and others by another number; make a "
                "GradScaler on all ranks, and load the same state"
            )
        weights = row[units:-3]
        if not any(weights):
            weights = [schedule.iterations / units] * units
        scale = factor * (schedule.microbatches if self.scale == "sum" else 1)
        signatures = [int(number) for number in row[:units]]
        batch = Batch(given, kwargs, targets, weights, scale, signatures, bool(row[-1]))
        return batch, row[-3] > 0
