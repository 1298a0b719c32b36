"""Text to paste: flags with which a framework runs a plan, or the reason why it cannot.

Flags come one per line, as an array of a shell script takes them; lines with ``#`` are comments. A
refusal comes with the nearest plan that the framework runs. The refusal of a schedule comes with
the way to run it elsewhere.
"""

from __future__ import annotations

from debubble.planner.frameworks.case import Case
from debubble.planner.frameworks.rules import broken
from debubble.planner.frameworks.table import find_framework
from debubble.planner.frameworks.torch.flags import elsewhere


def flags(case: Case, framework: str) -> str:
    """Return the text with which a framework runs a case.

    Lines that the framework reads, with comments; comments alone where it cannot run the case.
    """
    row = find_framework(framework)
    problems = broken(case, framework)
    if not problems:
        return "\n".join(row.lines(case)) + "\n"
    lines = [f"# {row.title} does not run this plan: {one}" for one in problems.values()]
    if any(rule.of_order for rule in problems):
        lines += elsewhere(case)
    return "\n".join(lines) + "\n"
