"""Models in stages: two small ones, and those that a function of the user returns."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from debubble.core.errors import DebubbleError, FormatError, ParameterError, did_you_mean
from debubble.interchange.files import is_function
from debubble.interchange.python_file import load_function, split_target
from debubble.interchange.schedule_json import parse_json
from debubble.interchange.text import read_text
from debubble.torch.models.split import split

VOCABULARY, WIDTH, HEADS, TOKENS, ROWS = 61, 32, 4, 24, 2
"""Sizes of gpt-tiny; a microbatch is `ROWS` sequences of `TOKENS` tokens."""

SEED = 1234


@dataclass(frozen=True)
class StagedModel:
    """A model cut into stages, with its loss and its data."""

    stages: Sequence[nn.Module]
    """Modules in forward order; a tuple or list that one returns becomes the arguments of the next.
    One with an attribute ``slices = True`` takes slices of sequences: its ``forward(x, start,
    past)`` gets the first position of `x` in the sequence and a list of tensors, empty for the
    first slice, and returns the output and the tensors, with the sequence in dimension 2, that
    later slices get concatenated as `past`. For schedules that shard the output layer the last one
    has an ``nn.Linear`` called ``output`` or ``lm_head`` that its ``forward`` applies last."""
    loss: Callable[[Any, Any], Tensor]
    """Mean loss of (output of the last stage, target); cross-entropy of logits where the output
    layer is sharded. The loss of a step is the mean over its microbatches."""
    data: Callable[[int], tuple[Any, Any]]
    """Function of a microbatch's number that returns its input and target, the same on all ranks.
    A tuple or list as input becomes the first stage's arguments."""


class CausalAttention(nn.Module):
    """Causal self-attention that can start in the middle of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, start: int, past: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Return the output, and keys and values of these positions."""
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
    """A transformer layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = CausalAttention()
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor, start: int, past: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Return the output, and keys and values of these positions."""
        mixed, own = self.attention(self.norm1(x), start, past)
        x = x + mixed
        return x + self.mlp(self.norm2(x)), own


class GPTStage(nn.Module):
    """A transformer layer, with embeddings on the first stage and output layer on the last."""

    slices = True

    def __init__(self, first: bool, last: bool) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH) if first else None
        self.positions = nn.Embedding(TOKENS, WIDTH) if first else None
        self.block = Block()
        self.norm = nn.LayerNorm(WIDTH) if last else None
        self.output = nn.Linear(WIDTH, VOCABULARY) if last else None

    def forward(self, x: Tensor, start: int = 0, past: Sequence[Tensor] | None = None) -> Any:
        """Return the output; with `past`, also keys and values of these positions."""
        if self.tokens is not None and self.positions is not None:
            position = torch.arange(start, start + x.shape[1], device=x.device)
            x = self.tokens(x) + self.positions(position)
        x, own = self.block(x, start, past or ())
        if self.norm is not None and self.output is not None:
            x = self.output(self.norm(x))
        return x if past is None else (x, own)


def gpt_tiny(stages: int) -> StagedModel:
    """Make a language model with one transformer layer per stage."""

    def data(microbatch: int) -> tuple[Tensor, Tensor]:
        source = torch.Generator().manual_seed(SEED + microbatch)
        text = torch.randint(VOCABULARY, (ROWS, TOKENS + 1), generator=source)
        return text[:, :-1], text[:, 1:]

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(output.flatten(0, 1), target.flatten())

    modules = [GPTStage(s == 0, s == stages - 1) for s in range(stages)]
    return StagedModel(modules, loss, data)


def mlp(stages: int) -> StagedModel:
    """Make a model of vectors with one layer per stage."""

    def data(microbatch: int) -> tuple[Tensor, Tensor]:
        source = torch.Generator().manual_seed(SEED + microbatch)
        pair = torch.randn(2, 4, WIDTH, generator=source)
        return pair[0], pair[1]

    modules = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(stages)]
    return StagedModel(modules, functional.mse_loss, data)


MODELS: dict[str, Callable[[int], StagedModel]] = {"gpt-tiny": gpt_tiny, "mlp": mlp}


def build(model: str | Callable[..., Any], stages: int) -> StagedModel:
    """Build a model in stages, from the same random numbers every time.

    The `model` is ``"gpt-tiny"``, ``"mlp"``, ``"file.py:function"``, or a function of the number of
    stages that returns a :class:`StagedModel` or its three parts. Raises ParameterError when there
    is no such model, or a function returns something else.
    """
    if isinstance(model, str) and is_function(model):
        model = load_function(*split_target(model))
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
    if isinstance(made, tuple | list) and len(made) == 3:
        made = StagedModel(*made)
    if not isinstance(made, StagedModel):
        raise ParameterError(f"{name} returned {type(made).__name__}; return (stages, loss, data)")
    return _checked(made, name, stages)


def _checked(made: StagedModel, name: str, stages: int) -> StagedModel:
    """Return the model if its parts are of the right types."""
    parts: Any = made.stages
    if not isinstance(parts, Sequence | nn.ModuleList | nn.Sequential):
        raise ParameterError(
            f"{name} returned {type(parts).__name__} for the stages; return a list with one module "
            "per stage"
        )
    if len(parts) != stages:
        raise ParameterError(f"{name} returned {len(parts)} stages; {stages} are asked for")
    for number, part in enumerate(parts):
        if not isinstance(part, nn.Module):
            raise ParameterError(
                f"stage {number} of {name} is {type(part).__name__}; return a torch.nn.Module"
            )
    for what, arguments in (("loss", "(output, target)"), ("data", "a microbatch's number")):
        value = getattr(made, what)
        if not callable(value):
            raise ParameterError(
                f"{name} returned {type(value).__name__} for {what}; return a function of "
                f"{arguments}"
            )
    return made


MAX_BYTES = 1 << 20
LONGEST = 1024
"""Default length of a sequence in tokens, where the model takes so many."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16,
          "float64": torch.float64}  # fmt: skip


def from_config(
    path: str, stages: int, *, rows: int = 1, tokens: int | None = None, dtype: str | None = None
) -> tuple[StagedModel, str]:
    """Make the model of a ``config.json``, cut into stages, and its name.

    Weights and tokens are random. A microbatch has `rows` sequences of `tokens`, by default at most
    :data:`LONGEST`; weights have the config's type by default, or float32. Raises FormatError for a
    file that is no such config, ParameterError for sizes or types, and DebubbleError without
    transformers.
    """
    config = _config(path)
    most = int(getattr(config, "max_position_embeddings", LONGEST))
    tokens = min(LONGEST, most) if tokens is None else tokens
    if not 1 <= tokens <= most:
        raise ParameterError(f"tokens is {tokens}; the model takes 1 to {most:,}")
    if dtype is not None and dtype not in DTYPES:
        raise ParameterError(f"dtype is '{dtype}'; use {', '.join(DTYPES)}")
    kind = DTYPES[dtype] if dtype else getattr(config, "dtype", None) or torch.float32
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(config, dtype=kind)
    x = torch.randint(config.vocab_size, (rows, tokens))

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        value: Tensor = model.loss_function(logits, labels, config.vocab_size)
        return value

    count = sum(p.numel() for p in model.parameters())
    name = f"{config.model_type}, {count:,} parameters, {rows} x {tokens} tokens, {kind}"
    return StagedModel(split(model, stages), loss, lambda _: (x, x)), name.replace("torch.", "")


def _config(path: str) -> Any:
    data = parse_json(read_text(path, MAX_BYTES), path)
    kind = data.get("model_type") if isinstance(data, dict) else None
    if importlib.util.find_spec("transformers") is None:
        raise DebubbleError("a config.json needs transformers; pip install transformers")
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        near = did_you_mean(str(kind), MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
        raise FormatError(f"{path}: model_type is {kind!r}, of no causal language model; {near}")
    try:
        return AutoConfig.for_model(**data)
    except (TypeError, ValueError) as error:
        raise FormatError(f"{path}: not a config of {kind}: {error}") from None
