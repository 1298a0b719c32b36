"""The search over variants of a problem: placement, cut of the layers, and choices of stages.

Every variant is a problem of its own. The search

1. looks at the variants to begin with, by the quick strategies;
2. *explores*: looks at neighbors of the best, one layer moved or one stage doing something else;
3. *improves* the most promising variant by all strategies, and the same on the next placement for
   as long as variants are solved; then again, best first;
4. improves those variants by which the bound for all of them is lowest, where they are small.

A :class:`Space` knows the neighbors, and a bound for all variants over one placement:
one for choices of stages (:mod:`debubble.optimize.stage_choices.space`), and one for cuts
(:mod:`debubble.optimize.layer_split.space`), each with the choices over it; where neither is open a
space holds one variant.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Protocol, TypeAlias

from debubble.listing import TOLERANCE
from debubble.optimize.anneal.early_recompute import can_recompute_early, recompute_early
from debubble.optimize.bounds.strategies import bound_by_one_rank
from debubble.optimize.cache import CacheEntry
from debubble.optimize.incumbent import Incumbent, Known
from debubble.optimize.problem import Problem
from debubble.optimize.stop import Stop
from debubble.optimize.strategies import begin, improve

Report: TypeAlias = Callable[[float, float, str], None]
"""Callback that gets the best makespan, the lower bound and the name of the finder."""

EARLIER = "an earlier search"
"""Name of the finder of a start order from an earlier search."""

MOST_PROOFS = 16
"""Small variants that are improved because the bound is lowest there, at most."""


OTHERS_SHARE = 0.2
"""Share of a group's time for bounds on its placements but the best one."""

LEFT_SHARE = 0.1
"""Share of the effort, and of the time that is left, for variants beyond those with their own."""

ROUNDS = 8
"""Most rounds of improving a variant, or of exploring more, where not all are explored."""


class Space(Protocol):
    """All variants over one placement."""

    root: Problem
    """The placement with everything that all variants have in common."""
    shares: Sequence[float]
    """Shares of the effort, and of the time, for the variants that are improved, best first; empty
    for all of the effort and equal parts of the time."""
    complete: bool
    """True if every variant that can be faster has an incumbent."""

    def first(self) -> list[Problem]:
        """Return variants to begin with."""

    def group(self, problem: Problem) -> Hashable:
        """Return a key shared by the variants on other placements that stand for this one."""

    def again(self, known: CacheEntry) -> Problem:
        """Return the variant of an earlier result."""

    def explore(self, search: Variants, effort: float) -> None:
        """Add variants near the best ones, as far as they are promising."""

    def bound(self, search: Variants) -> float:
        """Return a bound for all variants."""

    def lowest(self, search: Variants) -> Problem | None:
        """Raise the bound; return its variant if that is a single, small one."""


class Variants:
    """The incumbents of all variants that are looked at, over spaces of one kind.

    The work of `stop` is the limit of each variant. `report` is called for every improvement.
    """

    def __init__(self, spaces: Sequence[Space], stop: Stop, report: Report | None = None) -> None:
        self.spaces = spaces
        self.stop = stop
        self._by_variant: dict[Hashable, Incumbent] = {}
        self._over: dict[Hashable, list[Incumbent]] = {}
        self._known: Known = {}
        self._proven = 0.0
        self._report = report
        self._reported = (math.inf, 0.0)
        self._lock = threading.Lock()
        for space in spaces:
            for problem in space.first():
                self.add(problem)

    @property
    def incumbents(self) -> list[Incumbent]:
        """All incumbents, in the order in which they were added."""
        return list(self._by_variant.values())

    def add(self, problem: Problem) -> Incumbent:
        """Return the incumbent of a variant, a new one if there is none."""
        found = self._by_variant.get(problem.variant)
        if found is None:
            found = Incumbent(problem, Stop(parent=self.stop), self._tell, self._known)
            self._by_variant[problem.variant] = found
            table = problem.placement.table
            for cut in {(), problem.cut}:
                self._over.setdefault((table, cut), []).append(found)
        return found

    def has(self, problem: Problem) -> bool:
        """Return whether a variant has an incumbent."""
        return problem.variant in self._by_variant

    def over(self, root: Problem) -> list[Incumbent]:
        """Return the incumbents over one placement, and over one cut where `root` has one."""
        return list(self._over.get((root.placement.table, root.cut), ()))

    @property
    def best(self) -> Incumbent:
        """The incumbent with the fastest order."""
        return min(self.incumbents, key=makespan_of)

    @property
    def bound(self) -> float:
        """A bound for all variants."""
        lowest = min(space.bound(self) for space in self.spaces)
        return min(max(lowest, self._proven), self.best.makespan)

    @property
    def done(self) -> bool:
        """True if no variant can be better."""
        return self.best.makespan <= self.bound * (1 + TOLERANCE)

    def take(self, known: CacheEntry) -> None:
        """Begin with an earlier result."""
        for space in self.spaces:
            if space.root.placement.table == known.table:
                earlier = f"{EARLIER} ({known.found_by.removeprefix(EARLIER).strip(' ()')})"
                self.add(space.again(known)).offer(known.programs, earlier)
        if known.current:
            self._proven = max(self._proven, known.bound)

    def run(self) -> None:
        """Search until the work is done, nothing can be better, or the search is stopped."""
        begun = set[Hashable]()
        for incumbent in self.incumbents:
            table = incumbent.problem.placement.table
            # When the time is up, published orders on every placement are enough.
            enough = self.stop.asked or (self.stop() and table in begun)
            if not (enough and self.best.programs):
                begin(incumbent)
                begun.add(table)
        if not self.stop():
            self._lowest()
        self._explore(1.0)
        self._improve_best()
        for _ in range(int(MOST_PROOFS * min(self.stop.work.effort, 1.0))):
            problem = self._lowest()
            if problem is None or self.done or self.stop():
                break
            incumbent = self.add(problem)
            if not incumbent.programs:
                begin(incumbent)
            before = incumbent.bound
            self._improve([incumbent], 1.0, self.stop.left)
            if incumbent.bound <= before:
                break
        self._lowest()

    def _improve_best(self) -> None:
        """Improve the most promising variants, best first."""
        shares, rounds, improved = list(self.spaces[0].shares), 0, set[Hashable]()
        divided = bool(shares)
        endless = self.stop.work.effort == math.inf or all(s.complete for s in self.spaces)
        while not self.done and not self.stop():
            if divided and not endless and (not shares or rounds == ROUNDS):
                return
            rounds += 1
            groups = self._groups(improved)
            if not groups:
                known = len(self._by_variant)
                self._explore(1.0)
                if len(self._by_variant) == known:
                    return
                continue
            name, group = min(groups.items(), key=lambda item: min(map(makespan_of, item[1])))
            improved.add(name)
            if not divided:
                self._improve(group, 1.0, self.stop.left / len(groups))
                continue
            part = shares[0] if shares else LEFT_SHARE
            seconds = self.stop.left * part / (part + max(sum(shares), part))
            solved = self._improve(group, part, seconds)
            self._explore(part)
            # A variant that was solved took less.
            if shares and not solved:
                del shares[0]

    def _groups(self, improved: set[Hashable]) -> dict[Hashable, list[Incumbent]]:
        """Return incumbents that stand for each other, where one can be faster than the best."""
        best, groups = self.best.makespan, dict[Hashable, list[Incumbent]]()
        for space in self.spaces:
            for each in self.over(space.root):
                groups.setdefault(space.group(each.problem), []).append(each)
        return {
            name: group for name, group in groups.items()
            if name not in improved and any(each.beats(best) for each in group)
        }  # fmt: skip

    def _improve(self, group: Sequence[Incumbent], part: float, seconds: float) -> bool:
        """Run all strategies on the best placement, then on others; return whether all are solved.

        Other placements get bounds first, so that only those that can be better go on. At the end
        they are tried with early recomputes, which may help one placement more than another.
        """
        ordered = sorted(group, key=makespan_of)
        for incumbent in ordered[1:]:
            # Where copies leave no room there may be no order to compare bounds with.
            found = bool(incumbent.programs)
            if found and incumbent.beats(self.best.makespan) and not self.stop():
                limit = OTHERS_SHARE * seconds / len(ordered)
                incumbent.stop = Stop(limit, self.stop, self.stop.work.share(part))
                bound_by_one_rank(incumbent.model, incumbent, incumbent.stop)
        later = OTHERS_SHARE * any(can_recompute_early(each.problem) for each in ordered[1:])
        for place, incumbent in enumerate(ordered, start=1):
            if self.stop():
                return False
            if incumbent.beats(self.best.makespan):
                incumbent.stop = Stop(seconds * (1 - later), self.stop, self.stop.work.share(part))
                improve(incumbent)
            if not incumbent.done:
                for other in ordered[place:]:
                    if can_recompute_early(other.problem) and other.beats(self.best.makespan):
                        limit = OTHERS_SHARE * seconds / len(ordered)
                        other.stop = Stop(limit, self.stop, self.stop.work.share(part))
                        recompute_early(other.model, other, other.stop)
                return False
        return True

    def _explore(self, part: float) -> None:
        for space in self.spaces:
            if not self.done and not self.stop():
                space.explore(self, self.stop.work.effort * part)

    def _lowest(self) -> Problem | None:
        """Return the variant by which the bound is lowest, if it is a single, small one."""
        found = [(space.lowest(self), space.bound(self)) for space in self.spaces]
        return min(found, key=lambda pair: pair[1])[0]

    def _tell(self, found_by: str) -> None:
        if self._report is None:
            return
        with self._lock:
            now = (self.best.makespan, self.bound)
            if now != self._reported:
                self._reported = now
                self._report(*now, found_by)


def makespan_of(incumbent: Incumbent) -> float:
    """Return the makespan of an incumbent's best order, as a key to sort by."""
    return incumbent.makespan
