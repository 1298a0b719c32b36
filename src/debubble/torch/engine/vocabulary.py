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

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from debubble.core.errors import ParameterError
from debubble.core.kinds import Kind, Need, Of
from debubble.torch.data.batch import IGNORED, StepData
from debubble.torch.engine.plan import ExecutionPlan, ProgramStep
from debubble.torch.errors import RunError
from debubble.torch.models.shard_output_layer import OutputRows
from debubble.torch.ranks.process_group import Ranks, Tag

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)

HEADER = 9
"""Numbers in front of hidden states: their type, how many dimensions they have, and these."""

HIDDEN, SUMS, GRADIENT = "hidden states", "sums", "gradients"


@dataclass
class Passed:
    """What S leaves for T."""

    x: Tensor
    powers: Tensor
    """Exponentials of the logits less the largest of the rank, shape (tokens, rows)."""
    place: Tensor
    """Row of every token's target; 0 where that is another rank's."""
    own: Tensor
    """1 where the target is here, else 0; shape (tokens, 1)."""


@dataclass
class Known:
    """What ranks know of a microbatch: shapes, and which tokens count."""

    shape: tuple[int, ...]
    """Of the hidden states."""
    dtype: torch.dtype
    target: Tensor
    """Flat."""

    @property
    def counted(self) -> Tensor:
        """1 for tokens that count, shape (tokens, 1)."""
        return (self.target != IGNORED)[:, None]


class Shard:
    """One rank's rows of the output layer."""

    def __init__(self, ranks: Ranks, rows: OutputRows) -> None:
        self.ranks, self.rows = ranks, rows
        self._ranks = range(ranks.size)
        self._others = [rank for rank in self._ranks if rank != ranks.rank]
        self.losses: dict[int, Tensor] = {}
        """On the rank of the last stage, the loss of every microbatch."""
        self._sending: list[tuple[Any, Tensor]] = []

    def follow(self, plan: ExecutionPlan) -> None:
        """Take part in a schedule."""
        schedule = plan.lowered
        self._last = schedule.stages - 1
        self._home = schedule.placement.table[0][self._last]
        self._once = schedule.vocabulary == 2
        self._programs = plan.programs

    def start(self, batch: StepData, training: bool) -> None:
        """Begin a step."""
        self._batch = batch
        self.losses.clear()
        self._passed: dict[int, Passed] = {}
        self._about: dict[int, Known] = {}
        self._known: dict[tuple[str, int, int], Tensor] = {}
        """By what it is, rank and microbatch: this rank's own, and what has arrived."""
        self._coming = {
            rank: deque(self._mail(self._programs[rank], training)) for rank in self._others
        }
        self._training = training

    def finish(self) -> None:
        """Wait until everything is sent."""
        for work, _ in self._sending:
            work.wait(self.ranks.timeout)
        self._sending.clear()

    def given(self, unit: int, hidden: Tensor) -> None:
        """F of the last stage is over: all ranks get its output, and the target."""
        if unit not in self._batch.targets:
            raise ParameterError("a sharded output layer needs targets; give target=")
        target = self._batch.targets[unit]
        if not isinstance(target, Tensor) or target.shape != hidden.shape[:-1]:
            raise ParameterError(
                f"the output layer gets {list(hidden.shape)}; with the layer sharded, target is a "
                f"tensor of token numbers of shape {list(hidden.shape[:-1])}"
            )
        known = Known(tuple(hidden.shape), hidden.dtype, target.flatten().to(self.ranks.device))
        self._about[unit] = known
        row = [DTYPES.index(known.dtype), len(known.shape), *known.shape]
        header = torch.tensor(row + [0] * (HEADER - len(row)))
        for tensor in (header, known.target, hidden):
            self._send(tensor, self._others)
        self._known[HIDDEN, self.ranks.rank, unit] = hidden

    def wait_for(self, need: Need, unit: int) -> None:
        """What a pass, or a backward of the last stage, waits for: a row of the table of kinds."""
        if need.of is Of.LAST_STAGE:
            self._receive(HIDDEN, self._home, unit)
            return
        for what in (SUMS, GRADIENT) if need.last_stage_only else (SUMS,):
            for rank in self._ranks:
                self._receive(what, rank, unit)

    def first_pass(self, unit: int) -> None:
        """S."""
        hidden = self._known.pop((HIDDEN, self._home, unit))
        about = self._about[unit]
        with torch.no_grad():
            weight = self.rows.weight
            x = hidden.flatten(0, -2).to(weight.dtype)
            logits = self.rows(x)
            place = about.target - self.rows.first
            here = (place >= 0) & (place < logits.shape[1])
            place, own = torch.where(here, place, 0), here[:, None].to(logits)
            largest = logits.amax(1)
            powers = (logits - largest[:, None]).exp()
            total = powers.sum(1)
            found = logits.gather(1, place[:, None])[:, 0] * own[:, 0]
            self._tell(SUMS, unit, torch.stack([largest, total, found]), self._others)
            if not self._training:
                return
            self._passed[unit] = Passed(x, powers, place, own)
            if self._once:
                mixed = (powers / total[:, None]) @ weight
                self._tell(GRADIENT, unit, torch.stack([mixed, own * weight[place]]), [self._home])

    def second_pass(self, unit: int) -> None:
        """T."""
        passed = self._passed.pop(unit)
        factors, _ = self._softmax(unit)
        weight, bias = self.rows.weight, self.rows.bias
        with torch.no_grad():
            # The largest exponential of the rank is that of the whole but for the factor.
            sums = self._known[SUMS, self.ranks.rank, unit]
            part = passed.powers * (factors[self.ranks.rank] / sums[1])[:, None]
            part.scatter_add_(1, passed.place[:, None], -passed.own)
            part *= self._scales(unit)
            if not self._once:
                self._tell(GRADIENT, unit, part @ weight, [self._home])
            if weight.requires_grad:
                _add(weight, part.T @ passed.x)
                if bias is not None:
                    _add(bias, part.sum(0))

    def gradient(self, unit: int) -> Tensor:
        """The gradient of the last stage's output, on its rank, from all shards."""
        parts = [self._known.pop((GRADIENT, rank, unit)) for rank in self._ranks]
        about = self._about[unit]
        factors, losses = self._softmax(unit)
        self.losses[unit] = self._mean(unit, losses)
        if self._once:
            scale = self._scales(unit)
            parts = [
                scale * (factor[:, None] * mixed - row)
                for factor, (mixed, row) in zip(factors, parts, strict=True)
            ]
        whole: Tensor = torch.stack(parts).sum(0)
        return whole.view(about.shape).to(about.dtype)

    def evaluate(
        self, hidden: Mapping[int, Any], batch: StepData
    ) -> tuple[dict[int, Tensor], dict[int, Any]]:
        """Losses of microbatches, and nothing in place of logits, of which nobody has all."""
        for unit in range(len(batch.weights)):
            if unit in hidden:
                self.given(unit, hidden[unit])
            self._receive(HIDDEN, self._home, unit)
            self.first_pass(unit)
            if self.ranks.rank == self._home:
                for rank in self._ranks:
                    self._receive(SUMS, rank, unit)
                self.losses[unit] = self._mean(unit, self._softmax(unit)[1])
        for unit in range(len(batch.weights)):
            for rank in self._ranks:
                self._receive(SUMS, rank, unit)
        self.finish()
        return self.losses, {}

    def _mean(self, unit: int, losses: Tensor) -> Tensor:
        counted = self._about[unit].counted[:, 0]
        return (losses * counted).sum() / counted.sum()

    def _scales(self, unit: int) -> Tensor:
        """Of every token's loss in what gradients are of, shape (tokens, 1)."""
        counted = self._about[unit].counted.to(self.rows.weight.dtype)
        whole = self._batch.weights[unit] * self._batch.scale
        return counted * (whole / counted.sum().clamp(min=1.0))

    def _softmax(self, unit: int) -> tuple[Tensor, Tensor]:
        """Each rank's share in the sum of exponentials, shape (ranks, tokens); loss of a token."""
        sums = [self._known[SUMS, rank, unit] for rank in self._ranks]
        largest, total, found = torch.stack(sums, 1)
        top = largest.amax(0)
        parts = total * (largest - top).exp()
        whole = parts.sum(0)
        return parts / whole, whole.log() + top - found.sum(0)

    def _mail(self, program: Sequence[ProgramStep], training: bool) -> Iterator[tuple[str, int]]:
        """What another rank sends here, in the order in which it does."""
        if not training:
            units = sorted({step.unit for step in program if step.kind == Kind.S})
            for unit in units:
                if any(step.kind == Kind.F and step.stage == self._last for step in program):
                    yield HIDDEN, unit
                yield SUMS, unit
            return
        backwards = self.ranks.rank == self._home
        for step in program:
            if step.kind == Kind.F and step.stage == self._last:
                yield HIDDEN, step.unit
            elif step.kind == Kind.S:
                yield SUMS, step.unit
                if self._once and backwards:
                    yield GRADIENT, step.unit
            elif step.kind == Kind.T and not self._once and backwards:
                yield GRADIENT, step.unit

    def _tell(self, what: str, unit: int, tensor: Tensor, ranks: Sequence[int]) -> None:
        if what == SUMS or self.ranks.rank == self._home:
            self._known[what, self.ranks.rank, unit] = tensor
        self._send(tensor, [rank for rank in ranks if rank != self.ranks.rank])

    def _send(self, tensor: Tensor, ranks: Sequence[int]) -> None:
        # By way of the host: on one stream of NCCL, what two ranks send each other in different
        # orders would wait for each other.
        wire = tensor.to("cpu").contiguous()
        self._sending = [entry for entry in self._sending if not entry[0].is_completed()]
        self._sending += [
            (self.ranks.channel.send(wire, rank, Tag.VOCABULARY), wire) for rank in ranks
        ]

    def _receive(self, what: str, source: int, unit: int) -> None:
        """Take what a rank sends until the wanted is there."""
        coming = self._coming.get(source)
        while (what, source, unit) not in self._known:
            if not coming:
                raise RunError(f"the {what} of microbatch {unit} are not there on rank {source}")
            kind, number = coming.popleft()
            if kind == HIDDEN:
                self._about[number] = known = self._learn(source)
                shape, dtype = known.shape, known.dtype
            else:
                shape, dtype = self._shape(kind, number), self.rows.weight.dtype
            buffer = self._buffer(source, shape, dtype)
            self._known[kind, source, number] = buffer.to(self.ranks.device)

    def _learn(self, source: int) -> Known:
        header = self._buffer(source, (HEADER,), torch.int64).tolist()
        shape, dtype = tuple(header[2 : 2 + header[1]]), DTYPES[header[0]]
        tokens = torch.Size(shape[:-1]).numel()
        target = self._buffer(source, (tokens,), torch.int64)
        return Known(shape, dtype, target.to(self.ranks.device))

    def _buffer(self, source: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        buffer = torch.empty(*shape, dtype=dtype)
        return self.ranks.channel.receive(buffer, source, Tag.VOCABULARY)

    def _shape(self, what: str, unit: int) -> tuple[int, ...]:
        about = self._about.get(unit)
        if about is None:
            self._receive(HIDDEN, self._home, unit)
            about = self._about[unit]
        tokens = len(about.target)
        if what == SUMS:
            return 3, tokens
        return (2, tokens, about.shape[-1]) if self._once else (tokens, about.shape[-1])


def _add(weight: Tensor, gradient: Tensor) -> None:
    weight.grad = gradient if weight.grad is None else weight.grad + gradient
