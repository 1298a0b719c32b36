"""One search for each framework, and the results of all as one answer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from debubble.core.errors import ParameterError
from debubble.planner.frameworks.table import ANY, FRAMEWORKS, broken, find_framework
from debubble.planner.request import PlanRequest, for_framework
from debubble.planner.request_check import check_request
from debubble.planner.search.best_plans import Progress, best_plans
from debubble.planner.search.evaluate import Evaluated, tied
from debubble.planner.search.search_result import Found, rank, rounded

COMPARED = 5
"""Fastest plans of which the simplest of those tied with the fastest is recommended."""


class SearchOne(Protocol):
    """A search for the plans of one framework, such as :func:`best_plans`."""

    def __call__(
        self, request: PlanRequest, top: int, progress: Progress | None = None, *,
        below: float = math.inf,
    ) -> Found:  # fmt: skip
        """Return the plans that are faster than `below`."""


@dataclass(frozen=True)
class Asked:
    """A planning question: a request for each framework that can train the model on the GPUs."""

    requests: tuple[PlanRequest, ...]
    refused: Mapping[str, str] = field(default_factory=dict)
    """Reasons against the other frameworks, by name."""


@dataclass
class Answer(Found):
    """The results of one search for each framework, merged.

    The first of `plans` is the recommended one, the others come fastest first. `request` is that
    of the first search; every plan has its own.
    """

    recommended: Evaluated | None = None
    """The simplest of the plans that are tied with the fastest."""
    searches: list[Found] = field(default_factory=list)
    """The results by framework."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Reasons for which other frameworks were not searched, by name."""

    @property
    def bound(self) -> float:
        """Seconds below which a plan of another framework has to stay to be among the best."""
        most = max(self.top, COMPARED)
        steps = sorted(plan.step_time for one in self.searches for plan in one.plans)
        return steps[most - 1] if len(steps) >= most else math.inf


def ask(request: PlanRequest, frameworks: Iterable[str | None]) -> Asked:
    """Return the question for frameworks; what none of them can meet is refused."""
    names = tuple(frameworks)
    if len(names) > 1:
        check_request(for_framework(request, None))
    requests, refused = [], {}
    for name in names:
        own = for_framework(request, name)
        try:
            check_request(own)
        except ParameterError as error:
            if len(names) == 1:
                raise
            refused[str(name)] = str(error)
        else:
            requests.append(own)
    if not requests:
        reasons = {text.partition("; the nearest")[0]: name for name, text in refused.items()}
        shown = "; ".join(f"{name}: {reason}" for reason, name in reversed(reasons.items()))
        raise ParameterError(
            f"no framework runs this; the nearest that works is framework {ANY} ({shown})"
        )
    return Asked(tuple(requests), refused)


def taking_orders(asked: Asked) -> tuple[Asked, Asked]:
    """Return the question for frameworks that run schedules from a file, and for the others.

    Where there are only others, they are refused.
    """
    takers = tuple(
        one for one in asked.requests
        if not one.fixed.framework or find_framework(one.fixed.framework).takes_orders
    )  # fmt: skip
    if not takers:
        able = ", ".join(row.name for row in FRAMEWORKS.values() if row.takes_orders)
        names = ", ".join(str(one.fixed.framework) for one in asked.requests)
        raise ParameterError(
            f"{names} takes no schedules of others, which --optimize looks for; the nearest that "
            f"works is framework {able} or {ANY}"
        )
    rest = tuple(one for one in asked.requests if one not in takers)
    return Asked(takers, asked.refused), Asked(rest)


def search_all(
    asked: Asked, top: int, progress: Progress | None = None, search_one: SearchOne = best_plans,
    before: Answer | None = None,
) -> Answer:  # fmt: skip
    """Return the best plans of all frameworks, after those of an earlier answer.

    A search gets the slowest of the best plans so far as its bound. A framework whose plans
    another one runs, too, is not searched where that changes nothing.
    """
    answer = before or Answer(asked.requests[0], top)
    answer.top, answer.refused = top, {**answer.refused, **asked.refused}

    so_far = Answer(answer.request, top)

    def tell(found: Found) -> None:
        if progress is not None:
            _sum_up(so_far, [*answer.searches, found])
            progress(so_far)

    for request in asked.requests:
        if answer.interrupted:
            break
        if not _known(answer.searches, request):
            most = max(top, COMPARED)
            found = search_one(request, most, tell, below=answer.bound)
            answer.searches.append(found)
            answer.interrupted = found.interrupted
    return _merged(answer)


def _known(searches: Iterable[Found], request: PlanRequest) -> bool:
    """Return whether a search for another framework found all that one for this request would."""
    row = find_framework(request.fixed.framework) if request.fixed.framework else None
    if row is None or not row.within:
        return False
    other = next((one for one in searches if one.request.fixed.framework == row.within), None)
    return other is not None and all(
        row.name in also_runs(plan) for plan in (*other.plans, *other.near)
    )


def also_runs(plan: Evaluated) -> tuple[str, ...]:
    """Return the other frameworks that run a plan and keep the same in memory."""
    request, own = plan.request, plan.request.fixed.framework
    if own is None:
        return ()
    return tuple(
        row.name
        for row in FRAMEWORKS.values()
        if row.name != own
        and row.runtime is request.training.runtime
        and request.cluster.gpu.maker in row.makers
        and (not plan.optimized or row.takes_orders)
        and not broken(plan.case, row.name)
    )


def _sum_up(so_far: Answer, searches: list[Found]) -> None:
    """Fill an answer so far with the counts and the best plan of searches."""
    so_far.searches = searches
    so_far.considered = sum([one.considered for one in searches])
    so_far.simulated = sum([one.simulated for one in searches])
    plans = [plan for one in searches if (plan := one.best) is not None]
    so_far.early = min(plans, key=lambda plan: plan.step_time, default=None)


def _merged(answer: Answer) -> Answer:
    """Fill an answer from its searches."""
    plans = _unlike(plan for one in answer.searches for plan in one.plans)
    joined = sum(plan.optimized for plan in plans)
    answer.plans = recommended_first(plans)[: answer.top + joined]
    answer.recommended = answer.plans[0] if answer.plans else None
    near = _unlike(plan for one in answer.searches for plan in one.near)
    answer.near = near[: answer.top]
    published = recommended_first([plan for plan in plans if not plan.optimized])
    answer.searched = published[0] if published else None
    answer.considered = sum(one.considered for one in answer.searches)
    answer.simulated = sum(one.simulated for one in answer.searches)
    answer.left_out = {}
    for one in answer.searches:
        for reason, count in one.left_out.items():
            answer.left_out[reason] = answer.left_out.get(reason, 0) + count
    return answer


def _unlike(plans: Iterable[Evaluated]) -> list[Evaluated]:
    """Return plans by rank, without those that take as long in a framework before theirs."""
    found: dict[object, Evaluated] = {}
    for plan in plans:
        key = plan.candidate, plan.optimized, rounded(plan.step_time)
        found.setdefault(key, plan)
    return sorted(found.values(), key=rank)


def recommended_first(plans: list[Evaluated]) -> list[Evaluated]:
    """Return plans with the recommended one first, the others fastest first.

    That is the simplest of those among the fastest that are tied with the fastest.
    """
    if not plans:
        return []
    plans = sorted(plans, key=lambda plan: plan.step_time)
    fastest = plans[0]
    ties = [plan for plan in plans[:COMPARED] if plan is fastest or tied(fastest, plan)]
    best = min(ties, key=simplicity)
    return [best, *(plan for plan in plans if plan is not best)]


def simplicity(plan: Evaluated) -> tuple[object, ...]:
    """Return the sort key of plans by simplicity.

    A schedule that the framework ships comes before one from a file, then fewer stages and chunks,
    then less memory.
    """
    degrees = plan.candidate.degrees
    own = plan.request.fixed.framework
    custom = own is not None and custom_order(plan, own)
    return (custom, degrees.stages, degrees.chunks, max(plan.peaks), plan.step_time)


def custom_order(plan: Evaluated, framework: str) -> bool:
    """Return whether a framework takes the plan's schedule from a file."""
    if plan.candidate.degrees.pp == 1:
        return False
    return plan.optimized or plan.candidate.schedule not in find_framework(framework).ships
