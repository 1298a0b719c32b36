"""Megatron's model chunks as stages of our engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from debubble.core.kinds import Kind
from debubble.megatron.internals import MegatronCall, delayed_layers
from debubble.megatron.synchronization import GradientSync, ParameterSync
from debubble.torch.engine.stage import Stage, UnitState
from debubble.torch.errors import RunError


@dataclass(eq=False)
class MegatronStep:
    """One call of a forward-backward function: what its forwards and backwards share."""

    call: MegatronCall
    config: Any
    forward_step: Callable[..., Any]
    """Megatron's."""
    iterators: Sequence[Any]
    """Data of every chunk, in the sequence of its forwards."""
    context_ranks: int
    """Ranks of the context-parallel group."""
    tokens: Tensor
    """Number of tokens of all losses so far."""
    named: Callable[[str], AbstractContextManager[Any]]
    """Return a context that names an action in profiles."""
    sync: GradientSync | None = None
    """None where there are no backwards."""
    parameters: ParameterSync | None = None
    results: dict[int, list[Any]] = field(default_factory=dict)
    """Records that Megatron stored of every loss, by microbatch."""
    begun: set[int] = field(default_factory=set)
    """Chunks that have run a forward."""

    def forward(self, stage: MegatronStage, microbatch: int, given: Any) -> Any:
        """Run Megatron's step of a forward; return the output of the stage, or the loss."""
        call, config, chunk = self.call, self.config, stage.chunk
        first = chunk not in self.begun
        if first:
            self.begun.add(chunk)
            if self.parameters is not None:
                self.parameters.begin()
        if call.forward_only and call.first_val_step is not None:
            first = first and call.first_val_step
        iterator = self.iterators[chunk]
        if isinstance(iterator, ByMicrobatch):
            iterator.turn_to(microbatch)
        output, tokens = self.forward_step(
            call.forward_step_func, iterator, call.chunks[chunk], call.num_microbatches, given,
            self.results.setdefault(microbatch, []), config, self.context_ranks,
            collect_non_loss_data=call.collect_non_loss_data, is_first_microbatch=first,
            current_microbatch=microbatch, vp_stage=chunk if len(call.chunks) > 1 else None,
            is_last_stage=stage.last,
        )  # fmt: skip
        self.tokens += tokens
        if stage.last and not call.forward_only and config.grad_scale_func is not None:
            return config.grad_scale_func(output)
        return output

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Measure what runs inside by one of the job's timers."""
        timers = self.config.timers
        if timers is None:
            yield
            return
        timers(name, log_level=2).start()
        try:
            yield
        finally:
            timers(name).stop()

    @property
    def store(self) -> list[Any]:
        """Return the records of all losses, by microbatch."""
        return [part for unit in sorted(self.results) for part in self.results[unit]]


class ByMicrobatch:
    """Iterator over the data of a chunk whose forwards do not run in the sequence of microbatches.

    Other stages and ranks read the same data in their own sequence, so that each microbatch needs
    to get its own: the one that stands at its place.
    """

    def __init__(self, data: Any) -> None:
        self._data, self._ahead = data, list[Any]()
        self._place, self._taken = 0, False

    def __iter__(self) -> ByMicrobatch:
        return self

    def turn_to(self, microbatch: int) -> None:
        """Let the next item be that of a microbatch."""
        self._place, self._taken = microbatch, False

    def __next__(self) -> Any:
        if self._taken:
            raise RunError(
                f"the forward of microbatch {self._place} takes several batches from its iterator, "
                "and this schedule runs microbatches in another sequence on some stages; let it "
                "take one for each microbatch, or use a schedule such as '1f1b'"
            )
        while len(self._ahead) <= self._place:
            self._ahead.append(next(self._data))
        self._taken = True
        found, self._ahead[self._place] = self._ahead[self._place], None
        return found


@dataclass(eq=False)
class MegatronStage(Stage):
    """A stage that is one of Megatron's model chunks."""

    chunk: int = 0
    """Its place among the chunks of its rank."""
    current: Callable[[], MegatronStep] = field(kw_only=True)
    """Return the step that runs."""
    actions: Mapping[Kind, int] = field(default_factory=dict)
    """Number of I, W and B of the stage in a step."""
    delays: bool = False
    """If its layers leave weight gradients to ``backward_dw()``."""
    _done: int = 0
    """Number of these actions that this step has begun."""

    def start(self) -> None:
        """Begin a step."""
        super().start()
        self._done = 0

    def backward(self, unit: int, gradients: Sequence[Tensor] | None) -> list[Tensor]:
        """Run B, whole."""
        with self._gradients(Kind.B, unit, whole=True):
            found = super().backward(unit, gradients)
            if self.delays:
                self._backward_dw()
            return found

    def backward_input(self, unit: int, gradients: Sequence[Tensor] | None) -> list[Tensor]:
        """Run I, or all of the backward where it is not split."""
        if self.fuses:
            return self.backward(unit, gradients)
        with self._gradients(Kind.I, unit, whole=False):
            if self.delays:
                return super().backward(unit, gradients)
            return super().backward_input(unit, gradients)

    def backward_weight(self, unit: int) -> None:
        """Run W, which has nothing left to do where the backward is not split."""
        if self.fuses:
            return
        with self._gradients(Kind.W, unit, whole=False):
            if self.delays:
                self._backward_dw()
            else:
                super().backward_weight(unit)

    def _call(self, _: UnitState, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        given = None if not args else args[0] if len(args) == 1 else list(args)
        unit = kwargs["microbatch"]
        step = self.current()
        with step.named(f"{self.number}F{unit}"):
            return step.forward(self, unit, given)

    def _backward_dw(self) -> None:
        for layer in reversed(delayed_layers(self.current().call.chunks[self.chunk])):
            layer.backward_dw()

    @contextmanager
    def _gradients(self, kind: Kind, unit: int, whole: bool) -> Iterator[None]:
        """Run an action that adds gradients of weights; the last one of a chunk ends `no_sync`.

        It is `whole` if all weights get their gradients of the microbatch in it.
        """
        step = self.current()
        self._done += 1
        total = sum(self.actions.values()) - (self.actions[Kind.W] if self.fuses else 0)
        last = step.sync is not None and self._done == total
        ends = step.sync.last(self.chunk, whole) if last and step.sync else nullcontext()
        with step.named(f"{self.number}{kind.name}{unit}"), step.timed("backward-compute"), ends:
            yield
