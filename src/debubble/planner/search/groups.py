"""Every candidate that batch, model and GPUs allow, group by group.

The candidates of a group share degrees and microbatch size, and so shapes, links and bytes of
weights. They differ in schedule, chunks and layers of every stage, and in the ways to keep state
(recompute, ZeRO). Groups come with the smallest model-parallel size first. They count their
candidates without making them, so that one can be left out as a whole.

Candidates that a framework refuses are left out by its rules, with one representative for all
candidates that a rule cannot distinguish.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import product
from operator import itemgetter
from typing import TypeAlias

from debubble.planner.candidate import Candidate, Degrees, recomputed_layers
from debubble.planner.frameworks.rule import divisors
from debubble.planner.request import PlanRequest
from debubble.planner.search.choices import (
    CutOrders,
    GroupChoices,
    OpenChoices,
    Setting,
    Split,
    first_setting,
)

Ordered: TypeAlias = tuple[str, Split, str]
"""Schedule, its cut, and recompute, which says how many layers."""


@dataclass(frozen=True)
class CandidateGroup:
    """Candidates with the same degrees and microbatch size."""

    degrees: Degrees
    """Degrees of all candidates, with one chunk."""
    microbatch_size: int
    microbatches: int
    choices: GroupChoices
    mtp_stage: int | None = None
    """Stage of multi-token prediction; None for the last."""
    mtp_apart: bool = False
    """True if multi-token prediction is on the last stage but one, away from the loss."""

    @property
    def orders(self) -> Mapping[str, tuple[Split, ...]]:
        """Chunks and layers of every stage, by schedule."""
        return self.choices.orders

    @property
    def count(self) -> int:
        """Number of candidates."""
        return self.choices.count

    def candidates(self) -> Iterator[Candidate]:
        """Yield all candidates, group by group, those with one order next to each other."""
        for schedule, splits in self.orders.items():
            for split, setting in product(splits, self.choices.settings[schedule]):
                yield self.candidate(schedule, split, setting)

    @property
    def all_settings(self) -> tuple[Setting, ...]:
        """Settings that go with some schedule."""
        return self.choices.all_settings

    def alone(self, setting: Setting) -> Candidate:
        """Return all layers on one stage, in the same groups otherwise."""
        if setting not in self._alone:
            self._alone[setting] = self._on_one_stage(setting)
        return self._alone[setting]

    @cached_property
    def _alone(self) -> dict[Setting, Candidate]:
        return {}

    def _on_one_stage(self, setting: Setting) -> Candidate:
        degrees = replace(self.degrees, pp=1)
        layers = (sum(next(iter(self.orders.values()))[0][1]),)
        recompute, zero = first_setting(setting)
        return Candidate(
            degrees, self.microbatch_size, self.microbatches, "1f1b", layers, recompute, zero
        )

    @cached_property
    def _degrees(self) -> dict[int, Degrees]:
        return {}

    def candidate(self, schedule: str, split: Split, setting: Setting) -> Candidate:
        """Return one of the candidates, with one layer where the fewest are recomputed."""
        chunks, layers = split
        if chunks not in self._degrees:
            self._degrees[chunks] = replace(self.degrees, chunks=chunks)
        return Candidate(
            self._degrees[chunks], self.microbatch_size, self.microbatches, schedule, layers,
            *first_setting(setting),
            mtp_stage=len(layers) - 2 if self.mtp_apart else self.mtp_stage,
        )  # fmt: skip


USUAL_SCHEDULE = "1f1b"
"""The schedule that is tried first, so that there is a plan that fits soon."""


@dataclass(frozen=True)
class Batch:
    """Candidates of one group with one setting: the same work in the same bytes of weights."""

    group: CandidateGroup
    setting: Setting

    @property
    def count(self) -> int:
        """Number of candidates."""
        return len(self.orders)

    @property
    def orders(self) -> CutOrders:
        """Schedules, each with one of its cuts, that go with the setting."""
        return self.group.choices.orders_with(self.setting)

    def candidate(self, one: Ordered) -> Candidate:
        """Return one of the candidates."""
        schedule, split, recompute = one
        return self.group.candidate(schedule, split, (recompute, self.setting[1]))


def least_recompute(given: Iterable[Ordered]) -> str:
    """Return the recompute of a model on one stage that does no more than any of a batch."""
    ways = dict.fromkeys((recompute, layers) for _, (_, layers), recompute in given)
    number, least = min(((_recomputed(*one), one[0]) for one in ways), key=itemgetter(0))
    return f"full:{number}" if number else least


@lru_cache(maxsize=1 << 14)
def _recomputed(recompute: str, layers: tuple[int, ...]) -> int:
    """Return the number of layers of all stages that ``"full:N"`` recomputes, with one moved."""
    most = recomputed_layers(recompute)
    return max(sum(min(most, own) for own in layers) - most, 1) if most else 0


def candidates(request: PlanRequest) -> Iterator[Candidate]:
    """Yield all candidates, group by group, those with one order next to each other."""
    for group in groups(request):
        yield from group.candidates()


def groups(request: PlanRequest) -> Iterator[CandidateGroup]:
    """Yield all groups that hold a candidate, the smallest model-parallel size first."""
    choice = OpenChoices(request)
    for degrees in choice.degrees():
        whole = request.training.batch // degrees.dp
        for size in divisors(whole):
            if request.fixed.microbatch_size not in (None, size):
                continue
            for apart in (False, True)[: 1 + choice.takes_apart(degrees)]:
                choices = choice.choices(degrees, whole // size, apart=apart)
                if choices.count:
                    yield CandidateGroup(
                        degrees, size, whole // size, choices, request.fixed.mtp_stage, apart
                    )
