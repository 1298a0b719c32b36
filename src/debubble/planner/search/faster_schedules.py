"""Faster schedules than the published ones for the best plans."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from debubble.core.errors import DebubbleError
from debubble.optimize.result import Result
from debubble.optimize.search import optimize
from debubble.planner.memory.peaks import fragmentation
from debubble.planner.search.evaluate import Evaluated, costs_of, finished, timed, with_peaks
from debubble.planner.search.search_result import Found
from debubble.planner.search.within_memory import within_limit


def optimized(
    found: Found, count: int, time_limit: float | None = None,
    report: Callable[[int, str], None] = lambda number, text: None,  # noqa: ARG005 - no report
) -> None:  # fmt: skip
    """Search for faster schedules for the best `count` plans with a pipeline.

    Each that is faster within the memory joins the plans in `found`, which are ranked anew; Ctrl-C
    ends that with the plans so far. `time_limit` is in seconds for each plan, see
    :func:`debubble.optimize`; `report` is called with the number of a plan,
    from 1, and the outcome of its search.
    """
    for number, plan in enumerate(found.plans.copy(), 1):
        if count == 0 or found.interrupted:
            break
        if plan.candidate.degrees.pp == 1:
            continue
        count -= 1
        try:
            order, least, found.interrupted = faster_order(plan, time_limit)
        except KeyboardInterrupt:
            found.interrupted = True
            break
        except DebubbleError as error:
            report(number, str(error))
            continue
        found.plans[found.plans.index(plan)] = replace(plan, lower_bound=least)
        if order is None:
            report(number, "no faster schedule was found")
        else:
            found.plans.append(order)
            report(number, f"{plan.step_time:.4g} s became {order.step_time:.4g} s")
    found.plans.sort(key=lambda plan: plan.step_time)


def faster_order(
    plan: Evaluated, time_limit: float | None = None
) -> tuple[Evaluated | None, float, bool]:
    """Return a faster schedule of a plan, a bound for any, and a flag for Ctrl-C.

    The optimizer counts activations, with fragmentation; all else stays as in the
    plan, for the bound as well. Where buffers and logits turn out larger in its order, it tries
    again with less, see :func:`~debubble.planner.search.within_memory.within_limit`.
    """
    results: list[Result] = []
    wide = replace(plan.request, limit=math.inf)

    def make(less: NDArray[np.float64]) -> Evaluated | None:
        if results and results[-1].status == "interrupted":
            return None
        room = np.broadcast_to(plan.request.limit - less, len(plan.peaks))
        results.append(_result(plan, room.tolist(), time_limit))
        order = results[-1].schedule
        whole = with_peaks(*timed(wide, plan.candidate, order))
        return replace(whole, request=plan.request, order=order, optimized=True)

    found = within_limit(make, plan.request.limit)
    least = results[0].lower_bound + plan.causes["optimizer"] + plan.causes["weights"]
    interrupted = results[-1].status == "interrupted"
    if found is None or not found.fits or found.step_time >= plan.step_time:
        return None, least, interrupted
    return finished(replace(found, lower_bound=least)), least, interrupted


def _result(plan: Evaluated, room: Sequence[float], time_limit: float | None) -> Result:
    """Return the optimizer's answer for the stages of a plan, with `room` bytes on every rank."""
    candidate = plan.candidate
    timeline = plan.simulate()
    costs = costs_of(plan.case)
    # Of what comes and goes a share lies unused between tensors: as if GPUs were so much smaller.
    share = 1 / (1 + fragmentation(plan.request.training))
    beside = [
        max(share * peak - float(held), 0.0)
        for peak, held in zip(plan.peaks, timeline.peak_activation, strict=True)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of published orders made for other costs
        return optimize(
            ranks=candidate.degrees.pp, microbatches=candidate.microbatches,
            chunks=candidate.degrees.chunks, costs=replace(costs, static=beside),
            memory=[share * one for one in room],
            placement=timeline.schedule.placement, time_limit=time_limit, published=False,
        )  # fmt: skip
