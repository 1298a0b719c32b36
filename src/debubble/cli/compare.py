"""``debubble compare``: which schedule is fastest within memory."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, Any, NoReturn

import typer

from debubble.cli.app import command
from debubble.cli.draw import check_picture
from debubble.cli.errors import BAD_INPUT
from debubble.cli.options import AsJson, Inputs, ScheduleNames, Setup, with_setup
from debubble.cli.output import note, print_json
from debubble.cli.progress import Steps, steps
from debubble.core.errors import ParameterError
from debubble.core.schedule import Schedule


@with_setup
def compare(
    schedules: ScheduleNames,
    setup: Setup,
    as_json: AsJson = False,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help=".html, .png, .svg, .pdf or .txt."),
    ] = None,
) -> None:
    """Find the fastest schedule within memory.

    All are simulated on the same costs and listed fastest first; those that cannot be made for
    these parameters are listed with the reason.
    """
    from debubble.analysis.compare import compare as simulate_all

    inputs = setup.read()
    if output is not None:
        check_picture(output)
    with steps(2 * len(schedules)) as step:
        items, skipped = _items(schedules, inputs, step)
        named = [item for item in items if isinstance(item, str)]
        if named:
            _need_sizes(named[0], inputs)
        if not items:
            _leave(skipped)
        result = simulate_all(
            items,
            ranks=inputs.size("ranks"),
            microbatches=inputs.size("microbatches"),
            chunks=inputs.size("chunks"),
            costs=inputs.costs,
            memory=inputs.memory,
            p2p_mode=inputs.mode,
            iterations=inputs.iterations,
            sync=inputs.sync,
            **inputs.lowering,
            options=inputs.options(named),
            time_unit=inputs.time_unit,
            progress=lambda label, index, count: step(f"{label} ({index + 1} of {count})"),
        )
        result = replace(result, skipped=(*skipped, *result.skipped))
        if not result.rows:
            _leave(result.skipped)
    if as_json:
        print_json(result.to_dict() | {"costs": inputs.source or None})
    else:
        _print(result, inputs)
    if output is not None:
        sys.stdout.flush()
        result.save(output)
        note(f"wrote {output}")


def _items(
    names: list[str], inputs: Inputs, step: Steps
) -> tuple[list[str | Schedule], list[tuple[str, str]]]:
    """Schedules of files and functions, and names; those that do not fit come with the reason."""
    from debubble.interchange.files import is_file_name, is_foreign

    items: list[str | Schedule] = []
    skipped = []
    for name in names:
        step(f"reading {name}")
        if not is_foreign(name):
            items.append(name)
            continue
        # The number of chunks is for schedules that leave a choice, and a file does not.
        chunks = None if is_file_name(name) else inputs.chunks
        try:
            # The comparison lowers all schedules in one way.
            items.append(replace(inputs.plain, chunks=chunks).schedule(name))
        except ParameterError as error:
            skipped.append((name, str(error)))
    return items, skipped


def _leave(skipped: Iterable[tuple[str, str]]) -> NoReturn:
    """Say why there is nothing to compare."""
    for name, reason in skipped:
        note(f"debubble: {name}: {reason}")
    raise typer.Exit(BAD_INPUT)


def _need_sizes(name: str, inputs: Inputs) -> None:
    for key, advice in (("ranks", "-p, such as -p 8"), ("microbatches", "-m, such as -m 32")):
        if inputs.size(key) is None:
            raise ParameterError(f"'{name}' needs {key}; give {advice}")


def _print(result: Any, inputs: Inputs) -> None:
    if sys.stdout.isatty():
        from rich.console import Console

        Console(highlight=False).print(result.render())
    else:
        print(result)
    if inputs.source:
        print(f"costs: {inputs.source}")


app = command(
    compare,
    [
        "compare 1f1b zb-h1 dualpipe-v -p 8 -m 32 --rank-times F=1,I=1,W=1",
        "compare 1f1b interleaved-1f1b dualpipe-v --costs examples/zero-bubble/gpt-28.3b-m96.yaml",
        "compare gpipe 1f1b zb-h1 -p 8 -m 32 --memory 12 -o comparison.html",
    ],
)
