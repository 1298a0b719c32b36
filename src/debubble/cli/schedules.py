"""``debubble schedules``: what is there, and what one of them is."""

from __future__ import annotations

import shutil
import sys
from types import SimpleNamespace
from typing import Annotated, Any

import typer

from debubble.analysis.metrics import table
from debubble.cli.app import command
from debubble.cli.options import AsJson
from debubble.cli.output import print_json
from debubble.core.errors import DebubbleError
from debubble.schedules import registry
from debubble.schedules.registry import Entry

FIGURE_RANKS, FIGURE_MICROBATCHES = 4, 8
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
        "weight_versions": entry.weight_versions,
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
    if entry.weight_versions > 1:
        facts.append(("weights", f"{entry.weight_versions} versions at the same time"))
    lines = [f"{entry.name}: {entry.title}{aliases}", "", entry.text, ""]
    width = max(len(key) for key, _ in facts)
    lines += [f"{key:<{width}}  {text}" for key, text in facts]
    if entry.forms:
        lines += ["", "closed forms, per action times F, I, W, B, O and latency c:"]
        lines += _formulas(entry)
    figure = draw_example(entry)
    return "\n".join([*lines, "", figure] if figure else lines)


def example_case(entry: Entry) -> SimpleNamespace | None:
    """The sizes nearest to four ranks and eight microbatches that a schedule accepts."""
    sizes = [(p, m) for p in range(1, 17) for m in range(1, 65)]
    sizes.sort(key=lambda s: (abs(s[0] - FIGURE_RANKS), abs(s[1] - FIGURE_MICROBATCHES), s))
    chunks = entry.chunks or max(2, entry.default_chunks)
    for ranks, microbatches in sizes:
        case = entry.case(ranks=ranks, microbatches=microbatches, chunks=chunks)
        if all(constraint.holds(case) for constraint in entry.constraints):
            return case
    return None


def draw_example(entry: Entry) -> str:
    """A small timeline in the terminal's way, empty when the schedule needs more than sizes."""
    from debubble.engine.timeline import simulate
    from debubble.view.terminal import draw

    case = example_case(entry)
    if case is None:
        return ""
    try:
        schedule = registry.make(
            entry.name, ranks=case.ranks, microbatches=case.microbatches,
            chunks=None if entry.chunks else case.chunks,
        )  # fmt: skip
        return draw(simulate(schedule), width=FIGURE_COLUMNS, color=False)
    except DebubbleError:
        return ""


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
    return entry.placement(FIGURE_RANKS, entry.chunks or max(2, entry.default_chunks)).name


def _chunks(entry: Entry) -> str:
    return str(entry.chunks) if entry.chunks else f"any, default {entry.default_chunks}"


def _print_table(found: list[Entry]) -> None:
    """One line a schedule; on a terminal the columns with long texts are cut to its width."""
    rows = [["name", "year", "placement", "chunks", "needs", "source"]]
    for entry in found:
        needs = "; ".join(constraint.text for constraint in entry.constraints)
        chunks = str(entry.chunks or "any")
        rows.append(
            [entry.name, str(entry.year), _placement(entry), chunks, needs or "–", entry.source]
        )
    if sys.stdout.isatty():
        rows = [[*row[:2], _cut(row[2], PLACEMENT), *row[3:]] for row in rows]
        fixed = sum(max(map(len, column)) + 2 for column in list(zip(*rows, strict=True))[:4])
        room = max(NARROWEST, (shutil.get_terminal_size().columns - fixed - 2) // 2)
        rows = [[*row[:4], *(_cut(text, room) for text in row[4:])] for row in rows]
    print("\n".join(table(rows, left=(0, 2, 4, 5))))
    if sys.stdout.isatty():
        print("\n'debubble schedules NAME' says all about one, and draws it.")


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


app = command(schedules, ["schedules", "schedules dualpipe-v", "schedules --json"])
