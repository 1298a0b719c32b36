"""``debubble schedules``: what is there, and what one of them is."""

from __future__ import annotations

import shutil
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from debubble.analysis.metrics import number, parameter_copies, percent, table
from debubble.cli.app import command
from debubble.cli.options import AsJson
from debubble.cli.output import print_json
from debubble.core.errors import DebubbleError
from debubble.schedules import registry
from debubble.schedules.registry import Entry

if TYPE_CHECKING:
    from debubble.engine.timeline import Timeline

FIGURE_SIZES = 4, 8
"""Ranks and microbatches that a schedule is drawn for, or the nearest it accepts."""

GLANCE_SIZES = 8, 32
"""Ranks and microbatches that memory and bubble are given for, or the nearest."""

FIGURE_COLUMNS = 96
PLACEMENT, NARROWEST = 20, 10
"""Characters of a placement on a terminal, and what the columns with long texts keep at least."""


def schedules(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Explain one schedule.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List schedules, or explain one of them.

    An explanation says what the schedule is, what it needs, its formulas, and draws it.
    """
    if name is None:
        found = registry.schedules()
        if as_json:
            print_json([describe(entry) for entry in found])
        else:
            _print_table(found)
        return
    entry = registry.find(name)
    if as_json:
        print_json(describe(entry))
    else:
        print(explain(entry))


def describe(entry: Entry) -> dict[str, Any]:
    """What is known about a schedule, as plain data."""
    glance = at_a_glance(entry)
    return {
        "name": entry.name,
        "aliases": list(entry.aliases),
        "title": entry.title,
        "year": entry.year,
        "source": entry.source,
        "placement": _placement(entry),
        "chunks": entry.chunks,
        "default_chunks": entry.chunks or entry.default_chunks,
        "constraints": [constraint.text for constraint in entry.constraints],
        "options": [
            {"name": option.name, "type": option.type, "default": option.default}
            for option in entry.options
        ],
        "closed_forms": [
            {
                "quantity": form.quantity,
                "formula": form.text,
                "accuracy": form.accuracy,
                "condition": form.condition,
            }
            for form in entry.forms
        ],
        "uses_costs": entry.uses_costs,
        "weight_versions": glance.schedule.weight_versions if glance else 1,
        "at_a_glance": glance
        and {
            "ranks": glance.schedule.ranks,
            "microbatches": glance.schedule.microbatches,
            "chunks": glance.schedule.chunks,
            "peak_activation": float(glance.peak_activation.max()),
            "parameter_copies": parameter_copies(glance.schedule),
            "bubble_ratio": glance.bubble_ratio,
            "stage_bubble_rate": glance.stage_bubble_rate,
        },
        "description": entry.text,
    }


def explain(entry: Entry) -> str:
    """What is known about a schedule, for people."""
    aliases = f" (also {', '.join(entry.aliases)})" if entry.aliases else ""
    facts = [
        ("source", f"{entry.source} ({entry.year})"),
        ("placement", _placement(entry)),
        ("chunks", _chunks(entry)),
        *(("needs", constraint.text) for constraint in entry.constraints),
        *(("option", f"{o.name}: {o.type}, default {o.default}") for o in entry.options),
    ]
    glance = at_a_glance(entry)
    if glance is not None:
        facts += _glance_texts(glance)
    lines = [f"{entry.name}: {entry.title}{aliases}", "", entry.text, ""]
    width = max(len(key) for key, _ in facts)
    lines += [f"{key:<{width}}  {text}" for key, text in facts]
    if entry.forms:
        lines += ["", "closed forms, per action times F, I, W, B, O and latency c:"]
        lines += _formulas(entry)
    figure = draw_example(entry)
    return "\n".join([*lines, "", figure] if figure else lines)


def example_case(entry: Entry, sizes: tuple[int, int] = FIGURE_SIZES) -> SimpleNamespace | None:
    """The ranks and microbatches nearest to `sizes` that a schedule accepts."""
    near = [(p, m) for p in range(1, 17) for m in range(1, 65)]
    near.sort(key=lambda s: (abs(s[0] - sizes[0]), abs(s[1] - sizes[1]), s))
    chunks = entry.chunks or max(2, entry.default_chunks)
    for ranks, microbatches in near:
        case = entry.case(ranks=ranks, microbatches=microbatches, chunks=chunks)
        if all(constraint.holds(case) for constraint in entry.constraints):
            return case
    return None


def example(entry: Entry, sizes: tuple[int, int] = FIGURE_SIZES) -> Timeline | None:
    """A timeline with default costs, None when the schedule needs more than sizes."""
    from debubble.engine.timeline import simulate

    case = example_case(entry, sizes)
    if case is None:
        return None
    try:
        schedule = registry.make(
            entry.name, ranks=case.ranks, microbatches=case.microbatches,
            chunks=None if entry.chunks else case.chunks,
        )  # fmt: skip
        return simulate(schedule)
    except DebubbleError:
        return None


def at_a_glance(entry: Entry) -> Timeline | None:
    """The timeline whose memory and bubble stand in the table."""
    return example(entry, GLANCE_SIZES)


def draw_example(entry: Entry) -> str:
    """A small timeline in the terminal's way, empty when the schedule needs more than sizes."""
    from debubble.view.terminal import draw

    timeline = example(entry)
    return "" if timeline is None else draw(timeline, width=FIGURE_COLUMNS, color=False)


def _glance_texts(timeline: Timeline) -> list[tuple[str, str]]:
    """Memory and bubble of an example, each with the sizes it is for."""
    schedule = timeline.schedule
    where = f"at p = {schedule.ranks}, m = {schedule.microbatches}, F = I = W"
    peak = timeline.peak_activation
    low, high = number(float(peak.min())), number(float(peak.max()))
    held = high if low == high else f"{low} to {high}"
    facts = [
        ("memory", f"{held} activation units, {where}"),
        ("bubble", f"{percent(timeline.bubble_ratio)} of rank-time idle, {where}"),
    ]
    if max(schedule.versions) > 1:
        kept = ", ".join(map(str, schedule.versions))
        facts.append(("weights", f"{kept} versions on ranks 0 to {schedule.ranks - 1}, {where}"))
    return facts


def _formulas(entry: Entry) -> list[str]:
    rows = [(form.quantity.replace("_", " "), form.text) for form in entry.forms]
    width = max(len(quantity) for quantity, _ in rows)
    lines = []
    for form, (quantity, text) in zip(entry.forms, rows, strict=True):
        limits = [form.accuracy] if form.accuracy != "exact" else []
        limits += [form.condition] if form.condition else []
        where = f"  ({'; '.join(limits)})" if limits else ""
        lines.append(f"  {quantity:<{width}}  {text}{where}")
    return lines


def _placement(entry: Entry) -> str:
    return entry.placement(FIGURE_SIZES[0], entry.chunks or max(2, entry.default_chunks)).name


def _chunks(entry: Entry) -> str:
    return str(entry.chunks) if entry.chunks else f"any, default {entry.default_chunks}"


def _print_table(found: list[Entry]) -> None:
    """One line a schedule; on a terminal the columns with long texts are cut to its width."""
    rows = [["name", "year", "placement", "chunks", "memory", "bubble", "needs", "source"]]
    for entry in found:
        glance = at_a_glance(entry)
        peak = number(round(float(glance.peak_activation.max()), 2)) if glance else "?"
        bubble = percent(glance.bubble_ratio) if glance else "?"
        needs = "; ".join(constraint.text for constraint in entry.constraints)
        chunks = str(entry.chunks or "any")
        rows.append(
            [
                entry.name, str(entry.year), _placement(entry), chunks, peak, bubble,
                needs or "–", entry.source,
            ]
        )  # fmt: skip
    if sys.stdout.isatty():
        rows = [[*row[:2], _cut(row[2], PLACEMENT), *row[3:]] for row in rows]
        fixed = sum(max(map(len, column)) + 2 for column in list(zip(*rows, strict=True))[:6])
        room = max(NARROWEST, (shutil.get_terminal_size().columns - fixed - 2) // 2)
        rows = [[*row[:6], *(_cut(text, room) for text in row[6:])] for row in rows]
    print("\n".join(table(rows, left=(0, 2, 6, 7))))
    if sys.stdout.isatty():
        ranks, microbatches = GLANCE_SIZES
        print(
            "\nmemory: activation units on the fullest rank; bubble: idle share of rank-time; "
            f"both at\np = {ranks}, m = {microbatches} (or the nearest), F = I = W, no latency.\n"
            "'debubble schedules NAME' says all about one, and draws it."
        )


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


app = command(schedules, ["schedules", "schedules dualpipe-v", "schedules --json"])
