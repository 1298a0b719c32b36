"""One stage of the model: what F, R, I, W, B, OFFLOAD and RELOAD do there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn.parallel import DistributedDataParallel

from debubble.core.kind_relations import SPLIT_KINDS
from debubble.torch.autograd.random_state import RandomState
from debubble.torch.autograd.splitter import Branches, Splitter, backward_weight
from debubble.torch.autograd.versions import Versions
from debubble.torch.data.losses import added_losses, check_loss_value, zero_of
from debubble.torch.data.tree import Leaf, TreeForm, arguments, put_together, take_apart
from debubble.torch.engine.offload import Activations
from debubble.torch.engine.plan import ProgramStep
from debubble.torch.errors import RunError
from debubble.torch.models.modules import reason_not_split, saving_seen, without_sync
from debubble.torch.setup import EngineSetup


class StageOutput(NamedTuple):
    """What goes from stage to stage: the tensors of a tree, and its form."""

    tensors: list[Tensor]
    spec: TreeForm

    @property
    def carrying(self) -> list[Tensor]:
        """Tensors for which gradients come back."""
        pairs = zip(self.tensors, self.spec.tensors, strict=True)
        return [tensor for tensor, leaf in pairs if leaf.carries]


class StageInput(NamedTuple):
    """What a forward computes with."""

    args: tuple[Any, ...] | StageOutput
    """Arguments of the first stage, or what the stage before handed on."""
    kwargs: Mapping[str, Any]
    target: Any
    weight: float
    """Of the microbatch's loss, as its gradient counts it."""


@dataclass
class UnitState:
    """What a stage keeps of one microbatch or slice between its forward and its backward."""

    given: StageInput
    weights: Mapping[str, Tensor] | None = None
    """A version of the weights that is not the module's own."""
    random: RandomState | None = None
    """That of the forward, for R."""
    roots: list[GradientEdge | None] = field(default_factory=list)
    """Where the gradients of outputs go in, None for those that depend on nothing; empty before R.

    The outputs themselves are with who computes with them.
    """
    losses: list[Tensor] = field(default_factory=list)
    """Auxiliary ones, and that of the last stage."""
    keys: list[Tensor] = field(default_factory=list)
    """Keys and values of a slice."""
    inputs: list[Tensor] = field(default_factory=list)
    """Leaves whose gradients go to the stage before, or an activation on the first stage."""
    leaves: list[Tensor] = field(default_factory=list)
    """Keys and values of earlier slices."""
    activations: Activations | None = None
    made: bool = False
    """Whether there is a graph."""


Ends: TypeAlias = tuple[list[GradientEdge], list[Tensor]]
"""Where a backward begins, and with which gradients."""


@dataclass(eq=False)
class Stage:
    """One stage, of all copies of the model that have it here."""

    number: int
    module: nn.Module
    """Its computation, with its own parameters."""
    loss: Callable[[Any, Any], Tensor] | None
    """On the last stage, the mean loss of (output, target); None where its output layer is sharded,
    and elsewhere."""
    last: bool
    """Whether nobody computes with its output."""
    splits: bool
    """Whether the schedule splits its backwards."""
    fuses: bool | None
    """Whether I does the whole backward then, and W nothing; when nobody has said so, None: that is
    decided at the first forward."""
    slices: int
    """Slices of a microbatch."""
    kept: int
    """How many versions of the weights are kept."""
    device: torch.device
    """Where it computes."""
    tell: Callable[[int, str], None]
    """Is told once why a backward is not split."""

    def __post_init__(self) -> None:
        self.held: dict[int, UnitState] = {}
        self._left: dict[int, list[Branches] | Ends] = {}
        """What I left for W: branches, or the whole backward."""
        self.losses: dict[int, list[Tensor]] = {}
        self.outputs: dict[int, Any] | None = None
        """Where what the last stage returns is kept; None keeps nothing."""
        self.versions = Versions(self.module, self.kept) if self.kept > 1 else None
        self._replicated = isinstance(self.module, DistributedDataParallel)
        self._splitter = Splitter()
        self._memory: dict[int, list[Tensor]] = {}
        """Keys and values of slices, as leaves that collect their gradients."""
        self.trains = True

    def start(self) -> None:
        """Begin a step."""
        self.losses.clear()
        self.held.clear()
        self._left.clear()
        self._memory.clear()
        self.trains = any(weight.requires_grad for weight in self.module.parameters())

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
        """F: what goes to the next stage, None on the last.

        Without a graph when it is `recomputed`, and nothing is kept without `graph`; `leaves` when
        an OFFLOAD will come.
        """
        held = UnitState(given)
        if self.versions is not None and graph:
            held.weights = self.versions.of(iteration)
        if leaves:
            held.activations = Activations(self._own(held))
        if recomputed:
            held.random = RandomState.now(self.device)
        if graph:
            self.held[unit] = held
        return self._run(unit, held, graph=graph and not recomputed)

    def recompute(self, unit: int) -> None:
        """R: the forward again, now with its graph."""
        held = self._of(unit)
        assert held.random is not None, "a forward knows when an R will come"
        with held.random.again():
            self._run(unit, held, graph=True)

    def backward(self, unit: int, gradients: Sequence[Tensor] | None) -> list[Tensor]:
        """B: the gradients of what the stage before handed on; those of weights are added up."""
        held = self._of(unit)
        roots, seeds = self._ends(unit, held, gradients)
        del self.held[unit]
        # A stage without weights whose input wants no gradient has nothing to do.
        if roots:
            torch.autograd.backward(roots, seeds)
        return [_gradient(leaf, leaf.grad) for leaf in held.inputs]

    def backward_input(self, unit: int, gradients: Sequence[Tensor] | None) -> list[Tensor]:
        """I: the gradients of what the stage before handed on.

        Where there are none to compute, on the first stage for instance, all is left to W.
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
        return [_gradient(*pair) for pair in zip(held.inputs, found[:count], strict=True)]

    def backward_weight(self, unit: int) -> None:
        """W: what I left."""
        if self.fuses:
            return
        if unit not in self._left:
            raise RunError("W comes before I")
        left = self._left.pop(unit)
        if isinstance(left, list):
            backward_weight(left)
        elif left[0]:
            torch.autograd.backward(*left)

    def activations(self, unit: int) -> Activations:
        """What OFFLOAD and RELOAD move."""
        found = self._of(unit).activations
        assert found is not None, "a forward knows when an OFFLOAD will come"
        return found

    def _of(self, unit: int) -> UnitState:
        if unit not in self.held:
            raise RunError("nothing is held: the forward is missing, or a backward came before")
        return self.held[unit]

    def _run(self, unit: int, held: UnitState, graph: bool) -> StageOutput | None:
        given = held.given
        trains = self.trains
        inputs: list[Tensor] = []
        if isinstance(given.args, StageOutput):
            tensors, spec = given.args
            split = self.splits and not self.fuses
            args = arguments(put_together(_leaves(tensors, spec, graph, inputs, split), spec))
            trains = trains or any(isinstance(leaf, Leaf) and leaf.carries for leaf in spec.leaves)
        else:
            args = given.args
        earlier = self._earlier(unit) if self.slices > 1 else []
        keys: list[Tensor] = []
        seen: list[str] | None = None
        with self._contexts(held, graph) as stack, added_losses() as added:
            if graph and self.splits and self.fuses is None:
                seen = stack.enter_context(saving_seen())
            if self.slices > 1:
                start = sum(parts[0].shape[2] for parts in earlier)
                past = [torch.cat(parts, 2) for parts in zip(*earlier, strict=True)]
                output, keys = self._call(held, (*args, start, past), given.kwargs)
            else:
                output = self._call(held, args, given.kwargs)
            losses = list(added)
            if self.loss is not None and given.target is not None:
                if output is None:
                    raise RunError(f"stage {self.number} returned None, of which there is no loss")
                losses.insert(0, check_loss_value(self.loss(output, given.target), output))
        if self.outputs is not None:
            self.outputs[unit] = output
        handed = None if self.last else StageOutput(*take_apart(output, trains))
        if handed is not None and not handed.tensors:
            raise RunError(
                f"stage {self.number} returned {_named(output)}; return a tensor for the next "
                "stage, or a tuple, list or dict with some"
            )
        if graph:
            carrying = [] if handed is None else handed.carrying
            held.roots = [get_gradient_edge(t) if t.requires_grad else None for t in carrying]
            if losses and not given.weight:
                # None of them counts; what counts nothing still has its backward.
                counted = [zero_of(output)] if self.last else []
            else:
                counted = losses
            held.losses, held.keys, held.made = counted, keys, True
            held.inputs = inputs
            held.leaves = [leaf for parts in earlier for leaf in parts]
            if seen is not None:
                self._decide(seen, [*carrying, *held.losses])
        if losses:
            self.losses[unit] = [loss.detach() for loss in losses]
        if self.slices > 1 and unit not in self._memory:
            self._memory[unit] = [part.detach().requires_grad_() for part in keys]
        if handed is None:
            return None
        return StageOutput([tensor.detach() for tensor in handed.tensors], handed.spec)

    def _contexts(self, held: UnitState, graph: bool) -> ExitStack:
        """What a forward runs in; nothing where nothing is to be changed."""
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

    def _own(self, held: UnitState) -> list[Tensor]:
        """What is the stage's own, whatever the microbatch."""
        weights = self.module.parameters() if held.weights is None else held.weights.values()
        return [*weights, *self.module.buffers()]

    def _decide(self, seen: list[str], roots: list[Tensor]) -> None:
        """Whether I and W pay apart, from the first forward."""
        why = reason_not_split(seen, roots)
        self.fuses = bool(why)
        if why:
            self.tell(self.number, why)

    def _earlier(self, unit: int) -> list[list[Tensor]]:
        """Keys and values of the slices before this one, slice by slice."""
        first = unit - unit % self.slices
        return [self._memory[other] for other in range(first, unit)]

    def _ends(self, unit: int, held: UnitState, gradients: Sequence[Tensor] | None) -> Ends:
        """Roots and their gradients; later slices have left theirs at keys and values."""
        if not held.made:
            raise RunError("there is no graph: R is missing, or a backward came before")
        roots, seeds = [], []
        # A sharded output layer has a gradient for a stage without weights, too.
        wanted = gradients if gradients and held.roots else ()
        for root, seed in zip(held.roots, wanted, strict=True):
            if root is not None:
                roots.append(root)
                seeds.append(seed)
        for loss in held.losses:
            if loss.requires_grad:
                roots.append(get_gradient_edge(loss))
                seeds.append(torch.full_like(loss, held.given.weight))
        for key, leaf in zip(held.keys, self._memory.pop(unit, []), strict=True):
            if leaf.grad is not None and key.requires_grad:
                roots.append(get_gradient_edge(key))
                seeds.append(leaf.grad)
        return roots, seeds


def _leaves(
    tensors: Sequence[Tensor], spec: TreeForm, graph: bool, inputs: list[Tensor], split: bool
) -> list[Tensor]:
    """What a graph begins at; those that carry gradients are put into `inputs`, too.

    I of a `split` backward may take the numbers out of these: the module gets views.
    """
    if not graph:
        return list(tensors)
    found = []
    for tensor, leaf in zip(tensors, spec.tensors, strict=True):
        own = tensor.detach()
        if leaf.carries:
            inputs.append(own.requires_grad_())
            own = own.view_as(own) if split else own
        found.append(own)
    return found


def _gradient(leaf: Tensor, gradient: Tensor | None) -> Tensor:
    return torch.zeros_like(leaf) if gradient is None else gradient


def _named(output: Any) -> str:
    return "None" if output is None else f"{type(output).__name__} without tensors"


def stages_of(setup: EngineSetup, program: Sequence[ProgramStep]) -> dict[int, Stage]:
    """The stages of a rank, as its program needs them."""
    schedule, ranks = setup.schedule, setup.ranks
    splits = {step.stage for step in program if step.kind in SPLIT_KINDS}
    # A sharded output layer computes the loss, and is behind the last stage.
    last = -1 if schedule.vocabulary else schedule.stages - 1
    return {
        number: Stage(
            number, module, setup.loss_fn if number == last else None, last=number == last,
            splits=number in splits, fuses=setup.fuses.get(number), slices=schedule.slices,
            kept=schedule.stored_versions[ranks.rank], device=ranks.device, tell=setup.tell,
        )
        for number, module in setup.modules.items()
    }  # fmt: skip
