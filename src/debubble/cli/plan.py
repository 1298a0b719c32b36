"""``debubble plan``: degrees, schedule, layer split, step time, memory and flags for a model."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from debubble.analysis.layout import line_width, unstyled, wrap
from debubble.cli import completion
from debubble.cli.app import command
from debubble.cli.options import AsJson, Text, switch, with_rows, writes
from debubble.cli.output import check_writable, in_color, note, print_json, styled
from debubble.cli.panels import OUTPUT
from debubble.cli.progress import EVERY, overwritten_line, stopped_kindly
from debubble.core.errors import ParameterError
from debubble.interchange.files import write_text
from debubble.planner.options import ASKED, PLAN_OPTIONS, ROWS

if TYPE_CHECKING:
    from debubble.planner.answer.plan import Plan
    from debubble.planner.search.best_plans import Progress
    from debubble.planner.search.search_result import Found

EXAMPLE = "debubble plan llama-3.1-8b --gpu h100 --gpus 64 --batch 512 --seq 8192"


def plan(
    options: Mapping[str, Any],
    model: Annotated[
        Text,
        typer.Argument(
            help=ROWS["model"].help, show_default=False, autocompletion=completion.models
        ),
    ] = None,
    as_json: AsJson = False,
    output: Annotated[
        list[str] | None,
        writes("Files to run (.sh, .py, …), report (.html) or costs (.yaml)."),
    ] = None,
    explain: Annotated[
        bool,
        switch("--explain", "Show the reasons: time, memory, timeline, rejected plans.", OUTPUT),
    ] = False,
) -> None:
    """Plan the training of a model on a cluster.

    Chooses tensor, context, expert, data and pipeline degrees, microbatch size, schedule, layer
    split and recompute, within the memory of every GPU. Prints the step time and its causes, why
    other plans are slower, and the flags of training frameworks. Options that you set stay fixed.
    """
    values = _read({"model": model, **options})
    # Help and refusals start without the search.
    from debubble.planner.answer.files import check_name
    from debubble.planner.answer.plan import plan_for
    from debubble.planner.hardware.cluster import find_gpu

    for path in output or ():
        check_writable(path)
        if not path.lower().endswith(".html"):
            maker = find_gpu(values["gpu"]).maker
            check_name(path, values.get("framework"), "a report is .html, ", maker)
    written: list[str] = []
    found = plan_for(values, _searching, lambda number, line: note(f"plan {number}: {line}"))
    try:
        if found.fits:
            written = [name for path in output or () for name in _write(found, path)]
    finally:
        # What took long to find is printed even where it cannot be written.
        if as_json:
            print_json(found.to_dict())
        else:
            _print(found, explain)
        sys.stdout.flush()
    if not found.fits:
        if output:
            note(f"no file was written: there is no plan for {', '.join(output)}")
        raise typer.Exit(1)
    for path in written:
        note(f"wrote {path}")


def _read(texts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of typed options; some have to be there."""
    for row in ASKED:
        if texts[row.name] is None and not row.shown:
            name = "MODEL" if row.name == "model" else row.flag
            raise ParameterError(f"{name} is missing; for instance: {EXAMPLE}")
    return {"why": texts["why"] or []} | {
        name: ROWS[name].type.read(ROWS[name].flag, text)
        for name, text in texts.items()
        if text is not None and name != "why"
    }


def _print(found: Plan, explain: bool) -> None:
    """Print the answer, what else was asked, and the way to more."""
    from debubble.planner.answer.explain import explanation
    from debubble.planner.answer.report import text
    from debubble.planner.answer.why import why_text

    style, width = styled if in_color() else unstyled, line_width()
    print(text(found.found, width, style))
    for answer in found.why:
        print("\n".join(wrap(why_text(answer), width, 2)))
    if explain:
        print(f"\n{explanation(found.found, width)}")
        if found.fits:
            _print_best(found)
    elif found.fits:
        print("\n".join(style(line, "faint") for line in wrap(_more(found), width, 2)))


def _more(found: Plan) -> str:
    """Return the options that write the plan, and that show more of it."""
    from debubble.planner.answer.files import run_names

    runs = run_names(found.framework)
    run = f"-o {runs[0]} writes the files to run, " if runs else ""
    return f"next: {run}-o plan.html a report; --explain shows the reasons"


def _print_best(found: Plan) -> None:
    """Print the timeline of the best plan, and its flags."""
    from debubble.planner.answer.data import plan_flags, runs_nothing
    from debubble.planner.frameworks.table import FRAMEWORKS
    from debubble.view.terminal import print_timeline

    best = found.best
    if best.candidate.degrees.pp > 1:
        print("\ntimeline:\n")
        print_timeline(found.timeline)
    names = (found.framework,) if found.framework else (*FRAMEWORKS,)
    texts = {name: plan_flags(best, name) for name in names}
    name = next((one for one in names if not runs_nothing(texts[one])), names[0])
    print(f"\nflags for {name}:\n\n{texts[name]}", end="")


def _write(found: Plan, path: str) -> list[str]:
    """Write the report as a page, or the best plan, and return the names of the files."""
    if not path.lower().endswith(".html"):
        return found.save(path)
    from debubble.view.plan_page import plan_page

    write_text(path, plan_page(found))
    return [path]


@contextmanager
def _searching() -> Iterator[Progress]:
    """Show how far a search is and the best so far, on a line a few times per second.

    Where standard error is no terminal, a new line appears now and then. SIGTERM ends the search as
    Ctrl-C does.
    """
    began, shown = time.monotonic(), -math.inf
    with stopped_kindly(), overwritten_line(every=EVERY) as line:

        def progress(found: Found) -> None:
            nonlocal shown
            now = time.monotonic() - began
            if now < shown + 0.1:
                return
            shown = now
            best = f"best {found.best.step_time:.4g} s" if found.best else "none fits yet"
            line(
                f"{now:5.1f} s  {found.considered:,} plans decided, {found.simulated:,} simulated, "
                f"{best}"
            )

        yield progress


app = command(
    with_rows(plan, "options", PLAN_OPTIONS[1:], defaults=True),
    [
        "plan llama-3.1-8b --gpu h100 --gpus 8 --batch 64 --seq 8192",
        "plan llama-3.1-70b --gpu h100 --gpus 64 --batch 128 --seq 8192 --framework megatron",
        "plan mixtral-8x7b --gpu mi300x --gpus 16 --batch 64 --seq 4096 --ep 8 --why pp=2",
    ],
)
