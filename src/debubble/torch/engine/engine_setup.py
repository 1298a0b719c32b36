"""Parts that an engine is made of, and the stages that it makes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from debubble.core.kind_relations import SPLIT_KINDS
from debubble.core.schedule import Schedule
from debubble.torch.engine.plan import ProgramStep
from debubble.torch.engine.skips import NO_SKIPS, Skips
from debubble.torch.engine.stage import Stage
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
    stage: Callable[..., Stage] = Stage
    """Class of the stages, or another maker of them."""
    skips: Skips = NO_SKIPS
    """Skip connections."""


def make_stages(setup: EngineSetup, program: Sequence[ProgramStep]) -> dict[int, Stage]:
    """Return the stages of a rank by number, as its program needs them."""
    schedule, ranks = setup.schedule, setup.ranks
    splits = {step.stage for step in program if step.kind in SPLIT_KINDS}
    # A sharded output layer comes after the last stage, and computes the loss.
    last = -1 if schedule.vocabulary else schedule.stages - 1
    return {
        number: setup.stage(
            number, module, setup.loss_fn if number == last else None, last=number == last,
            splits=number in splits, fuses=setup.fuses.get(number), slices=schedule.slices,
            kept=schedule.stored_versions[ranks.rank], device=ranks.device, warn=setup.warn,
            skips=setup.skips,
        )
        for number, module in setup.modules.items()
    }  # fmt: skip
