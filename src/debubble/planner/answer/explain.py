"""Explanation of an answer: time by cause, memory by rank, efficiencies, and what was left out."""

from __future__ import annotations

from collections.abc import Sequence

from debubble.analysis.layout import definitions, table, wrap
from debubble.core.units import rough_percent
from debubble.planner.answer.report import comparable_steps, framework_title
from debubble.planner.answer.searches import Answer
from debubble.planner.answer.words import PARTS, cause_name, gigabytes, seconds
from debubble.planner.search.evaluate import CAUSES, Evaluated

MOST_RANKS = 32
"""Pipeline ranks up to which the memory of each is in the text; of more, the fullest."""


def explanation(found: Answer, width: int) -> str:
    """Return the derivation of the recommended plan's numbers, and what was left out."""
    parts = [_title("candidates", width), *left_out(found, width)]
    if found.plans:
        best = found.plans[0]
        parts = [
            _title("time by cause", width), *_causes(best, width), "",
            _title("memory by rank at its peak", width), *table(memory_rows(best)), "",
            *_memory_notes(best, width), "",
            _title("efficiency", width), *_efficiency(best, width), "", *parts,
        ]  # fmt: skip
    return "\n".join(parts)


def _title(text: str, width: int) -> str:
    return f"── {text} ".ljust(width, "─")


def _causes(plan: Evaluated, width: int) -> list[str]:
    """Return the causes of a step's time, with seconds, share and meaning."""
    largest = sorted(plan.causes, key=lambda name: -plan.causes[name])
    rows = [
        (
            cause_name(name),
            f"{seconds(plan.causes[name]):>8}  "
            f"{rough_percent(plan.causes[name] / plan.step_time):>6}",
            CAUSES.get(name, ""),
        )
        for name in largest
        if plan.causes[name] > 0
    ]
    return definitions(rows, width)


def memory_rows(plan: Evaluated) -> list[list[str]]:
    """Return the memory of ranks at their peaks, part by part; heads first."""
    ranks: Sequence[object] = plan.memory
    if len(plan.memory) > MOST_RANKS:
        ranks = [plan.memory[plan.fullest]]
    return [
        ["rank", "peak", *PARTS, "at action"],
        *(
            [
                str(rank.rank), gigabytes(rank.peak),
                *(gigabytes(getattr(rank, part)) for part in PARTS), rank.at.action,
            ]
            for rank in plan.memory
            if rank in ranks
        ),
    ]  # fmt: skip


def _memory_notes(plan: Evaluated, width: int) -> list[str]:
    """Return the capacity, the limit of the search, and the error of predicted peaks."""
    request = plan.request
    return wrap(
        f"A process gets {gigabytes(request.capacity)} of one {request.cluster.gpu.name}. Measured "
        f"peaks of {framework_title(plan)} exceed predicted ones by up to "
        f"{rough_percent(request.training.runtime.memory_error)} in 9 of 10 runs, so plans are "
        f"predicted to need at most {gigabytes(request.limit)}. margin: context, communication "
        "buffers and fragmentation.",
        width,
    )


def _efficiency(plan: Evaluated, width: int) -> list[str]:
    """Return the derivation of kernels' times, and the error of a step."""
    return wrap(
        f"Kernels take {1 / plan.efficiency:.3g} times as long as data sheets and shapes say: "
        f"efficiency {plan.efficiency:.3g}, {plan.efficiency_origin}. Transfers follow from links "
        "and group sizes, the step from simulating the schedule. "
        f"{comparable_steps(plan)}.",
        width,
    )


def left_out(found: Answer, width: int) -> list[str]:
    """Return the number of plans considered, and of those left out by reason."""
    line = f"{found.considered:,} considered, {found.simulated:,} simulated"
    if found.interrupted:
        line += "; the search was stopped before the end: others may be better"
    counts = sorted(found.left_out.items(), key=lambda item: -item[1])
    rows = [(f"{count:>{len(f'{found.considered:,}')},}", "", why) for why, count in counts]
    return [*wrap(line, width, 2), *(definitions(rows, width) if rows else [])]
