"""Schedules for steps whose times vary: p95 of the step time in place of the makespan."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from debubble.analysis.compare import compare
from debubble.analysis.comparison import Comparison
from debubble.core.actions import COPY_KINDS, Program
from debubble.core.costs import Costs
from debubble.core.errors import DebubbleError
from debubble.core.schedule import Schedule
from debubble.engine.graph import compile_graph
from debubble.engine.jitter import Jitter
from debubble.engine.memory import memory_limits
from debubble.engine.timeline import Timeline, evaluate_graph
from debubble.engine.validate import has
from debubble.listing import TOLERANCE
from debubble.optimize.anneal.simulated_moves import move_actions
from debubble.optimize.final_check import not_offloaded, problem_of
from debubble.optimize.programs.membership import outside
from debubble.optimize.request import Budget, Request
from debubble.optimize.result import Result
from debubble.optimize.stage_choices.choices import choice_in
from debubble.optimize.stop import Stop, time_left

MOVES = 1500
"""Changes of the order that are tried."""

SAMPLES = 400
"""Most samples of every order that is tried."""

MORE_IN_TIME = 10
"""Times as many of them where the time is limited and not the work."""

FIRST, BEFORE_LAST = 0.6, 0.9
"""Shares of a time limit after which the search for the smallest makespan, and the changes of its
order, end; the rest is for the published schedules."""


def optimize_robust(
    search: Callable[[Request, Budget, bool], Result],
    robust: str | Jitter,
    request: Request,
    budget: Budget,
    published: bool,
) -> Result:
    """Find an order whose steps are fast under jitter: the least p95.

    The orders that the `search` for the smallest makespan finds and compares with are held against
    each other on the same random numbers, and the best is changed action by action as long as that
    helps. The reported step times come from other random numbers.
    """
    began = time.monotonic()
    jitter = robust if isinstance(robust, Jitter) else Jitter(robust)
    limit = budget.time_limit
    share = None if limit is None else FIRST * limit
    found = search(request, budget.within(share), published)
    judge = _Judge(found, replace(jitter, samples=min(jitter.samples, SAMPLES)), request)
    schedule, name = found.schedule, found.found_by
    if not budget.stop.asked:
        end = None if limit is None else BEFORE_LAST * limit
        moves = int(MOVES * budget.effort * (1 if limit is None else MORE_IN_TIME))
        until = Stop(time_left(end, began), budget.stop)
        schedule, name = _improved(found, request, judge, moves, until)
    chosen = judge.simulated(schedule)
    assert chosen is not None, "it was simulated before"
    timeline = replace(chosen, table=found.timeline.table)
    again = replace(jitter, seed=jitter.seed + 1)
    compared: Comparison | None = None
    if found.published is not None and not budget.stop.asked:
        others = [row for row in found.published.rows if row.schedule is not found.schedule]
        compared = compare(
            [timeline, *(row.timeline for row in others)], costs=timeline.table.costs,
            memory=found.published.memory, p2p_mode=request.p2p_mode, jitter=again,
            stop=Stop(time_left(limit, began), budget.stop),
        )  # fmt: skip
    met = timeline.makespan <= found.lower_bound * (1 + TOLERANCE)
    return replace(
        found, schedule=timeline.schedule, timeline=timeline, makespan=timeline.makespan,
        status="interrupted" if budget.stop.asked else found.status if met else "feasible",
        seconds=time.monotonic() - began, found_by=name, cached=False, published=compared,
        spread=timeline.jitter(again),
    )  # fmt: skip


class _Judge:
    """Simulations with the costs of a result, scored by their p95 under jitter."""

    def __init__(self, found: Result, jitter: Jitter, request: Request) -> None:
        self.costs: Costs = found.timeline.table.costs
        self.limits = memory_limits(request.memory, request.ranks)
        self.mode = request.p2p_mode
        self.jitter = jitter

    def simulated(self, schedule: Schedule) -> Timeline | None:
        """Return the timeline; None where it cannot run, or does not fit into the memory."""
        try:
            graph = compile_graph(schedule, self.mode, explain=False)
            timeline = evaluate_graph(graph, self.costs)
        except DebubbleError:
            return None
        if self.limits is not None and np.any(
            timeline.peak_activation > self.limits * (1 + TOLERANCE)
        ):
            return None
        return timeline

    def score(self, timeline: Timeline) -> float:
        """Return the p95 of the step time, and a little of the mean to tell equal ones apart."""
        spread = timeline.jitter(self.jitter)
        return spread.p95 + 1e-6 * spread.mean


def _candidates(found: Result, request: Request) -> Iterator[tuple[Schedule, str]]:
    """Yield published orders that the search could have found itself."""
    if found.published is None or found.layers:
        return
    own = request.problem(found.schedule.placement, (), choice_in(found.schedule))
    for row in found.published.rows:
        if row.schedule is found.schedule or outside(own, row.schedule):
            continue
        # Some activations to be offloaded may stay; the order decides whether all of them may.
        problem = problem_of(request, row.schedule, ())
        if problem is not None and not not_offloaded(problem, row.schedule):
            yield row.schedule, row.name


def _improved(
    result: Result, request: Request, judge: _Judge, moves: int, stop: Callable[[], bool]
) -> tuple[Schedule, str]:
    """Return the best order and its finder; single actions of it are moved until it is to stop."""
    best, name, score = result.schedule, result.found_by, judge.score(result.timeline)
    for schedule, label in _candidates(result, request):
        if stop():
            return best, name
        timeline = judge.simulated(schedule)
        if timeline is not None and (other := judge.score(timeline)) < score:
            best, name, score = schedule, label, other
    if has(best, COPY_KINDS):
        return best, name
    first, kept = best, [best]

    def evaluate(programs: list[Program]) -> float:
        timeline = judge.simulated(first.with_programs(programs))
        return np.inf if timeline is None else judge.score(timeline)

    def found(programs: list[Program]) -> None:
        kept.append(first.with_programs(programs))

    programs = [first.program(rank) for rank in range(first.ranks)]
    rng = np.random.default_rng(judge.jitter.seed)
    move_actions(programs, evaluate, moves, rng, stop, found)
    return kept[-1], f"{name}, changed for jitter" if len(kept) > 1 else name
