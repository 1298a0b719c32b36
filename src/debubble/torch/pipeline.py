"""Pipelines in a training loop: any schedule, on the user's own modules."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from debubble.core.errors import ParameterError
from debubble.core.schedule import Schedule
from debubble.interchange.files import is_file_name
from debubble.torch.autograd.gradients import Gradients, TiedWeights, find_shared_weights
from debubble.torch.data.batch import Loss, append_results, join_outputs, sum_losses
from debubble.torch.data.inputs import MicrobatchInputs
from debubble.torch.engine.engine_setup import EngineSetup
from debubble.torch.engine.own_engine import OwnEngine
from debubble.torch.engine.plan import ExecutionPlan
from debubble.torch.engine.skips import Skips
from debubble.torch.engine.vocabulary import Shard, shard_output_layer
from debubble.torch.engine.wire import Wire
from debubble.torch.measure.measured import Measured
from debubble.torch.measure.recorded import RecordedSteps
from debubble.torch.models.find_stages import find_fused, find_stages, split_warner
from debubble.torch.models.modules import evaluating, load_state, named_parameters, state_of
from debubble.torch.ranks.message_log import HangDumps
from debubble.torch.ranks.process_group import Ranks
from debubble.torch.ranks.progress_table import Watch
from debubble.torch.ranks.watch import StoreWatch, on_all_ranks, rendezvous
from debubble.torch.setup import (
    SCALES,
    check_options,
    check_stages_stay,
    compare_schedules,
    find_schedule,
)

if TYPE_CHECKING:
    from debubble.torch.pytorch.engine import PyTorchEngine


class Pipeline(Measured):
    """One rank's part of a model that is trained in a pipeline.

    Modules are used as they are: gradients are added to their parameters' ``grad``, and any
    optimizer steps them. All ranks of the group make the pipeline and call its methods together.

    Parameters
    ----------
    schedule
        A schedule, a file of one, a result of :func:`debubble.optimize`, or a name with its
        `sizes`.
    stages
        The model: a function of a stage's number, called for the stages of this rank; a mapping
        ``{stage: module}`` or a list of all stages, of which those of this rank are used; or
        PyTorch's ``PipelineStage`` objects. The first stage gets what :meth:`step` gets; a tuple
        that a stage returns becomes the next one's arguments.
    loss_fn
        Mean loss of (output of the last stage, target) over the rows of a microbatch.
    group
        The process group or mesh whose ranks are the schedule's; the default is all ranks.
    engine
        ``"torch"`` for PyTorch's pipeline runtime, which cannot express every schedule,
        ``"debubble"`` for our own, which runs all of them and costs no more. ``"auto"`` is our own.
    shared
        Tied weights, as pairs of names: ``("0.embed.weight", "7.head.weight")``. Those that are one
        object are found where a rank sees both stages.
    scale_grads
        ``"mean"``: gradients are those of the mean over all rows of the batch, whatever
        microbatches they are in; ``"sum"``: of the sum of the microbatches' losses; ``"tokens"``:
        of the mean over all targets that are not −100, those of data-parallel replicas too. True
        and False are the first two in PyTorch's words. The default warns once where microbatches
        have other numbers of such targets than of rows.
    split
        Where the schedule splits backwards in I and W: ``"keep"`` refuses stages for which that
        does not work, ``"fuse"`` lets I do the whole backward, ``"auto"`` does that where a split
        does not work or gains nothing.
    timeout
        Seconds that a rank waits for another.
    check_nan
        Whether steps look for the first number that is NaN or infinite, and raise an error with its
        rank, stage, microbatch and direction. An attribute, too; slow, as hosts wait for GPUs.
    device
        Where the modules are; the default is the current GPU with NCCL, else the CPU.
    carry
        Skip connections: ``{"0.skip": 5}`` takes ``skip`` out of the dict that stage 0 returns, and
        gives it to stage 5 as ``skip=``, or as ``s=`` with ``"5.s"``; ``{"0.1": "5.skip"}`` takes
        item 1 of a tuple. Each stage carries to one later stage, and gets from one.
    **sizes
        Of a schedule that is given by its name: ``microbatches``, ``chunks``, …

    Raises
    ------
    ParameterError
        When something does not fit: stages, ranks, tied weights, the loss.
    ScheduleError
        When the schedule cannot run, or differs from rank to rank.
    """

    def __init__(
        self,
        schedule: Any,
        stages: Any,
        loss_fn: Callable[[Any, Any], Tensor],
        *,
        group: Any = None,
        engine: str = "auto",
        shared: Iterable[Sequence[str]] = (),
        scale_grads: str | bool = "mean",
        split: str = "auto",
        timeout: float = 60,
        check_nan: bool = False,
        device: Any = None,
        carry: Mapping[str, int | str] = MappingProxyType({}),
        **sizes: Any,
    ) -> None:
        self._split, self._kind, self._loss = split, engine, Loss(loss_fn)
        self.check_nan = check_nan
        self._after_step: Callable[[], None] | None = None
        """Called once after the next step, by :func:`debubble.torch.tune`."""
        with rendezvous(timeout):
            self._ranks = ranks = Ranks.of(group, device, timeout)
            on_all_ranks(ranks, lambda: check_options(engine, scale_grads, split, loss_fn, sizes))
            self._skips = on_all_ranks(ranks, lambda: Skips.of(carry))
            self._warn_once = split_warner(split)
            self._steps = self._optimizer_steps()
            self.schedule = self._agree(schedule, sizes)
            self._modules, same = on_all_ranks(
                ranks, lambda: find_stages(stages, self.schedule, ranks)
            )
            on_all_ranks(ranks, lambda: self._skips.check(self._modules))
            tied = find_shared_weights(self._modules, self.schedule, ranks, shared, same)
            self._tied = TiedWeights(tied, ranks)
            self._tied.broadcast(self._modules, self.schedule)
            self._shard: Shard | None = None
            self._output = ""
            if self.schedule.vocabulary:
                found = shard_output_layer(self._modules, self.schedule, ranks, loss_fn)
                self._output, rows = found
                self._shard = Shard(ranks, rows)
            self._clock = ranks.channel.clock()
            self._gradients = Gradients(self._modules, self._tied)
            self._wire = Wire(ranks)
            self._watch = self._make_watch()
            self._inputs = MicrobatchInputs(ranks, self._modules, self._watch, SCALES[scale_grads])
            self._engine = self._make_engine()

    def step(
        self,
        *args: Any,
        target: Any = None,
        losses: list[Tensor] | None = None,
        metrics: list[Any] | None = None,
        return_outputs: bool = False,
        arg_mbs: Sequence[Any] | None = None,
        kwarg_mbs: Sequence[Mapping[str, Any]] | None = None,
        target_mbs: Sequence[Any] | None = None,
        loss_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run forwards and backwards of a batch, and add gradients to those that are there.

        Parameters
        ----------
        *args
            Arguments of the first stage, cut into microbatches along dimension 0; used on its rank.
        target
            Target of the loss, cut likewise; used on the last stage's rank.
        losses
            A list that takes the microbatches' losses, on the last stage's rank.
        metrics
            A list that takes what `loss_fn` returns with them, as ``(loss, metrics)``: any tree,
            its tensors detached.
        return_outputs
            If outputs of the last stage are kept and returned, too. They stay in memory until the
            end of the step, and twice while they are joined.
        arg_mbs, kwarg_mbs, target_mbs
            In place of a batch: arguments, keyword arguments and targets, one of each for every
            microbatch. They may have different shapes.
        loss_kwargs
            Keyword arguments of the loss function, the same for every microbatch.
        **kwargs
            Keyword arguments of every stage of this rank, cut likewise.

        Returns
        -------
        Tensor or tuple
            The loss whose gradients these are, with auxiliary losses, on every rank. With
            `return_outputs` also the outputs in one batch, on the last stage's rank; None on
            others.

        Raises
        ------
        RunError
            When a rank fails or does not answer within the timeout, or a stage returns another
            shape or type than before.
        """
        with self._watch.step():
            if not torch.is_grad_enabled():
                raise ParameterError("step() computes gradients, and they are off; use eval()")
            wants = {"outputs": return_outputs, "metrics": metrics is not None}
            with self._watch.entering(self._ranks.channel, "step"):
                self._loss.take(loss_kwargs, wants, self._shard is not None)
                parts = (arg_mbs, kwarg_mbs, target_mbs)
                batch = self._inputs.step_data(args, kwargs, target, parts, trains=True)
            batch = batch.keeping(**wants, finite=self.check_nan)
            self._gradients.start()
            found = self._engine.step(batch)
            self._watch.set_waiting()
            self._gradients.finish()
            append_results(losses, found, batch.targets)
            append_results(metrics, batch.metrics or {}, batch.targets)
            loss = self._mean(found, batch.weights)
        after, self._after_step = self._after_step, None
        if after is not None:
            after()
        if return_outputs:
            return loss, join_outputs(batch.outputs or {}, self.schedule.slices)
        return loss

    def eval(
        self,
        *args: Any,
        target: Any = None,
        losses: list[Tensor] | None = None,
        metrics: list[Any] | None = None,
        return_outputs: bool = False,
        arg_mbs: Sequence[Any] | None = None,
        kwarg_mbs: Sequence[Mapping[str, Any]] | None = None,
        target_mbs: Sequence[Any] | None = None,
        loss_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run forwards only, with modules in eval mode; arguments are those of :meth:`step`.

        Returns
        -------
        Tensor or tuple
            The mean loss, on every rank; NaN without targets. With `return_outputs` also the
            outputs of the last stage in one batch, on its rank; None on others.
        """
        with evaluating(self._modules.values()), self._watch.step(), torch.no_grad():
            wants = {"metrics": metrics is not None}
            with self._watch.entering(self._ranks.channel, "eval"):
                self._loss.take(loss_kwargs, wants, self._shard is not None)
                parts = (arg_mbs, kwarg_mbs, target_mbs)
                batch = self._inputs.step_data(args, kwargs, target, parts, trains=False)
            batch = batch.keeping(**wants, finite=self.check_nan)
            found, outputs = self._engine.forward(batch, return_outputs)
            append_results(losses, found, batch.targets)
            append_results(metrics, batch.metrics or {}, batch.targets)
            loss = self._mean(found, batch.weights)
        if return_outputs:
            return loss, join_outputs(outputs, self.schedule.slices)
        return loss

    def use(self, schedule: Any, **sizes: Any) -> None:
        """Run another schedule from now on, with the same stages on the same ranks.

        Parameters
        ----------
        schedule
            As for a new Pipeline.
        **sizes
            Of a schedule that is given by its name; as many microbatches as now, unless given.

        Raises
        ------
        ParameterError
            When stages would be on other ranks.
        """
        self._enter("use")
        if isinstance(schedule, str) and not is_file_name(schedule):
            sizes = {"microbatches": self.schedule.microbatches, **sizes}
        new = self._agree(schedule, sizes)
        check_stages_stay(self.schedule, new)
        self.schedule = new
        self._watch.text = ExecutionPlan.of(new).text
        self._after_step = None
        self._engine = self._make_engine()

    @property
    def stages(self) -> Mapping[int, nn.Module]:
        """The stages of this rank by number."""
        return MappingProxyType(self._modules)

    @property
    def is_first(self) -> bool:
        """If the first stage is here."""
        return 0 in self._modules

    @property
    def is_last(self) -> bool:
        """If the last stage is here."""
        return self.schedule.stages - 1 in self._modules

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield every parameter of this rank once, by stage and name: ``"3.layers.0.weight"``."""
        return named_parameters(self._named_modules())

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield every parameter of this rank once, for an optimizer."""
        for _, weight in self.named_parameters():
            yield weight

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Remove all gradients, or set them to zero."""
        for weight in self.parameters():
            if weight.grad is not None:
                weight.grad = None if set_to_none else weight.grad.zero_()

    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
    ) -> Tensor:
        """Scale gradients so that their norm over all ranks is at most `max_norm`.

        Each weight counts once, however many copies of it there are. Returns the norm before. As in
        PyTorch, a norm of NaN makes all gradients NaN, unless `error_if_nonfinite` raises RunError.
        """
        self._enter("clip_grad_norm_")
        with self._watch.step():
            self._watch.set_waiting()
            norm = self._gradients.clip(self.parameters(), max_norm, norm_type, error_if_nonfinite)
        return Gradients.check_finite(norm) if error_if_nonfinite else norm

    def state_dict(self) -> dict[str, Any]:
        """Return parameters and buffers of this rank, by stage and name, as in any placement."""
        return state_of(self._named_modules())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load parameters and buffers; `state` may have those of other ranks, too.

        Raises
        ------
        ParameterError
            When one of this rank's is missing, or has another shape.
        """
        self._enter("load_state_dict")
        on_all_ranks(self._ranks, lambda: load_state(self._named_modules(), state))
        self._tied.broadcast(self._modules, self.schedule)

    def _enter(self, call: str) -> None:
        with self._watch.step():
            self._watch.enter(self._ranks.channel, call)

    def _recorded(self, call: str) -> RecordedSteps:
        self._enter(call)
        own = self._engine.recorder.on_clock(self._clock)
        times, places = zip(*self._ranks.channel.gather((own, self._ranks.place())), strict=True)
        return RecordedSteps.of(self._engine.plan, times, places)

    _pace: Sequence[float] = ()
    """Shortest time of each action of the schedule in seconds, to imitate other hardware."""

    def _agree(self, schedule: Any, sizes: Mapping[str, Any]) -> Schedule:
        """Return the schedule that is meant, once all ranks have found the same."""
        found = on_all_ranks(self._ranks, lambda: self._find(schedule, sizes))
        compare_schedules(found, self._ranks)
        return found

    def _find(self, schedule: Any, sizes: Mapping[str, Any]) -> Schedule:
        found = find_schedule(schedule, self._ranks.size, sizes, self._steps is not None)
        return self._skips.put_in(found)

    def _optimizer_steps(self) -> Callable[[int], None] | None:
        """Return the function that takes optimizer steps; None leaves them to the loop."""
        return None

    def _named_modules(self) -> Iterator[tuple[str, nn.Module]]:
        for stage, module in self._modules.items():
            yield str(stage), module
        if self._shard is not None:
            last, rank = self.schedule.stages - 1, self._ranks.rank
            yield f"{last}.{self._output}.shard{rank}", self._shard.rows

    def _warn(self, stage: int, why: str) -> None:
        """Warn that the backward of a stage is not split, or refuse it."""
        self._warn_once(stage, why)

    def _make_engine(self) -> OwnEngine | PyTorchEngine:
        self._inputs.follow(self.schedule)
        fuses = on_all_ranks(
            self._ranks, lambda: find_fused(self._modules, self.schedule, self._split, self._warn)
        )
        setup = EngineSetup(
            self._ranks, self.schedule, self._modules, self._loss, fuses, self._warn,
            skips=self._skips,
        )  # fmt: skip
        if self._kind == "torch":
            from debubble.torch.pytorch.engine import PyTorchEngine

            return PyTorchEngine(setup, self._watch, self._pace)
        self._watch.keep_messages(HangDumps.of(self._ranks, self._wire.log, self.schedule))
        parts = (self._gradients, self._watch, self._wire, self._shard)
        return OwnEngine(setup, *parts, self._pace, self._steps)

    def _make_watch(self) -> Watch:
        ranks, text = self._ranks, ExecutionPlan.of(self.schedule).text
        # NCCL's kernels would stay on the group's stream, and PyTorch's runtime waits in its calls.
        through = ranks.batched or self._kind == "torch"
        watch = StoreWatch.of(ranks, text, lambda group: ranks.abort(group=group and through))
        weakref.finalize(self, watch.stop)
        return watch

    def _mean(self, losses: Mapping[int, Tensor], weights: Sequence[float]) -> Tensor:
        self._watch.set_waiting()
        times = self._inputs.times / self.schedule.iterations
        return sum_losses(losses, weights, times, self._ranks)
