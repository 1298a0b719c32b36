"""The answer to a planning request, as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import TypeAlias

import numpy as np

from debubble.analysis.layout import Column, text_table, unstyled, wrap
from debubble.core.units import rough_percent
from debubble.engine.timeline import Timeline
from debubble.interchange.cost_files import costs_data
from debubble.interchange.syntax import yaml_text
from debubble.planner.answer.cautions import cautions, too_fast
from debubble.planner.answer.layer_section import layer_section
from debubble.planner.answer.searches import Answer, also_runs
from debubble.planner.answer.words import (
    VERDICTS,
    cause_name,
    degrees_text,
    gigabytes,
    seconds,
    seconds_range,
    three_digits,
)
from debubble.planner.frameworks.launch import layers_text
from debubble.planner.frameworks.table import find_framework
from debubble.planner.request import Fixed, PlanRequest
from debubble.planner.search.evaluate import CAUSES, Evaluated, finished, tied
from debubble.planner.search.search_result import nearly_fits

Style: TypeAlias = Callable[[str, str], str]
"""Function that puts a text in a style: ``"head"``, ``"best"`` or ``"faint"``."""

MOST_LARGER = 2
"""Plans that need more memory in the text."""

WORTH_NAMING = 0.01
"""Share of a step from which its cause is named."""


def text(found: Answer, width: int, style: Style = unstyled) -> str:
    """Return the answer for a terminal: the recommended plan, its alternatives, how sure it is."""
    lines = [style(line, "faint") for line in wrap(question(found.request), width, 2)] + [""]
    if not found.plans:
        return "\n".join([*lines, *wrap(nothing(found), width, 2)])
    best = found.plans[0]
    lines += [style(line, "head") for entry in headline(found) for line in wrap(entry, width, 2)]
    details = [plan_line(best), f"time: {spent(best)}"]
    lines += [line for entry in details for line in wrap(entry, width, 2)]
    lines += ["", *_table(found, width, style), ""]
    notes = [*ties(found), *_least(best), *buys(found), confidence(best), *warnings(best)]
    return "\n".join([*lines, *(line for entry in notes for line in wrap(entry, width, 2))])


def _table(found: Answer, width: int, style: Style) -> list[str]:
    """Return the table of plans, and that of faster ones that would need more memory.

    They share their columns, unless the second one's would take room from the first.
    """
    larger = faster(found)[:MOST_LARGER]
    first, left_out = text_table(columns(found, found.plans), width)
    both, more = text_table(columns(found, [*found.plans, *larger]), width)
    second = both[len(first) :]
    if more == left_out:
        first = both[: len(first)]
    elif larger:
        second = text_table(columns(found, larger), width)[0]
        second[0] = [style(line, "faint") for line in second[0]]
    heads, best, *rest = first
    lines = [style(line, "faint") for line in heads] + [style(line, "best") for line in best]
    lines += [line for row in rest for line in row]
    if larger:
        lines += ["", style("faster, but would need more memory:", "faint")]
        lines += [line for row in second for line in row]
    return lines


def question(request: PlanRequest) -> str:
    """Return the question in a sentence."""
    model, cluster, training = request.model, request.cluster, request.training
    active = model.active_parameters
    size = f"{model.parameters / 1e9:.4g} B parameters"
    if active != model.parameters:
        size += f", {active / 1e9:.4g} B active"
    return (
        f"{model.name} ({size}) on {cluster.gpus:,} × {cluster.gpu.name}, {training.batch:,} "
        f"sequences of {training.sequence:,} tokens per step, {training.precision}"
    )


def framework_title(plan: Evaluated) -> str:
    """Return the name of the framework that a plan is made for."""
    name = plan.request.fixed.framework
    return "any framework" if name is None else find_framework(name).title


def frameworks_text(plan: Evaluated) -> str:
    """Return the frameworks that run a plan and keep the same in memory, its own first."""
    return ", ".join(
        [framework_title(plan), *(find_framework(one).title for one in also_runs(plan))]
    )


def headline(found: Answer) -> list[str]:
    """Return the recommended plan's speed and memory, a line each."""
    plan = found.plans[0]
    stopped = "best so far (search stopped): " if found.interrupted else ""
    peak = max(plan.peaks)
    return [
        f"{stopped}{seconds(plan.step_time)} per step ({seconds_range(plan.step_range)}), "
        f"{three_digits(plan.speed.tokens_per_second)} tokens/s, MFU "
        f"{rough_percent(plan.speed.mfu['causal'])}; for {frameworks_text(plan)}",
        f"peak memory {gigabytes(peak)} of {room(plan.request)}: "
        f"{VERDICTS[plan.verdict]} (9 of 10 runs stay below {gigabytes(peak + plan.memory_error)})",
    ]


def room(request: PlanRequest) -> str:
    """Return the memory that peaks are compared with: what a GPU has, or is allowed to use."""
    if request.asked < request.safe:
        return f"{gigabytes(request.asked)} allowed"
    return gigabytes(request.capacity)


def plan_line(plan: Evaluated) -> str:
    """Return degrees, schedule, microbatches, recompute, ZeRO and layers of a plan."""
    return f"{degrees_text(plan.candidate)}; {plan.schedule}, {setup(plan)}"


def setup(plan: Evaluated) -> str:
    """Return microbatches, recompute, ZeRO and layers of a plan."""
    candidate, count = plan.candidate, plan.candidate.microbatches
    return (
        f"{count} microbatch{'es' * (count > 1)} of {candidate.microbatch_size}; recompute "
        f"{candidate.recompute}; ZeRO-{candidate.zero}; layers × stages "
        f"{layers_text(candidate.layers)}"
    )


def spent(plan: Evaluated) -> str:
    """Return the causes of a step's time, largest first, without those below 1 %."""
    largest = sorted(plan.causes, key=lambda name: -plan.causes[name])
    return ", ".join(
        f"{cause_name(name)} {seconds(plan.causes[name])}"
        for name in largest
        if plan.causes[name] > WORTH_NAMING * plan.step_time
    )


def confidence(plan: Evaluated) -> str:
    """Return the origin of a plan's numbers, and the share of steps within its error."""
    return (
        f"confidence: simulated, with kernels at {plan.efficiency:.3g} of the modeled speed, "
        f"{plan.efficiency_origin}; {comparable_steps(plan)}"
    )


def comparable_steps(plan: Evaluated) -> str:
    """Return how far published steps were from predictions like that of a plan."""
    low, high = plan.case.step_range
    return f"9 of 10 comparable steps took {low:.2f} to {high:.2f} times as long as predicted"


def warnings(plan: Evaluated) -> list[str]:
    """Return warnings as lines, those about steps that no GPU can reach first."""
    return [f"warning: {one}" for one in (*too_fast(plan), *cautions(plan))]


def difference(best: Evaluated, other: Evaluated, most: int = 2) -> str:
    """Return the causes that make a plan slower than the best most, with their seconds."""
    found = {name: other.causes[name] - best.causes[name] for name in CAUSES}
    worse = sorted((name for name in found if found[name] > 0), key=lambda name: -found[name])
    total = other.step_time - best.step_time
    named = [name for name in worse[:most] if found[name] > 0.02 * max(total, 1e-12)]
    return ", ".join(f"{cause_name(name)} +{seconds(found[name])}" for name in named)


def excess(plan: Evaluated) -> str:
    """Return the fullest rank of a plan that does not fit, and its excess."""
    peak = max(plan.peaks)
    return (
        f"rank {plan.fullest} needs {gigabytes(peak)}, "
        f"{gigabytes(peak - plan.request.limit)} too much"
    )


def faster(found: Answer) -> list[Evaluated]:
    """Return plans that are faster than the best and nearly fit, fastest first."""
    if not found.plans:
        return []
    best = (found.searched or found.plans[0]).step_time
    near = [plan for plan in found.near if plan.step_time < best and nearly_fits(plan)]
    return sorted(near, key=lambda plan: plan.step_time)


LEANER = 4
"""Plans with less memory than the recommended one."""

LESS = 0.95
"""Share of the memory of the plan before that one of them needs at most."""


def leaner(found: Answer) -> list[Evaluated]:
    """Return slower plans with less memory than all that are shown and faster, most memory first.

    Each is on the frontier: none of the plans that were evaluated is better in time and memory.
    """
    if not found.plans:
        return []
    front = [plan for one in found.searches for plan in one.front]
    least = min(max(plan.peaks) for plan in found.plans)
    plans: list[Evaluated] = []
    for plan in sorted(front, key=lambda plan: (plan.step_time, max(plan.peaks))):
        if max(plan.peaks) <= LESS * least and len(plans) < LEANER:
            least = max(plan.peaks)
            plans.append(finished(plan))
    return plans


def ties(found: Answer) -> list[str]:
    """Return why the recommended plan is not the fastest, where it is not."""
    best, fastest = found.plans[0], min(found.plans, key=lambda plan: plan.step_time)
    if fastest.step_time >= best.step_time:
        return []
    count = sum(tied(best, plan) for plan in found.plans[1:])
    others = "another one that is" if count == 1 else f"{count} others that are"
    return [f"the recommended plan is simpler than {others} as fast within the error"]


def _least(plan: Evaluated) -> list[str]:
    """Return how fast an order can be at most, where orders were searched."""
    if not plan.lower_bound:
        return []
    return [f"no schedule of its stages is faster than {seconds(plan.lower_bound)}"]


def compared(found: Answer, plan: Evaluated) -> str:
    """Return a plan's step time relative to the recommended one's, in percent; ties are marked."""
    best = found.plans[0]
    if plan is best:
        return "recommended"
    percent = round((plan.step_time / best.step_time - 1) * 100, 1)
    change = f"{percent:+.1f} %".replace("-", "−") if percent else "same"
    return f"tie ({change})" if plan.fits and percent and tied(best, plan) else change


def _judged(found: Answer, plan: Evaluated) -> str:
    """Return a plan's step time relative to the recommended one's, and whether it may not fit."""
    fits = plan.verdict == "yes"
    return compared(found, plan) + ("" if fits else f", {VERDICTS[plan.verdict]}")


def reason(found: Answer, plan: Evaluated) -> str:
    """Return the reason for which a plan is not recommended."""
    if not plan.fits:
        return f"{gigabytes(max(plan.peaks) - plan.request.limit)} too much"
    return difference(found.plans[0], plan, most=1)


SHOWN = ("tp", "cp", "ep", "dp", "pp")
"""Degrees that have a column where any plan has more than one."""


def columns(found: Answer, plans: Sequence[Evaluated]) -> list[Column]:
    """Return plans as a table; what is the same for all of the answer's plans has no column.

    Where it is too wide, reasons go first, then replicas, which follow from the other degrees.
    """
    every = [*found.plans, *faster(found)]
    sizes = {name: [getattr(p.candidate.degrees, name) for p in every] for name in SHOWN}

    def differ(value: Callable[[Evaluated], object]) -> bool:
        return len({value(plan) for plan in every}) > 1

    def column(
        *head: str, value: Callable[[Evaluated], object], rank: int = 0, left: bool = False
    ) -> Column:
        return Column(head, tuple(str(value(plan)) for plan in plans), rank, left)

    candidate = {
        name: column(
            name,
            value=lambda p, name=name: getattr(p.candidate.degrees, name),  # type: ignore[misc]
            rank=2 * (name == "dp"),
        )
        for name, of in sizes.items()
        if max(of) > 1
    }
    cells = [column("schedule", value=lambda p: p.schedule, left=True)]
    if differ(framework_title):
        cells.append(column("framework", value=framework_title, left=True))
    cells += candidate.values()
    if differ(lambda p: p.candidate.degrees.chunks):
        cells.append(column("chunks", value=lambda p: p.candidate.degrees.chunks))
    if differ(lambda p: p.candidate.microbatch_size):
        cells.append(column("mbs", value=lambda p: p.candidate.microbatch_size))
    if differ(lambda p: p.candidate.recompute):
        cells.append(column("recompute", value=lambda p: p.candidate.recompute, left=True))
    if differ(lambda p: p.candidate.zero):
        cells.append(column("ZeRO", value=lambda p: p.candidate.zero))
    cells += [
        column("step", value=lambda p: seconds(p.step_time)),
        column("peak", value=lambda p: gigabytes(max(p.peaks))),
    ]
    cells.append(column("compared", value=lambda p: _judged(found, p), rank=1, left=True))
    if len(every) > 1:
        cells.append(column("because", value=lambda p: reason(found, p), rank=3, left=True))
    return cells


HOLDING = tuple(item.name for item in fields(Fixed) if item.name not in ("framework", "mtp"))
"""Constraints that may be why nothing fits."""


def nothing(found: Answer) -> str:
    """Return the reason why no plan was found, and the nearest that works."""
    request = found.request
    if found.interrupted:
        return (
            f"no plan that fits into {gigabytes(request.limit)} was found before the search ended"
        )
    text = f"no plan fits into {gigabytes(request.limit)}"
    held = [name for name in HOLDING if getattr(request.fixed, name) is not None]
    if found.near:
        least = min(found.near, key=lambda plan: max(plan.peaks))
        text += (
            f"; the nearest, {degrees_text(least.candidate)} with recompute "
            f"{least.candidate.recompute}, needs {gigabytes(max(least.peaks))}"
        )
    else:
        names = ", ".join(held).replace("_", " ").replace("schedules", "schedule")
        split = f"with {names} fixed" if held else "in any split"
        text += f": the model's states and one microbatch are larger, {split}"
    if found.larger is None:
        loosen = "fix fewer options, " if held else ""
        return f"{text}; {loosen}take GPUs with more memory, or a shorter sequence"
    gpus = found.larger.candidate.degrees.gpus
    return f"{text}; {gpus:,} GPUs are enough: {short(found.larger)}"


def short(plan: Evaluated) -> str:
    """Return a plan in a few words."""
    candidate = plan.candidate
    return (
        f"{degrees_text(candidate)}, {candidate.schedule}, microbatch size "
        f"{candidate.microbatch_size}, recompute {candidate.recompute}"
    )


def buys(found: Answer) -> list[str]:
    """Return the gains from more memory (the nearest faster plan) and from more GPUs."""
    lines, best = [], found.searched or found.plans[0]
    if plans := faster(found):
        plan = min(plans, key=lambda plan: max(plan.peaks))
        memory = gigabytes(max(plan.peaks) - plan.request.limit)
        lines.append(_with(f"{memory} more per GPU", best, plan))
    if (larger := found.larger) is not None:
        more = larger.candidate.degrees.gpus - found.request.cluster.gpus
        how = f" ({degrees_text(larger.candidate)}, {larger.schedule})"
        lines.append(
            _with(f"{more} more {'GPU' if more == 1 else 'GPUs'}", best, larger, "at most ") + how
        )
    return lines


def _with(more: str, best: Evaluated, plan: Evaluated, most: str = "") -> str:
    """Return the step time with more of something, and what that saves."""
    saved = best.step_time - plan.step_time
    return f"with {more}, a step takes {most}{seconds(plan.step_time)}, {seconds(saved)} less"


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
