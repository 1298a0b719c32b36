"""The rules of every framework, and what a case breaks of them.

Each rule is a row: its name, who enforces it and where, and a check that returns what is wrong and
what to change. Rules of ``"any"`` hold for every plan, because the batch, the model and the GPUs
have to be divided.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from debubble.core.errors import ParameterError, did_you_mean
from debubble.planner.candidate import Candidate, Training
from debubble.planner.frameworks.any_rules import ANY_RULES
from debubble.planner.frameworks.case import ANY, Case, Problem, Rule
from debubble.planner.frameworks.megatron.rules import MEGATRON_RULES
from debubble.planner.frameworks.torch_rules import TORCH_RULES
from debubble.planner.model.transformer import Model

if TYPE_CHECKING:
    from debubble.planner.hardware.cluster import Cluster

RUNTIMES = {"megatron": "megatron", "torchtitan": "torch", "automodel": "torch"}
"""By framework, who keeps weights, activations and buffers, as in
:class:`~debubble.planner.candidate.Training`: two of them run PyTorch's pipelines on FSDP2."""

FRAMEWORKS = tuple(RUNTIMES)


def check_framework(name: str) -> str:
    """The name of a framework in lower case; any but :data:`FRAMEWORKS` is refused."""
    wanted = str(name).strip().lower()
    if wanted not in FRAMEWORKS:
        raise ParameterError(f"unknown framework '{name}'; {did_you_mean(wanted, FRAMEWORKS)}")
    return wanted


@cache
def rules_of(framework: str | None, scope: str | None = None) -> tuple[Rule, ...]:
    """The rules of a framework, or those of any plan; of one scope, or of all."""
    name = ANY if framework is None else check_framework(framework)
    return tuple(
        rule
        for rule in (*ANY_RULES, *MEGATRON_RULES, *TORCH_RULES)
        if (name in rule.options or ANY in rule.options) and scope in (None, rule.scope)
    )


def broken(
    model: Model, cluster: Cluster, training: Training, candidate: Candidate,
    framework: str | None = None,
) -> list[Problem]:  # fmt: skip
    """What is wrong with a candidate by the rules of a framework; without one, by those of any.

    A framework or schedule that there is not is refused with a :class:`ParameterError`.
    """
    return broken_rules(Case.of(model, cluster.gpus, training, candidate), framework)


def broken_rules(case: Case, framework: str | None = None) -> list[Problem]:
    """What is wrong with a case."""
    checked = ((rule, rule.check(case)) for rule in rules_of(framework))
    return [replace(problem, rule=rule.name) for rule, problem in checked if problem is not None]
