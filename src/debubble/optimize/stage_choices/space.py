"""Variants by choices of stages: which of them recompute or offload activations to the host.

Every choice for all stages is a variant of its own. Few of them are looked at: the same for every
stage; something else for the first chunks of the first or last ranks, which hold the most or the
fewest microbatches; then what differs from the best in one stage. List scheduling ranks them. The
search goes deep where all stages do the same, and into the best few of the others: so nothing comes
out worse than without the choice.

**A bound for all choices.** Without R, and with memory as if everything was recomputed and copied
in no time, nothing is slower: what F leaves is the least of any choice, and time only grows with R
and with copies. The same holds when some stages are decided and the others are relaxed like this.
So choices are split, stage by stage, where the bound is lowest, until that is no lower than the
best makespan or the nodes run out; the lowest bound that is left holds for all of them. What may be
copied may stay, too: if no stage may choose to recompute, whatever is proven for copies wherever
they are allowed holds for all choices.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import reduce
from itertools import count, product
from operator import or_

import numpy as np
from numpy.typing import NDArray

from debubble.core.kind_relations import RECOMPUTE_KIND
from debubble.listing import TOLERANCE
from debubble.optimize.anneal.strategies import SMALL, count_pairs
from debubble.optimize.bounds.paths import lower_bound
from debubble.optimize.bounds.strategies import strongest_rank_bound
from debubble.optimize.cache import CacheEntry
from debubble.optimize.incumbent import Incumbent
from debubble.optimize.problem import Problem
from debubble.optimize.programs.backward import relaxed
from debubble.optimize.programs.list_scheduling import list_programs
from debubble.optimize.programs.offload import relax_copies, with_room_for_copies
from debubble.optimize.stage_choices.choices import (
    OFFLOAD,
    RECOMPUTE,
    Choice,
    Ways,
    choice_of,
    same_for_all,
    with_choice,
)
from debubble.optimize.stop import Stop
from debubble.optimize.strategies import begin
from debubble.optimize.variants import Variants

LOOKS = 48
"""Choices that are looked at per placement, at most."""

LOOK_EFFORT = 0.1
"""Effort of list scheduling for one look."""

DEEP = 2
"""Mixed choices, not alike for all stages, that are improved by all strategies."""

NODES = 64
"""Branch-and-bound nodes to bound per placement, for small problems."""

NODE_STATES = 20_000
"""States of the strongest rank that are looked at for the bound of one node."""

NODE_WORK = 200_000
"""Nodes times actions, at most; at least one stage is decided."""

LATE_SECONDS = 0.5
"""Seconds for branching when the time is up."""

RANK_STEPS = 8
"""Groups of first and last ranks that are tried."""


def relaxation(problem: Problem, decided: Sequence[int | None], ways: Ways) -> Problem:
    """Return a relaxation of all choices that agree with the decided ones; None is open."""
    duration = problem.table.duration.copy()
    spared = [
        way is None and not all(some & RECOMPUTE for some in open_to)
        for way, open_to in zip(decided, ways, strict=True)
    ]
    duration[RECOMPUTE_KIND, spared] = 0.0
    chosen = [
        reduce(or_, open_to) if way is None else way
        for way, open_to in zip(decided, ways, strict=True)
    ]
    table = replace(problem.table, duration=duration)
    return relax_copies(with_choice(replace(problem, table=table), chosen))


def fits_without_copies(problem: Problem) -> bool:
    """Return whether there is any order within the limits, if copies take no time."""
    return bool(np.all(relax_copies(problem).smallest_limits <= problem.limits_with_slack))


def bound_of_all(
    problem: Problem, ways: Ways, best: float, known: dict[Choice, float], nodes: int,
    stop: Stop | None = None,
) -> tuple[float, Choice | None]:  # fmt: skip
    """Return a bound for all choices, and the choice that it belongs to if that is single.

    The choices of the problem's own stages do not matter. Choices that cannot be faster than `best`
    are left out; for single ones bounds may be `known`. At most `nodes` partial decisions are
    examined, fewer when stopped: the lowest bound that is left then holds.
    """
    number, stop = count(), stop or Stop()
    rank_by_rank = np.argsort(problem.homes, kind="stable").tolist()
    open_sets: list[tuple[float, int, tuple[int | None, ...]]] = []

    def add(decided: tuple[int | None, ...], least: float) -> None:
        easy = relaxation(problem, decided, ways)
        if not fits_without_copies(easy):
            return
        easy = relaxed(easy)
        bound = max(least, lower_bound(easy), known.get(_whole(decided), 0.0))
        if bound < best < float("inf"):
            bound = strongest_rank_bound(easy, bound, best, NODE_STATES, stop)
        if bound < best * (1 - TOLERANCE):
            heapq.heappush(open_sets, (bound, -next(number), decided))

    add(tuple(way[0] if len(way) == 1 else None for way in ways), known.get(most_free(ways), 0.0))
    while open_sets:
        bound, _, decided = open_sets[0]
        if None not in decided:
            return bound, _whole(decided)
        if nodes <= 0 or stop():
            return bound, None
        heapq.heappop(open_sets)
        stage = next(stage for stage in rank_by_rank if decided[stage] is None)
        for way in reversed(ways[stage]):
            add((*decided[:stage], way, *decided[stage + 1 :]), bound)
            nodes -= 1
    return best, None


def most_free(ways: Ways) -> Choice:
    """Return the choice that has all schedules of every other; empty where there is none.

    Activations that may be copied may also stay, but recompute is decided for a whole stage.
    """
    if any(len({way & RECOMPUTE for way in open_to}) > 1 for open_to in ways):
        return ()
    return tuple(reduce(or_, open_to) for open_to in ways)


def _whole(decided: tuple[int | None, ...]) -> Choice:
    """Return a choice for all stages; empty while some are open."""
    return () if None in decided else tuple(way for way in decided if way is not None)


def families(problem: Problem, ways: Ways) -> list[Choice]:
    """Return choices to begin with: the first chunks of the first or last ranks."""
    homes, ranks = problem.homes, problem.ranks
    chunk = np.array([int(np.count_nonzero(homes[:s] == homes[s])) for s in range(len(homes))])
    steps = np.unique(np.linspace(1, ranks, min(RANK_STEPS, ranks)).astype(int))[::-1]
    plain, *others = (np.array(chosen) for chosen in same_for_all(ways))
    found: dict[Choice, None] = {}
    for other in others:
        needed = _needed(problem, plain, other)
        for some, chunks in product(steps.tolist(), range(1, int(chunk.max()) + 2)):
            for those in (homes < some, homes >= ranks - some):
                region = needed | ((chunk < chunks) & those)
                found[tuple(np.where(region, other, plain).tolist())] = None
        found[tuple(np.where(needed, other, plain).tolist())] = None
    return list(found)


def _needed(
    problem: Problem, plain: NDArray[np.int64], other: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return the fewest first stages of every rank that must choose otherwise to fit."""
    chosen = np.zeros(problem.stages, dtype=bool)
    for stage in range(problem.stages):
        asked = with_choice(problem, np.where(chosen, other, plain).tolist())
        short = relax_copies(asked).smallest_limits > problem.limits_with_slack
        if not short.any():
            break
        chosen[stage] = short[problem.homes[stage]]
    return chosen


class Choices:
    """The variants over one placement that differ in their stages' choices, a :class:`Space`.

    In each of the problems all stages do the same, as far as they are free.
    """

    shares: Sequence[float] = ()

    def __init__(self, problems: Sequence[Problem], ways: Ways) -> None:
        self.root = problems[0]
        self.ways = ways
        self.complete = max(map(len, ways)) == 1
        self._first = list(problems)
        self._looked = self.complete
        self._floor = 0.0
        if not self.complete:
            self._floor = bound_of_all(self.root, ways, float("inf"), {}, 0)[0]

    def first(self) -> list[Problem]:
        """Return the variants in which all stages do the same."""
        return [problem for problem in self._first if fits_without_copies(problem)]

    def group(self, problem: Problem) -> Hashable:
        """Return the number of the choice that all stages share, or the variant itself."""
        uniform = same_for_all(self.ways)
        chosen = choice_of(problem)
        return uniform.index(chosen) if chosen in uniform else problem.variant

    def again(self, known: CacheEntry) -> Problem:
        """Return the variant of an earlier result; fixed choices are as requested."""
        return self.root if self.complete else with_choice(self.root, known.chosen)

    def bound(self, search: Variants) -> float:
        """Return a bound for all choices."""
        if self.complete:
            return min(each.bound for each in search.over(self.root))
        return self._floor

    def lowest(self, search: Variants) -> Problem | None:
        """Raise the bound by branching; the small variant by which it is lowest, if that is one."""
        if self.complete:
            return None
        known = {choice_of(each.problem): each.bound for each in search.over(self.root)}
        nodes = int(np.clip(NODE_WORK // self.root.size, 2, NODES))
        best = search.best.makespan
        # What was proven for single choices counts here alone, even when the time is up.
        seconds = LATE_SECONDS if search.stop.asked else max(search.stop.left, LATE_SECONDS)
        bound, chosen = bound_of_all(self.root, self.ways, best, known, nodes, Stop(seconds))
        self._floor = max(self._floor, min(bound, best))
        # Only the bound of one rank knows the cost of copies: there is nothing to close.
        if chosen is None or any(way & OFFLOAD for way in chosen):
            return None
        problem = with_choice(self.root, chosen)
        return problem if count_pairs(problem) <= SMALL else None

    def explore(self, search: Variants, effort: float) -> None:
        """Look once at choices that differ between stages; add the best as list scheduling goes."""
        if self._looked:
            return
        self._looked = True
        left = int(np.clip(LOOKS * effort, 4, LOOKS))
        seen = {choice_of(e.problem): (e.makespan, e.programs) for e in search.over(self.root)}
        known = set(seen)
        ahead = families(self.root, self.ways)
        while ahead and left > 0 and not search.stop():
            for chosen in ahead:
                if left <= 0 or search.stop():
                    break
                if chosen in seen:
                    continue
                problem = with_choice(self.root, chosen)
                seen[chosen] = (float("inf"), [])
                if not fits_without_copies(problem):
                    continue
                left -= 1
                look = Incumbent(problem, Stop())
                if look.beats(search.best.makespan):
                    for tight in with_room_for_copies(problem):
                        look.offer(list_programs(tight, (), LOOK_EFFORT), "list scheduling")
                    seen[chosen] = (look.makespan, look.programs)
            best = min(seen, key=lambda chosen: seen[chosen][0])
            ahead = [
                (*best[:stage], way, *best[stage + 1 :])
                for stage in range(self.root.stages)
                for way in self.ways[stage]
            ]
            ahead = [chosen for chosen in ahead if chosen not in seen]
        others = sorted(
            each.makespan
            for each in search.incumbents
            if not isinstance(self.group(each.problem), int)
        )
        fresh = [chosen for chosen in seen if chosen not in known and seen[chosen][1]]
        for chosen in sorted(fresh, key=lambda chosen: seen[chosen][0])[:DEEP]:
            if len(others) >= DEEP and seen[chosen][0] >= others[DEEP - 1]:
                break
            incumbent = search.add(with_choice(self.root, chosen))
            incumbent.offer(seen[chosen][1], "list scheduling")
            begin(incumbent)
