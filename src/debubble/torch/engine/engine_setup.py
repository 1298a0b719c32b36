"""Parts that both engines are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from debubble.core.schedule import Schedule
from debubble.torch.ranks.process_group import Ranks


@dataclass(frozen=True, eq=False)
class EngineSetup:
    """Schedule, stages and loss of an engine on one rank."""

    ranks: Ranks
    schedule: Schedule
    modules: Mapping[int, nn.Module]
    """This rank's stages by number, with their own parameters."""
    loss_fn: Callable[[Any, Any], Tensor]
    """Mean loss of (output of the last stage, target)."""
    fuses: Mapping[int, bool | None] = field(default_factory=dict)
    """By stage with split backwards, if I does the whole backward and W nothing; None where the
    first forward shows it."""
    warn: Callable[[int, str], None] = lambda *_: None
    """Called with a stage and the reason why its backward is not split."""
