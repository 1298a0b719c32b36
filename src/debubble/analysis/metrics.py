"""Conventions of the numbers of a timeline, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from debubble.analysis.measures import meanings
from debubble.core.actions import KIND_MASK, SHARDING_KINDS
from debubble.core.boundaries import largest_message
from debubble.core.costs import Costs
from debubble.core.embedding_and_head import PARTS
from debubble.core.kinds import STEP_KINDS
from debubble.core.runtimes import I_FREES_NOTHING, RUNTIMES, has_rule
from debubble.core.schedule import Schedule
from debubble.core.units import amount, memory_scale, number, percent, time
from debubble.engine import modes
from debubble.engine.memory import ROUNDING, Limit, memory_limits
from debubble.engine.recompute import recompute_share, recomputed_stages
from debubble.engine.timeline import Timeline
from debubble.engine.validate import has

SYNCS = {
    "global": "a step waits for the gradients of all ranks: their norm passes from rank to rank, "
    "and the last rank sends it back to each",
    "local": "a step waits for its own rank's gradients",
    "post-validation": "a step waits for its own rank's gradients and the partial norm of the "
    "ranks before it; if the full norm later forbids it, it is undone (not simulated)",
}
"""Dependencies of an optimizer step, by `Schedule.sync`."""

CUT_SHOWN = 16
"""Shares of a cut that are spelled out."""

MODES: dict[str, str] = {spec.name: spec.title for spec in modes.MODES}
"""Descriptions of the p2p modes, by name."""


def result_text(timeline: Timeline, time_unit: str = "") -> str:
    """Return makespan, bubble ratio and peak activation as a phrase."""
    makespan = time(timeline.makespan, time_unit or timeline.table.costs.time_unit)
    peak = amount(float(timeline.peak_activation.max()), timeline.table.costs.activation_unit)
    return (
        f"makespan {makespan}, bubble ratio {percent(timeline.bubble_ratio)}, "
        f"peak activation {peak}"
    )


def has_steps(schedule: Schedule) -> bool:
    """Return whether rank 0 ends with an optimizer step; in a valid schedule all ranks then do."""
    program = schedule.program(0)
    return len(program) > 0 and int(program[-1]) & KIND_MASK in STEP_KINDS


_SHARDS = "the head is on all ranks, a shard each; S is its forward"
VOCABULARY = (
    "",
    f"{_SHARDS}, T its backward",
    f"{_SHARDS} and backward for input, T its backward for weights",
)
"""Descriptions of S and T, by the schedule's `vocabulary`."""


LATE = "as late as possible: just before the action that waits for them; others as soon as possible"


def conventions(timeline: Timeline) -> dict[str, str]:
    """Return the conventions of a timeline: times, transfers, memory and every measure."""
    costs = timeline.table.costs
    p2p = f"{timeline.mode}: {MODES[timeline.mode]}"
    if not transfers_take_time(timeline):
        p2p += f"; {FREE}"
    schedule = timeline.schedule
    words = {
        "times": times_text(costs, schedule.chunks),
        "slices": slices_text(timeline),
        "vocabulary": VOCABULARY[schedule.vocabulary],
        "p2p": p2p,
        "forwards": "" if timeline.late is None else LATE,
        "optimizer": f"{schedule.sync}: {SYNCS[schedule.sync]}" if has_steps(schedule) else "",
        "memory": memory_text(costs, schedule),
        **recompute_words(schedule),
        **replicas_words(schedule),
        "offload": offload_text(timeline),
        **{f"{key}_unit": unit or "" for key, unit in units(costs).items()},
    }
    return {key: text for key, text in words.items() if text} | measure_words(costs)


SPECIAL = ("slices", "vocabulary", "optimizer", "forwards", "recompute", "replicas", "offload")
"""Conventions of schedules with more than forwards and backwards."""


def in_short(words: Mapping[str, str]) -> list[str]:
    """Return a line for every special convention, and one for times, memory and transfers."""
    parts = []
    if "times" in words:
        times = words["times"].removesuffix("; F, I and W take 1 each")
        parts.append(f"times {times}{', F = I = W = 1' if times != words['times'] else ''}")
    unit, _, more = words["memory"].removeprefix("in ").partition(HELD)
    parts.append(f"memory in {unit.partition(' (')[0].rstrip(': ')}{more}")
    transfers = words["p2p"].partition(":")[0]
    parts.append(f"transfers {transfers}{' and free' if words['p2p'].endswith(FREE) else ''}")
    special = [f"{key}: {words[key]}" for key in SPECIAL if key in words]
    return [*special, f"{'; '.join(parts)}. See 'debubble words'."]


HELD = "allocated when F starts, held until W ends (or B)"
"""Convention of activation memory, but for what is special."""

FREE = "here transfers take no time"
"""End of the convention of transfers that cost nothing."""


def transfers_take_time(timeline: Timeline) -> bool:
    """Return whether any link takes time, or anything that stages carry does."""
    table, schedule = timeline.table, timeline.schedule
    firsts = range(0, schedule.placement.copies * schedule.stages, schedule.stages)
    return bool(table.link.any()) or any(
        table.carried(first + one, first + other) > 0
        for first in firsts
        for one, other in schedule.carries
    )


def measure_words(costs: Costs) -> dict[str, str]:
    """Return definitions of all measures for these costs, by key."""
    words = meanings()
    if largest_message(costs) > 0:
        size = costs.message
        whose = f"the message size of {size:g}" if isinstance(size, float) else "its message's size"
        words["p2p_volume"] += f", times {whose}"
    return words


def replicas_words(schedule: Schedule) -> dict[str, str]:
    """Return the convention for data-parallel collectives; empty for a schedule without them."""
    if not has(schedule, SHARDING_KINDS):
        return {}
    return {
        "replicas": "weights are gathered and gradients reduced on their own stream, in parallel "
        "with computing; the makespan includes both"
    }


def times_text(costs: Costs, chunks: int | None = None) -> str:
    """Return the basis of the times: per action or per rank; `chunks` are the schedule's."""
    parts = [name for name in PARTS if getattr(costs, name) is not None]
    more = f"; {', '.join(parts)} added at the ends of the model" if parts else ""
    if costs.microbatch is not None:
        given = costs.microbatch
        lengths = given.values() if isinstance(given, Mapping) else np.atleast_1d(given)
        spread = dict.fromkeys(number(length) for length in (min(lengths), max(lengths)))
        more += f"; microbatches are {' to '.join(spread)} times as long as the average one"
    if costs.frozen != 0:
        more += "; frozen weights have no W, and stages before the first trained one no backward"
    runtime = RUNTIMES[costs.runtime]
    if runtime.rules:
        more += f"; as in {runtime.title}: {runtime.text}"
    if not costs.times_per_rank:
        return f"per action: one stage, one microbatch{more}"
    if not costs.has_times:
        more = f"; F, I and W take 1 each{more}"
    divisor = costs.chunks if costs.chunks is not None else chunks
    if divisor == 1:
        return f"per rank, which has one stage{more}"
    return f"per rank ÷ {'' if divisor is None else f'{divisor} '}chunks{more}"


def recompute_text(schedule: Schedule) -> str:
    """Return stages that recompute their forward, as text; empty when none does.

    Examples
    --------
    >>> import debubble as db
    >>> recompute_text(db.make("1f1b", ranks=8, microbatches=8, recompute=[0, 1, 2, 5]))
    'recompute on stages 0–2, 5'
    """
    where = _recomputing(schedule)
    if where == "full":
        return "full recompute"
    return f"recompute on {where}" if where else ""


def recompute_words(schedule: Schedule) -> dict[str, str]:
    """Return the convention of recomputes, nothing for a schedule without."""
    where = _recomputing(schedule)
    if not where:
        return {}
    waits = {"forward": "its own forward only", "gradient": "the gradient, as its backward does"}
    wait = waits[schedule.recompute_after]
    return {"recompute": f"{where}; R waits for {wait}, and counts as work"}


def _recomputing(schedule: Schedule) -> str:
    share = recompute_share(schedule)
    if np.all(share >= 1):
        return "full"
    stages = recomputed_stages(schedule)
    if not stages:
        return ""
    some = "some microbatches of " if np.any((share > 0) & (share < 1)) else ""
    return f"{some}stage{'s' if len(stages) > 1 else ''} {ranges(stages)}"


def ranges(numbers: list[int]) -> str:
    """Return rising whole numbers, with the ends of runs only.

    Examples
    --------
    >>> ranges([0, 1, 2, 5, 7, 8])
    '0–2, 5, 7–8'
    """
    cuts = np.flatnonzero(np.diff(numbers) != 1) + 1
    runs = [run.tolist() for run in np.split(np.asarray(numbers), cuts)]
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def slices_text(timeline: Timeline) -> str:
    """Cut of microbatches into slices and its effect on times; empty for whole microbatches."""
    schedule, costs = timeline.schedule, timeline.table.costs
    if schedule.slices == 1:
        return ""
    shares = ", ".join(f"{100 * share:.3g}" for share in schedule.cut[:CUT_SHOWN])
    more = ", …" if len(schedule.cut) > CUT_SHOWN else ""
    cut = f"of {shares}{more} % of the tokens" if schedule.cut else "of equal length"
    text = f"{schedule.slices:,} {cut}, each with its share of a microbatch's times"
    if costs.attention != 0:
        share = costs.attention
        name = f"attention ({percent(share)} of F)" if isinstance(share, float) else "attention"
        text += f", {name} by {'tokens' if schedule.exchange else 'causal area'}"
    if schedule.exchange:
        price = costs.exchange
        text += "; ranks exchange attention context"
        if isinstance(price, float) and price > 0:
            text += f" for {number(price)}"
    return text


def memory_text(costs: Costs, *schedules: Schedule) -> str:
    """Return the unit and convention of activation memory, and of recomputes if there are any."""
    unit = (
        "activation units (one microbatch's activations on one rank)"
        if costs.activation is None
        else f"in {costs.memory_unit or 'the unit of the activation costs'}"
    )
    kept = costs.kept_for_weight
    share = f"{number(100 * kept)} %" if isinstance(kept, float) else "each stage's own share"
    if has_rule(costs, I_FREES_NOTHING) and kept != 1:
        share = f"100 % (always in {RUNTIMES[costs.runtime].title})"
    text = f"{unit}: {HELD}"
    if kept != 1:
        text += f"; {share} is held from the end of I to that of W"
    if costs.static != 0:
        held = costs.static
        shown = amount_text(held, costs) if isinstance(held, float) else "each rank's own amount"
        text += f"; plus {shown} of static memory (weights, optimizer states, buffers)"
    if costs.kv != 0:
        text += "; plus keys, values and their gradients until I or B ends"
    if not any(recompute_share(schedule).any() for schedule in schedules):
        return text
    kept = costs.recompute_kept
    share = f"{number(100 * kept)} %" if isinstance(kept, float) else "each stage's own share"
    return f"{text}; if recomputed, {share} is allocated when F starts, the rest when R starts"


def offload_text(timeline: Timeline) -> str:
    """Return the convention for offloaded activations: target and link; empty without any."""
    if not timeline.graph.has_copies:
        return ""
    targets = timeline.schedule.copy_targets
    where = "the host" if all(target is None for target in targets) else "another rank"
    shared = timeline.graph.shared
    link = f"one link for {shared} ranks" if shared > 1 else "one stream per rank, both directions"
    return f"activations go to {where} and back: {link}, in parallel with computing"


def amount_text(value: Limit, costs: Costs, digits: int = 4) -> str:
    """Return an amount of activation memory, or one for each rank, with its unit."""
    if costs.activation is None:
        return f"{_written(value, '', 6)} activation unit{'' if value == 1 else 's'}"
    return _written(value, costs.memory_unit or "of activation memory", digits)


def above_limit(peak: NDArray[np.float64], memory: Limit) -> list[int]:
    """Return ranks that hold more than a limit."""
    limits = memory_limits(memory, len(peak))
    assert limits is not None, "asked only when there is a limit"
    found: list[int] = np.flatnonzero(peak > limits * (1 + ROUNDING)).tolist()
    return found


def kept_text(peak: NDArray[np.float64], memory: Limit, costs: Costs) -> str:
    """Return a memory limit, and the ranks that hold more."""
    above = above_limit(peak, memory)
    where = f"rank{'s' if len(above) > 1 else ''} {ranges(above)}" if above else ""
    kept = f"exceeded on {where}" if above else "kept by all ranks"
    return f"memory limit {amount_text(memory, costs)}: {kept}"


def limit_text(value: Limit, costs: Costs) -> str:
    """Return a limit of activation memory, or one for each rank, without activation units."""
    return _written(value, costs.activation_unit, 6)


def _written(value: Limit, unit: str, digits: int) -> str:
    """Return an amount, or one for each rank in one unit: ``4/4/3.5 GiB``."""
    values = list(value) if isinstance(value, Sequence) else [value]
    scale = memory_scale(unit, max(values))
    return f"{'/'.join(scale.text(each, digits) for each in values)} {scale.unit}".rstrip()


def units(costs: Costs) -> dict[str, str | None]:
    """Return names of the units of times and memory, for JSON; None where they have none."""
    memory = "activation units" if costs.activation is None else costs.memory_unit
    return {"time": costs.time_unit or None, "memory": memory or None}
