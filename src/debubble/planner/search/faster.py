"""Faster orders for the best plans than those of published schedules."""

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
from debubble.planner.memory.peaks import FRAGMENTATION
from debubble.planner.search.evaluate import (
    Asked,
    Plan,
    costs_of,
    finished,
    simulated,
    timed,
    with_peaks,
)
from debubble.planner.search.found import Found
from debubble.planner.search.within import within_limit


def optimized(
    asked: Asked, found: Found, count: int, time_limit: float | None = None,
    report: Callable[[int, str], None] = lambda number, text: None,  # noqa: ARG005 - nobody is told
) -> None:  # fmt: skip
    """Look for faster orders of the best `count` plans with a pipeline.

    Each that is faster within the memory joins the plans in `found`, which are ranked anew; Ctrl-C
    ends that with what there is. `time_limit` is in seconds for each plan, see
    :func:`debubble.optimize`; `report` is told the number of a plan, from 1, and what has become of
    it.
    """
    for number, plan in enumerate(found.plans.copy(), 1):
        if count == 0 or found.interrupted:
            break
        if plan.candidate.degrees.pp == 1:
            continue
        count -= 1
        try:
            order, least, found.interrupted = faster_order(asked, plan, time_limit)
        except KeyboardInterrupt:
            found.interrupted = True
            break
        except DebubbleError as error:
            report(number, str(error))
            continue
        found.plans[found.plans.index(plan)] = replace(plan, lower_bound=least)
        if order is None:
            report(number, "no faster order was found")
        else:
            found.plans.append(order)
            report(number, f"{plan.step_time:.4g} s became {order.step_time:.4g} s")
    found.plans.sort(key=lambda plan: plan.step_time)


def faster_order(
    asked: Asked, plan: Plan, time_limit: float | None = None
) -> tuple[Plan | None, float, bool]:
    """A faster order of a finished plan's stages, a bound for any, and whether Ctrl-C was pressed.

    The optimizer counts activations, with what lies unused between them; all else stays as in the
    plan, for the bound as well. Where buffers and logits turn out larger in its order, it tries
    again with less, see :func:`~debubble.planner.search.within.within_limit`.
    """
    results: list[Result] = []

    def make(less: NDArray[np.float64]) -> Plan | None:
        if results and results[-1].status == "interrupted":
            return None
        room = np.broadcast_to(asked.limit - less, len(plan.peaks))
        results.append(_result(asked, plan, room.tolist(), time_limit))
        return _plan_of(asked, plan, results[-1])

    found = within_limit(make, asked.limit)
    least = results[0].lower_bound + plan.causes["optimizer"] + plan.causes["weights"]
    interrupted = results[-1].status == "interrupted"
    if found is None or not found.fits or found.step_time >= plan.step_time:
        return None, least, interrupted
    return finished(asked, replace(found, lower_bound=least)), least, interrupted


def _result(asked: Asked, plan: Plan, room: Sequence[float], time_limit: float | None) -> Result:
    """The optimizer's answer for the stages of a plan, with `room` bytes on every rank."""
    candidate = plan.candidate
    timeline = simulated(asked, candidate, plan.order)
    costs = costs_of(asked, candidate)
    # Of what comes and goes a share lies unused between tensors: as if GPUs were so much smaller.
    share = 1 / (1 + FRAGMENTATION)
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


def _plan_of(asked: Asked, plan: Plan, result: Result) -> Plan:
    found, timeline = timed(asked, plan.candidate, result.schedule)
    whole = with_peaks(replace(asked, limit=math.inf), found, timeline)
    return replace(whole, limit=asked.limit, order=result.schedule, optimized=True)
