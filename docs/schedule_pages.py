"""The pages of schedules: a timeline at several sizes, formulas, numbers; and their gallery."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

from gallery import gallery, note
from pictures import write_dark
from roles import as_markdown
from tables import table

import debubble as db
from debubble.analysis.registry_table import MICROBATCHES, RANKS, Glance, glance
from debubble.cli.schedules import describe, example
from debubble.core.units import number, percent
from debubble.engine.timeline import Timeline
from debubble.schedules.formula import legend
from debubble.schedules.registry import Entry
from debubble.view.files import save
from debubble.view.page import script
from debubble.view.timeline_data import encode

FIGURE = {"width": 9.0, "notes": False, "title": "", "transfers": False}

SIZES = {"ranks": [2, 4, 8], "microbatches": [8, 16, 32], "chunks": [2, 4]}
"""Sizes of the timelines on the page of a schedule; chunks where the schedule leaves a choice."""

SETTINGS = {
    "equal times": {"F": 1, "I": 1, "W": 1},
    "measured": {"F": 44.18, "I": 40.27, "W": 38, "p2p": 2.17},
    "slow links": {"F": 1, "I": 1, "W": 1, "p2p": 0.2},
    "long attention": {"F": 10, "I": 16, "W": 7, "p2p": 0.3},
}
"""Costs of a rank that all schedules are compared on."""


def write_schedules(pages: Path) -> None:
    """Write a page for every schedule, and the gallery of all."""
    entries = db.schedules()
    folder = pages / "schedules"
    folder.mkdir(parents=True)
    (pages / "timeline.js").write_text(script(), encoding="utf-8")
    names = {entry.name for entry in entries}
    results = {entry.name: measured(entry) for entry in entries}
    shown = []
    for entry in entries:
        drawing, seen = example(entry), glance(entry)
        assert drawing is not None
        assert seen is not None
        shown.append((entry, seen, drawing))
        save([drawing], folder / f"{entry.name}.svg", **FIGURE)
        write_dark(folder / f"{entry.name}.svg")
        data = json.dumps(timelines(entry), ensure_ascii=False, separators=(",", ":"))
        (folder / f"{entry.name}.js").write_text(f"debubbleTimelines({data});\n", encoding="utf-8")
        page = schedule_page(entry, results, names, drawing)
        (folder / f"{entry.name}.md").write_text(page, encoding="utf-8")
    cards = gallery(shown, folder)
    (folder / "index.md").write_text(index_page(entries, results, cards), encoding="utf-8")


def timelines(entry: Entry) -> dict[str, Any]:
    """Return the timelines of a schedule at all sizes that a reader can choose, for the component.

    Everything but the timelines themselves is the same at all sizes.
    """
    chunks = [entry.chunks] if entry.chunks else SIZES["chunks"]
    data: dict[str, Any] = {}
    cases = {}
    for case in itertools.product(SIZES["ranks"], SIZES["microbatches"], chunks):
        sizes = dict(zip(SIZES, case, strict=True))
        try:
            timeline = db.simulate(db.make(entry.name, **sizes))
        except db.DebubbleError:
            continue
        data = encode([timeline])
        (cases[" ".join(map(str, case))],) = data.pop("timelines")
    return {"name": entry.name, "shared": data, "cases": cases}


def measured(entry: Entry) -> dict[str, Glance]:
    """The schedule on the costs of every setting; empty if it needs more than sizes."""
    found = {name: glance(entry, db.Costs.per_rank(**times)) for name, times in SETTINGS.items()}
    seen = {name: each for name, each in found.items() if each is not None}
    return seen if len(seen) == len(SETTINGS) else {}


def schedule_page(
    entry: Entry, results: dict[str, dict[str, Glance]], names: set[str], drawing: Timeline
) -> str:
    """Return the page of a schedule."""
    about = describe(entry)
    facts = [
        ("source", f"{entry.source} ({entry.year})"),
        ("also called", ", ".join(f"`{alias}`" for alias in entry.aliases)),
        ("placement", about["placement"]),
        ("chunks per rank", entry.chunks or f"any; {entry.default_chunks} unless given"),
        ("needs", "; ".join(constraint.text for constraint in entry.constraints)),
        ("sequence", "computed from the costs" if entry.uses_costs else "the same for all costs"),
    ]
    lines = [f"# {entry.name}", "", f"{entry.title}.", "", *interactive(entry, drawing), ""]
    lines += [
        '!!! tip "When to use it"',
        "",
        f"    {mentions(entry.use[0].upper() + entry.use[1:], entry, names)}",
        "",
    ]
    lines += ["", *table(["", ""], [row for row in facts if row[1]]), ""]
    lines += ["## How it works", "", description(entry, names), ""]
    if entry.forms:
        lines += ["## Formulas", "", *formulas(entry), ""]
    if results[entry.name]:
        lines += ["## Numbers", "", *numbers(entry, results), ""]
    if entry.options:
        rows = [
            (f"`{o.name}`", f"`{o.type}`", f"`{o.default}`", as_markdown(o.text))
            for o in entry.options
        ]
        lines += ["## Options", "", *table(["option", "type", "default", ""], rows), ""]
    return "\n".join(lines)


def interactive(entry: Entry, drawing: Timeline) -> list[str]:
    """Return the figure of a schedule, which scripts replace by a timeline to explore."""
    schedule, name = drawing.schedule, entry.name
    sizes = f"{schedule.ranks} ranks, {schedule.microbatches} microbatches"
    if schedule.chunks > 1:
        sizes += f", {schedule.chunks} chunks"
    images = "".join(
        f'<img src="{name}{suffix}.svg#only-{scheme}" alt="{name}: {sizes}" loading="lazy">'
        for scheme, suffix in (("light", ""), ("dark", "-dark"))
    )
    at = f"{schedule.ranks} {schedule.microbatches} {schedule.chunks}"
    return [
        f'<figure class="timelines" data-schedule="{name}" data-sizes="{at}">',
        images,
        f"<figcaption><span>{sizes}. </span>"
        "F, I and W take equal times, and transfers none.</figcaption>",
        "</figure>",
        '<script src="../site/timelines.js" defer></script>',
        "",
        "```sh",
        f"debubble draw {name} -p {schedule.ranks} -m {schedule.microbatches} -o {name}.html",
        "```",
    ]


def description(entry: Entry, names: set[str]) -> str:
    """The text of a schedule as Markdown, with links to the schedules it names."""
    kept = []
    for paragraph in as_markdown(entry.text).split("\n\n"):
        part, _, _ = paragraph.partition("When to use it: ")
        plain = not part.startswith((" ", "```"))
        kept.append(mentions(part.rstrip(), entry, names) if plain else part)
    return "\n\n".join(part for part in kept if part)


def mentions(text: str, entry: Entry, names: set[str]) -> str:
    """A text with links to the schedules that it names."""
    others = sorted(names - {entry.name}, key=len, reverse=True)
    pattern = rf"(?<![\w`-])`?({'|'.join(map(re.escape, others))})`?(?![\w-])"
    return re.sub(pattern, r"[\1](\1.md)", text)


def formulas(entry: Entry) -> list[str]:
    """A table of closed forms, and what their symbols are."""
    rows = []
    for form in entry.forms:
        where = f"{form.accuracy}: {form.condition}" if form.condition else form.accuracy
        rows.append((form.quantity.replace("_", " "), f"`{form.text}`", where))
    symbols = legend(form.text for form in entry.forms)
    return [*table(["quantity", "formula", ""], list(dict.fromkeys(rows))), "", f"{symbols}."]


def numbers(entry: Entry, results: dict[str, dict[str, Glance]]) -> list[str]:
    """What the schedule takes on the costs of every setting, beside 1F1B."""
    rows = []
    away = ""
    for setting, seen in results[entry.name].items():
        timeline, base = seen.timeline, results["1f1b"][setting].timeline
        away = f"Of {entry.name} at {seen.away}. " if seen.away else ""
        rows.append((
            setting, percent(timeline.overhead), percent(base.overhead),
            number(round(float(timeline.peak_activation.max()), 2)),
            number(float(base.peak_activation.max())),
        ))  # fmt: skip
    heads = ["costs", "overhead", "of 1f1b", "activations", "of 1f1b"]
    return [*table(heads, rows), "", f"{away}{settings_text()}"]


def settings_text() -> str:
    """What the numbers are for."""
    costs = "; ".join(
        f"{name}: {', '.join(f'{key} = {value:g}' for key, value in times.items())}"
        for name, times in SETTINGS.items()
    )
    return (
        f"Simulated with p = {RANKS}, m = {MICROBATCHES} and, where possible, 2 chunks, over one "
        "iteration: orders without flush fill and drain in it, too. "
        "Overhead is (makespan − ideal) / ideal; activations are units on the fullest rank. Times "
        f"are those of a rank: {costs}."
    )


def index_page(entries: list[Entry], results: dict[str, dict[str, Glance]], cards: str) -> str:
    """Return the page with the gallery, and a table of what each schedule takes on other costs."""
    rows = []
    for entry in entries:
        found = results[entry.name]
        away = found["equal times"].away
        name = f"[{entry.name}]({entry.name}.md)"
        times = [percent(found[setting].timeline.overhead) for setting in SETTINGS]
        rows.append((f"{name} ({away})" if away else name, *times))
    text = (
        f"{len(entries)} published schedules. Open one for an interactive timeline at several "
        "sizes, its formulas, numbers and source."
    )
    return "\n".join([
        "---", "hide:", "  - toc", "---", "", "# Schedules", "", text, "", cards, "", note(), "",
        "## Overhead on other costs", "", settings_text(), "",
        *table(["schedule", *SETTINGS], rows), "",
    ])  # fmt: skip
