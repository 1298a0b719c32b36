"""Candidates that do the same work with the same weights, and share one bound."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from debubble.planner.candidate import Candidate
from debubble.planner.search.evaluate import Asked
from debubble.planner.search.groups import Group, Setting, Split

USUAL_SCHEDULE = "1f1b"
"""What is tried first: next to a plan that fits, most others need no simulation."""


@dataclass(frozen=True, order=True)
class Batch:
    """Candidates of one group with one setting: the same work in the same bytes of weights.

    `bound` is a time in seconds that none of them is faster than.
    """

    bound: float
    number: int
    group: Group = field(compare=False)
    setting: Setting = field(compare=False)

    @cached_property
    def count(self) -> int:
        """How many candidates there are."""
        return sum(len(splits) for _, splits in self._orders())

    def candidates(self, *, usual: bool) -> Iterator[Candidate]:
        """The candidates with :data:`USUAL_SCHEDULE`, or those with all others."""
        for schedule, splits in self._orders():
            if (schedule == USUAL_SCHEDULE) is usual:
                for split in splits:
                    yield self.group.candidate(schedule, split, self.setting)

    def _orders(self) -> Iterator[tuple[str, tuple[Split, ...]]]:
        """Orders that go with the setting, by schedule."""
        for schedule, splits in self.group.orders.items():
            if self.setting in self.group.settings[schedule]:
                yield schedule, splits


def on_one_rank(asked: Asked, group: Group, setting: Setting) -> Candidate:
    """A candidate with all layers on one stage, in the same groups otherwise."""
    alone = replace(group, degrees=replace(group.degrees, pp=1))
    return alone.candidate("1f1b", (1, (len(asked.model.layers),)), setting)
