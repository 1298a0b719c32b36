"""``debubble compare``: the fastest schedule within memory."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, Any, NoReturn

import typer

from debubble.analysis.compare import compare as simulate_all
from debubble.analysis.compare import has_choice
from debubble.analysis.layout import line_width, unstyled
from debubble.analysis.question import AS_READ, HOW
from debubble.analysis.tex import bibliography
from debubble.cli.app import command
from debubble.cli.exit_codes import BAD_INPUT
from debubble.cli.options import (
    AsJson,
    Inputs,
    ScheduleNames,
    Setup,
    Text,
    Wide,
    takes,
    with_setup,
    writes,
)
from debubble.cli.output import check_output, in_color, note, print_json, styled
from debubble.cli.panels import OUTPUT
from debubble.cli.pictures import Picture, check_picture, with_picture
from debubble.cli.progress import Phases, phases
from debubble.core.errors import ParameterError
from debubble.core.schedule import Schedule
from debubble.interchange.files import is_file_name, write_text
from debubble.interchange.named import SIZES, made_for_each
from debubble.schedules import registry


@with_picture
@with_setup
def compare(
    schedules: ScheduleNames,
    setup: Setup,
    picture: Picture,
    wide: Wide = False,
    as_json: AsJson = False,
    output: Annotated[Text, writes(".html, .png, .svg, .pdf, .txt, or .tex: a table.")] = None,
    bibtex: Annotated[
        Text, takes("FILE", "Write the sources of the schedules: .bib.", "--bibtex", panel=OUTPUT)
    ] = None,
) -> None:
    """Compare schedules on your costs and memory.

    Simulates all with the same costs and lists the fastest first. With --jitter, also prints how
    often each one wins.
    """
    inputs = setup.read()
    check_picture(output, picture, ".tex")
    check_output("--bibtex", bibtex, (".bib",), "a bibliography is written as .bib")
    with phases(2 * len(schedules)) as phase:
        items, skipped = _items(schedules, inputs, phase)
        named = [item for item in items if isinstance(item, str)]
        chunks = inputs.several.get("chunks") or inputs.asked.chunks
        if chunks is None and has_choice(named):
            chunks = inputs.size("chunks")
        if named:
            for key, advice in HOW.items():
                if inputs.size(key) is None and key not in inputs.several:
                    raise ParameterError(f"'{named[0]}' needs {key}; {advice}")
        if not items:
            _leave(skipped)
        result = simulate_all(
            items,
            ranks=inputs.size("ranks"),
            microbatches=inputs.several.get("microbatches") or inputs.size("microbatches"),
            chunks=chunks,
            costs=inputs.costs,
            memory=inputs.memory,
            **{name: getattr(inputs.asked, name) for name in AS_READ if name not in SIZES},
            **inputs.asked.lowerings,
            options=inputs.options(named),
            time_unit=inputs.costs.time_unit,
            jitter=inputs.asked.jitter,
            layers=None if inputs.file is None else inputs.file.layers or None,
            progress=lambda label, index, count: phase(f"{label} ({index + 1} of {count})"),
        )
        notes = inputs.unread(*(row.schedule for row in result.rows))
        result = replace(result, skipped=(*skipped, *result.skipped), notes=(*result.notes, *notes))
        if not result.rows:
            _leave(result.skipped)
    if output is not None:
        table = {"cite": bibtex is not None, "source": inputs.source}
        table |= {key: picture[key] for key in ("title", "label") if key in picture}
        result.save(output, **table if output.lower().endswith(".tex") else picture)
    if bibtex is not None:
        # Schedules of files have no entry.
        known = [name for row in result.rows if (name := row.schedule.name) in registry.entries()]
        write_text(bibtex, bibliography(known))
        note(f"wrote {bibtex}")
    if as_json:
        print_json(result.to_dict() | {"costs": inputs.source or None})
    else:
        print(result.text(line_width(), styled if in_color() else unstyled, wide=wide))
        if inputs.source:
            print(f"costs: {inputs.source}")
    sys.stdout.flush()
    if output is not None:
        note(f"wrote {output}")


def _items(
    names: list[str], inputs: Inputs, phase: Phases
) -> tuple[list[Any], list[tuple[str, str]]]:
    """Return schedules of files and functions, and names; and the reasons of those that fail."""
    alike = {name: numbers for name, numbers in inputs.several.items() if name != "chunks"}
    # The comparison lowers all schedules in one way.
    plain = replace(inputs, asked=replace(inputs.asked, lowerings={}), several=alike)

    def make(name: str, value: int | None) -> Schedule:
        phase(f"reading {name}")
        mine = replace(plain, asked=replace(plain.asked, chunks=value))
        # A file has no options; those of others are not for it.
        return (replace(mine, pairs=()) if is_file_name(name) else mine).of(name).made

    return made_for_each(names, inputs.several.get("chunks") or [inputs.asked.chunks], make)


def _leave(skipped: Iterable[tuple[str, str]]) -> NoReturn:
    """Exit with the reasons why there is nothing to compare."""
    for name, reason in skipped:
        note(f"debubble: {name}: {reason}")
    raise typer.Exit(BAD_INPUT)


app = command(
    compare,
    [
        "compare 1f1b zb-h1 dualpipe-v -p 8 -m 32 --rank-times F=1,I=1,W=1",
        "compare 1f1b interleaved-1f1b dualpipe-v --costs examples/zero-bubble/gpt-28.3b-m96.yaml",
        "compare gpipe 1f1b zb-h1 -p 8 -m 32 --memory 12 -o comparison.html",
        "compare gpipe 1f1b zb-h1 -p 8 -m 32 -o table.tex --bibtex schedules.bib",
        "compare 1f1b zb-h1 -p 8 -m 32 --jitter normal:3% --replicas 16",
    ],
)
