"""What is tried, in which order and for how long.

Every candidate, wherever it comes from, is measured by the engine in the problem's own transfer
mode; the best that fits into memory is kept. Published schedules on the same placement and the list
scheduler come first. If they do not meet the lower bound,

* small problems are refined and then handed to the exact solver with the rest of the time;
* others are refined, while patterns are sought in parallel: for one microbatch, then for two; each
  is unrolled, its ends are repaired, and its middle is stretched. Where there are many
  microbatches, an order of few is refined, and what repeats in it is stretched. The best of all is
  refined once more.

Without a time limit the amount of work is fixed. What each search finds then depends only on the
problem and the seed, except where CP-SAT runs with two workers that exchange what they find.

Searches think in overlapped transfers, but for the exact solver, and in split or fused backwards
throughout. Under the other modes their candidates are measured as they come; a backward that is
faster fused is fused wherever that helps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from debubble.core.actions import (
    COPY_KINDS,
    PAIR_MASK,
    PAIR_SHIFT,
    Kind,
    Program,
    kinds_of,
    stages_of,
)
from debubble.core.errors import DebubbleError
from debubble.core.schedule import Schedule
from debubble.engine.graph import MEETING
from debubble.optimize.backward import alternatives, fusable, relaxed, separate
from debubble.optimize.bounds import lower_bound
from debubble.optimize.offload import COPIES, eased, schedules, tighter
from debubble.optimize.pattern import find_pattern
from debubble.optimize.problem import TOLERANCE, Problem
from debubble.optimize.refine import TEMPERATURES, refine
from debubble.optimize.stop import Stop
from debubble.optimize.unroll import (
    PERIODS,
    few_microbatches,
    middle_period,
    repeatable,
    stretched,
)
from debubble.schedules import _greedy
from debubble.schedules.registry import entries, make

SMALL = 5_000
"""Pairs of actions whose order the exact solver decides, at most, to be used at once."""

SMALL_ROUNDS, ROUNDS, POLISH_ROUNDS = 4, 6, 2
"""Rounds of annealing without a time limit: before the exact solver, else, and at the end."""

TIGHT_ROUNDS = 1
"""Rounds of annealing for each room that is left for copies under way."""

COPIED_SHARE = 0.2
"""Share of the work of the exact solver where it does not know of the problem's copies."""

WIDTHS = (1, 2)
"""Microbatches per period of the patterns that are sought, in this order, up to the effort."""

LARGEST_POLISHED = 200_000
"""Actions up to which a whole order is annealed."""

FEW_MORE = 8
"""Microbatches beyond 2p on which orders of many are annealed."""

PATTERN_SHARE = 0.35
"""Share of its time limit for finding one pattern."""

MIXES = 6
"""How often single backwards are fused or split, and the rest annealed, at most."""

CHANGES = 2000
"""Backwards that are fused or split each time, at most."""

MIXED = ", fused in part"

POLISH_SHARE = 0.15
"""Share of the time limit for annealing the best once more."""

LATE_EFFORT = 0.1
"""Effort of list scheduling where it is only there to have any order in the end."""

EXACT_WORK = 60.0
"""Work of the exact solver, in its own unit of about a second."""

MEETING_SHARE = 0.2
"""Share of it with transfers for which ranks meet: what the solver knows of them is not all."""

PATTERN_WORK = 0.02
"""Solver work per period that is tried, per stage and microbatch."""

LARGEST_PATTERN = 256
"""Stages times microbatches of a pattern beyond which there is no more work for it."""

LONGEST_WORK = 10.0
"""How many times as much there is at most when there is a time limit."""

Report: TypeAlias = Callable[[float, float, str], None]
"""Called with the best makespan, the lower bound and what found it."""


class Pool:
    """The best order so far, offered from any thread.

    Parameters
    ----------
    problem
        What is solved.
    stop
        Asked to stop when the best meets the bound.
    report
        Called with the name of every better one, and when the bound rises.
    """

    def __init__(
        self, problem: Problem, stop: Stop, report: Callable[[str], None] | None = None
    ) -> None:
        self.problem = problem
        self.model = eased(problem)
        self.stop = stop
        self.bound = lower_bound(relaxed(self.model))
        self.makespan = float("inf")
        self.programs: list[Program] = []
        self.schedule: Schedule | None = None
        self.found_by = ""
        self._report = report
        self._lock = threading.Lock()

    def offer(self, programs: Sequence[Program], found_by: str) -> bool:
        """Keep an order if it fits, runs, and is the fastest; whether it was kept."""
        kept = False
        for schedule in schedules(self.problem, programs):
            try:
                if not self.problem.fits(schedule):
                    continue
                makespan = self.problem.timeline(schedule).makespan
            except DebubbleError:
                # With blocking transfers an order that runs otherwise can be a deadlock.
                continue
            with self._lock:
                if not makespan < self.makespan * (1 - TOLERANCE):
                    continue
                self.makespan, self.programs, self.found_by = makespan, list(programs), found_by
                self.schedule = schedule
            kept = True
        if kept:
            self._tell()
        return kept

    def prove(self, bound: float) -> None:
        """Raise the lower bound."""
        with self._lock:
            self.bound = max(self.bound, min(bound, self.makespan))
        self._tell()

    @property
    def done(self) -> bool:
        """Whether nothing can be better."""
        return self.makespan <= self.bound * (1 + TOLERANCE)

    def _tell(self) -> None:
        if self._report is not None:
            self._report(self.found_by)
        if self.done:
            self.stop.ask()


def begin(pool: Pool, known: Iterable[tuple[str, list[Program]]] | None = None) -> None:
    """Fill a pool with published schedules and the list scheduler's.

    `known` are the published ones where the caller has them.
    """
    problem = pool.model
    if known is None:
        known = published(problem, bool(pool.problem.offload))
    for name, programs in known:
        if pool.stop():
            break
        pool.offer(separate(problem, programs), name)
        if problem.backward == "free":
            pool.offer(programs, name)
            pool.offer(separate(problem, programs, fusable(problem).tolist()), name)
    candidates = [separate(problem, pool.programs)] if pool.programs else []
    for tight in tighter(pool.problem):
        if pool.stop() and pool.programs:
            return
        effort = LATE_EFFORT if pool.stop() else 1.0
        pool.offer(listed(tight, candidates, effort), "list scheduling")
    assert pool.programs or pool.problem.offload, "one microbatch at a time always fits"


def search(pool: Pool, *, effort: float, seed: int, workers: int) -> None:
    """Look for better orders than a pool has, as long as the effort or the pool's stop allows.

    Parameters
    ----------
    pool
        Where candidates go; not empty, unless nothing was found that fits.
    effort
        Multiplies the fixed amount of work; infinite to use all the time there is.
    seed
        Of everything random.
    workers
        Threads.
    """
    problem, stop = pool.model, pool.stop
    if pool.done or stop():
        return
    if pool.problem.offload:
        _search_with_copies(pool, effort, seed)
    if not pool.programs:
        return
    if pairs(problem) <= SMALL:
        _refine(pool, pool.programs, SMALL_ROUNDS * min(effort, 2.0), seed, stop)
        if has_solver() and not pool.done and not stop():
            share = COPIED_SHARE if pool.problem.offload else 1.0
            _exactly(pool, share * effort, seed, workers)
    else:
        _search_in_lanes(pool, effort, seed, workers)
    if not pool.done and fusable(problem).any():
        twin = replace(problem, backward="fused")
        order = listed(twin, ())
        pool.offer(order, "list scheduling, fused")
        _refine(pool, order, SMALL_ROUNDS * min(effort, 2.0), seed, stop, twin)
        _mix(pool, effort, seed)


def _search_with_copies(pool: Pool, effort: float, seed: int) -> None:
    """Anneal orders that leave more and more room for copies under way."""
    for tight in tighter(pool.problem):
        if pool.done or pool.stop():
            return
        rounds = TIGHT_ROUNDS * min(effort, 2.0)
        share = Stop(pool.stop.left / (1 + len(COPIES)), pool.stop)
        _refine(pool, listed(tight, ()), rounds, seed, share, tight)


def _search_in_lanes(pool: Pool, effort: float, seed: int, workers: int) -> None:
    problem, stop, best = pool.model, pool.stop, pool.programs
    lanes: list[Callable[[Stop], None]] = []
    if has_solver():
        lanes.append(lambda stop: _patterns(pool, stop, effort, seed))
    if problem.microbatches >= 2 * (2 * problem.ranks + FEW_MORE + max(PERIODS)):
        lanes.append(lambda stop: _repeat(pool, stop, effort, seed))
    if problem.size <= LARGEST_POLISHED:
        lanes.append(lambda stop: _refine(pool, best, effort * ROUNDS, seed, stop))
    if not lanes:
        return
    seconds = stop.left * (1 - POLISH_SHARE) * min(1.0, workers / len(lanes))

    def run(lane: Callable[[Stop], None]) -> None:
        # A lane's time begins when it does.
        lane(Stop(seconds, stop))

    with ThreadPoolExecutor(workers) as threads:
        for done in [threads.submit(run, lane) for lane in lanes]:
            done.result()
    if not pool.done and not stop() and problem.size <= LARGEST_POLISHED:
        _refine(pool, pool.programs, effort * POLISH_ROUNDS, seed + 1, stop)


def _refine(
    pool: Pool,
    programs: Sequence[Program],
    rounds: float,
    seed: int,
    stop: Stop,
    problem: Problem | None = None,
) -> None:
    def found(better: list[Program]) -> None:
        pool.offer(better, "annealing")

    problem = problem or pool.model
    start = separate(problem, programs)
    refine(problem, start, stop, rounds, stop_at=pool.bound, seed=seed, found=found)


def _exactly(pool: Pool, effort: float, seed: int, workers: int) -> None:
    from debubble.optimize.exact import Model

    problem = pool.model
    # Where transfers meet, first as if they did not: that is sooner solved, and its bound holds.
    meeting = {"overlapped": 1 - MEETING_SHARE, problem.mode: MEETING_SHARE}
    for mode, share in (meeting if problem.mode in MEETING else {problem.mode: 1.0}).items():
        if pool.done or pool.stop():
            return
        known = separate(problem, pool.programs, fusable(problem).tolist())
        model = Model(replace(problem, mode=mode), known, pool.bound)
        with pool.stop.ending(model.stop):
            work = EXACT_WORK * effort * share
            if pool.stop():
                return
            seconds = pool.stop.left * (1.0 if mode == problem.mode else share)
            solution = model.solve(work, seconds, workers, seed)
        if solution.programs is not None:
            pool.offer(solution.programs, "exact solving")
        pool.prove(solution.bound)


def _patterns(pool: Pool, stop: Stop, effort: float, seed: int) -> None:
    problem = pool.model
    for width in WIDTHS:
        if stop() or problem.microbatches < 2 * width or width > max(effort, 1):
            break
        share = Stop(PATTERN_SHARE * stop.left, stop)
        size = min(problem.stages * width, LARGEST_PATTERN)
        work = PATTERN_WORK * min(effort, LONGEST_WORK) * size
        pattern = find_pattern(problem, width, share, work, seed)
        if pattern is None:
            continue
        name = f"a pattern of {width} microbatch{'es' if width > 1 else ''}"
        pool.offer(pattern.unroll(problem), name)
        few = few_microbatches(pattern, problem.microbatches)
        short = problem.shortened(few)
        fixed = middle_period(short, pattern) if few < problem.microbatches else None
        rounds = ROUNDS * min(effort, 2.0)
        order = refine(short, pattern.unroll(short), stop, rounds, seed=seed, fixed=fixed)
        if fixed is not None:
            times = (problem.microbatches - few) // width
            order = stretched(order, fixed, width, times)
        pool.offer(order, name)
        if pattern.tight:
            break


def _repeat(pool: Pool, stop: Stop, effort: float, seed: int) -> None:
    """Anneal an order of few microbatches, then repeat what repeats in it."""
    problem, m = pool.model, pool.model.microbatches
    few = 2 * problem.ranks + FEW_MORE
    few += (m - few) % max(PERIODS)
    short = problem.shortened(few)
    order = listed(short, [separate(short, programs) for _, programs in published(short)])
    cycles = 0
    while True:
        for width in PERIODS:
            for places in repeatable(short, order, width):
                if stop():
                    return
                times = (m - few) // width
                pool.offer(stretched(order, places, width, times), "repeating an annealed order")
        if cycles >= effort or stop():
            return
        order = refine(short, order, stop, len(TEMPERATURES), seed=seed + cycles)
        cycles += 1


def published(problem: Problem, copies: bool = False) -> Iterable[tuple[str, list[Program]]]:
    """Registered schedules for the same placement, the halves of pairs one after the other.

    With `copies` also orders that were made for copies to the host, without these.
    """
    placement = problem.placement
    for entry in entries().values():
        if entry.chunks not in (None, placement.chunks) or entry.weight_versions != 1:
            continue
        try:
            same = entry.placement(placement.ranks, placement.chunks).table == placement.table
            if not same:
                continue
            limits = problem.limits if np.isfinite(problem.limits).all() else None
            schedule = make(
                entry.name, ranks=placement.ranks, microbatches=problem.microbatches,
                chunks=None if entry.chunks else placement.chunks, costs=problem.table.costs,
                memory=None if limits is None else limits.tolist(),
            )  # fmt: skip
        except DebubbleError:
            continue
        programs = [schedule.program(rank) for rank in range(schedule.ranks)]
        if copies:
            programs = [program[~np.isin(kinds_of(program), COPY_KINDS)] for program in programs]
        if schedule.slices == 1 and not np.any(kinds_of(np.concatenate(programs)) > Kind.B):
            yield entry.name, [program & ~(PAIR_MASK << PAIR_SHIFT) for program in programs]


def listed(
    problem: Problem, candidates: Sequence[Sequence[Program]], effort: float = 1.0
) -> list[Program]:
    """The list scheduler's order."""
    table = problem.table
    if problem.fused:
        duration = table.duration.copy()
        duration[Kind.I], duration[Kind.W] = duration[Kind.B], 0.0
        table = replace(table, duration=duration, kept=np.zeros_like(table.kept))
        candidates = ()
    limits = np.minimum(problem.limits, 4.0 * problem.microbatches * problem.filled.max() + 1.0)
    order = _greedy.schedule(
        problem.placement, table, problem.microbatches, limits,
        recompute=problem.recomputed if problem.recompute else None, published=candidates,
        effort=effort,
    )  # fmt: skip
    return separate(problem, order)


def _mix(pool: Pool, effort: float, seed: int) -> None:
    """Fuse or split single backwards where that helps, and anneal the rest around them."""
    problem = pool.model
    stages = fusable(problem)
    for turn in range(max(1, round(MIXES * min(effort, 1.0)))):
        before = pool.makespan
        left = max(1, round(CHANGES * effort)) if np.isfinite(effort) else None
        backwards = np.concatenate(pool.programs)
        backwards = backwards[
            np.isin(kinds_of(backwards), (Kind.I, Kind.B)) & stages[stages_of(backwards)]
        ]
        for which in np.random.default_rng(seed + turn).permutation(backwards)[:left]:
            rank = problem.homes[stages_of(which)]
            for changed in alternatives(pool.programs[rank], which):
                if pool.done or pool.stop():
                    return
                programs = [*pool.programs[:rank], changed, *pool.programs[rank + 1 :]]
                if pool.offer(programs, f"{pool.found_by.removesuffix(MIXED)}{MIXED}"):
                    break
        order = refine(problem, pool.programs, pool.stop, 2, stop_at=pool.bound, seed=seed + turn)
        pool.offer(order, "annealing")
        if pool.makespan >= before * (1 - TOLERANCE):
            return


def pairs(problem: Problem) -> int:
    """How many pairs of actions the exact solver has to order."""
    chains = np.bincount(problem.homes, minlength=problem.ranks) * len(problem.kinds)
    return int((chains * (chains - 1) // 2).sum()) * problem.microbatches**2 // 2


def has_solver() -> bool:
    """Whether OR-Tools is installed."""
    from importlib.util import find_spec

    return find_spec("ortools") is not None


def solver_name() -> str:
    """The exact solver with its version; empty where there is none."""
    from importlib.metadata import version

    return f"OR-Tools {version('ortools')}" if has_solver() else ""
