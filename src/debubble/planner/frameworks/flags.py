"""Text to paste: what makes a framework run a plan, or why it cannot.

Flags come one per line, as an array of a shell script takes them; what starts with ``#`` is for
people. What a framework refuses is said with the nearest plan that it runs, and for an order that
it does not have with the way to run it elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable

from debubble.planner.candidate import Candidate, Training
from debubble.planner.frameworks.automodel.flags import automodel_lines
from debubble.planner.frameworks.case import Case
from debubble.planner.frameworks.megatron.flags import megatron_lines
from debubble.planner.frameworks.rules import broken_rules, check_framework
from debubble.planner.frameworks.torchtitan.flags import CSV, csv_command, torchtitan_lines
from debubble.planner.model.transformer import Model

_WRITERS: dict[str, tuple[str, Callable[[Case], list[str]]]] = {
    "megatron": ("Megatron-LM", megatron_lines),
    "torchtitan": ("torchtitan", torchtitan_lines),
    "automodel": ("NeMo Automodel", automodel_lines),
}


def flags(model: Model, training: Training, candidate: Candidate, framework: str) -> str:
    """The text with which a framework runs a candidate.

    Parameters
    ----------
    framework
        ``"megatron"`` (arguments of Megatron-LM as of Megatron Core 0.19), ``"torchtitan"`` (flags
        of version 0.3.0, and what they are called since) or ``"automodel"`` (YAML of NeMo Automodel
        0.7); any other is refused.

    Returns
    -------
    str
        Lines that the framework reads, with comments; comments alone where it cannot run the plan.
    """
    program, write = _WRITERS[check_framework(framework)]
    case = Case.of(model, candidate.degrees.gpus, training, candidate)
    problems = broken_rules(case, framework)
    if not problems:
        return "\n".join(write(case)) + "\n"
    lines = [f"# {program} does not run this plan: {problem}" for problem in problems]
    if any(problem.rule in ("megatron-schedule", "placement") for problem in problems):
        lines += _way_in(case)
    return "\n".join(lines) + "\n"


def _way_in(case: Case) -> list[str]:
    return [
        f"# the order runs on PyTorch; {csv_command(case)} --no-torchtitan,",
        f"# then debubble.torch.Pipeline({CSV!r}, stages, loss_fn) in a training loop, or",
        f"# debubble.torch.titan.pipelining_fn({CSV!r}) in torchtitan",
    ]
