"""The rules that a case has to keep: those of any plan, and those of one framework."""

from __future__ import annotations

from functools import cache

from debubble.planner.frameworks.any_rules import ANY_RULES
from debubble.planner.frameworks.case import Case, Refusal, Rule
from debubble.planner.frameworks.table import Framework, find_framework


def rules_of(framework: str | None, scope: str | None = None) -> tuple[Rule, ...]:
    """Return the rules of a framework, or those of any plan; of one scope, or of all."""
    return _rules(None if framework is None else find_framework(framework), scope)


@cache
def _rules(framework: Framework | None, scope: str | None) -> tuple[Rule, ...]:
    own = () if framework is None else framework.rules
    return tuple(rule for rule in (*ANY_RULES, *own) if scope in (None, rule.scope))


def broken(case: Case, framework: str | None = None) -> dict[Rule, Refusal]:
    """Return the refusals of a case by the rules of a framework, or by those of any plan."""
    checked = {rule: rule.check(case) for rule in rules_of(framework)}
    return {rule: problem for rule, problem in checked.items() if problem is not None}
