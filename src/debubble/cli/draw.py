"""``debubble draw``: pictures of schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from debubble.analysis.question import OPTIONS
from debubble.cli.app import command
from debubble.cli.options import Late, ScheduleNames, Setup, Text, with_setup, writes
from debubble.cli.output import note
from debubble.cli.pictures import Picture, check_picture, with_picture
from debubble.cli.progress import phases
from debubble.core.errors import ParameterError
from debubble.interchange.files import is_function

if TYPE_CHECKING:
    from debubble.engine.timeline import Timeline


@with_picture
@with_setup
def draw(
    schedules: ScheduleNames,
    setup: Setup,
    picture: Picture,
    output: Annotated[Text, writes(".png, .svg, .pdf, .html or .txt.")] = None,
    late: Late = False,
) -> None:
    """Draw schedules or traces, in the terminal or a file.

    In a file, several schedules share one time axis, and --memory is drawn as a line. A trace of
    'debubble run' shows predicted times above measured ones.
    """
    from debubble.analysis.check import caveats
    from debubble.interchange.read_trace import is_trace_file, load_trace

    inputs = setup.read()
    check_picture(output, picture)
    if all(map(is_trace_file, schedules)):
        _refuse_unread(setup, schedules[0], late=late)
    timelines: list[Timeline] = []
    units = set()
    with phases(2 * len(schedules) + 1) as phase:
        for name in schedules:
            phase(f"making {name}")
            if is_trace_file(name):
                recordings = load_trace(name)
                timelines += [recording.timeline() for recording in recordings]
                units |= {recording.time_unit for recording in recordings}
                continue
            units.add(inputs.costs.time_unit)
            question = inputs.of(name, schedules, late=late)
            phase(f"simulating {name}, {len(question.made):,} actions")
            timelines.append(inputs.simulate(question, name))
        limited = setup["memory"] is not None
        if output is None and limited and not _made_within(schedules, timelines):
            raise ParameterError(
                f"--memory {setup['memory']} is a line in pictures, and these schedules do not "
                "depend on it; give -o FILE.svg, or leave it out"
            )
        phase("drawing")
        unit = units.pop() if len(units) == 1 else ""
        if output is not None:
            from debubble.view.files import save

            # Text has no lines to draw a limit with.
            plain = output.lower().endswith(".txt")
            marks: dict[str, Any] = {} if plain else {"limit": inputs.memory}
            save(timelines, output, time_unit=unit, **marks, **picture)
    notes = [f"{line.schedule.name}: {text}" for line in timelines for text in caveats(line)]
    for text in dict.fromkeys(notes + inputs.unread(*(line.schedule for line in timelines))):
        note(f"note: {text}")
    if output is not None:
        note(f"wrote {output}")
        return
    from debubble.view.terminal import print_timeline

    for index, timeline in enumerate(timelines):
        if index:
            print()
        print_timeline(timeline, time_unit=unit)


def _refuse_unread(setup: Setup, trace: str, *, late: bool) -> None:
    """Refuse options that change nothing where all times are recorded ones."""
    # A limit, which cost files have as well, is drawn as a line.
    typed = [row.flag for row in OPTIONS if setup[row.name] and row.name not in ("memory", "costs")]
    typed += ["--as-late-as-possible"] if late else []
    if typed:
        raise ParameterError(
            f"{typed[0]} is for schedules, and {trace} is a trace, drawn as it was recorded; "
            "leave it out"
        )


def _made_within(names: list[str], timelines: list[Timeline]) -> bool:
    """Return whether some schedule may depend on a memory limit."""
    stored = ("memory", "recompute", "offload")
    return any(map(is_function, names)) or any(
        key in timeline.schedule.options for timeline in timelines for key in stored
    )


app = command(
    draw,
    [
        "draw 1f1b -p 4 -m 8",
        "draw dualpipe-v -p 4 -m 8 --times F=1,I=1,W=1,O=2.5 -o dualpipe-v.svg",
        "draw 1f1b zb-h1 -p 8 -m 16 -o both.html",
        "draw run.json.gz -o run.png",
        "draw zb-v -p 4 -m 8 -o column.pdf --width 3.3in --numbers-from 1 --no-notes",
    ],
)
