"""The layers of a stage that is a list of layers, and what stands for those of other stages."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

NAMES = ("layers", "h", "blocks")
"""Attributes under which models keep their layers."""


class Absent(nn.Module):
    """Stands for a module of another stage: returns its first argument."""

    def forward(self, x: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ARG002
        """What came."""
        return x


class NoPositions(nn.Module):
    """Stands for position embeddings on all stages but the first: what is added there is zero."""

    def forward(self, position_ids: Tensor) -> Tensor:
        """Zero."""
        return position_ids.new_zeros(())


def find_layers(stage: nn.Module) -> list[nn.Module]:
    """The layers of a stage in order, none where it has no list of them.

    A list is a ``Sequential``, or an attribute called `layers`, `h` or `blocks` that is a
    ``ModuleList``, ``ModuleDict`` or ``Sequential``; the outermost one counts. Those that live on
    other stages, where :func:`debubble.torch.models.split` cut the model, are left out.
    """
    return [layer for layer in _listed(stage) if not isinstance(layer, Absent)]


def _listed(stage: nn.Module) -> list[nn.Module]:
    if isinstance(stage, nn.Sequential):
        return list(stage)
    for name, part in stage.named_modules():
        if name.rpartition(".")[2] in NAMES:
            if isinstance(part, nn.ModuleDict):
                return list(part.values())
            if isinstance(part, nn.ModuleList | nn.Sequential):
                return list(part)
    return []
