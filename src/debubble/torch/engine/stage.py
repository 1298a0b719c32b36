"""One stage of the model: F, R, I, W, B, OFFLOAD and RELOAD of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn.parallel import DistributedDataParallel

from debubble.torch.autograd.backward import run_backward
from debubble.torch.autograd.splitter import Branches, Splitter, run_branches
from debubble.torch.autograd.versions import RandomState, Versions
from debubble.torch.data.batch import (
    StepData,
    added_losses,
    check_loss_value,
    take_metrics,
    zero_of,
)
from debubble.torch.data.tree import TreeForm, arguments, mapped, put_together, take_apart
from debubble.torch.engine.finite import FiniteCheck
from debubble.torch.engine.offload import Activations
from debubble.torch.engine.skips import NO_SKIPS, Skips
from debubble.torch.errors import RunError
from debubble.torch.models.modules import reason_not_split, saving_seen, without_sync


class StageOutput(NamedTuple):
    """The output of a stage for the next one: tensors of a tree, and its form."""

    tensors: list[Tensor]
    form: TreeForm
    carried: StageOutput | None = None
    """Output for a stage that is no neighbor."""

    @property
    def carrying(self) -> list[Tensor]:
        """Tensors for which gradients come back, those that are carried last."""
        pairs = zip(self.tensors, self.form.tensors, strict=True)
        own = [tensor for tensor, leaf in pairs if leaf.carries]
        return own if self.carried is None else own + self.carried.carrying

    @property
    def detached(self) -> StageOutput:
        """The output without its graph."""
        carried = None if self.carried is None else self.carried.detached
        return StageOutput([tensor.detach() for tensor in self.tensors], self.form, carried)


class StageInput(NamedTuple):
    """The input of a forward."""

    args: tuple[Any, ...] | StageOutput
    """Arguments of the first stage, or the output of the stage before."""
    kwargs: Mapping[str, Any]
    target: Any
    weight: float
    """Weight of the microbatch's loss in the gradient."""
    carried: StageOutput | None = None
    """Tensors that a stage that is no neighbor carries here, by keyword."""


@dataclass
class UnitState:
    """State of one microbatch or slice on a stage between its forward and its backward."""

    given: StageInput
    weights: Mapping[str, Tensor] | None = None
    """Version of the weights, when it is not the module's own."""
    random: RandomState | None = None
    """Random numbers of the forward, for R."""
    roots: list[GradientEdge | None] = field(default_factory=list)
    """Edges for the gradients of outputs, None where an output depends on nothing; empty before R.

    The outputs themselves are with their users.
    """
    losses: list[Tensor] = field(default_factory=list)
    """Auxiliary losses, and that of the last stage."""
    keys: list[Tensor] = field(default_factory=list)
    """Keys and values of a slice."""
    inputs: list[Tensor] = field(default_factory=list)
    """Leaves whose gradients go to the stage before, or an activation on the first stage; behind
    them those whose gradients go to the stage that carried them here."""
    leaves: list[Tensor] = field(default_factory=list)
    """Keys and values of earlier slices."""
    activations: Activations | None = None
    made: bool = False
    """If there is a graph."""


Ends: TypeAlias = tuple[list[Any], list[Tensor]]
"""Losses, and edges of outputs, at which a backward begins, and their gradients."""


@dataclass(eq=False)
class Stage:
    """One stage, of all copies of the model that have it here."""

    number: int
    module: nn.Module
    """Its computation and parameters."""
    loss: Callable[[Any, Any], Tensor] | None
    """Mean loss of (output, target) on the last stage; None elsewhere, and where the output layer
    is sharded."""
    last: bool
    """If no other stage uses its output."""
    splits: bool
    """If the schedule splits its backwards."""
    fuses: bool | None
    """If I then does the whole backward, and W nothing; None until the first forward shows it."""
    slices: int
    """Number of slices of a microbatch."""
    kept: int
    """Number of versions of the weights."""
    device: torch.device
    warn: Callable[[int, str], None]
    """Called once with the reason why a backward is not split."""
    skips: Skips = NO_SKIPS
    """Skip connections."""

    def __post_init__(self) -> None:
        self.held: dict[int, UnitState] = {}
        self._left: dict[int, list[Branches] | Ends] = {}
        """Work that I left for W: branches, or the whole backward."""
        self.losses: dict[int, list[Tensor]] = {}
        self.outputs: dict[int, Any] | None = None
        """Outputs of the last stage by unit; None keeps none."""
        self._metrics: dict[int, Any] | None = None
        """Metrics of the loss function by unit; None keeps none."""
        self._finite: FiniteCheck | None = None
        self.versions = Versions(self.module, self.kept) if self.kept > 1 else None
        self._replicated = isinstance(self.module, DistributedDataParallel)
        self._splitter = Splitter()
        self._slopes: dict[tuple[float, torch.dtype], Tensor] = {}
        """Gradients of this step's losses, by weight and type."""
        self._memory: dict[int, list[Tensor]] = {}
        """Keys and values of slices, as leaves that collect their gradients."""
        self.trains = True

    def start(self) -> None:
        """Begin a step."""
        self.losses.clear()
        self.held.clear()
        self._left.clear()
        self._slopes.clear()
        self._memory.clear()
        self.trains = any(weight.requires_grad for weight in self.module.parameters())

    def follow(self, batch: StepData) -> None:
        """Keep and check what a step wants."""
        self.outputs = batch.outputs if self.last else None
        self._metrics = batch.metrics
        check = partial(FiniteCheck, self.number, self.module, self.slices)
        self._finite = check(backward=not batch.scaled) if batch.finite else None

    def forward(
        self,
        unit: int,
        given: StageInput,
        *,
        iteration: int = 0,
        graph: bool = True,
        recomputed: bool = False,
        leaves: bool = False,
    ) -> StageOutput | None:
        """Run F; return the output for the next stage, None on the last.

        There is no graph when it is `recomputed`, and no state is kept without `graph`; `leaves` is
        for an OFFLOAD that will come.
        """
        held = UnitState(given)
        if self.versions is not None and graph:
            held.weights = self.versions.of(iteration)
        if leaves:
            own = self.module.parameters() if held.weights is None else held.weights.values()
            held.activations = Activations([*own, *self.module.buffers()])
        if recomputed:
            held.random = RandomState.now(self.device)
        if graph:
            self.held[unit] = held
        return self._run(unit, held, graph=graph and not recomputed)

    def recompute(self, unit: int) -> None:
        """Run R: the forward again, with its graph."""
        held = self._of(unit)
        assert held.random is not None, "a forward knows when an R will come"
        with held.random.again():
            self._run(unit, held, graph=True)

    def backward(self, unit: int, gradients: Sequence[Tensor] | None) -> list[Tensor]:
        """Run B: return the gradients of the inputs, and add those of the weights."""
        held = self._of(unit)
        roots, seeds = self._ends(unit, held, gradients)
        del self.held[unit]
        # A stage without weights whose input wants no gradient has nothing to do.
        if roots:
            run_backward(roots, seeds)
        return self._checked(unit, [_gradient(leaf, leaf.grad) for leaf in held.inputs])

    def backward_input(self, unit: int, gradients: Sequence[Tensor] | None) -> list[Tensor]:
        """Run I: return the gradients of the inputs.

        Where there are none, on the first stage for instance, all is left to W.
        """
        if self.fuses:
            return self.backward(unit, gradients)
        held = self._of(unit)
        roots, seeds = self._ends(unit, held, gradients)
        del self.held[unit]
        if not (held.inputs or held.leaves) or not roots:
            self._left[unit] = roots, seeds
            return [_gradient(leaf, None) for leaf in held.inputs]
        found, self._left[unit] = self._splitter.backward_input(
            roots, seeds, held.inputs, held.leaves
        )
        count = len(held.inputs)
        for leaf, part in zip(held.leaves, found[count:], strict=True):
            if part is not None:
                leaf.grad = part if leaf.grad is None else leaf.grad + part
        pairs = zip(held.inputs, found[:count], strict=True)
        return self._checked(unit, [_gradient(*pair) for pair in pairs], weights=False)

    def backward_weight(self, unit: int) -> None:
        """Run W: the work that I left."""
        if self.fuses:
            return
        if unit not in self._left:
            raise RunError("W comes before I")
        left = self._left.pop(unit)
        if isinstance(left, list):
            run_branches(left)
        elif left[0]:
            run_backward(*left)
        self._checked(unit, [])

    def activations(self, unit: int) -> Activations:
        """Return the activations that OFFLOAD and RELOAD move."""
        found = self._of(unit).activations
        assert found is not None, "a forward knows when an OFFLOAD will come"
        return found

    def _checked(self, unit: int, gradients: list[Tensor], *, weights: bool = True) -> list[Tensor]:
        """Return gradients of inputs that are finite, as those of weights are, if that is asked."""
        if self._finite is not None:
            self._finite.backward(unit, gradients, weights=weights)
        return gradients

    def _of(self, unit: int) -> UnitState:
        if unit not in self.held:
            raise RunError("nothing is held: the forward is missing, or a backward came before")
        return self.held[unit]

    def _run(self, unit: int, held: UnitState, graph: bool) -> StageOutput | None:
        given = held.given
        trains = self.trains or any(
            leaf.carries for part in (given.args, given.carried) if isinstance(part, StageOutput)
            for leaf in part.form.tensors
        )  # fmt: skip
        inputs: list[Tensor] = []
        split = self.splits and not self.fuses
        args, kwargs = given.args, given.kwargs
        if isinstance(args, StageOutput):
            args = arguments(_with_leaves(args, graph, inputs, split))
        if given.carried is not None:
            came = _with_leaves(given.carried, graph, inputs, split)
            twice = next((name for name in came if name in kwargs), None)
            if twice is not None:
                raise RunError(
                    f"stage {self.number} gets {twice}= from another stage and from the step; "
                    "leave it out of the step, or carry it under another name"
                )
            kwargs = {**kwargs, **came}
        # Keys and values of the slices before this one, slice by slice.
        earlier = [self._memory[other] for other in range(unit - unit % self.slices, unit)]
        keys: list[Tensor] = []
        seen: list[str] | None = None
        with self._contexts(held, graph) as stack, added_losses() as added:
            if graph and self.splits and self.fuses is None:
                seen = stack.enter_context(saving_seen())
            if self._finite is not None:
                stack.enter_context(self._finite.modules())
            if self.slices > 1:
                start = sum(parts[0].shape[2] for parts in earlier)
                past = [torch.cat(parts, 2) for parts in zip(*earlier, strict=True)]
                output, keys = self._call(held, (*args, start, past), kwargs)
            else:
                output = self._call(held, args, kwargs)
            losses = list(added)
            if self.loss is not None and given.target is not None:
                if output is None:
                    raise RunError(f"stage {self.number} returned None, of which there is no loss")
                loss = take_metrics(self.loss(output, given.target), unit, self._metrics)
                losses.insert(0, check_loss_value(loss, output))
        if self._finite is not None:
            data = ((() if isinstance(given.args, StageOutput) else args), given.kwargs)
            counted = losses if given.weight else ()
            self._finite.forward(unit, (*data, given.target), output, counted)
        if self.outputs is not None:
            self.outputs[unit] = mapped(output, Tensor.detach)
        rest, carried = self.skips.take_out(self.number, output)
        handed = None if self.last else StageOutput(*take_apart(rest, trains))
        if handed is not None and carried is not None:
            skip = StageOutput(*take_apart(carried, trains))
            if not skip.tensors:
                raise self.skips.without_tensor(self.number, carried)
            handed = handed._replace(carried=skip)
        if handed is not None and not handed.tensors:
            what = "None" if output is None else f"{type(output).__name__} without tensors"
            raise RunError(
                f"stage {self.number} returned {what}; return a tensor for the next stage, or a "
                "tuple, list or dict with some"
            )
        if graph:
            carrying = [] if handed is None else handed.carrying
            held.roots = [get_gradient_edge(t) if t.requires_grad else None for t in carrying]
            if losses and not given.weight:
                # No loss counts here, but the backward still runs: other ranks wait for it.
                counted = [zero_of(output)] if self.last else []
            else:
                counted = losses
            held.losses, held.keys, held.made = counted, keys, True
            held.inputs = inputs
            held.leaves = [leaf for parts in earlier for leaf in parts]
            if seen is not None:
                # The first forward decides if I and W pay apart.
                why = reason_not_split(seen, [*carrying, *held.losses])
                self.fuses = bool(why)
                if why:
                    self.warn(self.number, why)
        if losses:
            self.losses[unit] = [loss.detach() for loss in losses]
        if self.slices > 1 and unit not in self._memory:
            self._memory[unit] = [part.detach().requires_grad_() for part in keys]
        if handed is None:
            return None
        return handed.detached

    def _contexts(self, held: UnitState, graph: bool) -> ExitStack:
        """Return the contexts that a forward needs; entering one costs time."""
        stack = ExitStack()
        if torch.is_grad_enabled() != graph:
            stack.enter_context(torch.set_grad_enabled(graph))
        if held.activations is not None and graph:
            stack.enter_context(held.activations.saved())
        if self._replicated:
            stack.enter_context(without_sync(self.module))
        return stack

    def _call(self, held: UnitState, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if held.weights is None:
            return self.module(*args, **kwargs)
        return torch.func.functional_call(self.module, dict(held.weights), args, dict(kwargs))

    def _ends(self, unit: int, held: UnitState, gradients: Sequence[Tensor] | None) -> Ends:
        """Return roots and their gradients; later slices left theirs at keys and values."""
        if not held.made:
            raise RunError("there is no graph: R is missing, or a backward came before")
        roots: list[Any] = []
        seeds: list[Tensor] = []
        # A sharded output layer has a gradient for a stage without weights, too.
        wanted = gradients if gradients and held.roots else ()
        for root, seed in zip(held.roots, wanted, strict=True):
            if root is not None:
                roots.append(root)
                seeds.append(seed)
        for loss in held.losses:
            if loss.requires_grad:
                roots.append(loss)
                kind = held.given.weight, loss.dtype
                if kind not in self._slopes:
                    self._slopes[kind] = torch.full_like(loss, held.given.weight)
                seeds.append(self._slopes[kind])
        for key, leaf in zip(held.keys, self._memory.pop(unit, []), strict=True):
            if leaf.grad is not None and key.requires_grad:
                roots.append(get_gradient_edge(key))
                seeds.append(leaf.grad)
        return roots, seeds


def _with_leaves(output: StageOutput, graph: bool, inputs: list[Tensor], split: bool) -> Any:
    """Return another stage's output for a graph; leaves that carry gradients go to `inputs`.

    I of a `split` backward may take the numbers out of `inputs`: the module gets views.
    """
    if not graph:
        return put_together(output.tensors, output.form)
    found = []
    for tensor, leaf in zip(output.tensors, output.form.tensors, strict=True):
        own = tensor.detach()
        if leaf.carries:
            inputs.append(own.requires_grad_())
            own = own.view_as(own) if split else own
        found.append(own)
    return put_together(found, output.form)


def _gradient(leaf: Tensor, gradient: Tensor | None) -> Tensor:
    return torch.zeros_like(leaf) if gradient is None else gradient
