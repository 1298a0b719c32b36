"""The public entry: a request becomes problems, and their best outcome a :class:`Result`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from debubble.core.cost_table import static_memory
from debubble.core.costs import Costs
from debubble.core.errors import ParameterError
from debubble.core.given_layers import Given
from debubble.core.runtimes import RECOMPUTES_LATE, has_rule
from debubble.engine.graph import P2PMode
from debubble.engine.jitter import Jitter
from debubble.engine.timeline import Timeline, evaluate_graph
from debubble.listing import TOLERANCE
from debubble.optimize.cache import CacheEntry, read_entry, write_entry
from debubble.optimize.final_check import check_result
from debubble.optimize.layer_split.space import Cuts
from debubble.optimize.lengths.search import entering, search_lengths, without_equal_lengths
from debubble.optimize.problem import Backward, Problem
from debubble.optimize.programs.list_scheduling import list_programs
from debubble.optimize.programs.offload import (
    Offload,
    is_none,
    with_copies_placed,
    with_room_for_copies,
)
from debubble.optimize.programs.published import compare_with_published
from debubble.optimize.request import Budget, Outcome, Request, Shape
from debubble.optimize.result import Result
from debubble.optimize.robust import optimize_robust
from debubble.optimize.stage_choices.choices import Recompute
from debubble.optimize.stage_choices.space import Choices
from debubble.optimize.stop import Stop, WorkLimit, run_heard
from debubble.optimize.strategies import solver_name
from debubble.optimize.variants import Report, Space, Variants

AFTER_CTRL_C, AFTER_LIMIT = 0.3, 0.1
"""Seconds for making published schedules to compare with, and their share of a time limit."""


def optimize(
    *,
    ranks: int,
    microbatches: int,
    chunks: int | Sequence[int] | None = None,
    costs: Costs | None = None,
    layers: Given | None = None,
    memory: float | Sequence[float] | None = None,
    placement: Shape = "any",
    backward: Backward = "free",
    recompute: Recompute = "none",
    offload: Offload = "none",
    p2p_mode: P2PMode = "overlapped",
    carry: str | Iterable[Sequence[int]] | None = None,
    time_limit: float | None = None,
    effort: float = 1.0,
    seed: int = 0,
    workers: int = 2,
    cache: bool = True,
    published: bool = True,
    report: Report | None = None,
    until: Callable[[], bool] | None = None,
    robust: str | Jitter | None = None,
) -> Result:
    """Find the fastest schedule within the memory of every rank, and a bound for any.

    Without OR-Tools nothing is solved exactly; annealing and the bounds that need no solver remain.

    Parameters
    ----------
    ranks, microbatches
        Ranks p and microbatches m.
    chunks
        Stages per rank v, or several to choose from. The default is 1; with costs per rank, where
        every v is the same model, 1 and 2.
    costs
        Costs of actions; the default is one unit of time each for F, I and W. If microbatches
        differ in length, schedules are searched for the average one. Then microbatches are assigned
        to the places in them: all assignments of up to 7 microbatches are tried, else swaps of two.
    layers
        Layers to be cut into the stages; the search chooses the number on every stage. That is at
        least one, but for a first stage with an embedding and a last one with a head. A number of
        equal ones, of which `costs` are those of an even cut, one number each; or a mapping with
        the costs of every layer in place of `costs`, as in a cost file's section ``layers``:
        ``{"F": [1, 1, 2], "B": [2, 2, 4], "head": {"F": 0.5, "B": 1}}``. What only the first or
        last stage does is on top. None for stages as they are.
    memory
        Limit for the activations of every rank, or one per rank, in activation units or in the unit
        of ``costs.activation``; None for no limit.
    placement
        ``"wave"`` (two chunks: a V), ``"loop"``, ``"any"``, which searches where published and
        list scheduling are faster, a :class:`~debubble.Placement`, or the rank of every stage.
    backward
        ``"split"`` into I and W, ``"fused"``, or ``"free"``: whichever is faster, action by action.
    recompute
        Stages that recompute their forwards, right before their backwards or further ahead where
        that is faster and memory allows it: ``"none"``, ``"full"``, their numbers, or ``"free"``
        for the best stages, which takes several times as long.
    offload
        Stages whose activations wait for their backwards on the host: ``"none"``, their numbers,
        or ``"free"``. Needs ``costs.host_bandwidth``. Activations that come back too soon to be
        worth a copy stay. If both are free, a stage does one of them or neither.
    p2p_mode
        Mode of transfers between ranks, see :func:`debubble.simulate`.
    carry
        Skip connections of every schedule, ``"0:5,1:4"`` or pairs; for one number of chunks without
        `layers`. That they keep other transfers waiting is in makespans, and not in the bound.
    time_limit
        Seconds to use. Left out, a fixed amount of work: about ten seconds on two cores for 8
        ranks with 32 microbatches.
    effort
        Multiplies the fixed amount of work.
    seed
        Seed of random numbers: with one, annealing without a time limit is the same everywhere.
    workers
        Number of threads.
    cache
        True to look for a result on disk, and to keep this one. One without OR-Tools, with another
        budget or by another version is only the start of this search.
    published
        True to simulate the published schedules for comparison.
    report
        Callback that gets makespan, lower bound and finder whenever one of them improves.
    until
        Function called several times per second. If it is true, the search ends as by Ctrl-C.
    robust
        Jitter of every step, ``"normal:3%"`` or a :class:`~debubble.Jitter`. The schedule with the
        least p95 of the step time is returned, with its ``spread``.

    Returns
    -------
    Result
        After Ctrl-C (KeyboardInterrupt) the best so far, with the status ``"interrupted"``.

    Raises
    ------
    ParameterError
        When a parameter cannot be used; for a memory limit that is too small the message names the
        smallest that works.

    Examples
    --------
    >>> import debubble as db
    >>> result = db.optimize(ranks=2, chunks=2, microbatches=2, memory=2, cache=False)
    >>> result.makespan, result.lower_bound, result.status
    (13.0, 13.0, 'optimal')
    """
    budget = Budget(time_limit, effort, seed, workers, cache, report)
    costs = without_equal_lengths(costs or Costs(), microbatches)
    request = Request(
        ranks, microbatches, chunks, costs, layers, memory, placement, backward, recompute, offload,
        p2p_mode, carry,
    )  # fmt: skip

    def run() -> Result:
        if robust is None:
            return _result(request, budget, published)
        return optimize_robust(_result, robust, request, budget, published)

    return check_result(request, run_heard(run, budget.stop, until))


def _result(request: Request, budget: Budget, published: bool) -> Result:
    """Return the fastest schedule with published ones to compare."""
    lengths = request.costs.microbatch is not None
    found = search_lengths(search, request, budget) if lengths else search(request, budget)
    if has_rule(request.costs, RECOMPUTES_LATE):
        found = _with_late_recomputes(found)
    problem, schedule = found.problem, found.schedule
    timeline = _with_static(found.timeline, request, problem)
    compared = None
    if published:
        soon = _time_to_compare(budget)
        compared = compare_with_published(
            timeline if problem.layers else schedule, request.costs, request.memory,
            request.p2p_mode, recompute=request.recompute, copies=not is_none(request.offload),
            layers=request.model, stop=soon,
        )  # fmt: skip
    return Result(
        schedule, timeline, timeline.makespan, found.bound, found.status, found.seconds,
        found.found_by, found.cached, compared, problem.cut,
        timeline.table.costs if problem.layers else None, found.why,
        entering(schedule) if lengths else (),
    )  # fmt: skip


def _with_late_recomputes(found: Outcome) -> Outcome:
    """Return an outcome as its runtime runs it: recomputes wait for gradients.

    If stages or layers are free, the search lets recomputes begin earlier.
    """
    timeline = evaluate_graph(found.timeline.graph, found.timeline.table.costs)
    met = timeline.makespan <= found.bound * (1 + TOLERANCE)
    status = "optimal" if met else "feasible"
    if found.status == "interrupted":
        status = found.status
    return replace(found, timeline=timeline, schedule=timeline.schedule, status=status)


def _time_to_compare(budget: Budget) -> Stop:
    """Return the time for published schedules after a search; no end without a limit."""
    if budget.stop.asked:
        return Stop(AFTER_CTRL_C)
    limit = budget.time_limit
    seconds = math.inf if limit is None else max(AFTER_LIMIT * limit, AFTER_CTRL_C)
    return Stop(seconds, budget.stop)


def search(request: Request, budget: Budget) -> Outcome:
    """Find the fastest order of microbatches that are alike, over all variants of the problems."""
    began, time_limit, effort = time.monotonic(), budget.time_limit, budget.effort
    problems = request.problems
    effort_or_time = f"{time_limit:g} s" if time_limit else f"effort {effort:g}"
    spent = f"{effort_or_time}, seed {budget.seed}, {budget.workers} workers"
    work = WorkLimit(math.inf if time_limit else effort, budget.seed, budget.workers)
    stop = Stop(math.inf if time_limit is None else time_limit, budget.stop, work)
    choices = {"recompute": request.recompute, "offload": request.offload}
    free = [name for name, how in choices.items() if isinstance(how, str) and how == "free"]
    variants = Variants(_spaces(request), stop, budget.report)
    solver = solver_name()
    known = read_entry(problems, free) if budget.cache else None
    if known is not None:
        variants.take(known)
    fresh = known is None or not (variants.done or known.answers(spent, solver))
    if fresh:
        variants.run()
    best, bound = variants.best, variants.bound
    schedule = best.schedule
    if schedule is None:
        raise _no_room(best.problem)
    seconds, found_by = time.monotonic() - began, best.found_by
    if known is not None and not fresh:
        seconds, found_by = known.seconds, known.found_by
    status = "optimal" if variants.done else "interrupted" if budget.stop.asked else "feasible"
    why = _reason(variants, known)
    if budget.cache and fresh and status != "interrupted":
        entry = CacheEntry(
            best.programs, bound, spent, seconds, found_by, solver, cut=best.problem.cut, why=why
        )
        write_entry(problems, schedule, entry, free)
    timeline = best.problem.timeline(schedule)
    return Outcome(
        best.problem, schedule, timeline, bound, status, seconds, found_by, not fresh, why
    )


def _reason(search: Variants, known: CacheEntry | None) -> str:
    """Explain why no schedule is faster than the bound, if a variant or an earlier search does."""
    bound = search.bound
    for each in search.incumbents:
        if abs(each.bound - bound) <= TOLERANCE * bound:
            place = f"placement {each.problem.placement.name}: "
            return f"{place if len(search.spaces) > 1 else ''}{each.why}"
    same = known is not None and known.current and known.bound >= bound * (1 - TOLERANCE)
    return known.why if known is not None and same else ""


def _with_static(timeline: Timeline, request: Request, problem: Problem) -> Timeline:
    """Return a timeline of activations alone with the static memory of ranks added."""
    costs = request.costs if request.model is None else request.model.costs
    static = static_memory(costs, timeline.schedule.ranks)
    whole = replace(timeline.table.costs, static=costs.static)
    if request.model is not None and request.model.held:
        static = static + request.model.held_on_ranks(problem.placement, problem.cut)
        whole = replace(whole, static=static.tolist())
    return replace(timeline, table=replace(timeline.table, static=static, costs=whole))


def _spaces(request: Request) -> list[Space]:
    """Return the variants over every placement: choices, or cuts with choices over each."""
    by_placement: dict[object, list[Problem]] = {}
    for problem in request.problems:
        by_placement.setdefault(problem.placement.table, []).append(problem)
    space = Choices if request.layers is None else Cuts
    return [space(those, request.ways(those[0].stages)) for those in by_placement.values()]


def _no_room(problem: Problem) -> ParameterError:
    """Return the error that no schedule has room for its copies, with a limit that works."""
    least = min(
        float(problem.timeline(schedule).peak_activation.max())
        for tight in with_room_for_copies(problem)
        for schedule in with_copies_placed(problem, list_programs(tight, (), 0.1))
    )
    return ParameterError(
        "no order was found in which the copies under way fit into the memory; with "
        f"{least:.6g} one was; give that, fewer stages, or offload='free'"
    )
