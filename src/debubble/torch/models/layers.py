"""Layers of a stage, and placeholders for those of other stages."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

NAMES = ("layers", "h", "blocks")
"""Names of attributes with lists of layers."""


class Absent(nn.Module):
    """Placeholder for a module of another stage."""

    def forward(self, x: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ARG002
        """Return the first argument."""
        return x


class NoPositions(nn.Module):
    """Placeholder for position embeddings, which only the first stage adds."""

    def forward(self, position_ids: Tensor) -> Tensor:
        """Return zero."""
        return position_ids.new_zeros(())


def find_layers(stage: nn.Module) -> list[nn.Module]:
    """Return the layers of a stage in order, none where it has no list of them.

    A list is a ``Sequential``, or an attribute called `layers`, `h` or `blocks` that is a
    ``ModuleList``, ``ModuleDict`` or ``Sequential``; the outermost one counts. Placeholders for
    layers of other stages are left out.
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
