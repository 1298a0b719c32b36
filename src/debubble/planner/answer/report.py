"""The answer to a planning request, as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import groupby

import numpy as np

from debubble.analysis.layout import Column, text_table, wrap
from debubble.core.units import number, percent
from debubble.engine.timeline import Timeline
from debubble.interchange.cost_files import costs_data
from debubble.interchange.syntax import yaml_text
from debubble.planner.answer.layer_section import layer_section
from debubble.planner.candidate import Candidate
from debubble.planner.model.shape_traps import shape_traps
from debubble.planner.request import PlanRequest
from debubble.planner.search.evaluate import CAUSES, Evaluated, Speed, tied
from debubble.planner.search.search_result import Found, nearly_fits

GB = 1e9

SHORT = {
    "compute": "compute", "recompute": "recompute", "tp": "tensor-parallel links",
    "cp": "context-parallel links", "ep": "expert links", "dp": "shards over replicas",
    "imbalance": "uneven ranks", "bubble": "bubble", "gradients": "gradient sums",
    "optimizer": "optimizer", "weights": "new weights",
}  # fmt: skip
"""Causes of :data:`debubble.planner.search.evaluate.CAUSES` in a few words."""


def degrees_text(candidate: Candidate) -> str:
    """Return degrees above one, in words."""
    found = [f"{name} {size}" for name, size in asdict(candidate.degrees).items() if size > 1]
    return ", ".join(found) or "no parallelism"


def layers_text(layers: Sequence[int]) -> str:
    """Return layers per stage: ``"4"``, or runs of equal numbers: ``"7, 8 on 14 stages, 7"``."""
    runs = [(count, len(list(run))) for count, run in groupby(layers)]
    if len(runs) == 1:
        return str(layers[0])
    return ", ".join(
        str(count) if times == 1 else f"{count} on {times} stages" for count, times in runs
    )


def seconds(value: float) -> str:
    """Return a time with three digits and its unit."""
    if abs(value) >= 1 or value == 0:
        return f"{value:,.3g} s" if abs(value) < 1000 else f"{value:,.0f} s"
    return f"{value * 1e3:.3g} ms"


def gigabytes(value: float) -> str:
    """Return an amount of memory in decimal gigabytes."""
    return f"{value / GB:.1f} GB"


def difference(best: Evaluated, other: Evaluated) -> str:
    """Return the two causes that make a plan slower than the best most, with their seconds."""
    found = {name: other.causes[name] - best.causes[name] for name in CAUSES}
    worse = sorted((name for name in found if found[name] > 0), key=lambda name: -found[name])
    total = other.step_time - best.step_time
    named = [name for name in worse[:2] if found[name] > 0.02 * max(total, 1e-12)]
    return ", ".join(f"{SHORT[name]} +{seconds(found[name])}" for name in named)


def excess(plan: Evaluated) -> str:
    """Return the fullest rank of a plan that does not fit, and its excess."""
    peak = max(plan.peaks)
    return (
        f"rank {plan.fullest} needs {gigabytes(peak)}, "
        f"{gigabytes(peak - plan.request.limit)} too much"
    )


def text(found: Found, width: int) -> str:
    """Return the whole answer for a terminal."""
    first, *others = paragraphs(found)
    lines = [*wrap(first, width, 2), ""]
    lines += [line for entry in others for line in wrap(entry, width, 2)]
    if found.plans:
        blocks, _ = text_table(columns(found, verdicts=False), width)
        lines += ["", *(line for block in blocks for line in block), ""]
        for number, plan in enumerate(ranked(found), 1):
            lines += wrap(f"{number}: {verdict(found, plan)}", width, 4)
    return "\n".join([*lines, "", *wrap(left_out(found), width, 2)])


def _question(request: PlanRequest) -> str:
    model, cluster, training = request.model, request.cluster, request.training
    active = model.active_parameters
    size = f"{model.parameters / 1e9:.4g} B parameters"
    if active != model.parameters:
        size += f" ({active / 1e9:.4g} B active)"
    return (
        f"{model.name}: {size}, {len(model.layers)} layers, on {cluster.gpus:,} × "
        f"{cluster.gpu.name} with {gigabytes(request.limit)}; a step is {training.batch:,} "
        f"sequences of {training.sequence:,} tokens in {training.precision}"
    )


def _sentences(found: Found) -> list[str]:
    """Return the sentences on the best plan."""
    request, plan = found.request, found.plans[0]
    candidate = plan.candidate
    fast, error = plan.speed, plan.step_error * plan.step_time
    whole = (
        f"{seconds(plan.step_time)} ± {seconds(error)} per step, "
        f"{number(fast.tokens_per_second, 4)} tokens/s, MFU {percent(fast.mfu['causal'])} "
        f"({percent(fast.mfu['full'])} counting attention in full)"
    )
    parts = sorted(plan.causes, key=lambda name: -plan.causes[name])
    spent = ", ".join(
        f"{SHORT[name]} {seconds(plan.causes[name])}"
        for name in parts
        if plan.causes[name] > 0.001 * plan.step_time
    )
    if found.interrupted:
        whole = f"the best when the search was stopped: {whole}"
    return [
        whole,
        f"{degrees_text(candidate)}; {plan.schedule} with {candidate.microbatches} "
        f"microbatches of {candidate.microbatch_size}; recompute {candidate.recompute}; "
        f"ZeRO-{candidate.zero}; layers per stage: {layers_text(candidate.layers)}",
        f"time: {spent}",
        f"memory: rank {plan.fullest} is the fullest with {gigabytes(max(plan.peaks))} of "
        f"{gigabytes(plan.request.limit)}, as {request.training.runtime.title} keeps it",
        f"how sure: times and bytes are modeled; kernels run at {plan.efficiency:.3g} of "
        f"the modeled speed, {plan.efficiency_origin}; 9 of 10 such steps stay within "
        f"± {percent(plan.step_error)}",
        *_too_fast(request, fast),
        *(f"warning: {trap}" for trap in shape_traps(request.model, candidate.degrees.tp)),
    ]


def _too_fast(request: PlanRequest, fast: Speed) -> list[str]:
    """Return a warning if a plan computes faster than the best known product.

    Modeled kernels are slower than that; an efficiency from a wrong measurement is not.
    """
    gpu, eight = request.cluster.gpu, request.training.precision == "fp8"
    best, mfu = gpu.gemm8 if eight else gpu.gemm, fast.mfu["causal"]
    if mfu <= best:
        return []
    return [
        f"warning: an MFU of {percent(mfu)} is more than the {percent(best)} that the best matrix "
        f"product on {gpu.name} is known to reach; check what was measured: batch, sequence, GPUs, "
        "and that the time is of a whole step"
    ]


def ranked(found: Found) -> list[Evaluated]:
    """Return the plans that fit, and the faster ones that do not, fastest first."""
    return sorted([*found.plans, *_faster(found)], key=lambda plan: plan.step_time)


def _faster(found: Found) -> list[Evaluated]:
    """Return plans that are faster than the best and nearly fit."""
    best = (found.searched or found.plans[0]).step_time
    return [plan for plan in found.near if plan.step_time < best and nearly_fits(plan)]


def verdict(found: Found, plan: Evaluated) -> str:
    """Return the reason for which a plan is the best, or is not."""
    best = found.plans[0]
    if not plan.fits:
        return excess(plan)
    least = ""
    if plan.lower_bound:
        least = f"; no order of its stages takes less than {seconds(plan.lower_bound)}"
    if plan is best:
        return f"the fastest that fits{least}"
    tie = "a tie: " if tied(best, plan) else ""
    return tie + (difference(best, plan) or "the same") + least


SHOWN = ("tp", "cp", "ep", "dp", "pp")
"""Degrees that have a column where any plan has more than one."""


def columns(found: Found, *, verdicts: bool) -> list[Column]:
    """Return plans as a table, numbered in the order of :func:`ranked`; with a verdict for each."""
    rows = ranked(found)
    sizes = {name: [getattr(p.candidate.degrees, name) for p in rows] for name in SHOWN}
    cells = [
        Column(("",), tuple(str(number) for number in range(1, len(rows) + 1))),
        Column(("schedule",), tuple(p.schedule for p in rows), left=True),
        *(Column((name,), tuple(map(str, of))) for name, of in sizes.items() if max(of) > 1),
        Column(("chunks",), tuple(str(p.candidate.degrees.chunks) for p in rows)),
        Column(("micro-", "batch"), tuple(str(p.candidate.microbatch_size) for p in rows)),
        Column(("recompute",), tuple(p.candidate.recompute for p in rows), left=True),
        Column(("ZeRO",), tuple(str(p.candidate.zero) for p in rows)),
        Column(("step",), tuple(seconds(p.step_time) for p in rows)),
        Column(("peak",), tuple(gigabytes(max(p.peaks)) for p in rows)),
    ]
    if verdicts:
        told = tuple(verdict(found, plan) for plan in rows)
        cells.append(Column(("why",), told, left=True))
    return cells


def nothing(found: Found) -> str:
    """Return the reason why no plan was found, and the nearest that works."""
    request = found.request
    if found.interrupted:
        return (
            f"no plan that fits into {gigabytes(request.limit)} was found before the search ended"
        )
    text = f"no plan fits into {gigabytes(request.limit)}"
    if found.near:
        least = min(found.near, key=lambda plan: max(plan.peaks))
        text += (
            f"; the nearest, {degrees_text(least.candidate)} with recompute "
            f"{least.candidate.recompute}, needs {gigabytes(max(least.peaks))}"
        )
    else:
        text += ": states of the model and one microbatch are larger, however they are split"
    if found.larger is None:
        return f"{text}; take GPUs with more memory, or a shorter sequence"
    gpus = found.larger.candidate.degrees.gpus
    return f"{text}; {gpus:,} GPUs are enough: {short(found.larger)}"


def short(plan: Evaluated) -> str:
    """Return a plan in a few words."""
    candidate = plan.candidate
    return (
        f"{degrees_text(candidate)}, {candidate.schedule}, microbatch size "
        f"{candidate.microbatch_size}, recompute {candidate.recompute}"
    )


def _buys(found: Found) -> list[str]:
    """Return the gains from more memory (the nearest faster plan) and from more GPUs."""
    lines = []
    if faster := _faster(found):
        plan = min(faster, key=lambda plan: max(plan.peaks))
        memory = f"{gigabytes(max(plan.peaks) - plan.request.limit)} more per GPU"
        # Found without a search of its own: there may be faster ones.
        lines.append(_with(memory, found, plan, " or less"))
    if found.larger is not None:
        more = found.larger.candidate.degrees.gpus - found.request.cluster.gpus
        lines.append(_with(f"{more} more {'GPU' if more == 1 else 'GPUs'}", found, found.larger))
    return lines


def _with(more: str, found: Found, plan: Evaluated, at_most: str = "") -> str:
    """Return the step time with more of something, next to that without it."""
    before = (found.searched or found.plans[0]).step_time
    return (
        f"with {more}, a step takes {seconds(plan.step_time)}{at_most} instead of "
        f"{seconds(before)}, {seconds(before - plan.step_time)} less: {short(plan)}"
    )


def left_out(found: Found) -> str:
    """Return the number of plans considered, and of those left out by reason."""
    counts = "; ".join(f"{count:,} {reason}" for reason, count in found.left_out.items())
    line = f"{found.considered:,} plans considered, {found.simulated:,} simulated"
    if counts:
        line += f"; of the others {counts}"
    if found.interrupted:
        line += "; stopped before the end: others may be better"
    return line


def whole_timeline(plan: Evaluated) -> Timeline:
    """Return the pipeline of a finished plan, with all that its ranks hold.

    Static memory is a rank's peak without its activations.
    """
    timeline = plan.simulate()
    beside = np.maximum(np.array(plan.peaks) - timeline.peak_activation, 0.0)
    costs = replace(timeline.table.costs, static=beside.tolist())
    return replace(timeline, table=costs.table(timeline.schedule))


def costs_yaml(plan: Evaluated) -> str:
    """Return the costs of a finished plan as a cost file, with sizes and memory limit."""
    request = plan.request
    found = costs_data(whole_timeline(plan).table.costs)
    found["memory"]["limit"] = request.limit
    candidate, degrees = plan.candidate, plan.candidate.degrees
    sizes = {"ranks": degrees.pp, "microbatches": candidate.microbatches}
    if degrees.chunks > 1:
        sizes["chunks"] = degrees.chunks
    found["layers"] = layer_section(plan)
    gpu = request.cluster.gpu.name
    label = f"{request.model.name} on {request.cluster.gpus} x {gpu}: {degrees_text(candidate)}"
    return yaml_text({"name": label, "source": "debubble plan", **sizes, **found})


def paragraphs(found: Found) -> list[str]:
    """Return the question and the best plan, in sentences."""
    if not found.plans:
        return [_question(found.request), nothing(found)]
    return [_question(found.request), *_sentences(found), *_buys(found)]
