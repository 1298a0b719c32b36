"""Every candidate that batch, model and GPUs allow, group by group.

The candidates of a group share degrees and microbatch size, and so shapes, links and bytes of
weights. They differ in schedule, chunks and layers of every stage, and in the ways to keep state
(recompute, ZeRO). Groups come with the smallest model-parallel size first. They count their
candidates without making them, so that one can be left out as a whole.

Candidates that a framework refuses are left out by the rules of
:mod:`debubble.planner.frameworks.rules`, with one representative for all candidates that a rule
cannot distinguish.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from debubble.planner.candidate import RECOMPUTES, Candidate, Degrees, Training
from debubble.planner.frameworks.case import DEGREES, ORDER, STATE, Case, divisors
from debubble.planner.frameworks.rules import rules_of
from debubble.planner.frameworks.table import find_framework
from debubble.planner.model.transformer import Model
from debubble.planner.plannable import chunks_of, first_cut, fits, plannable
from debubble.planner.request import Fixed
from debubble.schedules import registry

if TYPE_CHECKING:
    from debubble.planner.hardware.cluster import Cluster

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
    """Candidates with the same degrees and microbatch size.

    Parameters
    ----------
    degrees
        Degrees of all candidates, with one chunk.
    microbatch_size, microbatches
        Sequences per microbatch, and microbatches per step.
    orders
        By schedule, chunks and layers of every stage.
    settings
        By schedule, how activations and states are kept.
    """

    degrees: Degrees
    microbatch_size: int
    microbatches: int
    orders: Mapping[str, tuple[Split, ...]]
    settings: Mapping[str, tuple[Setting, ...]]

    @cached_property
    def count(self) -> int:
        """Number of candidates."""
        return sum(len(splits) * len(self.settings[name]) for name, splits in self.orders.items())

    def candidates(self) -> Iterator[Candidate]:
        """Yield all candidates, group by group, those with one order next to each other."""
        for schedule, splits in self.orders.items():
            for split, setting in product(splits, self.settings[schedule]):
                yield self.candidate(schedule, split, setting)

    def candidate(self, schedule: str, split: Split, setting: Setting) -> Candidate:
        """Return one of the candidates, with one layer where the fewest are recomputed."""
        chunks, layers = split
        return Candidate(
            replace(self.degrees, chunks=chunks), self.microbatch_size, self.microbatches, schedule,
            layers, *first_setting(setting),
        )  # fmt: skip


def first_setting(setting: Setting) -> Setting:
    """Return the setting that is tried first: one layer, where the fewest layers are recomputed."""
    return ("full:1", setting[1]) if setting[0] == FEWEST else setting


def candidates(
    model: Model, cluster: Cluster, training: Training, fixed: Fixed | None = None
) -> Iterator[Candidate]:
    """Yield all candidates, group by group, those with one order next to each other."""
    for group in groups(model, cluster, training, fixed):
        yield from group.candidates()


def groups(
    model: Model, cluster: Cluster, training: Training, fixed: Fixed | None = None
) -> Iterator[CandidateGroup]:
    """Yield all groups that hold a candidate, the smallest model-parallel size first."""
    choice = _Choice(model, cluster.gpus, cluster.gpu.node, training, fixed or Fixed())
    for degrees in choice.degrees():
        whole = training.batch // degrees.dp
        for size in divisors(whole):
            if choice.fixed.microbatch_size not in (None, size):
                continue
            orders = choice.orders(degrees, whole // size)
            settings = {name: choice.settings(degrees, name) for name in orders}
            found = CandidateGroup(degrees, size, whole // size, orders, settings)
            if found.count:
                yield found


@dataclass(frozen=True)
class _Choice:
    """The open choices for one training, with results that are needed again."""

    model: Model
    gpus: int
    node: int
    training: Training
    fixed: Fixed
    known_orders: dict[tuple[int, int, bool], dict[str, tuple[Split, ...]]] = field(
        default_factory=dict
    )
    known_settings: dict[tuple[str, int, int, int], tuple[Setting, ...]] = field(
        default_factory=dict
    )

    @cached_property
    def count(self) -> int:
        """Number of layers of the model."""
        return len(self.model.layers)

    @cached_property
    def schedules(self) -> tuple[str, ...]:
        """Names of the schedules to choose from."""
        if self.fixed.schedules is None:
            return plannable()
        return tuple(dict.fromkeys(registry.find(name).name for name in self.fixed.schedules))

    def degrees(self) -> list[Degrees]:
        """Return all degrees with one chunk, the smallest model-parallel size first."""
        found = []
        for tp in _open(self.fixed.tp, divisors(self.gpus)):
            if self.gpus % tp or (tp > self.node and self.fixed.tp is None):
                continue
            for pp in _open(self.fixed.pp, divisors(self.gpus // tp)):
                if self.gpus % (tp * pp) or pp > self.count + 2:
                    continue
                for cp in _open(self.fixed.cp, divisors(self.gpus // tp // pp)):
                    dp, left = divmod(self.gpus, tp * pp * cp)
                    if left or self.training.batch % dp or self.fixed.dp not in (None, dp):
                        continue
                    found += [
                        Degrees(tp, cp, ep, dp, pp)
                        for ep in _open(self.fixed.ep, self._expert_degrees(tp * cp * dp))
                    ]
        found = [one for one in found if self._holds(DEGREES, one)]
        return sorted(found, key=lambda d: (d.tp * d.cp * d.pp, d.tp, d.cp, d.pp, d.ep))

    def _expert_degrees(self, ranks: int) -> tuple[int, ...]:
        return tuple(ep for ep in divisors(self.model.experts or 1) if ranks % ep == 0)

    def orders(self, degrees: Degrees, microbatches: int) -> dict[str, tuple[Split, ...]]:
        """Return the cuts of the model over these ranks by schedule, for so many microbatches."""
        key = (degrees.pp, microbatches, degrees.ep > 1)
        if key not in self.known_orders:
            found = {
                name: tuple(self._splits(name, degrees, microbatches))
                for name in self._schedules_on(degrees.pp)
            }
            self.known_orders[key] = {name: splits for name, splits in found.items() if splits}
        return self.known_orders[key]

    def _splits(self, name: str, degrees: Degrees, microbatches: int) -> Iterator[Split]:
        for chunks in self._chunks(name, degrees.pp):
            layers = self.fixed.layers or first_cut(self.count, degrees.pp * chunks, self.model.mtp)
            if (
                len(layers) == degrees.pp * chunks
                and fits(name, degrees.pp, chunks, microbatches)
                and self._holds(ORDER, degrees, (name, chunks, layers), microbatches)
            ):
                yield chunks, layers

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
        key = (schedule, degrees.ep, degrees.cp * degrees.tp, sum(copies))
        if key not in self.known_settings:
            # Orders that are made for costs and memory would be others for every N.
            free = (*RECOMPUTES, *[FEWEST] * (not registry.find(schedule).uses_costs))
            recomputes = _open(self.fixed.recompute, free)
            chunks = registry.find(schedule).chunks or (2 if degrees.pp > 1 else 1)
            layers = first_cut(self.count, degrees.pp * chunks, self.model.mtp)
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
        recompute: str = "none", zero: int = 1,
    ) -> bool:  # fmt: skip
        """Return whether the rules of a scope hold for a representative."""
        name, chunks, layers = order or ("1f1b", 1, first_cut(self.count, degrees.pp))
        size = self.training.batch // degrees.dp // microbatches
        own = Candidate(
            replace(degrees, chunks=chunks), size, microbatches, name, layers,
            *first_setting((recompute, zero)),
        )  # fmt: skip
        case = Case(self.model, self.gpus, self.training, own)
        return all(rule.check(case) is None for rule in rules_of(self.fixed.framework, scope))


def _open(given: T | None, choices: tuple[T, ...]) -> tuple[T, ...]:
    return choices if given is None else (given,)
