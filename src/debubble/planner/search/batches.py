"""Candidates that do the same work with the same weights, and share one bound."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from debubble.planner.candidate import Candidate
from debubble.planner.request import PlanRequest
from debubble.planner.search.groups import CandidateGroup, Setting, Split

USUAL_SCHEDULE = "1f1b"
"""The schedule that is tried first: after one plan that fits, most others need no simulation."""


@dataclass(frozen=True, order=True)
class Batch:
    """Candidates of one group with one setting: the same work in the same bytes of weights.

    `bound` is a time in seconds that none of them is faster than.
    """

    bound: float
    number: int
    group: CandidateGroup = field(compare=False)
    setting: Setting = field(compare=False)

    @cached_property
    def count(self) -> int:
        """Number of candidates."""
        return sum(len(splits) for _, splits in self._orders())

    def candidates(self, *, usual: bool) -> Iterator[Candidate]:
        """Yield the candidates with :data:`USUAL_SCHEDULE`, or those with all others."""
        for schedule, splits in self._orders():
            if (schedule == USUAL_SCHEDULE) is usual:
                for split in splits:
                    yield self.group.candidate(schedule, split, self.setting)

    def _orders(self) -> Iterator[tuple[str, tuple[Split, ...]]]:
        """Yield schedules with their cuts that go with the setting."""
        for schedule, splits in self.group.orders.items():
            if self.setting in self.group.settings[schedule]:
                yield schedule, splits


def on_one_rank(request: PlanRequest, group: CandidateGroup, setting: Setting) -> Candidate:
    """Return a candidate with all layers on one stage, in the same groups otherwise."""
    alone = replace(group, degrees=replace(group.degrees, pp=1))
    return alone.candidate("1f1b", (1, (len(request.model.layers),)), setting)
