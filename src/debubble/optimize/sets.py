"""Which stages recompute, or wait on the host, where the search may choose.

Every choice for all stages is a problem of its own. Few of them are looked at: the same for every
stage; something else for the first chunks of the first or last ranks, which hold the most or the
fewest microbatches; then what differs from the best in one stage. List scheduling ranks them. The
search goes deep where all stages do the same, and into the best few of the others: so nothing comes
out worse than without the choice.

**A bound for all choices.** Without R, and with memory as if everything was recomputed and copied
in no time, nothing is slower: what F leaves is the least of any choice, and time only grows with R
and with copies. The same holds when some stages are decided and the others are relaxed like this.
So choices are split, stage by stage, where the bound is lowest, until that is no lower than the
best makespan or the nodes run out; the lowest bound that is left holds for all of them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import reduce
from itertools import count, product
from operator import or_
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import Kind, Program, kinds_of, stages_of
from debubble.core.errors import ParameterError
from debubble.core.schedule import Schedule
from debubble.lowering.recompute import Stages, chosen_stages
from debubble.optimize.backward import relaxed
from debubble.optimize.bounds import lower_bound
from debubble.optimize.offload import Offload, eased, tighter
from debubble.optimize.portfolio import SMALL, Pool, begin, listed, pairs, published, search
from debubble.optimize.problem import TOLERANCE, Problem
from debubble.optimize.stop import Stop

KEEP, RECOMPUTE, OFFLOAD = 0, 1, 2
"""What a stage does with its activations; the last two may come together."""

Set: TypeAlias = tuple[int, ...]
"""What each stage does."""

Ways: TypeAlias = Sequence[tuple[int, ...]]
"""What each stage may do, the plainest first."""

Recompute: TypeAlias = Stages | None
"""``"none"``, ``"full"``, ``"free"``, or the stages that recompute."""

LOOKS = 48
"""Sets that are looked at per placement, at most."""

LOOK_EFFORT = 0.1
"""Effort of list scheduling for one look."""

DEEP = 2
"""Sets besides none and all that are searched like a problem of their own."""

MOST_DEEP = 16
"""The same for small problems whose optimum is still open."""

NODES = 64
"""Sets of sets whose bound is worked out for one placement, where problems are small."""

NODE_WORK = 200_000
"""Nodes times actions, at most; at least one stage is decided."""

RANK_STEPS = 8
"""Groups of first and last ranks that are tried."""


def ways_of(recompute: Recompute, offload: Offload, stages: int) -> Ways:
    """What every stage may do.

    Raises
    ------
    ParameterError
        When a stage or a choice does not exist.
    """
    options: list[list[tuple[int, ...]]] = []
    for name, asked, flag in (("recompute", recompute, RECOMPUTE), ("offload", offload, OFFLOAD)):
        if asked is None or (isinstance(asked, str) and asked == "none"):
            options.append([(KEEP,)] * stages)
        elif isinstance(asked, str) and asked == "free":
            options.append([(KEEP, flag)] * stages)
        elif isinstance(asked, str) and (name, asked) != ("recompute", "full"):
            full = "full, " if name == "recompute" else ""
            raise ParameterError(f"{name} is '{asked}'; give none, {full}free, or stages: [0, 1]")
        else:
            chosen = chosen_stages(asked, stages, name)
            options.append([(flag,) if here else (KEEP,) for here in chosen])
    found = []
    for one, other in zip(*options, strict=True):
        both = len(one) > 1 and len(other) > 1
        found.append(tuple(a | b for b in other for a in one if not (both and a and b)))
    return found


def same_for_all(ways: Ways) -> list[Set]:
    """Choices in which all stages do the same, as far as they are free."""
    most = max(map(len, ways))
    return [tuple(way[min(k, len(way) - 1)] for way in ways) for k in range(most)]


def with_set(problem: Problem, chosen: Sequence[int]) -> Problem:
    """The problem with another choice for its stages."""
    recompute, offload = (
        tuple(bool(way & flag) for way in chosen) for flag in (RECOMPUTE, OFFLOAD)
    )
    return replace(
        problem, recompute=recompute if any(recompute) else (),
        offload=offload if any(offload) else (),
    )  # fmt: skip


def with_way_out(error: ParameterError, problem: Problem) -> ParameterError:
    """A refusal of a memory limit, with the one that works where more stages recompute."""
    full = with_set(problem, [way | RECOMPUTE for way in set_of(problem)])
    least = float(eased(full).smallest.max())
    if least >= float(eased(problem).smallest.max()) * (1 - TOLERANCE):
        return error
    return ParameterError(f"{error}, or {least:.12g} with recompute")


def set_of(problem: Problem) -> Set:
    """What the stages of a problem do."""
    nothing = (False,) * problem.stages
    both = zip(problem.recompute or nothing, problem.offload or nothing, strict=True)
    return tuple(RECOMPUTE * a + OFFLOAD * b for a, b in both)


def choice_of(schedule: Schedule) -> Set:
    """What the stages of a schedule do."""
    kinds, stages = kinds_of(schedule.actions), stages_of(schedule.actions)
    chosen = np.zeros(schedule.stages, dtype=np.int64)
    for kind, flag in ((Kind.R, RECOMPUTE), (Kind.OFFLOAD, OFFLOAD)):
        chosen[np.unique(stages[kinds == kind])] |= flag
    return tuple(chosen.tolist())


def relaxation(problem: Problem, decided: Sequence[int | None], ways: Ways) -> Problem:
    """What no choice is faster than that agrees with what is decided; None leaves a stage open."""
    duration = problem.table.duration.copy()
    spared = [
        way is None and not all(some & RECOMPUTE for some in open_to)
        for way, open_to in zip(decided, ways, strict=True)
    ]
    duration[Kind.R, spared] = 0.0
    chosen = [
        reduce(or_, open_to) if way is None else way
        for way, open_to in zip(decided, ways, strict=True)
    ]
    table = replace(problem.table, duration=duration)
    return eased(with_set(replace(problem, table=table), chosen))


def fits(problem: Problem) -> bool:
    """Whether there is any order within the limits, if copies take no time."""
    return bool(np.all(eased(problem).smallest <= problem.roof))


def bound_of_all(
    problem: Problem, ways: Ways, best: float, known: dict[Set, float], nodes: int
) -> tuple[float, Set | None]:
    """A bound for all choices, and the one it belongs to if that is a single one.

    Parameters
    ----------
    problem
        Placement, times and limits; what its stages do does not matter.
    ways
        What every stage may do.
    best
        Makespan that is already reached: choices that cannot be faster are left out.
    known
        Bounds that were proven for single choices.
    nodes
        How many partial decisions are looked at.
    """
    number = count()
    rank_by_rank = np.argsort(problem.homes, kind="stable").tolist()
    open_sets: list[tuple[float, int, tuple[int | None, ...]]] = []

    def add(decided: tuple[int | None, ...], least: float) -> None:
        easy = relaxation(problem, decided, ways)
        if not fits(easy):
            return
        bound = max(least, lower_bound(relaxed(easy)), known.get(_whole(decided), 0.0))
        if bound < best * (1 - TOLERANCE):
            heapq.heappush(open_sets, (bound, -next(number), decided))

    add(tuple(way[0] if len(way) == 1 else None for way in ways), 0.0)
    while open_sets:
        bound, _, decided = open_sets[0]
        if None not in decided:
            return bound, _whole(decided)
        if nodes <= 0:
            return bound, None
        heapq.heappop(open_sets)
        stage = next(stage for stage in rank_by_rank if decided[stage] is None)
        for way in reversed(ways[stage]):
            add((*decided[:stage], way, *decided[stage + 1 :]), bound)
            nodes -= 1
    return best, None


def _whole(decided: tuple[int | None, ...]) -> Set:
    """A choice for all stages; empty while some are open."""
    return () if None in decided else tuple(way for way in decided if way is not None)


def families(problem: Problem, ways: Ways) -> list[Set]:
    """Choices to begin with: the first chunks of the first or last ranks, of all of them first."""
    homes, ranks = problem.homes, problem.ranks
    chunk = np.array([int(np.count_nonzero(homes[:s] == homes[s])) for s in range(len(homes))])
    steps = np.unique(np.linspace(1, ranks, min(RANK_STEPS, ranks)).astype(int))[::-1]
    plain, *others = (np.array(chosen) for chosen in same_for_all(ways))
    found: dict[Set, None] = {}
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
    """The fewest first stages of every rank that must do other things for a microbatch to fit."""
    chosen = np.zeros(problem.stages, dtype=bool)
    for stage in range(problem.stages):
        asked = with_set(problem, np.where(chosen, other, plain).tolist())
        short = eased(asked).smallest > problem.roof
        if not short.any():
            break
        chosen[stage] = short[problem.homes[stage]]
    return chosen


class SetSearch:
    """The search for what every stage does.

    Parameters
    ----------
    pools
        Where all stages do the same, for every placement, as far as they fit; more are added.
    choices
        What may be chosen: `recompute` and `offload` as in :func:`ways_of`.
    new_pool
        Makes a pool.
    stop
        Ends everything.
    """

    def __init__(
        self,
        pools: list[Pool],
        choices: tuple[Recompute, Offload],
        new_pool: Callable[[Problem], Pool],
        stop: Stop,
    ) -> None:
        self.pools = pools
        self.stop = stop
        roots = {pool.problem.placement.table: pool.problem for pool in pools}.values()
        self.roots = [(root, ways_of(*choices, root.stages)) for root in roots]
        self._new_pool = new_pool
        self._published: dict[object, list[tuple[str, list[Program]]]] = {}
        self.floor = min(bound_of_all(*root, float("inf"), {}, 0)[0] for root in self.roots)

    @property
    def makespan(self) -> float:
        """Of the best order."""
        return min(pool.makespan for pool in self.pools)

    @property
    def done(self) -> bool:
        """Whether no choice has anything better."""
        return self.makespan <= self.floor * (1 + TOLERANCE)

    def pool(self, problem: Problem) -> Pool:
        """The pool of a problem, a new one if there is none."""
        for pool in self.pools:
            same = pool.problem.placement.table == problem.placement.table
            if same and set_of(pool.problem) == set_of(problem):
                return pool
        pool = self._new_pool(problem)
        self.pools.append(pool)
        return pool

    def search(self, effort: float, seed: int, workers: int) -> None:
        """Look at many choices, then into the most promising, and on where small ones are open."""
        for pool in self.pools:
            if not (self.stop() and np.isfinite(self.makespan)):
                self._begin(pool)
        if self.stop():
            return
        self._prove()
        groups: list[list[Pool]] = []
        looked: list[tuple[float, int, Problem, list[Program]]] = []
        for root, ways in self.roots:
            mine = [pool for pool in self.pools if pool.problem.placement == root.placement]
            for number, chosen in enumerate(same_for_all(ways)):
                groups += [[] for _ in range(number + 1 - len(groups))]
                groups[number] += [pool for pool in mine if set_of(pool.problem) == chosen]
            if not self.done and not self.stop():
                looked += self._look(root, ways, mine, effort, len(looked))
        for _, _, problem, order in sorted(looked)[:DEEP]:
            groups.append([self.pool(problem)])
            self._begin(groups[-1][0], order)
        groups = [group for group in groups if group]
        groups.sort(key=lambda group: min(pool.makespan for pool in group))
        while not self.done and not self.stop():
            groups = [group for group in groups if any(map(self._open, group))]
            if not groups:
                break
            seconds = self.stop.left / len(groups)
            self._dig(groups.pop(0), seconds, effort, seed, workers)
        for _ in range(int(MOST_DEEP * min(effort, 1.0))):
            lowest = self._prove()
            if lowest is None or pairs(lowest) > SMALL or self.done or self.stop():
                break
            # What copies cost no bound says: there is nothing to close.
            if lowest.offload:
                break
            pool = self.pool(lowest)
            if not pool.programs:
                self._begin(pool)
            before = pool.bound
            self._dig([pool], self.stop.left, effort, seed, workers)
            if pool.bound <= before:
                break
        self._prove()

    def _open(self, pool: Pool) -> bool:
        """Whether a pool can hold something better than there is."""
        return pool.bound < self.makespan * (1 - TOLERANCE)

    def _begin(self, pool: Pool, order: list[Program] | None = None) -> None:
        key = pool.problem.placement.table
        if key not in self._published:
            copies = any(OFFLOAD in way for _, ways in self.roots for way in ways)
            self._published[key] = list(published(pool.problem, copies))
        if order is not None:
            pool.offer(order, "list scheduling")
        begin(pool, self._published[key])

    def _look(
        self, root: Problem, ways: Ways, pools: list[Pool], effort: float, number: int
    ) -> Iterable[tuple[float, int, Problem, list[Program]]]:
        """Choices that differ between stages, with what list scheduling makes of them."""
        left = int(np.clip(LOOKS * effort, 4, LOOKS))
        seen = {set_of(pool.problem): (pool.makespan, pool.programs) for pool in pools}
        known = set(seen)
        ahead = families(root, ways)
        while ahead and left > 0 and not self.stop():
            for chosen in ahead:
                if left <= 0 or self.stop():
                    break
                if chosen in seen:
                    continue
                problem = with_set(root, chosen)
                seen[chosen] = (float("inf"), [])
                if not fits(problem):
                    continue
                left -= 1
                scratch = Pool(problem, Stop())
                if scratch.bound < self.makespan * (1 - TOLERANCE):
                    for tight in tighter(problem):
                        scratch.offer(listed(tight, (), LOOK_EFFORT), "")
                    seen[chosen] = (scratch.makespan, scratch.programs)
            best = min(seen, key=lambda chosen: seen[chosen][0])
            ahead = [
                (*best[:stage], way, *best[stage + 1 :])
                for stage in range(root.stages)
                for way in ways[stage]
            ]
            ahead = [chosen for chosen in ahead if chosen not in seen]
        return [
            (makespan, number + index, with_set(root, chosen), order)
            for index, (chosen, (makespan, order)) in enumerate(seen.items())
            if chosen not in known and order
        ]

    def _dig(
        self, group: list[Pool], seconds: float, effort: float, seed: int, workers: int
    ) -> None:
        """Search the most promising placement of a group, and on while one is solved."""
        for pool in sorted(group, key=lambda pool: pool.makespan):
            if self.stop():
                return
            if self._open(pool):
                pool.stop = Stop(seconds, self.stop)
                search(pool, effort=effort, seed=seed, workers=workers)
            if not pool.done:
                return

    def _prove(self) -> Problem | None:
        """Raise the bound of all choices; the problem it belongs to if that is a single one."""
        bounds: list[tuple[float, int, Problem | None]] = []
        for index, (root, ways) in enumerate(self.roots):
            known = {
                set_of(pool.problem): pool.bound
                for pool in self.pools
                if pool.problem.placement.table == root.placement.table
            }
            nodes = int(np.clip(NODE_WORK // root.size, 2, NODES))
            bound, chosen = bound_of_all(root, ways, self.makespan, known, nodes)
            bounds.append((bound, index, None if chosen is None else with_set(root, chosen)))
        bound, _, problem = min(bounds)
        self.floor = max(self.floor, min(bound, self.makespan))
        return problem
