"""Output layers cut along the vocabulary: every rank gets some rows of the last stage's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from debubble.core.errors import ParameterError
from debubble.core.schedule import Schedule
from debubble.torch.ranks.process_group import Ranks

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
