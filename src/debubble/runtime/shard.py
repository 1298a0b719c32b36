"""An output layer that is cut along the vocabulary: what S and T do, and what ranks exchange.

Rank r has some rows of the layer's weights W, and logits Y = X Wᵀ + b of its part of the vocabulary
for the hidden states X. Of every token all ranks have to know the largest logit and the sum of
exponentials; what S computes from the rank's own is then right but for a factor (arXiv 2411.05288):

* S sends the rank's largest logit, sum, and target's logit, where that is its own, to all others.
  With one exchange it also sends P W and the target's row of W to the last stage, P being the
  softmax over the rank's own logits: its share of the gradient of X, but for the factors.
* T computes the gradient of the rank's weights. With two exchanges it computes the gradient of X,
  too, and sends it.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn import functional

from debubble.core.kinds import Kind, Need, Of
from debubble.runtime.models import Batches
from debubble.runtime.plan import Plan
from debubble.runtime.weights import Versions, Weights
from debubble.runtime.world import RunError, World

HIDDEN, SUMS, GRADIENT = "hidden states", "sums", "gradients"


@dataclass
class Passed:
    """What S leaves for T."""

    x: Tensor
    weights: Weights
    powers: Tensor
    """Exponentials of the logits less the largest of the rank, shape (tokens, rows)."""
    place: Tensor
    """Row of every token's target; 0 where that is another rank's."""
    own: Tensor
    """1 where the target is here, else 0; shape (tokens, 1)."""
    scale: float
    """Of one token's loss in the loss of the step."""


class Shard:
    """One rank's rows of the output layer.

    Parameters
    ----------
    world
        Where it runs.
    plan
        What is run.
    batches
        The model, with its output layer.
    dtype
        Of weights and activations.

    Attributes
    ----------
    weights
        Of the rows.
    losses
        On the rank of the last stage, the share of every microbatch in the step's loss.
    """

    def __init__(self, world: World, plan: Plan, batches: Batches, dtype: torch.dtype) -> None:
        schedule = plan.lowered
        assert batches.output is not None, "a schedule that shards has a model that can be"
        self._rank, self._device = world.rank, world.device
        self._last = schedule.stages - 1
        self._home = schedule.placement.table[0][self._last]
        self._once = schedule.vocabulary == 2
        self._programs = plan.programs
        self._batches, self._dtype = batches, dtype
        # A copy: the reference computes with the layer itself.
        layer = copy.deepcopy(batches.output).to(world.device, dtype)
        parts = {
            name: weight.tensor_split(schedule.ranks) for name, weight in layer.named_parameters()
        }
        self._first = sum(len(part) for part in parts["weight"][: world.rank])
        mine = ((name, split[world.rank]) for name, split in parts.items())
        self.weights = Versions(mine, schedule.versions[world.rank])
        self.losses: dict[int, Tensor] = {}
        # By way of the host: on one stream of NCCL, what two ranks send each other in different
        # orders would wait for each other.
        self._group = dist.new_group(backend="gloo")
        self._ranks = range(schedule.ranks)
        self._others = [rank for rank in self._ranks if rank != world.rank]
        self._sending: list[tuple[Any, Tensor]] = []
        self.start()

    def start(self) -> None:
        """Begin a step."""
        self.losses.clear()
        self._passed: dict[int, Passed] = {}
        self._known: dict[tuple[str, int, int], Tensor] = {}
        """By what it is, rank and microbatch: this rank's own, and what has arrived."""
        self._coming = {rank: deque(self._mail(rank)) for rank in self._others}

    def finish(self) -> None:
        """Wait until everything is sent."""
        for work, _ in self._sending:
            work.wait()
        self._sending.clear()

    def given(self, unit: int, hidden: Tensor) -> None:
        """F of the last stage is over: all ranks get its output."""
        self._tell(HIDDEN, unit, hidden, self._others)

    def wait_for(self, need: Need, unit: int) -> None:
        """What a pass, or a backward of the last stage, waits for: a row of the table of kinds."""
        if need.of is Of.LAST_STAGE:
            self._receive(HIDDEN, self._home, unit)
            return
        for what in (SUMS, GRADIENT) if need.last_stage_only else (SUMS,):
            for rank in self._ranks:
                self._receive(what, rank, unit)

    def first_pass(self, unit: int, version: int) -> None:
        """S."""
        hidden = self._known.pop((HIDDEN, self._home, unit))
        x = hidden.flatten(0, -2)
        weights = self.weights.after(version)
        target, share = self._batches.target(unit, self._last)
        assert target is not None, "the last stage has targets"
        place = target.flatten() - self._first
        with torch.no_grad():
            logits = functional.linear(x, weights["weight"], weights.get("bias"))
            here = (place >= 0) & (place < logits.shape[1])
            place, own = torch.where(here, place, 0), here[:, None].to(logits)
            largest = logits.amax(1)
            powers = (logits - largest[:, None]).exp()
            total = powers.sum(1)
            found = logits.gather(1, place[:, None])[:, 0] * own[:, 0]
            passed = Passed(x, weights, powers, place, own, share / len(x))
            self._tell(SUMS, unit, torch.stack([largest, total, found]), self._others)
            if self._once:
                weight = weights["weight"]
                mixed = (powers / total[:, None]) @ weight
                self._tell(GRADIENT, unit, torch.stack([mixed, own * weight[place]]), [self._home])
        self._passed[unit] = passed

    def second_pass(self, unit: int) -> None:
        """T."""
        passed = self._passed.pop(unit)
        weights = passed.weights
        with torch.no_grad():
            factors, _ = self._softmax(unit)
            share = factors[self._rank] / self._known[SUMS, self._rank, unit][1]
            logits = passed.powers * share[:, None]
            logits.scatter_add_(1, passed.place[:, None], -passed.own)
            logits *= passed.scale
            for name, gradient in (("weight", logits.T @ passed.x), ("bias", logits.sum(0))):
                if name in weights:
                    weight = weights[name]
                    weight.grad = gradient if weight.grad is None else weight.grad + gradient
            if not self._once:
                self._tell(GRADIENT, unit, logits @ weights["weight"], [self._home])

    def gradient(self, unit: int) -> Tensor:
        """The gradient of the last stage's output, on its rank, from all shards."""
        parts = [self._known.pop((GRADIENT, rank, unit)) for rank in self._ranks]
        factors, losses = self._softmax(unit)
        _, share = self._batches.target(unit, self._last)
        self.losses[unit] = share * losses.mean()
        if self._once:
            scale = share / len(losses)
            parts = [
                scale * (factor[:, None] * mixed - row)
                for factor, (mixed, row) in zip(factors, parts, strict=True)
            ]
        whole: Tensor = torch.stack(parts).sum(0)
        return whole.view(self._batches.hidden)

    def _softmax(self, unit: int) -> tuple[Tensor, Tensor]:
        """Each rank's share in the sum of exponentials, shape (ranks, tokens); loss of a token."""
        sums = [self._known[SUMS, rank, unit] for rank in self._ranks]
        largest, total, found = torch.stack(sums, 1)
        top = largest.amax(0)
        parts = total * (largest - top).exp()
        whole = parts.sum(0)
        return parts / whole, whole.log() + top - found.sum(0)

    def _mail(self, source: int) -> Iterator[tuple[str, int]]:
        """What another rank sends here, in the order in which it does."""
        backwards = self._rank == self._home
        for step in self._programs[source]:
            if step.kind == Kind.F and step.stage == self._last:
                yield HIDDEN, step.unit
            elif step.kind == Kind.S:
                yield SUMS, step.unit
                if self._once and backwards:
                    yield GRADIENT, step.unit
            elif step.kind == Kind.T and not self._once and backwards:
                yield GRADIENT, step.unit

    def _tell(self, what: str, unit: int, tensor: Tensor, ranks: Sequence[int]) -> None:
        if what == SUMS or self._rank == self._home:
            self._known[what, self._rank, unit] = tensor
        wire = tensor.to("cpu").contiguous()
        self._sending = [entry for entry in self._sending if not entry[0].is_completed()]
        self._sending += [
            (dist.isend(wire, rank, group=self._group), wire)
            for rank in ranks if rank != self._rank
        ]  # fmt: skip

    def _receive(self, what: str, source: int, unit: int) -> None:
        """Take what a rank sends until the wanted is there."""
        coming = self._coming.get(source)
        while (what, source, unit) not in self._known:
            if not coming:
                raise RunError(f"the {what} of microbatch {unit} are not there on rank {source}")
            kind, number = coming.popleft()
            buffer = torch.empty(self._shape(kind), dtype=self._dtype)
            dist.recv(buffer, source, group=self._group)
            self._known[kind, source, number] = buffer.to(self._device)

    def _shape(self, what: str) -> tuple[int, ...]:
        hidden = self._batches.hidden
        tokens = torch.Size(hidden[:-1]).numel()
        if what == SUMS:
            return 3, tokens
        if what == HIDDEN:
            return hidden
        return (2, tokens, hidden[-1]) if self._once else (tokens, hidden[-1])
