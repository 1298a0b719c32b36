"""Inputs of a step: cut into microbatches, with all that every rank has to know about them."""

from __future__ import annotations

import logging
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.utils import _pytree as pytree

from debubble.core.errors import ParameterError
from debubble.core.schedule import Schedule
from debubble.torch.data.batch import (
    IGNORED,
    StepData,
    by_unit,
    count_rows,
    count_tokens,
    count_weights,
    shares_of,
    split_batch,
)
from debubble.torch.data.tree import tensors_of
from debubble.torch.models.modules import replica_groups
from debubble.torch.ranks.process_group import Ranks
from debubble.torch.ranks.progress_table import Watch

log = logging.getLogger("debubble")

REST = 4
"""Numbers of a step that are not of one unit."""

LOOKS = 8
"""Steps in which padding is looked for on a GPU: to count there is to wait for it."""


@dataclass(eq=False)
class MicrobatchInputs:
    """Maker of the data of a step from the arguments of the training loop."""

    ranks: Ranks
    modules: Mapping[int, nn.Module]
    """This rank's stages."""
    watch: Watch
    scale: str
    """Loss whose gradients are computed: ``"mean"``, ``"sum"`` or ``"tokens"``."""
    schedule: Schedule = field(init=False)
    """The schedule that is run, see :meth:`follow`."""
    scaler: torch.amp.GradScaler | None = None
    """Scaler of the loss, see :class:`debubble.torch.GradScaler`."""
    _looks: int = 0
    """Steps in which padding was looked for; negative once it was found."""
    _signatures: dict[Hashable, int] = field(default_factory=dict)
    """Numbers of the forms of input that the first stage has seen."""
    _trains: tuple[bool, ...] = ()
    """Stages that trained in the last step."""

    def follow(self, schedule: Schedule) -> None:
        """Make the data of a schedule from now on."""
        self.schedule = schedule
        self.watch.numbers = 3 * schedule.units + REST

    def step_data(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        target: Any,
        microbatches: tuple[Any, Any, Any],
        trains: bool,
    ) -> StepData:
        """Enter a step and return its data, see :meth:`debubble.torch.Pipeline.step`, on all ranks.

        The `microbatches` are ``arg_mbs``, ``kwarg_mbs`` and ``target_mbs``, or None for each.
        Raises ParameterError when it cannot be cut into the schedule's microbatches; on all ranks,
        when it `trains` and there is no target where the last stage is.
        """
        schedule = self.schedule
        first, last = 0 in self.modules, schedule.stages - 1 in self.modules
        count = schedule.microbatches * schedule.iterations
        arg_mbs, kwarg_mbs, target_mbs = microbatches
        if first and not (args or kwargs) and arg_mbs is None and kwarg_mbs is None:
            raise ParameterError(
                "there are no inputs where the first stage is; give its arguments, or arg_mbs="
            )
        if arg_mbs is None and first:
            arg_mbs = split_batch(args, count, "the batch")
        if kwarg_mbs is None:
            columns = {name: split_batch(x, count, f"{name}=") for name, x in kwargs.items()}
            kwarg_mbs = [{name: columns[name][i] for name in columns} for i in range(count)]
        if target_mbs is None and target is not None and last:
            target_mbs = split_batch(target, count, "target")
        # Microbatches may come as anything iterable: a list, a generator, a tensor.
        arg_mbs, kwarg_mbs, target_mbs = parts = [
            None if part is None else list(part) for part in (arg_mbs, kwarg_mbs, target_mbs)
        ]
        for name, part in zip(("arg_mbs", "kwarg_mbs", "target_mbs"), parts, strict=True):
            if part is not None and len(part) != count:
                raise ParameterError(
                    f"{name} has {len(part)} microbatches; '{schedule.name}' has {count}"
                )
        given: dict[int, Any] = {}
        if first and arg_mbs is not None:
            rows = [part if isinstance(part, tuple) else (part,) for part in arg_mbs]
            given = by_unit(rows, schedule)
        targets = by_unit(target_mbs, schedule) if last and target_mbs else {}
        if targets and self.scale == "mean":
            self._look_for_padding(target_mbs or ())
        keywords = by_unit(kwarg_mbs, schedule) if kwarg_mbs and any(kwarg_mbs) else {}
        batch, with_targets = self._agree(given, keywords, targets, trains)
        if trains and not with_targets:
            hint = "step(x, target=y)" if len(args) > 1 else "target=, or target_mbs="
            raise ParameterError(f"there is no target where the last stage is; give {hint}")
        return batch

    def _agree(
        self, given: dict[int, Any], kwargs: dict[int, Any], targets: dict[int, Any], trains: bool
    ) -> tuple[StepData, bool]:
        """Return the data with what all ranks know of it, and if there are targets.

        All ranks sum one row of numbers as they enter the step. Its parts, by unit: signatures,
        counts by targets, counts by inputs; then the mean of a replica's tokens, if there are
        targets, the scale of the loss, and if a stage begins or ceases to train, which changes the
        forms of outputs.
        """
        schedule, units = self.schedule, self.schedule.units
        table, rank, last = schedule.placement.table, self.ranks.rank, schedule.stages - 1
        copies = [0] * units
        if len(table) > 1:
            copies = schedule.copies_of(np.arange(units)).tolist()
        call = "step" if trains else "eval"
        if trains and self.scale == "tokens":
            # The last rank is about to wait for its replicas, which other calls never meet.
            self.watch.enter(self.ranks.channel, call)
        factor = 1.0 if self.scaler is None else float(self.scaler.get_scale())
        row = [0.0] * self.watch.numbers
        device = self.ranks.device.type
        casts = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device)
        for unit, args in given.items():
            if table[copies[unit]][0] == rank:
                own = (args, kwargs.get(unit))
                row[unit] = float(self._signature(*own, (self.modules[0].training, casts)))
                row[2 * units + unit] = count_rows(args) or count_rows(own)
        counts = count_weights(targets, schedule, self.scale)
        for unit in targets:
            if table[copies[unit]][last] == rank:
                row[units + unit] = counts[unit]
        if trains and self.scale == "tokens" and table[0][last] == rank:
            row[-4] = self._mean_of_replicas(sum(counts))
        row[-3], row[-2] = float(bool(targets)), factor
        trained, self._trains = (
            self._trains,
            tuple(
                any(weight.requires_grad for weight in module.parameters())
                for module in self.modules.values()
            ),
        )
        row[-1] = float(bool(trained) and trained != self._trains)
        row = self.watch.enter(self.ranks.channel, call, row)
        if row[-2] != factor * self.ranks.size:
            raise ParameterError(
                f"{self.ranks.names[rank]} scales losses by {factor:g}, and others by another "
                "number; make a GradScaler on all ranks, and load the same state"
            )
        counts, inputs = row[units : 2 * units], row[2 * units : -REST]
        if not any(counts) and (self.scale != "tokens" or not row[-3]):
            # There are no targets, or none with rows.
            counts = inputs if self.scale == "mean" and all(inputs) else [1.0] * units
        scale = factor * self.times
        if row[-4]:
            scale *= sum(counts) / row[-4]
        signatures = [int(number) for number in row[:units]]
        weights = shares_of(counts, schedule.iterations)
        batch = StepData(
            given, kwargs, targets, weights, scale, signatures, bool(row[-1]),
            scaled=self.scaler is not None,
        )  # fmt: skip
        return batch, row[-3] > 0

    @property
    def times(self) -> int:
        """The loss of a step, as a multiple of the mean that the microbatches' shares give."""
        return self.schedule.microbatches if self.scale == "sum" else 1

    def _signature(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None, modes: Hashable
    ) -> int:
        """Return the number of an input: equal for equal shapes, types, plain values and modes."""
        key: Hashable
        if kwargs is None and len(args) == 1 and isinstance(args[0], Tensor):
            key = (args[0].shape, args[0].dtype, modes)
        else:
            leaves, form = pytree.tree_flatten((args, kwargs))
            parts = ((x.shape, x.dtype) if isinstance(x, Tensor) else repr(x) for x in leaves)
            key = (repr(form), modes, *parts)
        return self._signatures.setdefault(key, len(self._signatures))

    def _mean_of_replicas(self, tokens: float) -> float:
        """Return the mean of `tokens` over data-parallel replicas, which average gradients."""
        total = torch.tensor([tokens, 1.0], dtype=torch.float64, device=self.ranks.wire)
        for group in self._replicas:
            self.watch.set_waiting()
            dist.all_reduce(total, group=group)
        return float(total[0] / total[1])

    @cached_property
    def _replicas(self) -> list[dist.ProcessGroup]:
        return replica_groups(self.modules[self.schedule.stages - 1])

    def _look_for_padding(self, targets: Sequence[Any]) -> None:
        """Warn once where microbatches have other numbers of targets than their rows say.

        A mean over targets is not their mean over rows then, and the loss function alone knows
        which of the two it computes.
        """
        forms = {
            target.shape[1:] if isinstance(target, Tensor) and target.is_floating_point() else None
            for target in targets
        }
        if len(forms) == 1 and None not in forms:
            return
        host = all(leaf.device.type == "cpu" for leaf in tensors_of(targets))
        if self._looks < 0 or (not host and self._looks >= LOOKS):
            return
        self._looks += 1
        each = [count_tokens(target) / rows for target in targets if (rows := count_rows(target))]
        if each and not math.isclose(min(each), max(each)):
            self._looks = -1
            log.warning(
                "microbatches have %g to %g targets per row that are not %d, and count by their "
                "rows: where loss_fn is a mean over targets, give scale_grads='tokens' for the "
                "gradient of the whole batch",
                min(each), max(each), IGNORED,
            )  # fmt: skip
