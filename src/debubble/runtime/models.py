"""Models in stages: two small ones, and what a function of the user returns.

Every microbatch has the same shape, one tensor goes from stage to stage, and the loss of a step is
the mean of the microbatches' losses.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from debubble.core.errors import ParameterError, did_you_mean
from debubble.core.schedule import Schedule

VOCABULARY, WIDTH, HEADS, TOKENS, ROWS = 61, 32, 4, 24, 2
"""Sizes of gpt-tiny: a microbatch is `ROWS` sequences of `TOKENS` tokens."""

SEED = 1234


@dataclass(frozen=True)
class Model:
    """A model cut into stages.

    Parameters
    ----------
    stages
        Modules in forward order. One with an attribute ``slices = True`` takes slices of sequences:
        its ``forward(x, start, past)`` gets the first position of `x` in the sequence and a list of
        tensors, empty for the first slice, and returns the output and the tensors, with the
        sequence in dimension 2, that later slices get concatenated as `past`. For schedules that
        shard the output layer the last one has an attribute ``output``: the ``nn.Linear`` that its
        ``forward`` applies last.
    loss
        Mean loss of (output of the last stage, target); cross-entropy of logits where the output
        layer is sharded.
    data
        Input and target of a microbatch by number.
    """

    stages: Sequence[nn.Module]
    loss: Callable[[Tensor, Tensor], Tensor]
    data: Callable[[int], tuple[Tensor, Tensor]]


class Attention(nn.Module):
    """Causal self-attention that can start in the middle of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, start: int, past: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """The output, and keys and values of these positions."""
        rows, tokens, _ = x.shape
        shape = (rows, tokens, HEADS, WIDTH // HEADS)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(x).split(WIDTH, dim=-1))
        keys, values = (torch.cat([old, new], 2) for old, new in zip(past, (k, v), strict=True)
                        ) if past else (k, v)  # fmt: skip
        position = torch.arange(start, start + tokens, device=x.device)
        seen = torch.arange(start + tokens, device=x.device) <= position[:, None]
        mixed = functional.scaled_dot_product_attention(q, keys, values, attn_mask=seen)
        return self.out(mixed.transpose(1, 2).reshape(rows, tokens, WIDTH)), [k, v]


class Block(nn.Module):
    """One transformer layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor, start: int, past: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """The output, and keys and values of these positions."""
        mixed, own = self.attention(self.norm1(x), start, past)
        x = x + mixed
        return x + self.mlp(self.norm2(x)), own


class GPTStage(nn.Module):
    """A block, behind the embedding on the first stage, before the output layer on the last."""

    slices = True

    def __init__(self, first: bool, last: bool) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH) if first else None
        self.positions = nn.Embedding(TOKENS, WIDTH) if first else None
        self.block = Block()
        self.norm = nn.LayerNorm(WIDTH) if last else None
        self.output = nn.Linear(WIDTH, VOCABULARY) if last else None

    def forward(self, x: Tensor, start: int = 0, past: Sequence[Tensor] | None = None) -> Any:
        """The output; with `past`, also keys and values of these positions."""
        if self.tokens is not None and self.positions is not None:
            position = torch.arange(start, start + x.shape[1], device=x.device)
            x = self.tokens(x) + self.positions(position)
        x, own = self.block(x, start, past or ())
        if self.norm is not None and self.output is not None:
            x = self.output(self.norm(x))
        return x if past is None else (x, own)


def gpt_tiny(stages: int) -> Model:
    """A language model with one transformer layer per stage."""

    def data(microbatch: int) -> tuple[Tensor, Tensor]:
        source = torch.Generator().manual_seed(SEED + microbatch)
        text = torch.randint(VOCABULARY, (ROWS, TOKENS + 1), generator=source)
        return text[:, :-1], text[:, 1:]

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(output.flatten(0, 1), target.flatten())

    modules = [GPTStage(s == 0, s == stages - 1) for s in range(stages)]
    return Model(modules, loss, data)


def mlp(stages: int) -> Model:
    """One layer per stage on vectors."""

    def data(microbatch: int) -> tuple[Tensor, Tensor]:
        source = torch.Generator().manual_seed(SEED + microbatch)
        pair = torch.randn(2, 4, WIDTH, generator=source)
        return pair[0], pair[1]

    modules = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(stages)]
    return Model(modules, functional.mse_loss, data)


MODELS: dict[str, Callable[[int], Model]] = {"gpt-tiny": gpt_tiny, "mlp": mlp}


def build(model: str | Callable[..., Any], stages: int) -> Model:
    """A model in stages; the same every time.

    Parameters
    ----------
    model
        ``"gpt-tiny"``, ``"mlp"``, or a function of the number of stages that returns a
        :class:`Model` or its three parts.
    stages
        How many there are.

    Raises
    ------
    ParameterError
        When there is no such model, or a function returns something else.
    """
    if isinstance(model, str):
        if model not in MODELS:
            raise ParameterError(
                f"unknown model '{model}'; {did_you_mean(model, MODELS)}\n"
                "a model of your own is file.py:function"
            )
        model = MODELS[model]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        made = model(stages)
    name = getattr(model, "__name__", "the model")
    if isinstance(made, tuple) and len(made) == 3:
        made = Model(*made)
    if not isinstance(made, Model):
        raise ParameterError(f"{name} returned {type(made).__name__}; return (stages, loss, data)")
    if len(made.stages) != stages:
        raise ParameterError(f"{name} returned {len(made.stages)} stages; {stages} are asked for")
    return made


def without_output(stage: nn.Module) -> nn.Module:
    """A copy of the last stage that returns what its output layer would get."""
    bare = copy.deepcopy(stage)
    bare.output = nn.Identity()
    return bare


def output_layer(model: Model, ranks: int) -> nn.Linear:
    """The output layer of a model, to be cut along the vocabulary.

    Raises
    ------
    ParameterError
        When there is none, it is not applied last, has fewer rows than there are ranks, or the loss
        is not the mean cross-entropy of its logits.
    """
    output = getattr(model.stages[-1], "output", None)
    if not isinstance(output, nn.Linear):
        raise ParameterError(
            "the schedule shards the output layer, and the model's last stage has none; use "
            "gpt-tiny, or see debubble.runtime.models.Model"
        )
    if output.out_features < ranks:
        raise ParameterError(
            f"the output layer has {output.out_features} rows for {ranks} ranks; give it at least "
            "one per rank"
        )
    x, target = model.data(0)
    with torch.no_grad():
        for stage in model.stages[:-1]:
            x = stage(x)
        logits = model.stages[-1](x)
        if not torch.allclose(output(without_output(model.stages[-1])(x)), logits):
            raise ParameterError("the model's last stage does not apply its output layer last")
        found = model.loss(logits, target)
        if (
            target.shape != logits.shape[:-1]
            or target.is_floating_point()
            or not torch.allclose(
                functional.cross_entropy(logits.flatten(0, -2), target.flatten()), found
            )
        ):
            raise ParameterError(
                "an output layer can be sharded under the mean cross-entropy of its logits; the "
                "model has another loss"
            )
    return output


class Batches:
    """Inputs, targets and shapes of a model's microbatches and slices under a schedule.

    The whole model runs once, to know the shapes.

    Raises
    ------
    ParameterError
        When a stage does not compute one tensor of floating-point numbers, or cannot be sliced, or
        the output layer cannot be sharded.

    Attributes
    ----------
    output
        The output layer, when the schedule shards it.
    hidden
        Shape of what the last stage hands to it.
    """

    def __init__(self, model: Model, schedule: Schedule) -> None:
        self.model = model
        self._device, self._dtype = "cpu", torch.float32
        self._cache: dict[tuple[int, int], Tensor] = {}
        self._slices, self._stages = schedule.slices, schedule.stages
        self._share = 1 / schedule.microbatches
        self._cut = getattr(schedule, "cut", ()) or (1 / self._slices,) * self._slices
        self._shapes = self._boundaries()
        self.output: nn.Linear | None = None
        self.hidden: tuple[int, ...] = ()
        if schedule.vocabulary:
            self.output = output_layer(model, schedule.ranks)
            self.hidden = (*self._shapes[-1][0][:-1], self.output.in_features)

    def to(self, device: str, dtype: torch.dtype) -> Batches:
        """The same on another device, with another type of floating-point numbers."""
        moved = copy.copy(self)
        moved._device, moved._dtype, moved._cache = device, dtype, {}
        return moved

    def stage(self, number: int) -> nn.Module:
        """A stage, the last one without an output layer that is sharded."""
        stage = self.model.stages[number]
        return without_output(stage) if self.output and number == self._stages - 1 else stage

    def input(self, unit: int) -> Tensor:
        """What the first stage computes with."""
        return self._of(0, unit)

    def target(self, unit: int, stage: int) -> tuple[Tensor | None, float]:
        """On the last stage the target; and the share of its loss in the step's."""
        if stage < self._stages - 1:
            return None, 0.0
        part = self._of(1, unit)
        return part, self._share * part.numel() / self._target_size

    def microbatch(self, number: int) -> tuple[Tensor, Tensor]:
        """Input and target of a whole microbatch."""
        return self._cast(self.model.data(number)[0]), self._cast(self.model.data(number)[1])

    def shape(self, stage: int, unit: int) -> tuple[int, ...]:
        """Shape of what enters a stage."""
        return self._shapes[stage][unit % self._slices]

    def _of(self, which: int, unit: int) -> Tensor:
        # Steps are measured: the data of a microbatch is made once.
        if (which, unit) not in self._cache:
            whole = self.model.data(unit // self._slices)[which]
            self._cache[which, unit] = self._cast(self._parts(whole)[unit % self._slices])
        return self._cache[which, unit]

    def _cast(self, x: Tensor) -> Tensor:
        return x.to(self._device, self._dtype if x.is_floating_point() else None)

    def _parts(self, x: Tensor) -> Sequence[Tensor]:
        """A microbatch in slices along its sequence, dimension 1."""
        if self._slices == 1:
            return (x,)
        tokens = x.shape[1]
        ends = [round(tokens * sum(self._cut[: j + 1])) for j in range(self._slices - 1)]
        return torch.tensor_split(x, ends, dim=1)

    def _boundaries(self) -> list[list[tuple[int, ...]]]:
        stages = self.model.stages
        if self._slices > 1 and not all(getattr(stage, "slices", False) for stage in stages):
            raise ParameterError(
                f"the schedule cuts sequences into {self._slices} slices, and the model's stages "
                "do not take them; use gpt-tiny, or see debubble.runtime.models.Model"
            )
        x, target = self.model.data(0)
        self._target_size = target.numel()
        shapes: list[list[tuple[int, ...]]] = []
        with torch.no_grad():
            for number, stage in enumerate(stages):
                shapes.append([tuple(part.shape) for part in self._parts(x)])
                x = stage(x)
                if not isinstance(x, Tensor) or not x.is_floating_point():
                    raise ParameterError(
                        f"stage {number} of the model returns {type(x).__name__}; return one "
                        "tensor of floating-point numbers"
                    )
        return shapes
