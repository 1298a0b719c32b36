"""Output layers cut along the vocabulary: their rows, S and T, and messages between ranks.

Rank r has some rows of the layer's weights W, and logits Y = X Wᵀ + b of its part of the vocabulary
for the hidden states X. For every token all ranks need the largest logit and the sum of
exponentials; results of S from the rank's own logits are right but for a factor (arXiv 2411.05288):

* S sends the rank's largest logit, sum, and target's logit, where that is its own, to all others.
  With one exchange it also sends P W and the target's row of W to the last stage, P being the
  softmax over the rank's own logits: its share of the gradient of X, but for the factors.
* T computes the gradient of the rank's weights. With two exchanges it computes the gradient of X,
  too, and sends it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from debubble.core.errors import ParameterError
from debubble.core.kinds import Kind, Need, Of
from debubble.core.schedule import Schedule
from debubble.torch.data.batch import IGNORED, StepData
from debubble.torch.engine.plan import ExecutionPlan, ProgramStep
from debubble.torch.errors import RunError
from debubble.torch.ranks.process_group import Ranks, Tag

LAYERS = ("output", "lm_head")
"""Names that the output layer may have on the last stage."""


class OutputRows(nn.Module):
    """Some rows of an output layer."""

    def __init__(self, weight: Tensor, bias: Tensor | None, first: int) -> None:
        super().__init__()
        self.first = first
        """Number of the first row in the whole layer."""
        self.weight = nn.Parameter(weight)
        self.bias = None if bias is None else nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of these rows."""
        return functional.linear(x, self.weight, self.bias)


def shard_output_layer(
    modules: Mapping[int, nn.Module],
    schedule: Schedule,
    ranks: Ranks,
    loss_fn: Callable[[Any, Any], Tensor],
) -> tuple[str, OutputRows]:
    """Scatter the last stage's output layer; return its name there, and this rank's rows.

    All ranks take part. The stage is left without the layer, and returns hidden states. Raises
    ParameterError on every rank when there is no such layer or the loss is no cross-entropy.
    """
    last = schedule.stages - 1
    parts: list[Any] = [None] * ranks.size
    if last in modules:
        try:
            parts = _cut(modules[last], ranks.size, loss_fn)
        except ParameterError as error:
            parts = [str(error)] * ranks.size
    found = ranks.channel.gather(parts)[schedule.placement.table[0][last]][ranks.rank]
    if isinstance(found, str):
        raise ParameterError(found)
    name, weight, bias, first, trains = found
    rows = OutputRows(
        weight.to(ranks.device).clone(), None if bias is None else bias.to(ranks.device).clone(),
        first,
    ).requires_grad_(trains)  # fmt: skip
    if last in modules:
        setattr(modules[last], name, nn.Identity())
    return name, rows


def output_layer(stage: nn.Module, ranks: int) -> tuple[str, nn.Linear]:
    """Return the output layer of the last stage, with a row per rank at least, and its name."""
    name = next((name for name in LAYERS if isinstance(getattr(stage, name, None), nn.Linear)), "")
    if not name:
        raise ParameterError(
            "the schedule shards the output layer, and the last stage has none; give it an "
            "nn.Linear named output or lm_head that its forward applies last"
        )
    if getattr(stage, "whole", None) is not None:
        raise ParameterError(
            "the schedule shards the output layer, and this type of model may compute more with "
            "its logits; use a schedule that does not shard it, or a Llama, Mistral, Mixtral, "
            "Qwen2, Qwen3 or GPT-2"
        )
    layer: nn.Linear = getattr(stage, name)
    if layer.out_features < ranks:
        raise ParameterError(
            f"the output layer has {layer.out_features} rows for {ranks} ranks; give it at least "
            "one per rank"
        )
    return name, layer


def _cut(stage: nn.Module, ranks: int, loss_fn: Callable[[Any, Any], Tensor]) -> list[Any]:
    name, layer = output_layer(stage, ranks)
    if not is_cross_entropy(layer, loss_fn):
        raise ParameterError(
            "an output layer can be sharded under the mean cross-entropy of its logits, with a "
            "target for every token; loss_fn is another loss"
        )
    weights = layer.weight.detach().cpu().tensor_split(ranks)
    biases: Sequence[Any] = [None] * ranks
    if layer.bias is not None:
        biases = layer.bias.detach().cpu().tensor_split(ranks)
    firsts = [sum(len(part) for part in weights[:rank]) for rank in range(ranks)]
    trains = layer.weight.requires_grad
    return [
        (name, w.clone(), b, f, trains) for w, b, f in zip(weights, biases, firsts, strict=True)
    ]


def is_cross_entropy(layer: nn.Linear, loss_fn: Callable[[Any, Any], Tensor]) -> bool:
    """Return if a loss is the mean cross-entropy of a layer's logits, on some random ones."""
    source = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, layer.out_features, generator=source).to(layer.weight)
    target = torch.randint(layer.out_features, (2, 3), generator=source).to(logits.device)
    wanted = functional.cross_entropy(logits.flatten(0, 1), target.flatten())
    try:
        return bool(torch.allclose(loss_fn(logits, target), wanted))
    except Exception:
        return False


HIDDEN, SUMS, GRADIENT = "hidden states", "sums", "gradients"


@dataclass
class PassState:
    """State of a microbatch between S and T."""

    x: Tensor
    powers: Tensor
    """Exponentials of the logits less the largest of the rank, shape (tokens, rows)."""
    place: Tensor
    """Row of every token's target; 0 where that is another rank's."""
    own: Tensor
    """1 where the target is here, else 0; shape (tokens, 1)."""


@dataclass
class Tokens:
    """Shape and targets of a microbatch, which all ranks know."""

    shape: tuple[int, ...]
    """Shape of the hidden states."""
    dtype: torch.dtype
    target: Tensor
    """Targets of all tokens in one row."""

    @property
    def counted(self) -> Tensor:
        """1 for tokens that count, shape (tokens, 1)."""
        return (self.target != IGNORED)[:, None]


class Shard:
    """One rank's shard of the output layer."""

    def __init__(self, ranks: Ranks, rows: OutputRows) -> None:
        self.ranks, self.rows = ranks, rows
        self._ranks = range(ranks.size)
        self._others = [rank for rank in self._ranks if rank != ranks.rank]
        self.losses: dict[int, Tensor] = {}
        """Losses by microbatch, on the rank of the last stage."""
        self._sending: list[tuple[Any, Tensor]] = []

    def follow(self, plan: ExecutionPlan) -> None:
        """Use the programs of a schedule."""
        schedule = plan.lowered
        self._last = schedule.stages - 1
        self._home = schedule.placement.table[0][self._last]
        self._once = schedule.vocabulary == 2
        self._programs = plan.programs

    def start(self, batch: StepData, training: bool) -> None:
        """Begin a step."""
        self._batch = batch
        self.losses.clear()
        self._passed: dict[int, PassState] = {}
        self._about: dict[int, Tokens] = {}
        self._known: dict[tuple[str, int, int], Tensor] = {}
        """Tensors by sort, rank and microbatch: this rank's own, and those that arrived."""
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
        """Send the output of the last stage's F, and the target, to all ranks."""
        if unit not in self._batch.targets:
            raise ParameterError("a sharded output layer needs targets; give target=")
        target = self._batch.targets[unit]
        if not isinstance(target, Tensor) or target.shape != hidden.shape[:-1]:
            raise ParameterError(
                f"the output layer gets {list(hidden.shape)}; with the layer sharded, target is a "
                f"tensor of token numbers of shape {list(hidden.shape[:-1])}"
            )
        tokens = Tokens(tuple(hidden.shape), hidden.dtype, target.flatten().to(self.ranks.device))
        self._about[unit] = tokens
        channel = self.ranks.channel
        # A copy: the object of a view has all of its storage.
        about = (tokens.shape, tokens.dtype, tokens.target.cpu().clone())
        for rank in self._others:
            self._sending += channel.send_object(about, rank, Tag.VOCABULARY)
            self._send(hidden, [rank])
        self._known[HIDDEN, self.ranks.rank, unit] = hidden

    def wait_for(self, need: Need, unit: int) -> None:
        """Wait for a need of a pass, or of the last stage's backward, see the table of kinds."""
        if need.of is Of.LAST_STAGE:
            self._receive(HIDDEN, self._home, unit)
            return
        for what in (SUMS, GRADIENT) if need.last_stage_only else (SUMS,):
            for rank in self._ranks:
                self._receive(what, rank, unit)

    def first_pass(self, unit: int) -> None:
        """Run S."""
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
            self._share(SUMS, unit, torch.stack([largest, total, found]), self._others)
            if not self._training:
                return
            self._passed[unit] = PassState(x, powers, place, own)
            if self._once:
                mixed = (powers / total[:, None]) @ weight
                self._share(GRADIENT, unit, torch.stack([mixed, own * weight[place]]), [self._home])

    def second_pass(self, unit: int) -> None:
        """Run T."""
        passed = self._passed.pop(unit)
        factors, _ = self._softmax(unit)
        weight, bias = self.rows.weight, self.rows.bias
        with torch.no_grad():
            # The rank's exponentials are those of the whole layer but for this factor.
            sums = self._known[SUMS, self.ranks.rank, unit]
            part = passed.powers * (factors[self.ranks.rank] / sums[1])[:, None]
            part.scatter_add_(1, passed.place[:, None], -passed.own)
            part *= self._scales(unit)
            if not self._once:
                self._share(GRADIENT, unit, part @ weight, [self._home])
            if weight.requires_grad:
                _add(weight, part.T @ passed.x)
                if bias is not None:
                    _add(bias, part.sum(0))

    def gradient(self, unit: int) -> Tensor:
        """Return the gradient of the last stage's output from all shards, on its rank."""
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
        """Return losses of microbatches, and no outputs: no rank has all logits."""
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
        """Return the weight of every token's loss in the gradient, shape (tokens, 1)."""
        counted = self._about[unit].counted.to(self.rows.weight.dtype)
        whole = self._batch.weights[unit] * self._batch.scale
        return counted * (whole / counted.sum().clamp(min=1.0))

    def _softmax(self, unit: int) -> tuple[Tensor, Tensor]:
        """Return each rank's share of the exponentials, shape (ranks, tokens), and the losses."""
        sums = [self._known[SUMS, rank, unit] for rank in self._ranks]
        largest, total, found = torch.stack(sums, 1)
        top = largest.amax(0)
        parts = total * (largest - top).exp()
        whole = parts.sum(0)
        return parts / whole, whole.log() + top - found.sum(0)

    def _mail(self, program: Sequence[ProgramStep], training: bool) -> Iterator[tuple[str, int]]:
        """Yield sort and microbatch of the messages from another rank, in their order."""
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

    def _share(self, what: str, unit: int, tensor: Tensor, ranks: Sequence[int]) -> None:
        if what == SUMS or self.ranks.rank == self._home:
            self._known[what, self.ranks.rank, unit] = tensor
        self._send(tensor, [rank for rank in ranks if rank != self.ranks.rank])

    def _send(self, tensor: Tensor, ranks: Sequence[int]) -> None:
        # Over the host: on one stream of NCCL, messages that two ranks send each other in different
        # orders would wait for each other.
        wire = tensor.to("cpu").contiguous()
        self._sending = [entry for entry in self._sending if not entry[0].is_completed()]
        self._sending += [
            (self.ranks.channel.send(wire, rank, Tag.VOCABULARY), wire) for rank in ranks
        ]

    def _receive(self, what: str, source: int, unit: int) -> None:
        """Receive messages of a rank until the wanted one is there."""
        coming = self._coming.get(source)
        while (what, source, unit) not in self._known:
            if not coming:
                raise RunError(f"the {what} of microbatch {unit} are not there on rank {source}")
            kind, number = coming.popleft()
            if kind == HIDDEN:
                channel = self.ranks.channel
                form, dtype, target = channel.receive_object(source, Tag.VOCABULARY)
                self._about[number] = Tokens(form, dtype, target.to(self.ranks.device))
                shape = form
            else:
                shape, dtype = self._shape(kind, number), self.rows.weight.dtype
            buffer = torch.empty(*shape, dtype=dtype)
            self.ranks.channel.receive(buffer, source, Tag.VOCABULARY)
            self._known[kind, source, number] = buffer.to(self.ranks.device)

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
