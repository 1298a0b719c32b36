"""The public entry: what is asked for becomes problems, and their best result a :class:`Result`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from debubble.core.cost_table import static_memory
from debubble.core.costs import Costs
from debubble.core.errors import ParameterError, did_you_mean
from debubble.core.placement import Placement
from debubble.core.runtimes import (
    RECOMPUTED_WHOLE,
    RECOMPUTES_LATE,
    RUNTIMES,
    has_rule,
    recompute_in_backward,
)
from debubble.engine.graph import P2P_MODES, P2PMode
from debubble.engine.jitter import Jitter
from debubble.engine.memory import beside_static, memory_limits
from debubble.engine.timeline import Timeline, evaluate_graph
from debubble.listing import TOLERANCE
from debubble.optimize.bounding import reason
from debubble.optimize.cache import Entry, read_entry, write_entry
from debubble.optimize.choices import (
    Recompute,
    same_for_all,
    ways_of,
    with_choice,
    with_way_out,
)
from debubble.optimize.cuts import Cuts
from debubble.optimize.cutting import Cutting, smallest_limit
from debubble.optimize.layers import Given, even_cut, layers_of
from debubble.optimize.lengths import optimize_lengths, without_equal_lengths
from debubble.optimize.listed import listed
from debubble.optimize.offload import (
    Offload,
    check_offload,
    eased,
    is_none,
    schedules,
    tighter,
)
from debubble.optimize.problem import BACKWARDS, Backward, Problem
from debubble.optimize.published import compare_with_published
from debubble.optimize.result import Result
from debubble.optimize.robust import optimize_robust
from debubble.optimize.stage_choices import Choices
from debubble.optimize.stop import Stop, Work, run_heard
from debubble.optimize.strategies import solver_name
from debubble.optimize.variants import Report, Space, Variants
from debubble.schedules.registry import MAX_ACTIONS, check_count

PLACEMENTS: dict[str, tuple[Callable[[int, int], Placement], ...]] = {
    "wave": (Placement.wave,),
    "loop": (Placement.loop,),
    "any": (Placement.wave, Placement.loop),
}
"""Placements by name; a wave of two chunks is a V."""

AFTER_CTRL_C = 0.3
"""Seconds for making published schedules to compare with."""

Shape: TypeAlias = str | Placement | Sequence[int]


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

    Parameters
    ----------
    ranks, microbatches
        Ranks p and microbatches m.
    chunks
        Stages per rank v, or several to choose from. The default is 1; with costs per rank, where
        every v is the same model, 1 and 2.
    costs
        What actions cost; the default is one unit of time each for F, I and W. Where microbatches
        differ in length, orders are searched for the average one, and then which microbatch takes
        which place in them: all assignments of up to 7, else what swaps of two lead to.
    layers
        Layers that are to be cut into the stages, so that it is open how many every stage gets: at
        least one, but for a first stage with an embedding and a last one with a head. A number of
        equal ones, of which `costs` are those of an even cut, one number each; or a mapping with
        the costs of every layer, as in a cost file's section ``layers``: ``{"F": [1, 1, 2], "B":
        [2, 2, 4], "head": {"F": 0.5, "B": 1}}``, which count in place of those in `costs`. What
        only the first or last stage does comes on top of its layers. None for stages as they are.
    memory
        Limit for the activations of every rank, or one per rank, in activation units or in the unit
        of ``costs.activation``; None for no limit.
    placement
        ``"wave"`` (two chunks: a V), ``"loop"``, ``"any"``, which searches where published and
        list scheduling are faster, a :class:`~debubble.Placement`, or the rank of every stage.
    backward
        ``"split"`` into I and W, ``"fused"``, or ``"free"``: whichever is faster, action by action.
    recompute
        Which stages recompute their forwards, right before their backwards or further ahead where
        that is faster and memory allows it: ``"none"``, ``"full"``, their numbers, or ``"free"``:
        whichever stages are best. That takes several times as long.
    offload
        Which stages' activations wait for their backwards on the host: ``"none"``, their numbers,
        or ``"free"``. Needs ``costs.host_bandwidth``. What comes back too soon to be worth it
        stays. If both are free, a stage does one of them or neither.
    p2p_mode
        How ranks exchange results, see :func:`debubble.simulate`.
    time_limit
        Seconds to use. Left out, a fixed amount of work: about ten seconds on two cores for 8
        ranks with 32 microbatches.
    effort
        Multiplies the fixed amount of work.
    seed
        Of everything random. With the same seed and no time limit the annealing is the same on
        every machine; CP-SAT with its two workers is not in every case.
    workers
        Threads.
    cache
        Whether to look for a result on disk, and to keep this one. One that was found without
        OR-Tools, with another budget or by another version is only where the search starts.
    published
        Whether to simulate the published schedules for comparison.
    report
        Called with makespan, lower bound and what found it, whenever one of them improves.
    until
        Asked several times per second; once it is true, the search ends as after Ctrl-C.
    robust
        What varies from step to step, ``"normal:3%"`` or a :class:`~debubble.Jitter`: of the orders
        that are found, and of small changes of the best, the one with the least p95 of the step
        time is returned, with its ``spread``.

    Returns
    -------
    Result
        After Ctrl-C (KeyboardInterrupt) the best so far, with the status ``"interrupted"``.

    Raises
    ------
    ParameterError
        When a parameter cannot be used; for a memory limit that is too small the message names the
        smallest that works.

    Notes
    -----
    Where OR-Tools is not installed nothing is solved exactly and no patterns are sought;
    annealing and the bounds that need no solver remain.

    Examples
    --------
    >>> import debubble as db
    >>> result = db.optimize(ranks=2, chunks=2, microbatches=2, memory=2, cache=False)
    >>> result.makespan, result.lower_bound, result.status
    (13.0, 13.0, 'optimal')
    """
    began = time.monotonic()
    _check(time_limit, effort, workers)
    costs = without_equal_lengths(costs or Costs(), microbatches)
    if robust is not None or costs.microbatch is not None:
        same: dict[str, Any] = {
            "ranks": ranks, "microbatches": microbatches, "chunks": chunks, "layers": layers,
            "placement": placement, "backward": backward, "recompute": recompute,
            "offload": offload, "p2p_mode": p2p_mode, "time_limit": time_limit, "effort": effort,
            "seed": seed, "workers": workers, "cache": cache, "published": published,
            "report": report, "until": until,
        }  # fmt: skip
        if robust is not None:
            return optimize_robust(optimize, robust, costs=costs, memory=memory, **same)
    room, alone = beside_static(memory, costs, ranks)
    problems = problems_of(
        ranks, microbatches, chunks, alone, room, placement, backward, p2p_mode, recompute,
        offload, layers,
    )  # fmt: skip
    if costs.microbatch is not None:
        return optimize_lengths(optimize, costs, memory, problems, **same)
    effort_or_time = f"{time_limit:g} s" if time_limit else f"effort {effort:g}"
    budget = f"{effort_or_time}, seed {seed}, {workers} workers"
    work = Work(math.inf if time_limit else effort, seed, workers)
    stop = Stop(math.inf if time_limit is None else time_limit, work=work)
    asked = {"recompute": recompute, "offload": offload}
    free = [name for name, how in asked.items() if isinstance(how, str) and how == "free"]
    search = Variants(_spaces(problems, recompute, offload), stop, report)
    solver = solver_name()
    known = read_entry(problems, free) if cache else None
    interrupted = False
    if known is not None:
        search.take(known)
    fresh = known is None or not (search.done or known.answers(budget, solver))
    if fresh:
        interrupted = run_heard(search.run, stop, until)
    best, bound = search.best, search.bound
    schedule = best.schedule
    if schedule is None:
        raise _no_room(best.problem)
    timeline = best.problem.timeline(schedule)
    if has_rule(costs, RECOMPUTES_LATE):
        # Where stages are free, or layers are, the search lets recomputes begin earlier.
        timeline = evaluate_graph(timeline.graph, timeline.table.costs)
        schedule = timeline.schedule
    timeline = _with_static(timeline, costs)
    seconds, found_by = time.monotonic() - began, best.found_by
    if known is not None and not fresh:
        seconds, found_by = known.seconds, known.found_by
    proven = search.done and timeline.makespan <= bound * (1 + TOLERANCE)
    status = "optimal" if proven else "interrupted" if interrupted else "feasible"
    if cache and fresh and status != "interrupted":
        entry = Entry(best.programs, bound, budget, seconds, found_by, solver, cut=best.problem.cut)
        write_entry(problems, schedule, entry, free)
    compared = None
    if published:
        copies = not is_none(offload)
        cut = best.problem.layers
        found = timeline if cut else schedule
        soon = Stop(AFTER_CTRL_C if interrupted else math.inf)
        compared = compare_with_published(
            found, costs, memory, p2p_mode,
            recompute=recompute, copies=copies, layers=cut, stop=soon,
        )  # fmt: skip
    return Result(
        schedule, timeline, timeline.makespan, bound, status, seconds, found_by, not fresh,
        compared, best.problem.cut, timeline.table.costs if best.problem.layers else None,
        _reason(search),
    )  # fmt: skip


def _reason(search: Variants) -> str:
    """Why no schedule is faster than the bound, where a variant or one of its ranks says it."""
    bound = search.bound
    for each in search.incumbents:
        if abs(each.bound - bound) <= TOLERANCE * bound:
            place = f"placement {each.problem.placement.name}: "
            return f"{place if len(search.spaces) > 1 else ''}{each.why}"
    single = len(search.incumbents) == 1
    return reason(search.best.model, search.best.bound, bound) if single else ""


def _check(time_limit: float | None, effort: float, workers: int) -> None:
    if time_limit is not None and not 0 < time_limit < math.inf:
        raise ParameterError(f"time limit is {time_limit}; give a positive number of seconds")
    if not 0 < effort < math.inf:
        raise ParameterError(f"effort is {effort}; give a positive number")
    if not 1 <= workers <= 256:
        raise ParameterError(f"workers is {workers}; give a number from 1 to 256")


def _with_static(timeline: Timeline, costs: Costs) -> Timeline:
    """A timeline of activations alone with what the ranks hold all the time."""
    static = static_memory(costs, timeline.schedule.ranks)
    whole = replace(timeline.table.costs, static=costs.static)
    return replace(timeline, table=replace(timeline.table, static=static, costs=whole))


def _as_run(backward: Backward, recompute: Recompute, costs: Costs) -> Backward:
    """How backwards run where the runtime keeps those of stages whole that recompute."""
    if is_none(recompute) or not has_rule(costs, RECOMPUTED_WHOLE):
        return backward
    if backward == "split":
        raise ParameterError(
            f"backward is 'split', and {RUNTIMES[costs.runtime].title} keeps it whole where a "
            "stage recomputes; use 'fused', or no recompute"
        )
    return "fused"


def problems_of(
    ranks: int,
    microbatches: int,
    chunks: int | Sequence[int] | None,
    costs: Costs,
    memory: float | Sequence[float] | None,
    placement: Shape,
    backward: Backward,
    mode: P2PMode,
    recompute: Recompute = "none",
    offload: Offload = "none",
    layers: Given | None = None,
) -> list[Problem]:
    """One problem for every placement to choose from under which the memory is enough.

    Where it is free what stages do, there is one for each way in which all do the same.
    """
    if mode not in P2P_MODES:
        raise ParameterError(f"p2p mode '{mode}'; {did_you_mean(str(mode), P2P_MODES)}")
    if backward not in BACKWARDS:
        raise ParameterError(f"backward is '{backward}'; {did_you_mean(str(backward), BACKWARDS)}")
    check_offload(offload, costs)
    backward = _as_run(backward, recompute, costs)
    model = None if layers is None else layers_of(layers, costs)
    problems: list[Problem] = []
    refusals: list[tuple[float, ParameterError]] = []
    for place in _placements(ranks, microbatches, chunks, placement, costs):
        its = costs
        if model is not None:
            its = model.costs
            if model.each:
                its = model.cut(place, even_cut(model.count, place.stages))
        table = its.resolve(place)
        limits = memory_limits(memory, ranks)
        limits = np.full(ranks, np.inf) if limits is None else np.broadcast_to(limits, (ranks,))
        problem = Problem(
            place, table, microbatches, limits,
            mode=mode, backward=backward, layers=model,
        )  # fmt: skip
        for chosen in same_for_all(ways_of(recompute, offload, place.stages)):
            asked = with_choice(problem, chosen)
            if recompute != "free" and has_rule(costs, RECOMPUTES_LATE):
                asked = replace(asked, table=recompute_in_backward(table, asked.recomputed))
            try:
                if model is None:
                    eased(asked).check_limits()
                else:
                    Cutting(asked).check()
            except ParameterError as error:
                least = float(eased(asked).smallest_limits.max())
                refusals.append((least, with_way_out(error, asked, smallest_limit)))
            else:
                problems.append(asked)
    if not problems:
        raise min(refusals, key=lambda refusal: refusal[0])[1]
    return problems


def _spaces(problems: Sequence[Problem], recompute: Recompute, offload: Offload) -> list[Space]:
    """The variants over every placement: its choices, or its cuts with the choices over each."""
    by_placement: dict[object, list[Problem]] = {}
    for problem in problems:
        by_placement.setdefault(problem.placement.table, []).append(problem)
    space = Cuts if problems[0].layers else Choices
    return [
        space(those, ways_of(recompute, offload, those[0].stages))
        for those in by_placement.values()
    ]


def _no_room(problem: Problem) -> ParameterError:
    """No order was found in which copies under way have room: the smallest limit with one."""
    least = min(
        float(problem.timeline(schedule).peak_activation.max())
        for tight in tighter(problem)
        for schedule in schedules(problem, listed(tight, (), 0.1))
    )
    return ParameterError(
        "no order was found in which the copies under way fit into the memory; with "
        f"{least:.6g} one was; give that, fewer stages, or offload='free'"
    )


def _placements(
    ranks: int,
    microbatches: int,
    chunks: int | Sequence[int] | None,
    choice: Shape,
    costs: Costs,
) -> list[Placement]:
    """Every placement that is to be tried, each once."""
    if chunks is None:
        chunks = (1, 2) if costs.same_model else 1
    numbers = tuple(chunks) if isinstance(chunks, Sequence) else (chunks,)
    sizes = [("ranks", ranks), ("microbatches", microbatches), *(("chunks", v) for v in numbers)]
    for name, value in sizes:
        check_count(name, value)
    if isinstance(choice, str):
        if choice not in PLACEMENTS:
            raise ParameterError(f"placement is '{choice}'; {did_you_mean(choice, PLACEMENTS)}")
        made = [shape(ranks, v) for v in numbers for shape in PLACEMENTS[choice]]
    else:
        given = choice if isinstance(choice, Placement) else Placement.explicit(choice, ranks)
        if given.copies > 1:
            raise ParameterError("the placement has two copies of the model; give one copy")
        if given.ranks != ranks:
            raise ParameterError(f"the placement has {given.ranks} ranks; ranks is {ranks}")
        made = [given]
    different = {place.table: place for place in reversed(made)}
    for place in different.values():
        size = 3 * place.stages * microbatches
        if size > MAX_ACTIONS:
            raise ParameterError(f"{size:,} actions; the limit is {MAX_ACTIONS:,}")
    return list(reversed(different.values()))
