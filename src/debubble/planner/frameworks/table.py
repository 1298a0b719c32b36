"""The frameworks that plans are made for: a row each, and the folder of its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from debubble.core.errors import ParameterError, did_you_mean
from debubble.planner.frameworks.automodel.flags import automodel_lines
from debubble.planner.frameworks.automodel.rules import RULES as AUTOMODEL_RULES
from debubble.planner.frameworks.case import Case, Rule
from debubble.planner.frameworks.habits import Habits
from debubble.planner.frameworks.megatron.flags import megatron_lines
from debubble.planner.frameworks.megatron.rules import RULES as MEGATRON_RULES
from debubble.planner.frameworks.megatron.runtime import MEGATRON
from debubble.planner.frameworks.torch.runtime import TORCH
from debubble.planner.frameworks.torchtitan.flags import torchtitan_lines
from debubble.planner.frameworks.torchtitan.rules import RULES as TORCHTITAN_RULES


@dataclass(frozen=True, eq=False)
class Framework:
    """A framework that runs plans.

    Parameters
    ----------
    name, title
        Its name as an option, and for display.
    rules
        Rules of the framework, in addition to those of any plan.
    lines
        Writer of the lines to paste for a case that breaks no rule; comments start with ``#``.
    runtime
        Habits of the framework: the tensors that it keeps in memory.
    """

    name: str
    title: str
    rules: tuple[Rule, ...]
    lines: Callable[[Case], list[str]]
    runtime: Habits


FRAMEWORKS = {
    row.name: row
    for row in (
        Framework("megatron", "Megatron-LM", MEGATRON_RULES, megatron_lines, MEGATRON),
        Framework("torchtitan", "torchtitan", TORCHTITAN_RULES, torchtitan_lines, TORCH),
        Framework("automodel", "NeMo Automodel", AUTOMODEL_RULES, automodel_lines, TORCH),
    )
}
"""Every framework by name. Megatron-LM as of Megatron Core 0.19, torchtitan 0.3.0, NeMo Automodel
0.7."""


def find_framework(name: str) -> Framework:
    """Return the framework of a name in any case; an unknown one is refused."""
    wanted = str(name).strip().lower()
    if wanted not in FRAMEWORKS:
        raise ParameterError(f"unknown framework '{name}'; {did_you_mean(wanted, FRAMEWORKS)}")
    return FRAMEWORKS[wanted]
