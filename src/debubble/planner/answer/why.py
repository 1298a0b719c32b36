"""Answers to "why not?": the best plan under one more condition, next to the best of all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from debubble.core.errors import DebubbleError
from debubble.planner.answer.data import plan_data
from debubble.planner.answer.report import difference, excess, short
from debubble.planner.answer.searches import also_runs
from debubble.planner.answer.words import gigabytes, seconds
from debubble.planner.search.evaluate import Evaluated, tied
from debubble.planner.search.search_result import Found


@dataclass(frozen=True)
class Why:
    """An answer to "why not with this condition?", such as ``"pp=16"``.

    It is the best plan with that, if there is one, and the reason for which it is not the best.
    """

    asked_for: str
    plan: Evaluated | None
    reason: str


def why_not(asked_for: str, best: Evaluated | None, again: Callable[[], Found]) -> Why:
    """Return the best plan under one more condition, and the causes that make it slower or faster.

    `asked_for` is the condition in words; `again` searches with it.
    """
    try:
        found = again()
    except DebubbleError as error:
        return Why(asked_for, None, str(error))
    answer = _compared(asked_for, best, found)
    if not found.interrupted:
        return answer
    if answer.plan is None:
        return Why(asked_for, None, "none so far (search stopped)")
    return replace(answer, reason=f"best so far (search stopped), {answer.reason}")


def _compared(asked_for: str, best: Evaluated | None, found: Found) -> Why:
    """Return the best plan that was found under a condition, next to the best of all."""
    if not found.plans:
        if not found.near:
            return Why(
                asked_for, None, "states of the model and one microbatch are larger than the memory"
            )
        nearest = min(found.near, key=lambda plan: max(plan.peaks))
        return Why(asked_for, nearest, f"it does not fit: {excess(nearest)}")
    plan = found.plans[0]
    if best is None:
        return Why(asked_for, plan, "it fits")
    same = replace(plan.request.training, runtime=best.request.training.runtime)
    kept = plan.candidate == best.candidate and same == best.request.training
    if kept and plan.request.fixed.framework in _run_by(best):
        return Why(asked_for, plan, "the best plan has it")
    lost = plan.step_time - best.step_time
    causes = difference(best, plan)
    if lost < 0:
        causes = difference(plan, best).replace(" +", " -")
    tie = "a tie within the error, " if tied(best, plan) else ""
    slower = f"{seconds(abs(lost))} {'slower' if lost > 0 else 'faster'}" if lost else "as fast"
    slower += f" {'than' if lost else 'as'} {seconds(best.step_time)}"
    return Why(asked_for, plan, f"{tie}{slower}{f': {causes}' if causes else ''}")


def _run_by(plan: Evaluated) -> tuple[str | None, ...]:
    """Return the frameworks that run a plan the same way."""
    return plan.request.fixed.framework, *also_runs(plan)


def why_text(why: Why) -> str:
    """Return an answer in a line."""
    if why.plan is None:
        return f"{why.asked_for}: {why.reason}"
    return (
        f"{why.asked_for}: {seconds(why.plan.step_time)} with {short(why.plan)}, "
        f"{gigabytes(max(why.plan.peaks))}; {why.reason}"
    )


def why_data(why: Why) -> dict[str, Any]:
    """Return an answer as plain data."""
    plan = None if why.plan is None else plan_data(why.plan)
    return {"asked": why.asked_for, "reason": why.reason, "plan": plan}
