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
from typing import TypeAlias, TypeVar

from debubble.planner.candidate import RECOMPUTES, Candidate, Degrees, recomputed_layers
from debubble.planner.frameworks.rule import DEGREES, ORDER, STATE, divisors
from debubble.planner.frameworks.table import find_framework, rules_of
from debubble.planner.plannable import chunks_of, first_cut, fits, plannable
from debubble.planner.request import PlanRequest
from debubble.schedules import registry

T = TypeVar("T")

FEWEST = "full:N"
"""Recompute of the first layers of every stage, with the fewest with which a candidate fits."""

ZEROS = (0, 1, 2, 3)
FSDP_ZEROS = (0, 2, 3)
"""Levels of ZeRO that differ on FSDP2."""


Split: TypeAlias = tuple[int, tuple[int, ...]]
"""Chunks, and layers of every stage."""

Order: TypeAlias = tuple[str, int, tuple[int, ...]]
"""Schedule, chunks, layers of every stage."""

Setting: TypeAlias = tuple[str, int]
"""Recompute, which may be :data:`FEWEST`, and level of ZeRO."""


@dataclass(frozen=True)
class CandidateGroup:
    """Candidates with the same degrees and microbatch size."""

    degrees: Degrees
    """Degrees of all candidates, with one chunk."""
    microbatch_size: int
    microbatches: int
    orders: Mapping[str, tuple[Split, ...]]
    """Chunks and layers of every stage, by schedule."""
    settings: Mapping[str, tuple[Setting, ...]]
    """Ways to keep activations and states, by schedule."""
    mtp_stage: int | None = None
    """Stage of multi-token prediction; None for the last."""
    mtp_apart: bool = False
    """True if multi-token prediction is on the last stage but one, away from the loss."""

    @cached_property
    def count(self) -> int:
        """Number of candidates."""
        return sum(len(splits) * len(self.settings[name]) for name, splits in self.orders.items())

    def candidates(self) -> Iterator[Candidate]:
        """Yield all candidates, group by group, those with one order next to each other."""
        for schedule, splits in self.orders.items():
            for split, setting in product(splits, self.settings[schedule]):
                yield self.candidate(schedule, split, setting)

    @cached_property
    def all_settings(self) -> tuple[Setting, ...]:
        """Settings that go with some schedule."""
        return tuple(dict.fromkeys(one for each in self.settings.values() for one in each))

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

    def orders_with(self, setting: Setting) -> tuple[tuple[str, Split], ...]:
        """Return schedules, each with one of its cuts, that go with a setting."""
        names = tuple(name for name in self.orders if setting in self.settings[name])
        if names not in self._orders:
            self._orders[names] = tuple((name, one) for name in names for one in self.orders[name])
        return self._orders[names]

    @cached_property
    def _degrees(self) -> dict[int, Degrees]:
        return {}

    @cached_property
    def _orders(self) -> dict[tuple[str, ...], tuple[tuple[str, Split], ...]]:
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
    def orders(self) -> tuple[tuple[str, Split], ...]:
        """Schedules, each with one of its cuts, that go with the setting."""
        return self.group.orders_with(self.setting)


def first_setting(setting: Setting) -> Setting:
    """Return the setting that is tried first: one layer, where the fewest layers are recomputed."""
    return ("full:1", setting[1]) if setting[0] == FEWEST else setting


def least_recompute(given: Iterable[Candidate]) -> str:
    """Return the recompute of a model on one stage that does no more than any of a batch."""
    ways = dict.fromkeys((one.recompute, one.layers) for one in given)
    number, least = min(((_recomputed(*one), one[0]) for one in ways), key=itemgetter(0))
    return f"full:{number}" if number else least


@lru_cache(maxsize=1 << 14)
def _recomputed(recompute: str, layers: tuple[int, ...]) -> int:
    """Return the number of layers of all stages that ``"full:N"`` recomputes, with one moved."""
    most = recomputed_layers(recompute)
    return max(sum(min(most, own) for own in layers) - most, 1) if most else 0


def work_of(recompute: str) -> int:
    """Return a number that is larger for ways to recompute with more work."""
    return {"none": 0, "selective": 1, "full": 3}.get(recompute, 2)


def candidates(request: PlanRequest) -> Iterator[Candidate]:
    """Yield all candidates, group by group, those with one order next to each other."""
    for group in groups(request):
        yield from group.candidates()


def groups(request: PlanRequest) -> Iterator[CandidateGroup]:
    """Yield all groups that hold a candidate, the smallest model-parallel size first."""
    choice = _Choice(request)
    for degrees in choice.degrees():
        whole = request.training.batch // degrees.dp
        for size in divisors(whole):
            if request.fixed.microbatch_size not in (None, size):
                continue
            for apart in (False, True)[: 1 + choice.takes_apart(degrees)]:
                orders = choice.orders(degrees, whole // size, apart=apart)
                settings = {name: choice.settings(degrees, name) for name in orders}
                found = CandidateGroup(
                    degrees, size, whole // size, orders, settings, request.fixed.mtp_stage, apart
                )
                if found.count:
                    yield found


class _Choice:
    """The open choices of a request, with results that are needed again."""

    def __init__(self, request: PlanRequest) -> None:
        self.request, self.fixed = request, request.fixed
        self.gpus, self.count = request.cluster.gpus, len(request.model.layers)
        self.schedules = plannable()
        if self.fixed.schedules is not None:
            names = (registry.find(name).name for name in self.fixed.schedules)
            self.schedules = tuple(dict.fromkeys(names))
        # Most orders are of schedules that a framework does not have.
        self.rules = {
            scope: sorted(rules_of(self.fixed.framework, scope), key=lambda rule: not rule.of_order)
            for scope in (DEGREES, ORDER, STATE)
        }
        self.known_orders: dict[tuple[int, int, bool, bool], dict[str, tuple[Split, ...]]] = {}
        self.known_settings: dict[tuple[str, int, int, int, int], tuple[Setting, ...]] = {}

    def degrees(self) -> list[Degrees]:
        """Return all degrees with one chunk, the smallest model-parallel size first."""
        found = []
        for tp in _open(self.fixed.tp, divisors(self.gpus)):
            if self.gpus % tp or (tp > self.request.cluster.gpu.node and self.fixed.tp is None):
                continue
            for pp in _open(self.fixed.pp, divisors(self.gpus // tp)):
                if self.gpus % (tp * pp) or pp > self.count + 2:
                    continue
                for cp in _open(self.fixed.cp, divisors(self.gpus // tp // pp)):
                    dp, left = divmod(self.gpus, tp * pp * cp)
                    if left or self.request.training.batch % dp or self.fixed.dp not in (None, dp):
                        continue
                    experts = divisors(self.request.model.experts or 1)
                    fitting = tuple(ep for ep in experts if tp * cp * dp % ep == 0)
                    found += [Degrees(tp, cp, ep, dp, pp) for ep in _open(self.fixed.ep, fitting)]
        found = [one for one in found if self._holds(DEGREES, one)]
        return sorted(found, key=lambda d: (d.tp * d.cp * d.pp, d.tp, d.cp, d.pp, d.ep))

    def takes_apart(self, degrees: Degrees) -> bool:
        """Return whether multi-token prediction may be on a stage ahead of the loss."""
        free = self.fixed.layers is None and self.fixed.mtp_stage is None
        return free and self.request.model.mtp > 0 and degrees.pp > 1

    def orders(
        self, degrees: Degrees, microbatches: int, *, apart: bool = False
    ) -> dict[str, tuple[Split, ...]]:
        """Return the cuts of the model over these ranks by schedule, for so many microbatches.

        Where multi-token prediction is `apart`, the last stage has no layers.
        """
        key = (degrees.pp, microbatches, degrees.ep > 1, apart)
        if key not in self.known_orders:
            found = {
                name: tuple(self._splits(name, degrees, microbatches, apart))
                for name in self._schedules_on(degrees.pp)
            }
            self.known_orders[key] = {name: splits for name, splits in found.items() if splits}
        return self.known_orders[key]

    def _splits(
        self, name: str, degrees: Degrees, microbatches: int, apart: bool
    ) -> Iterator[Split]:
        for chunks in self._chunks(name, degrees.pp):
            layers = self.fixed.layers or self._cut(degrees.pp * chunks)
            if apart:
                # The prediction counts as the head does elsewhere.
                layers = (*first_cut(self.count, len(layers) - 1, self.request.model.mtp - 1), 0)
            if (
                len(layers) == degrees.pp * chunks
                and fits(name, degrees.pp, chunks, microbatches)
                and self._holds(ORDER, degrees, (name, chunks, layers), microbatches, apart=apart)
            ):
                yield chunks, layers

    def _cut(self, stages: int) -> tuple[int, ...]:
        return first_cut(self.count, stages, self.request.model.mtp)

    def _schedules_on(self, ranks: int) -> tuple[str, ...]:
        if ranks > 1:
            return self.schedules
        # On one rank all plain schedules are gradient accumulation.
        plain = tuple(name for name in self.schedules if registry.find(name).chunks == 1)
        return ("1f1b",) if "1f1b" in plain else plain[:1]

    def _chunks(self, name: str, ranks: int) -> tuple[int, ...]:
        given, own = self.fixed.chunks, registry.find(name).chunks
        if given is None:
            return chunks_of(name, ranks, self.count)
        if given == 1 and own is None and self.fixed.schedules is None and ranks > 1:
            return ()  # the plain schedule
        right = own in (None, given) and given * ranks <= self.count + 2
        return (given,) if right else ()

    def settings(self, degrees: Degrees, schedule: str) -> tuple[Setting, ...]:
        """Return the ways to keep activations and states."""
        copies = min(degrees.dp, 2), min(degrees.dp * degrees.cp, 2)
        key = (schedule, degrees.ep, degrees.cp * degrees.tp, degrees.pp, sum(copies))
        if key not in self.known_settings:
            # Orders that are made for costs and memory would be others for every N.
            free = (*RECOMPUTES, *[FEWEST] * (not registry.find(schedule).uses_costs))
            recomputes = _open(self.fixed.recompute, free)
            chunks = registry.find(schedule).chunks or (2 if degrees.pp > 1 else 1)
            layers = self._cut(degrees.pp * chunks)
            self.known_settings[key] = tuple(
                (recompute, zero)
                for recompute, zero in product(recomputes, self._zeros(copies[1] > 1))
                if self._holds(STATE, degrees, (schedule, chunks, layers), 1, recompute, zero)
            )
        return self.known_settings[key]

    def _zeros(self, shared: bool) -> tuple[int, ...]:
        if self.fixed.zero is not None:
            return (self.fixed.zero,)
        if not shared:
            return (1,)  # nothing to shard over: all levels are the same
        framework = self.fixed.framework
        fsdp = framework is not None and find_framework(framework).runtime.fsdp
        return FSDP_ZEROS if fsdp else ZEROS

    def _holds(
        self, scope: str, degrees: Degrees, order: Order | None = None, microbatches: int = 1,
        recompute: str = "none", zero: int = 1, apart: bool = False,
    ) -> bool:  # fmt: skip
        """Return whether the rules of a scope hold for a representative."""
        name, chunks, layers = order or ("1f1b", 1, first_cut(self.count, degrees.pp))
        size = self.request.training.batch // degrees.dp // microbatches
        mtp_stage = self.fixed.mtp_stage if layers == self.fixed.layers else None
        own = Candidate(
            replace(degrees, chunks=chunks), size, microbatches, name, layers,
            *first_setting((recompute, zero)),
            mtp_stage=len(layers) - 2 if apart else mtp_stage,
        )  # fmt: skip
        case = self.request.case(own)
        return all(rule.check(case) is None for rule in self.rules[scope])


def _open(given: T | None, choices: tuple[T, ...]) -> tuple[T, ...]:
    return choices if given is None else (given,)
