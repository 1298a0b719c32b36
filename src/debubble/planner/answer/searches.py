"""One search for each framework, and the results of all as one answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from debubble.core.errors import DebubbleError, ParameterError
from debubble.planner.frameworks.table import FRAMEWORKS, broken, find_framework
from debubble.planner.request import PlanRequest, for_framework
from debubble.planner.request_check import check_request
from debubble.planner.search.best_plans import Progress, best_plans
from debubble.planner.search.evaluate import Evaluated, tied
from debubble.planner.search.search_result import Found, nearly_fits, rank

COMPARED = 5
"""Fastest plans of which the simplest of those tied with the fastest is recommended."""


class SearchOne(Protocol):
    """A search for the plans of one framework, such as :func:`best_plans`."""

    def __call__(
        self, request: PlanRequest, top: int, progress: Progress | None = None, *,
        below: float = math.inf,
    ) -> Found: ...  # fmt: skip


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

    searches: list[Found] = field(default_factory=list)
    """The results by framework."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Reasons for which other frameworks were not searched, by name."""

    @property
    def below(self) -> float:  # type: ignore[override]
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
    return Asked(tuple(requests), refused)
