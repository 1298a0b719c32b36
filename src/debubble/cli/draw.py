"""``debubble draw``: what schedules look like."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from debubble.cli.app import command
from debubble.cli.options import ScheduleNames, Setup, with_setup
from debubble.cli.output import check_writable, note
from debubble.cli.progress import steps


@with_setup
def draw(
    schedules: ScheduleNames,
    setup: Setup,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help=".png, .svg, .pdf, .html or .txt."),
    ] = None,
    title: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Title of a picture in a file.")
    ] = None,
    critical: Annotated[
        bool, typer.Option("--critical", help="Outline the critical path of a picture in a file.")
    ] = False,
) -> None:
    """Draw schedules in a terminal or a file.

    Several schedules share one time axis in a file, and a memory limit is drawn there as a line.
    """
    inputs = setup.read()
    if output is not None:
        check_picture(output)
    timelines = []
    with steps(2 * len(schedules) + 1) as step:
        for name in schedules:
            step(f"making {name}")
            made = inputs.schedule(name)
            step(f"simulating {name}, {len(made):,} actions")
            timelines.append(inputs.simulate(made, name))
        step("drawing")
        if output is not None:
            from debubble.view.files import save

            # Text has no lines to draw a limit or a path with.
            marks: dict[str, Any] = {"limit": inputs.memory, "critical": critical}
            plain = output.lower().endswith(".txt")
            save(timelines, output, title=title, **({} if plain else marks))
    if output is not None:
        note(f"wrote {output}")
        return
    from debubble.view.terminal import print_timeline

    for index, timeline in enumerate(timelines):
        if index:
            print()
        print_timeline(timeline)


def check_picture(path: str) -> None:
    """Refuse a file that no picture can be written to, before anything is computed."""
    from debubble.core.errors import FormatError

    endings = (".png", ".svg", ".pdf", ".html", ".txt")
    if not path.lower().endswith(endings):
        raise FormatError(f"'{path}': pictures end in {', '.join(endings[:-1])} or {endings[-1]}")
    check_writable(path)


app = command(
    draw,
    [
        "draw 1f1b -p 4 -m 8",
        "draw dualpipe-v -p 4 -m 8 --times F=1,I=1,W=1,O=2.5 -o dualpipe-v.svg",
        "draw 1f1b zb-h1 -p 8 -m 16 -o both.html",
    ],
)
