"""PyTorch's own pipeline runtime, with schedules and transfers of ours.

The only module that uses private names of ``torch.distributed.pipelining``. It tests for features
of a version, not for its number.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.pipelining.schedules import _Action, _PipelineScheduleRuntime

from debubble.core.actions import (
    PAIR_MASK,
    PAIR_SHIFT,
    SHARDING_KINDS,
    among,
    kinds_of,
    stages_of,
    unpack,
)
from debubble.core.errors import ParameterError
from debubble.core.kind_relations import ACTIVATION_KINDS, SPLIT_KINDS
from debubble.core.kinds import FORWARD_KINDS
from debubble.core.schedule import Schedule
from debubble.engine.transfers import first_transfer
from debubble.engine.validate import has
from debubble.interchange.torch_csv import COMMUNICATING, refuse_inexpressible, rows_with_transfers
from debubble.lowering.sharding import add_sharding
from debubble.lowering.transfers import ReceivePolicy, add_transfers
from debubble.torch.errors import RunError
from debubble.torch.models.modules import is_sharded
from debubble.torch.ranks.process_group import uses_nccl

_HAS_WAITS = "WAIT_SEND_F" in schedules._ComputationType.__members__
"""If there are actions that wait for sends and reductions."""

_TAKES_MICROBATCHES = "arg_mbs" in inspect.signature(_PipelineScheduleRuntime.step).parameters
"""If ``step`` takes microbatches in place of a batch."""

_FORMER_META = "_outputs_meta"
"""Attribute of stages that has the forms of their outputs up to PyTorch 2.11."""


class PyTorchRuntime(_PipelineScheduleRuntime):
    """PyTorch's runtime with a schedule and transfers of ours, in place of one of its own.

    Beyond what PyTorch's own does, the last stage may take microbatches in any order, gradients of
    several steps add up, :meth:`eval` runs forwards only for every placement and without preparing
    the stages anew, and :meth:`step` takes whole batches or microbatches with every version of
    PyTorch. A schedule without transfers and reductions of gradients gets them; with `scale_grads`
    gradients are those of the mean of the microbatches' losses, not of their sum.

    Raises ParameterError when PyTorch cannot express the schedule, or `stages` are not those of
    this rank.
    """

    def __init__(
        self,
        schedule: Schedule,
        stages: Sequence[PipelineStage],
        loss_fn: Callable[..., Tensor] | None = None,
        *,
        scale_grads: bool = True,
        **options: Any,
    ) -> None:
        refuse_inexpressible(schedule, COMMUNICATING)
        stages = sorted(stages, key=lambda stage: stage.stage_index)
        _check_stages(schedule, stages)
        super().__init__(  # type: ignore[no-untyped-call]
            list(stages), schedule.microbatches, loss_fn=loss_fn, scale_grads=False, **options
        )
        # PyTorch would also divide gradients that are there already; instead each loss is scaled.
        self.share = 1 / schedule.microbatches if scale_grads else 1.0
        sharded = any(is_sharded(stage.submod) for stage in stages)
        lowered = schedule
        if first_transfer(lowered) is None:
            policy = receive_policy(stages[0].group, stages[0].device)
            lowered = add_transfers(lowered, policy=policy)
        if not has(schedule, SHARDING_KINDS):
            lowered = add_sharding(lowered, mode="fsdp" if sharded else "ddp")
        self._prepare_schedule_with_comms(_actions(lowered), format="compute_comms")
        self._forward_order = _actions(forward_only(lowered, sharded))
        self._order_of_losses = [
            microbatch
            for stage, kind, microbatch in map(unpack, schedule.actions.tolist())
            if kind in ACTIVATION_KINDS and stage == schedule.stages - 1
        ]
        self._losses: dict[int, Tensor] = {}
        self._given: tuple[Any, Any, Any] | None = None
        split = among(kinds_of(schedule.actions), SPLIT_KINDS)
        self._unproven = set(stages_of(schedule.actions)[split].tolist())
        """Stages with split backwards, before the first step."""

    def step(
        self,
        *args: Any,
        arg_mbs: list[Any] | None = None,
        kwarg_mbs: list[Any] | None = None,
        target_mbs: list[Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run all microbatches, forwards and backwards; see PyTorch's ``step``.

        They come as a whole batch, or in lists with an entry per microbatch. Warns after the first
        step of weights without a gradient, whose backward is split.
        """
        found = self._step(args, arg_mbs, kwarg_mbs, target_mbs, kwargs)
        for stage in self._stages:
            if stage.stage_index in self._unproven:
                _warn_without_gradient(stage)
        self._unproven.clear()
        return found

    def _step(
        self, args: Any, arg_mbs: Any, kwarg_mbs: Any, target_mbs: Any, kwargs: dict[str, Any]
    ) -> Any:
        given = (arg_mbs, kwarg_mbs, target_mbs)
        if all(part is None for part in given):
            return super().step(*args, **kwargs)
        if _TAKES_MICROBATCHES:
            kwargs |= {"arg_mbs": arg_mbs, "kwarg_mbs": kwarg_mbs, "target_mbs": target_mbs}
            return super().step(*args, **kwargs)
        if args or kwargs.get("target") is not None:
            raise ParameterError("give a whole batch, or microbatches as arg_mbs and target_mbs")
        self._given = given
        try:
            return super().step(**kwargs)
        finally:
            self._given = None

    def eval(self, *args: Any, **kwargs: Any) -> Any:
        """Run the forwards of all microbatches; arguments are those of :meth:`step`."""
        whole = self.pipeline_order_with_comms
        self.pipeline_order_with_comms = self._forward_order
        try:
            with torch.no_grad():
                return super().eval(*args, **kwargs)
        finally:
            self.pipeline_order_with_comms = whole

    def forget(self) -> None:
        """Let the next step prepare stages anew, for inputs of another form."""
        self._stages_forward_initialized = self._stages_backward_initialized = False
        stages: list[Any] = self._stages
        for stage in stages:
            if hasattr(stage, _FORMER_META):
                stage.inputs_meta = stage._outputs_meta = None

    def _initialize_stages(self, *args: Any, **kwargs: Any) -> None:
        # Stages that are prepared for backwards can run forwards, too.
        if self._has_backward or not getattr(self, "_stages_backward_initialized", False):
            super()._initialize_stages(*args, **kwargs)

    def _step_microbatches(
        self, arg_mbs: Any = None, kwarg_mbs: Any = None, target_mbs: Any = None, *rest: Any,
        **kwargs: Any,
    ) -> None:  # fmt: skip
        if self._given is not None:
            arg_mbs, kwarg_mbs, target_mbs = self._given
        self._losses.clear()
        with _quiet():
            super()._step_microbatches(arg_mbs, kwarg_mbs, target_mbs, *rest, **kwargs)

    def _maybe_compute_loss(
        self, stage: Any, output: Any, target_mbs: Any, mb_index: int, *rest: Any
    ) -> None:
        if not stage.is_last:
            _check_output(stage, output)
        elif self._loss_fn is not None and target_mbs is not None:
            loss = self._compute_loss(output, target_mbs[mb_index], *rest)  # type: ignore[no-untyped-call]
            self._losses[mb_index] = loss

    def _maybe_get_loss(self, stage: Any, mb_index: int) -> Tensor | None:
        return self._losses[mb_index] * self.share if stage.is_last else None

    def _update_losses(self, _stages: Any, losses: list[Tensor] | None) -> None:
        if losses is not None and self._losses:
            losses[:] = [self._losses[unit] for unit in sorted(self._losses)]
        self._losses.clear()

    def _merge_outputs(self, output_chunks: list[Any]) -> Any:
        # They are in the order of the last stage's forwards.
        by_unit = dict(zip(self._order_of_losses, output_chunks, strict=True))
        return super()._merge_outputs([by_unit[unit] for unit in sorted(by_unit)])


def receive_policy(group: dist.ProcessGroup | None, device: torch.device) -> ReceivePolicy:
    """Return the policy for receives: NCCL runs its queue in order, other backends in any."""
    return "queued" if device.type == "cuda" and uses_nccl(group) else "eager"


def forward_only(lowered: Schedule, sharded: bool) -> Schedule:
    """Return the forwards of a schedule and their transfers, in the same order.

    A schedule that cannot deadlock still cannot when whole messages are left out.
    """
    # Forwards have nothing to overlap with.
    alone = [lowered.program(rank) & ~(PAIR_MASK << PAIR_SHIFT) for rank in range(lowered.ranks)]
    order = lowered.with_programs(
        program[among(kinds_of(program), FORWARD_KINDS)] for program in alone
    )
    return add_sharding(order, mode="fsdp") if sharded else order


def _actions(schedule: Schedule) -> dict[int, list[Any]]:
    rows = rows_with_transfers(schedule, _HAS_WAITS)
    return {rank: [_Action.from_str(cell) for cell in row] for rank, row in enumerate(rows)}


def _check_stages(schedule: Schedule, stages: Sequence[Any]) -> None:
    if not stages:
        raise ParameterError("no stages are given; give those of this rank")
    rank, size = stages[0].group_rank, stages[0].group_size
    if size != schedule.ranks:
        raise ParameterError(
            f"'{schedule.name}' has {schedule.ranks} ranks, and the process group has {size}"
        )
    given = [stage.stage_index for stage in stages]
    wanted = sorted(schedule.placement.stages_on(rank))
    if given != wanted or stages[0].num_stages != schedule.stages:
        raise ParameterError(
            f"rank {rank} has stages {given} of {stages[0].num_stages}; '{schedule.name}' gives it "
            f"{wanted} of {schedule.stages}"
        )


def _check_output(stage: Any, output: Any) -> None:
    """Refuse an output that does not fit the receive buffers."""
    former = hasattr(stage, _FORMER_META)
    metas = stage._outputs_meta if former else stage._stage_meta.outputs
    found = output if isinstance(output, (tuple, list)) else (output,)
    want = [_text(meta) for meta in metas]
    have = [_text(part) if isinstance(part, Tensor) else type(part).__name__ for part in found]
    if have != want:
        raise RunError(
            f"stage {stage.stage_index} returned {', '.join(have)}; its first microbatch returned "
            f"{', '.join(want)}"
        )


def _warn_without_gradient(stage: Any) -> None:
    """Warn of weights that a split backward gave no gradient.

    PyTorch's W finds the weights of a stage in the graph, where those that ``fully_shard`` has
    resharded are not; then it leaves them out.
    """
    without = [name for name, weight in stage.submod.named_parameters()
               if weight.requires_grad and weight.grad is None]  # fmt: skip
    if without:
        more = f" and {len(without) - 1} more" if without[1:] else ""
        logging.getLogger("debubble").warning(
            "stage %d: %s%s got no gradient in the first step. PyTorch's split backward leaves out "
            "weights that are resharded between I and W; if the loss depends on them, use "
            "split='fuse', full backwards, or fsdp_reshard_after_forward='never'",
            stage.stage_index, without[0], more,
        )  # fmt: skip


def _text(part: Any) -> str:
    return f"{str(part.dtype).removeprefix('torch.')} {list(part.shape)}"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep PyTorch from logging the whole schedule where an action fails; the error names it."""
    log = schedules.logger

    def short(record: logging.LogRecord) -> bool:
        return record.levelno != logging.ERROR

    log.addFilter(short)
    try:
        yield
    finally:
        log.removeFilter(short)
