"""Engine of a pipeline on PyTorch's own runtime."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed import P2POp
from torch.distributed.pipelining import PipelineStage
from torch.nn.parallel import DistributedDataParallel

from debubble.core.actions import Kind
from debubble.core.errors import ParameterError
from debubble.core.kinds import KINDS
from debubble.torch.data.batch import (
    StepData,
    added_losses,
    check_loss_value,
    take_metrics,
    zero_of,
)
from debubble.torch.data.tree import mapped, tensors_of
from debubble.torch.engine.engine_setup import EngineSetup
from debubble.torch.engine.plan import ExecutionPlan
from debubble.torch.engine.recorder import Recorder
from debubble.torch.engine.tasks import sleep_until
from debubble.torch.errors import RunError
from debubble.torch.models.modules import reason_not_split, saving_seen
from debubble.torch.pytorch.runtime import PyTorchRuntime, receive_policy
from debubble.torch.ranks.progress_table import RankState, Watch
from debubble.torch.setup import not_for_pytorch

_NO_GRADIENT = "only Tensors of floating point dtype can require gradients"
"""Error of PyTorch up to 2.11, where a stage hands whole numbers to the next."""


@dataclass(eq=False)
class PyTorchEngine:
    """One rank of a schedule on PyTorch's runtime.

    Raises ParameterError when PyTorch cannot run the schedule, see :func:`not_for_pytorch`.
    """

    setup: EngineSetup
    """Schedule, stages and loss."""
    watch: Watch
    """Progress of this rank, for messages."""
    pace: Sequence[float] = ()
    """Shortest time of each action of the schedule in seconds, to imitate other hardware; empty for
    as long as it takes."""

    def __post_init__(self) -> None:
        setup = self.setup
        schedule, ranks = setup.schedule, setup.ranks
        reason = not_for_pytorch(schedule)
        if reason:
            raise ParameterError(
                f"PyTorch's runtime cannot run '{schedule.name}': {reason}; use engine='debubble'"
            )
        self.plan = ExecutionPlan.of(schedule, self.pace, receive_policy(ranks.group, ranks.device))
        program = self.plan.programs[ranks.rank]
        self._pace, self._device = self.plan.pace_of(ranks.rank), ranks.device
        self.recorder = Recorder(len(program), ranks.device)
        self._loss_fn = setup.loss_fn
        self._index = {(step.kind, step.stage, step.unit): i for i, step in enumerate(program)}
        self._units = range(schedule.microbatches)
        self._coming: set[int] = set()
        """Positions of receives that are posted, and not over."""
        self._free = 0
        """Time at which the latest action was over."""
        self._batch = StepData()
        self._losses: dict[int, Tensor] = {}
        """Losses by unit, without their weights."""
        self._signature: int | None = None
        self._stages = [
            _Stage(self, setup, number, setup.fuses.get(number, False))
            for number in sorted(setup.modules)
        ]
        self._runtime = PyTorchRuntime(
            self.plan.lowered, self._stages, self._loss, scale_grads=False
        )

    def step(self, batch: StepData) -> dict[int, Tensor]:
        """Run forwards and backwards, and add gradients to those of the modules' parameters."""
        if self._stages[-1].is_last and not batch.targets:
            raise ParameterError("the last stage has no target; give step() its target= there")
        self._runtime.share = batch.scale
        self._stages[-1].outputs = batch.outputs if self._stages[-1].is_last else None
        losses = self._run(self._runtime.step, batch)
        self.recorder.close()
        return losses

    def forward(
        self, batch: StepData, outputs: bool
    ) -> tuple[Mapping[int, Tensor], Mapping[int, Any]]:
        """Run forwards only, in the order of the program; return losses and outputs by unit."""
        last = self._stages[-1]
        last.outputs = {} if outputs and last.is_last else None
        losses = self._run(self._runtime.eval, batch)
        found, last.outputs = last.outputs or {}, None
        return losses, found

    @contextlib.contextmanager
    def around(self, kind: Kind, stage: int, unit: int) -> Iterator[None]:
        """Record an action; between actions PyTorch waits for transfers."""
        index = self._index[kind, stage, unit]
        self.watch.position, self.watch.state = index, RankState.RUNNING
        self._received(Kind.RECV_F if kind == Kind.F else Kind.RECV_B, stage, unit)
        self.recorder.begin(index)
        end = time.perf_counter() + self._pace[index]
        yield
        if self._pace[index]:
            sleep_until(end, self._device)
        self.recorder.finish(index)
        self._free = time.perf_counter_ns()
        self.watch.position, self.watch.state = index + 1, RankState.WAITING

    def posts(self, kind: Kind, stage: int, unit: int) -> None:
        """Record the post of a transfer."""
        index = self._index[kind, stage, unit]
        if KINDS[kind].sends:
            self.recorder.begin(index)
            self.recorder.finish(index)
        else:
            self.recorder.posted[index] = time.perf_counter_ns()
            self._coming.add(index)

    def _received(self, kind: Kind, stage: int, unit: int) -> None:
        """Record the end of the receive that an action needs: PyTorch waits for it just before."""
        index = self._index.get((kind, stage, unit), -1)
        if index in self._coming and self._device.type == "cpu":
            self._coming.remove(index)
            self.recorder.start[index] = max(self._free, self.recorder.posted[index])
            self.recorder.end[index] = time.perf_counter_ns()

    def _run(self, run: Callable[..., Any], batch: StepData) -> dict[int, Tensor]:
        if batch.finite:
            raise ParameterError(
                "PyTorch's runtime does not say where a NaN begins; use engine='debubble' for "
                "check_nan=True"
            )
        self._batch = batch
        self._prepare(batch)
        self._losses = {}
        try:
            run(
                arg_mbs=[batch.args[unit] for unit in self._units] if batch.args else None,
                kwarg_mbs=[batch.kwargs.get(unit, {}) for unit in self._units],
                # PyTorch passes on tensors only: each holds the number of a target.
                target_mbs=list(map(torch.tensor, self._units)) if batch.targets else None,
                losses=[],
                return_outputs=False,
            )
        except RuntimeError as error:
            # PyTorch wraps what a module raises in an error with all of its arguments.
            if "failed to run forward" in str(error) and error.__cause__ is not None:
                raise error.__cause__ from None
            if str(error).startswith(_NO_GRADIENT):
                raise RunError(
                    f"the runtime of PyTorch {torch.__version__} hands on floating-point tensors "
                    "only; use engine='debubble'"
                ) from None
            if type(error).__name__ == "PipeliningMetadataError":
                raise RunError(
                    f"PyTorch's runtime cannot hand this on: {error} engine='debubble' can"
                ) from None
            raise
        finally:
            self._batch = StepData()
        return self._losses

    def _prepare(self, batch: StepData) -> None:
        """Make the buffers of transfers anew for inputs of another form."""
        forms = set(batch.signatures)
        if len(forms) > 1:
            raise RunError(
                "microbatches have different shapes or types, and PyTorch's runtime has one buffer "
                "for all of them; use engine='debubble'"
            )
        form = forms.pop() if forms else None
        if form != self._signature or batch.anew:
            self._signature = form
            self._runtime.forget()

    def _loss(self, output: Any, unit: Tensor) -> Tensor:
        number = int(unit)
        found = self._loss_fn(output, self._batch.targets[number])
        loss = check_loss_value(take_metrics(found, number, self._batch.metrics), output)
        for more in self._stages[-1].added.pop(number, ()):
            loss = loss + more
        self._losses[number] = loss.detach()
        weight = self._batch.weights[number]
        return loss * weight if weight else zero_of(output)


class _Stage(PipelineStage):
    """A stage whose actions are recorded, and whose backward can be one piece."""

    def __init__(
        self, engine: PyTorchEngine, setup: EngineSetup, number: int, fused: bool | None
    ) -> None:
        module, ranks = setup.modules[number], setup.ranks
        if isinstance(module, DistributedDataParallel):
            # Gradients of replicas are averaged once, after the step.
            module = module.module
        super().__init__(module, number, setup.schedule.stages, ranks.device, group=ranks.group)
        self._engine, self._warn = engine, setup.warn
        self._fused = fused
        """If I does the whole backward; None until a forward with a graph shows it."""
        self.outputs: dict[int, Any] | None = None
        self.added: dict[int, list[Tensor]] = {}
        self._whole: set[int] = set()
        """Units whose I did the whole backward."""

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        decides = self._fused is None and torch.is_grad_enabled()
        watched: AbstractContextManager[list[str]] = (
            saving_seen() if decides else contextlib.nullcontext([])
        )
        with (
            self._engine.around(Kind.F, self.stage_index, fwd_chunk_id),
            added_losses() as added,
            watched as seen,
        ):
            output = super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)
        if decides:
            why = reason_not_split(seen, [*tensors_of(output), *added])
            self._fused = bool(why)
            if why:
                self._warn(self.stage_index, why)
        if added and not self.is_last:
            raise RunError(
                f"stage {self.stage_index} adds a loss of its own, which PyTorch's runtime takes "
                "from the last stage only; use engine='debubble'"
            )
        self.added[fwd_chunk_id] = added
        if self.outputs is not None:
            self.outputs[fwd_chunk_id] = mapped(output, Tensor.detach)
        return output

    def backward_one_chunk(
        self,
        bwd_chunk_id: int,
        loss: Any = None,
        full_backward: bool = True,
        last_backward: bool = False,
    ) -> None:
        kind = Kind.B if full_backward else Kind.I
        with self._engine.around(kind, self.stage_index, bwd_chunk_id):
            if not full_backward and (self._fused or self._cannot_split(bwd_chunk_id)):
                self._whole.add(bwd_chunk_id)
                full_backward = True
            super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        with self._engine.around(Kind.W, self.stage_index, bwd_chunk_id):
            if bwd_chunk_id in self._whole:
                self._whole.remove(bwd_chunk_id)
            else:
                super().backward_weight_one_chunk(bwd_chunk_id, last_backward)

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> Any:
        self._engine.posts(Kind.SEND_F, self.stage_index, fwd_chunk_id)
        return super().get_fwd_send_ops(fwd_chunk_id)

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> Any:
        self._engine.posts(Kind.RECV_F, self.stage_index, fwd_chunk_id)
        return super().get_fwd_recv_ops(fwd_chunk_id)

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> Any:
        self._engine.posts(Kind.SEND_B, self.stage_index, bwd_chunk_id)
        return super().get_bwd_send_ops(bwd_chunk_id)

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> Any:
        self._engine.posts(Kind.RECV_B, self.stage_index, bwd_chunk_id)
        return super().get_bwd_recv_ops(bwd_chunk_id)

    def _validate_fwd_input(self, args: Any, kwargs: Any) -> None:
        """Accept inputs of any strides, which PyTorch up to 2.11 refuses; forms are compared."""

    def _validate_fwd_outputs(self, outputs: Any) -> None:
        """Leave outputs to the runtime's own check."""

    def _get_init_p2p_neighbors_ops(self) -> list[P2POp]:
        # Gloo has no messages of a rank to itself.
        ops = super()._get_init_p2p_neighbors_ops()
        return [op for op in ops if op.group_peer != self.group_rank]

    def _cannot_split(self, unit: int) -> bool:
        """Return if PyTorch's split fails: it finds weights from an input, and detaches outputs."""
        outputs, inputs = self.fwd_cache[unit]
        if self.is_first:
            return False
        if not any(isinstance(part, Tensor) and part.requires_grad for part in inputs):
            # Earlier stages are frozen: PyTorch's W would leave out the weights.
            return True
        return not self.is_last and any(part._is_view() for part in outputs)
