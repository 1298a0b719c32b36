"""Modules that stand for those of other stages in the shell of a model."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


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
