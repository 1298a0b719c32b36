"""List scheduling with copies to the host, by rules that a random search changes.

Time goes on from event to event, for all ranks together. When a rank is free it runs a backward
whose gradient and activation are there, else a forward that has room, else a W. A forward starts
when the action before it ends, its input arrives, or an OFFLOAD ends, which it then waits for
(:mod:`debubble.lowering.offload_waits`); else the rank goes on without it. Copies start when an
action or a copy ends: a RELOAD of what is among the next backwards, else an OFFLOAD of what is
chosen to be copied.

The rules are open: which microbatches are copied on every rank, how many backwards ahead
they come back, how many microbatches a rank has in flight at most, and before which forward it
runs a W. They are changed at random, a few at a time, and changes stay that are hardly slower.

Only for one stage on every rank. Orders are simulated and measured as always.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random

import numpy as np

from debubble.core.actions import COPY_KINDS, Kind, Program, pack
from debubble.core.kinds import WAIT_KINDS
from debubble.optimize.problem import Problem
from debubble.optimize.stop import Stop

OFFLOAD, RELOAD = COPY_KINDS
(WAIT,) = WAIT_KINDS

SHARES = ((1, 1), (1, 2), (2, 3), (1, 3), (3, 4), (0, 1))
"""First shares of copied microbatches."""

MOST_AHEAD = 2
"""Backwards ahead of its own at which an activation comes back, at most."""

WORSE, CHANCE = 0.003, 0.3
"""Largest loss of a change that is kept, relative to the makespan, and the chance of keeping it."""


@dataclass(frozen=True)
class CopyRules:
    """Rules of a pass; all lists have one entry for every rank, or rank and microbatch."""

    copied: list[list[bool]]
    ahead: list[int]
    in_flight: list[int]
    weight_first: list[list[bool]]


@dataclass
class Rank:
    """State of a rank during a pass."""

    arrived: list[int] = field(default_factory=list)
    in_flight: list[int] = field(default_factory=list)
    there: set[int] = field(default_factory=set)
    away: set[int] = field(default_factory=set)
    gradients: set[int] = field(default_factory=set)
    leaving: list[int] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)
    free: float = 0.0
    copying: float = 0.0
    held: float = 0.0
    forwards: int = 0
    placed: list[tuple[float, int, Kind, int]] = field(default_factory=list)


class Pass:
    """One pass over a problem by some rules; :attr:`makespan` is infinite where it gets stuck."""

    def __init__(self, problem: Problem, rules: CopyRules) -> None:
        self.problem, self.rules, S = problem, rules, problem.stages
        self.ranks = [Rank() for _ in range(S)]
        self.events: list[tuple[float, int, int, Kind | None, int, int]] = []
        self.rows = {kind: row for row, kind in enumerate(problem.kinds)}
        self.times = problem.pass_times.tolist()
        self.copy = [problem.table.copy(OFFLOAD, s, None) for s in range(S)]
        moved = np.where(problem.offload, problem.table.moved(problem.recomputed), 0.0)
        self.moved, self.limits = moved.tolist(), problem.limits_with_slack[problem.homes].tolist()
        self.taken, self.freed = problem.taken.tolist(), problem.freed.tolist()
        self.forward, self.backward = (
            link.tolist() for link in (problem.forward_link, problem.backward_link)
        )
        self.makespan, left = 0.0, S * problem.microbatches
        self.ranks[0].arrived = list(range(problem.microbatches))
        self._next(0, 0.0, True, None, None)
        while self.events:
            now, woken, ended, fresh = self.events[0][0], set[int](), set[int](), dict[int, int]()
            copied, gone = set[int](), dict[int, int]()
            while self.events and self.events[0][0] <= now:
                _, _, _, kind, s, b = heapq.heappop(self.events)
                woken.add(s)
                if kind is None:
                    self._arrive(s, b, fresh)
                elif kind in COPY_KINDS:
                    self._copied(kind, s, b)
                    copied.add(s)
                    if kind == OFFLOAD:
                        gone[s] = b
                else:
                    ended.add(s)
                    left -= self._end(kind, s, b, now)
            for s in ended | copied:
                self._copy(s, now)
            for s in woken:
                self._next(s, now, s in ended, fresh.get(s), gone.get(s))
            for s in ended:
                self._copy(s, now)
            self.makespan = max(self.makespan, now)
        if left:
            self.makespan = float("inf")

    def _later(self, time: float, turn: int, kind: Kind | None, s: int, b: int) -> None:
        heapq.heappush(self.events, (time, turn, len(self.events), kind, s, b))

    def _arrive(self, s: int, b: int, fresh: dict[int, int]) -> None:
        """Take a result from a neighbor: a gradient if the forward ran here, else an input."""
        rank = self.ranks[s]
        if b in rank.in_flight:
            rank.gradients.add(b)
        else:
            rank.arrived.append(b)
            fresh[s] = b

    def _copied(self, kind: Kind, s: int, b: int) -> None:
        rank = self.ranks[s]
        if kind == OFFLOAD:
            rank.held -= self.moved[s]
            rank.away.add(b)
        else:
            rank.there.add(b)

    def _end(self, kind: Kind, s: int, b: int, now: float) -> bool:
        """End an action; return whether its microbatch is done here."""
        rank, row = self.ranks[s], self.rows[kind]
        rank.held -= self.freed[row][s]
        if row == 0:
            if s + 1 < self.problem.stages:
                self._later(now + self.forward[s + 1], 1, None, s + 1, b)
            else:
                rank.gradients.add(b)
            if self.rules.copied[s][b] and self.moved[s]:
                rank.leaving.append(b)
        elif row == 1:
            if s:
                self._later(now + self.backward[s - 1], 1, None, s - 1, b)
            if not self.problem.fused:
                rank.weights.append(b)
        return row == len(self.problem.kinds) - 1

    def _copy(self, s: int, now: float) -> None:
        """Start a copy, if the stream is free and there is one to start."""
        rank, near = self.ranks[s], self.rules.ahead[s] + 1
        if rank.copying > now:
            return
        back = [b for b in rank.in_flight[:near] if b in rank.away]
        if back and rank.held + self.moved[s] <= self.limits[s]:
            kind, b = RELOAD, back[0]
            rank.away.discard(b)
            rank.held += self.moved[s]
        else:
            rank.leaving = [b for b in rank.leaving if b in rank.in_flight[near:]]
            if not rank.leaving:
                return
            kind, b = OFFLOAD, rank.leaving.pop(0)
            rank.there.discard(b)
        rank.copying = now + self.copy[s]
        rank.placed.append((now, 2, kind, b))
        self._later(rank.copying, 0, kind, s, b)

    def _next(self, s: int, now: float, ended: bool, fresh: int | None, gone: int | None) -> None:
        """Start an action, if the rank is free and there is one to start.

        That is when one ends, an input is fresh, or an activation is gone.
        """
        rank = self.ranks[s]
        if rank.free > now:
            return
        ready = [b for b in rank.in_flight if b in rank.gradients and b in rank.there]
        if ready:
            rank.in_flight.remove(ready[0])
            self._start(self.problem.kinds[1], s, ready[0], now)
        elif self._has_room(s, ended or gone is not None, fresh) and not (
            rank.weights and self.rules.weight_first[s][rank.forwards]
        ):
            b = rank.arrived.pop(0)
            if gone is not None and not ended and fresh != b:
                rank.placed.append((now, 1, WAIT, gone))
            rank.in_flight.append(b)
            rank.there.add(b)
            rank.forwards += 1
            self._start(self.problem.kinds[0], s, b, now)
        elif rank.weights:
            self._start(self.problem.kinds[2], s, rank.weights.pop(0), now)

    def _has_room(self, s: int, ended: bool, fresh: int | None) -> bool:
        """Return whether a forward may start, and leaves room for the next RELOAD."""
        rank, rules = self.ranks[s], self.rules
        if not rank.arrived or len(rank.in_flight) >= rules.in_flight[s]:
            return False
        near = rank.in_flight[: rules.ahead[s] + 1]
        back = self.moved[s] if any(b in rank.away for b in near) else 0.0
        fits = rank.held + self.taken[0][s] + back <= self.limits[s]
        return fits and (ended or fresh == rank.arrived[0])

    def _start(self, kind: Kind, s: int, b: int, now: float) -> None:
        rank, row = self.ranks[s], self.rows[kind]
        rank.held += self.taken[row][s]
        rank.free = now + self.times[row][s]
        rank.placed.append((rank.free, 0, kind, b))
        self._later(rank.free, 0, kind, s, b)

    def programs(self) -> list[Program]:
        """Return programs with every copy and wait after the last action that ended before it."""
        found: list[Program] = [np.zeros(0, dtype=np.int64)] * self.problem.ranks
        for s, rank in enumerate(self.ranks):
            parts = [pack(kind, s, b) for _, _, kind, b in sorted(rank.placed)]
            found[self.problem.homes[s]] = np.concatenate(parts)
        return found


def can_list(problem: Problem) -> bool:
    """Return whether activations may be copied, and every rank has one stage without recomputes."""
    one = problem.stages == problem.ranks == len(set(problem.homes.tolist()))
    return bool(problem.offload) and one and not problem.recomputed.any()


def orders_with_copies(problem: Problem, passes: int, stop: Stop) -> Iterator[list[Program]]:
    """Yield orders with copies, each faster than the one before; :func:`can_list` holds.

    A pass tries one set of rules.
    """
    random = Random(stop.work.seed)
    rules = random_rules(problem, random)
    best = known = float("inf")
    for _ in range(passes):
        if stop():
            return
        tried = (
            change_rules(problem, rules, random)
            if known < best * 2
            else random_rules(problem, random)
        )
        found = Pass(problem, tried)
        slack = WORSE * known if random.random() < CHANCE else 0.0
        if found.makespan <= known + slack or known == float("inf"):
            rules, known = tried, found.makespan
        if found.makespan < best:
            best = found.makespan
            yield found.programs()


def random_rules(problem: Problem, random: Random) -> CopyRules:
    """Return rules that are the same for all microbatches of a rank."""
    S, m = problem.stages, problem.microbatches
    copied = []
    for _ in range(S):
        part, whole = random.choice(SHARES)
        phase = random.randrange(whole)
        copied.append([(b + phase) * part // whole != (b + phase + 1) * part // whole
                       for b in range(m)])  # fmt: skip
    return CopyRules(
        copied, [random.randint(0, MOST_AHEAD) for _ in range(S)],
        [random.randint(1, min(m, 2 * S)) for _ in range(S)],
        [[random.random() < 0.25] * m for _ in range(S)],
    )  # fmt: skip


def change_rules(problem: Problem, rules: CopyRules, random: Random) -> CopyRules:
    """Return rules with up to three changes."""
    m = problem.microbatches
    for _ in range(random.randint(1, 3)):
        s, name = random.randrange(problem.stages), random.choice(list(vars(rules)))
        values = list(getattr(rules, name))
        if name == "ahead":
            values[s] = random.randint(0, MOST_AHEAD)
        elif name == "in_flight":
            values[s] = random.randint(1, min(m, 2 * problem.stages))
        else:
            b = random.randrange(m)
            values[s] = [*values[s][:b], not values[s][b], *values[s][b + 1 :]]
        rules = replace(rules, **{name: values})
    return rules
