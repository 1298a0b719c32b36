"""The frameworks that plans are made for: a row each, and the folder of its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache

from debubble.core.errors import ParameterError, did_you_mean
from debubble.planner.case import Case
from debubble.planner.frameworks.any_rules import ANY_RULES
from debubble.planner.frameworks.automodel.flags import automodel_file, automodel_lines
from debubble.planner.frameworks.automodel.rules import RULES as AUTOMODEL_RULES
from debubble.planner.frameworks.bridge.flags import bridge_file, bridge_lines
from debubble.planner.frameworks.bridge.rules import RULES as BRIDGE_RULES
from debubble.planner.frameworks.deepspeed.flags import (
    deepspeed_json,
    deepspeed_lines,
    deepspeed_script,
)
from debubble.planner.frameworks.deepspeed.rules import RULES as DEEPSPEED_RULES
from debubble.planner.frameworks.deepspeed.runtime import DEEPSPEED
from debubble.planner.frameworks.habits import Habits
from debubble.planner.frameworks.megatron.flags import megatron_lines
from debubble.planner.frameworks.megatron.model_arguments import not_described
from debubble.planner.frameworks.megatron.rules import RULES as MEGATRON_RULES
from debubble.planner.frameworks.megatron.rules import SCHEDULES
from debubble.planner.frameworks.megatron.runtime import MEGATRON
from debubble.planner.frameworks.megatron.script import megatron_script
from debubble.planner.frameworks.primus.flags import primus_file, primus_lines
from debubble.planner.frameworks.rule import Refusal, Rule
from debubble.planner.frameworks.torch.flags import NAMES, elsewhere
from debubble.planner.frameworks.torch.runtime import TORCH
from debubble.planner.frameworks.torchtitan.files import torchtitan_python, torchtitan_toml
from debubble.planner.frameworks.torchtitan.flags import torchtitan_lines
from debubble.planner.frameworks.torchtitan.rules import RULES as TORCHTITAN_RULES
from debubble.planner.model.transformer import Model
from debubble.schedules import registry


@dataclass(frozen=True, eq=False)
class Framework:
    """A framework that runs plans."""

    name: str
    """Its name as an option."""
    title: str
    """Its name for display."""
    rules: tuple[Rule, ...]
    """Rules of the framework, in addition to those of any plan."""
    lines: Callable[[Case], list[str]]
    """Writer of the lines to paste for a case that breaks no rule; comments start with ``#``."""
    runtime: Habits
    """The tensors that it keeps in memory."""
    ships: frozenset[str] = frozenset()
    """Schedules that are part of it; others, if it takes them, come from a file."""
    takes_orders: bool = False
    """True if it runs a schedule from a file."""
    within: str = ""
    """A framework with the same habits that runs all plans that this one runs, so that a search
    for it may do for both."""
    makers: frozenset[str] = frozenset({"NVIDIA", "AMD"})
    """Makers of the GPUs that it is for."""
    files: Mapping[str, Callable[[Case], str]] = field(default_factory=dict)
    """Writers of a file that runs a case that breaks no rule, by the file's ending."""
    leaves_out: Callable[[Model], list[str]] = lambda model: []  # noqa: ARG005 - nothing
    """Parts of a model that its file does not describe; none where it reads the model's own."""


FRAMEWORKS = {
    row.name: row
    for row in (
        Framework(
            "megatron", "Megatron-LM", MEGATRON_RULES, megatron_lines, MEGATRON,
            ships=frozenset(SCHEDULES), files={".sh": megatron_script}, leaves_out=not_described,
        ),
        Framework(
            "torchtitan", "torchtitan", TORCHTITAN_RULES, torchtitan_lines, TORCH,
            ships=frozenset(NAMES), takes_orders=True,
            files={".py": torchtitan_python, ".toml": torchtitan_toml},
        ),
        Framework(
            "automodel", "NeMo Automodel", AUTOMODEL_RULES, automodel_lines, TORCH,
            ships=frozenset(NAMES), takes_orders=True, within="torchtitan",
            files={".yaml": automodel_file},
        ),
        Framework(
            "deepspeed", "Megatron-DeepSpeed", DEEPSPEED_RULES, deepspeed_lines, DEEPSPEED,
            ships=frozenset({"1f1b"}), files={".sh": deepspeed_script, ".json": deepspeed_json},
            leaves_out=not_described,
        ),
        Framework(
            "bridge", "Megatron-Bridge", BRIDGE_RULES, bridge_lines, MEGATRON,
            ships=frozenset(SCHEDULES), within="megatron", makers=frozenset({"NVIDIA"}),
            files={".py": bridge_file},
        ),
        Framework(
            "primus", "Primus", MEGATRON_RULES, primus_lines, MEGATRON,
            ships=frozenset(SCHEDULES), within="megatron", makers=frozenset({"AMD"}),
            files={".yaml": primus_file}, leaves_out=not_described,
        ),
    )
}  # fmt: skip
"""Every framework by name; of equals the first is recommended. Megatron-LM is as of Megatron Core
0.19, torchtitan 0.3.0, NeMo Automodel 0.7, DeepSpeed 0.19, Megatron-Bridge 0.3."""


def find_framework(name: str) -> Framework:
    """Return the framework of a name in any case; an unknown one is refused."""
    wanted = str(name).strip().lower()
    if wanted not in FRAMEWORKS:
        hint = did_you_mean(wanted, [*FRAMEWORKS, ANY])
        raise ParameterError(f"unknown framework '{name}'; {hint}")
    return FRAMEWORKS[wanted]


ANY = "any"
"""Option for plans that only have to divide, which debubble's own runtime runs."""


def find_frameworks(name: str | None) -> tuple[str | None, ...]:
    """Return the names of the frameworks that plans are made for: all, unless one is named.

    None stands for :data:`ANY`.
    """
    if name is None:
        return tuple(FRAMEWORKS)
    if str(name).strip().lower() == ANY:
        return (None,)
    return (find_framework(name).name,)


def rules_of(framework: str | None, scope: str | None = None) -> tuple[Rule, ...]:
    """Return the rules of a framework, or those of any plan; of one scope, or of all."""
    return _rules(None if framework is None else find_framework(framework), scope)


@cache
def _rules(framework: Framework | None, scope: str | None) -> tuple[Rule, ...]:
    own = () if framework is None else framework.rules
    return tuple(rule for rule in (*ANY_RULES, *own) if scope in (None, rule.scope))


def broken(case: Case, framework: str | None = None) -> dict[Rule, Refusal]:
    """Return the refusals of a case by the rules of a framework, or by those of any plan.

    An alias of a schedule counts as its registered name.
    """
    case = _with_registered_name(case)
    checked = {rule: rule.check(case) for rule in rules_of(framework)}
    return {rule: problem for rule, problem in checked.items() if problem is not None}


def flags(case: Case, framework: str) -> str:
    """Return the text with which a framework runs a case.

    Flags come one per line, as an array of a shell script takes them; lines with ``#`` are
    comments. There are comments alone where it cannot run the case: the refusals, each with the
    nearest that works, and the way to run a refused schedule elsewhere.
    """
    case, row = _with_registered_name(case), find_framework(framework)
    problems = broken(case, framework)
    if not problems:
        return "\n".join(row.lines(case)) + "\n"
    lines = [f"# {row.title} does not run this plan: {one}" for one in problems.values()]
    if any(rule.of_order for rule in problems):
        lines += elsewhere(case)
    return "\n".join(lines) + "\n"


def _with_registered_name(case: Case) -> Case:
    own, name = case.candidate, registry.find(case.candidate.schedule).name
    return case if own.schedule == name else replace(case, candidate=replace(own, schedule=name))
