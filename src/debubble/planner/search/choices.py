"""The open choices of a request: degrees, schedules with their cuts, and ways to keep state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import TypeAlias, TypeVar

from debubble.core.hashed_once import hashed_once
from debubble.planner.candidate import RECOMPUTES, Candidate, Degrees
from debubble.planner.frameworks.rule import DEGREES, ORDER, STATE, divisors
from debubble.planner.frameworks.table import find_framework, rules_of
from debubble.planner.plannable import chunks_of, fills_slowly, first_cut, fits, plannable
from debubble.planner.request import PlanRequest
from debubble.schedules import registry

T = TypeVar("T")

FEWEST = "full:N"
"""Recompute of the first layers of every stage, with the fewest with which a candidate fits."""

SCHEDULE = "schedule"
"""Scope of rules on schedule, ranks and chunks alone."""

ZEROS = (0, 1, 2, 3)
FSDP_ZEROS = (0, 2, 3)
"""Levels of ZeRO that differ on FSDP2."""


Split: TypeAlias = tuple[int, tuple[int, ...]]
"""Chunks, and layers of every stage."""

Order: TypeAlias = tuple[str, int, tuple[int, ...]]
"""Schedule, chunks, layers of every stage."""

Setting: TypeAlias = tuple[str, int]
"""Recompute, which may be :data:`FEWEST`, and level of ZeRO."""


@hashed_once
class CutOrders(tuple[tuple[str, Split], ...]):
    """Schedules, each with one of its cuts."""


@dataclass(frozen=True, eq=False)
class GroupChoices:
    """Orders and settings of candidates, which groups share."""

    orders: Mapping[str, tuple[Split, ...]]
    """Chunks and layers of every stage, by schedule."""
    settings: Mapping[str, tuple[Setting, ...]]
    """Ways to keep activations and states, by schedule."""

    @cached_property
    def count(self) -> int:
        """Number of pairs of both."""
        return sum(len(splits) * len(self.settings[name]) for name, splits in self.orders.items())

    @cached_property
    def all_fill_slowly(self) -> bool:
        """True if every order fills its pipeline slowly, as :func:`fills_slowly` says."""
        return all(fills_slowly(name, one[0]) for name, own in self.orders.items() for one in own)

    @cached_property
    def all_settings(self) -> tuple[Setting, ...]:
        """Settings that go with some schedule."""
        return tuple(dict.fromkeys(one for each in self.settings.values() for one in each))

    @cached_property
    def least(self) -> Setting:
        """The way to recompute with the least work, and the lowest level of ZeRO."""
        recomputes, zeros = zip(*self.all_settings, strict=True)
        return min(dict.fromkeys(recomputes), key=work_of), min(zeros)

    def orders_with(self, setting: Setting) -> CutOrders:
        """Return the orders that go with a setting."""
        names = tuple(name for name in self.orders if setting in self.settings[name])
        if names not in self._orders:
            self._orders[names] = CutOrders(
                (name, one) for name in names for one in self.orders[name]
            )
        return self._orders[names]

    @cached_property
    def _orders(self) -> dict[tuple[str, ...], CutOrders]:
        return {}


def first_setting(setting: Setting) -> Setting:
    """Return the setting that is tried first: one layer, where the fewest layers are recomputed."""
    return ("full:1", setting[1]) if setting[0] == FEWEST else setting


def work_of(recompute: str) -> int:
    """Return a number that is larger for ways to recompute with more work."""
    return {"none": 0, "selective": 1, "full": 3}.get(recompute, 2)


class OpenChoices:
    """The open choices of a request, with results that are needed again."""

    def __init__(self, request: PlanRequest) -> None:
        self.request, self.fixed = request, request.fixed
        self.gpus, self.count = request.cluster.gpus, len(request.model.layers)
        self.schedules = plannable()
        if self.fixed.schedules is not None:
            names = (registry.find(name).name for name in self.fixed.schedules)
            self.schedules = tuple(dict.fromkeys(names))
        # Most orders are of schedules that a framework does not have, which is asked once.
        of_order = rules_of(self.fixed.framework, ORDER)
        self.rules = {
            DEGREES: rules_of(self.fixed.framework, DEGREES),
            SCHEDULE: tuple(rule for rule in of_order if rule.of_order),
            ORDER: tuple(rule for rule in of_order if not rule.of_order),
            STATE: rules_of(self.fixed.framework, STATE),
        }
        self.known: dict[tuple[object, ...], GroupChoices] = {}
        self.known_schedules: dict[int, tuple[tuple[str, int], ...]] = {}
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

    def choices(self, degrees: Degrees, microbatches: int, *, apart: bool) -> GroupChoices:
        """Return the orders and settings of a group; the same object for those that are alike."""
        d, shared = degrees, (degrees.dp > 1, degrees.dp * degrees.cp > 1)
        key = d.pp, microbatches, d.ep, d.cp * d.tp, shared, apart
        if key not in self.known:
            orders = self.orders(d, microbatches, apart=apart)
            self.known[key] = GroupChoices(
                orders, {name: self.settings(d, name) for name in orders}
            )
        return self.known[key]

    def orders(
        self, degrees: Degrees, microbatches: int, *, apart: bool = False
    ) -> dict[str, tuple[Split, ...]]:
        """Return the cuts of the model over these ranks by schedule, for so many microbatches.

        Where multi-token prediction is `apart`, the last stage has no layers.
        """
        key = (degrees.pp, microbatches, degrees.ep > 1, apart)
        if key not in self.known_orders:
            found: dict[str, tuple[Split, ...]] = {}
            for name, chunks in self._schedules_on(degrees):
                split = self._split(name, chunks, degrees, microbatches, apart)
                if split is not None:
                    found[name] = (*found.get(name, ()), split)
            self.known_orders[key] = found
        return self.known_orders[key]

    def _split(
        self, name: str, chunks: int, degrees: Degrees, microbatches: int, apart: bool
    ) -> Split | None:
        layers = self.fixed.layers or self._cut(degrees.pp * chunks)
        if apart:
            # The prediction counts as the head does elsewhere.
            layers = (*first_cut(self.count, len(layers) - 1, self.request.model.mtp - 1), 0)
        order = name, chunks, layers
        right = (
            len(layers) == degrees.pp * chunks
            and fits(name, degrees.pp, chunks, microbatches)
            and self._holds(ORDER, degrees, order, microbatches, apart=apart)
        )
        return (chunks, layers) if right else None

    def _cut(self, stages: int) -> tuple[int, ...]:
        return first_cut(self.count, stages, self.request.model.mtp)

    def _schedules_on(self, degrees: Degrees) -> tuple[tuple[str, int], ...]:
        """Return the schedules that the framework has on some ranks, with their chunks."""
        ranks = degrees.pp
        if ranks not in self.known_schedules:
            self.known_schedules[ranks] = tuple(
                (name, chunks)
                for name in self._named(ranks)
                for chunks in self._chunks(name, ranks)
                if self._holds(SCHEDULE, degrees, (name, chunks, self._cut(ranks * chunks)))
            )
        return self.known_schedules[ranks]

    def _named(self, ranks: int) -> tuple[str, ...]:
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
