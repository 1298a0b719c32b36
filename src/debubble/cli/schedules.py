"""``debubble schedules``: the list of schedules, and an explanation of each."""

from __future__ import annotations

import re
import textwrap
from types import SimpleNamespace
from typing import Annotated, Any

import typer

from debubble.analysis.layout import PIPED, line_width, table, wrap
from debubble.analysis.registry_table import CHUNKS, MICROBATCHES, RANKS, glance
from debubble.analysis.tex import bibliography
from debubble.cli import completion
from debubble.cli.app import command
from debubble.cli.options import AsJson, Text, switch, takes
from debubble.cli.output import print_json
from debubble.cli.template import write_template
from debubble.core.errors import DebubbleError, ParameterError
from debubble.core.units import number, percent
from debubble.engine.jit import load_compiler
from debubble.engine.timeline import Timeline, simulate
from debubble.interchange.files import is_foreign
from debubble.schedules import registry
from debubble.schedules.formula import legend
from debubble.schedules.registry import Entry
from debubble.view.terminal import draw

FIGURE_SIZES = 4, 8
"""Ranks and microbatches that a schedule is drawn for, or the nearest it accepts."""

FIGURE_COLUMNS = 96


def schedules(
    name: Annotated[
        Text,
        typer.Argument(
            metavar="[NAME]", help="Explain one schedule.", autocompletion=completion.schedules
        ),
    ] = None,
    wide: Annotated[
        bool, switch("--wide", "List all columns, however long the lines are.")
    ] = False,
    bibtex: Annotated[bool, switch("--bibtex", "Print the sources, for BibTeX.")] = False,
    from_template: Annotated[
        Text, takes("FILE", "Write a schedule of your own to start from: .py.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List schedules, or explain one.

    An explanation has a description, constraints, formulas and a drawing.
    """
    if from_template is not None:
        _refuse("--from-template", NAME=name, wide=wide, bibtex=bibtex, json=as_json)
        print(write_template(from_template))
    elif bibtex:
        _refuse("--bibtex", wide=wide, json=as_json)
        wanted = registry.schedules() if name is None else [registry.find(name)]
        print(bibliography(entry.name for entry in wanted), end="")
    elif name is None:
        if as_json:
            _refuse("--json", wide=wide)
            print_json([describe(entry) for entry in registry.schedules()])
        else:
            print(overview(registry.schedules(), None if wide else line_width()))
    elif is_foreign(name):
        raise ParameterError(
            f"'{name}' is a function of your own or a file, which has no explanation; 'debubble "
            f"simulate {name}' says what it takes"
        )
    else:
        _refuse("NAME", wide=wide)
        entry = registry.find(name)
        if as_json:
            print_json(describe(entry))
        else:
            print(explain(entry, line_width()))


def _refuse(flag: str, **others: object) -> None:
    """Refuse other options that change nothing next to one."""
    for name, value in others.items():
        if value:
            word = name if name.isupper() else f"--{name}"
            raise ParameterError(f"{word} does nothing next to {flag}; leave it out")


def describe(entry: Entry) -> dict[str, Any]:
    """Return the description of a schedule as plain data."""
    found = glance(entry)
    return {
        **entry.to_dict(),
        "placement": _placement(entry),
        "constraints": [constraint.text for constraint in entry.constraints],
        "options": [
            {"name": option.name, "type": option.type, "default": option.default}
            for option in entry.options
        ],
        "closed_forms": [form.to_dict() for form in entry.forms],
        "uses_costs": entry.uses_costs,
        "weight_versions": found.timeline.schedule.weight_versions if found else 1,
        "at_a_glance": found and found.to_dict(),
        "use": entry.use,
        "description": plain_text(entry.text),
    }


def explain(entry: Entry, width: int = PIPED) -> str:
    """Return the description of a schedule as text."""
    aliases = f" (also {', '.join(entry.aliases)})" if entry.aliases else ""
    facts = [
        ("source", f"{entry.source} ({entry.year})"),
        ("placement", _placement(entry)),
        ("chunks", _chunks(entry)),
        *(("needs", constraint.text) for constraint in entry.constraints),
        *(("option", f"{o.name}: {o.type}, default {o.default}") for o in entry.options),
    ]
    found = glance(entry)
    if found is not None:
        facts += _glance_texts(found.timeline)
    title = wrap(f"{entry.name}: {entry.title}{aliases}", width, 2)
    lines = [*title, "", *_described(entry, width), ""]
    longest = max(len(key) for key, _ in facts)
    for key, text in facts:
        lines += wrap(f"{key:<{longest}}  {text}", width, longest + 2)
    if entry.forms:
        lines += ["", "closed forms:", *_formulas(entry, width)]
    figure = draw_example(entry, width)
    return "\n".join([*lines, "", figure] if figure else lines)


def _described(entry: Entry, width: int) -> list[str]:
    """Return the paragraphs of a schedule in the given width, and its figures that fit."""
    parts: list[list[str]] = []
    for paragraph in plain_text(entry.text).split("\n\n"):
        figure = paragraph.splitlines()
        if not figure[0].startswith(" "):
            parts.append(wrap(" ".join(paragraph.split()), width))
        elif max(map(len, figure)) <= width:
            parts.append(figure)
        else:
            # There is a drawing that fits at the end; the sizes of this one go with it.
            parts.pop()
    return "\n\n".join("\n".join(part).replace("::", ":") for part in parts).splitlines()


def plain_text(text: str) -> str:
    """Return the text of a docstring without roles of reStructuredText.

    Examples
    --------
    >>> plain_text("as :func:`zb_auto` does, by :mod:`debubble.listing`")
    'as zb-auto does, by debubble.listing'
    """
    names = {name.replace("-", "_"): name for name in registry.entries()}
    return re.sub(r":[a-z]+:`~?([^`]+)`", lambda found: names.get(found[1], found[1]), text)


def example_case(entry: Entry) -> SimpleNamespace | None:
    """Return the ranks and microbatches nearest to those of figures that a schedule accepts."""
    near = [(p, m) for p in range(1, 17) for m in range(1, 65)]
    near.sort(key=lambda s: (abs(s[0] - FIGURE_SIZES[0]), abs(s[1] - FIGURE_SIZES[1]), s))
    chunks = entry.chunks or max(2, entry.default_chunks)
    for ranks, microbatches in near:
        case = entry.case(ranks=ranks, microbatches=microbatches, chunks=chunks)
        if all(constraint.holds(case) for constraint in entry.constraints):
            return case
    return None


def example(entry: Entry) -> Timeline | None:
    """Simulate a small case with default costs; None when the schedule needs more than sizes."""
    case = example_case(entry)
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


def draw_example(entry: Entry, width: int = FIGURE_COLUMNS) -> str:
    """Draw a small case as text; empty when the schedule needs more than sizes."""
    timeline = example(entry)
    return "" if timeline is None else draw(timeline, width=min(width, FIGURE_COLUMNS), color=False)


def _glance_texts(timeline: Timeline) -> list[tuple[str, str]]:
    """Return memory and bubble of an example in words, each with its sizes."""
    schedule = timeline.schedule
    where = (
        f"at p = {schedule.ranks}, m = {schedule.microbatches}, v = {schedule.chunks}, F = I = W"
    )
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


def _formulas(entry: Entry, width: int) -> list[str]:
    """Return formulas, each once with its conditions, and a legend of their symbols."""
    holds: dict[tuple[str, str], list[str]] = {}
    for form in entry.forms:
        where = f"{form.accuracy} ({form.condition})" if form.condition else form.accuracy
        holds.setdefault((form.quantity.replace("_", " "), form.text), []).append(where)
    lines = []
    for (quantity, text), places in holds.items():
        lines += wrap(f"  {quantity}  {text}", width, 4)
        lines += [f"    {line}" for line in wrap("; else ".join(places), width - 4)]
    symbols = legend(form.text for form in entry.forms)
    return [*lines, *wrap(f"  {symbols}", width, 4)] if symbols else lines


def _placement(entry: Entry) -> str:
    return entry.placement(FIGURE_SIZES[0], entry.chunks or max(2, entry.default_chunks)).name


def _chunks(entry: Entry) -> str:
    return str(entry.chunks) if entry.chunks else f"any, default {entry.default_chunks}"


def overview(found: list[Entry], width: int | None) -> str:
    """Return a table with a line per schedule.

    In `width` characters it has the columns that matter most; with None all, uncut.
    """
    # All schedules are simulated, which machine code does sooner.
    load_compiler()
    heads = ["schedule", "chunks", "memory", "bubble", "what it is"]
    more = ["year", "placement", "needs", "source"] if width is None else []
    rows = [heads + more]
    for entry in found:
        seen = glance(entry)
        row = [
            entry.name,
            str(entry.chunks or "any"),
            seen.memory if seen else "?",
            seen.bubble if seen else "?",
            f"[{seen.away}] {entry.title}" if seen and seen.away else entry.title,
        ]
        if more:
            needs = "; ".join(constraint.text for constraint in entry.constraints)
            row += [str(entry.year), _placement(entry), needs or "–", entry.source]
        rows.append(row)
    if width is not None:
        fixed = sum(max(map(len, column)) + 2 for column in list(zip(*rows, strict=True))[:4])
        rows = [[*row[:4], _cut(row[4], max(1, width - fixed))] for row in rows]
    note = (
        "Memory is in activation units on the fullest rank; bubble is the idle share of rank-time. "
        f"Both are for p = {RANKS}, m = {MICROBATCHES}, v = {CHUNKS} if there is a choice (or the "
        "nearest that works, in [brackets]), F = I = W and free transfers."
    )
    hint = "'debubble schedules NAME' explains and draws a schedule"
    if width is not None:
        hint += "; --wide adds constraints and sources"
    lines = table(rows, left=(0, 4, 6, 7, 8))
    return "\n".join([*lines, "", *wrap(note, width or PIPED), *wrap(f"{hint}.", width or PIPED)])


def _cut(text: str, width: int) -> str:
    """Cut a text after the words that fit."""
    return text if len(text) <= width else textwrap.shorten(text, width, placeholder=" …")


app = command(
    schedules,
    [
        "schedules",
        "schedules --wide",
        "schedules dualpipe-v",
        "schedules zb-v --bibtex",
        "schedules --from-template my.py",
        "schedules --json",
    ],
)
