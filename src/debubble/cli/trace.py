"""``debubble trace``: the reasons why a run took as long as it did."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import typer

from debubble.analysis.layout import line_width
from debubble.cli.app import command
from debubble.cli.hang import answer_hang
from debubble.cli.options import AsJson, Setup, Text, switch, takes
from debubble.cli.output import COST_FILES, check_output, in_color, note, print_json, styled
from debubble.cli.panels import OUTPUT
from debubble.core.errors import ParameterError
from debubble.core.given_layers import make_layers
from debubble.core.layers import Layers
from debubble.core.options import read_whole
from debubble.core.schedule import Schedule
from debubble.diagnosis import costs_only
from debubble.diagnosis.changes import Change
from debubble.diagnosis.conditions import Baseline, Condition
from debubble.diagnosis.diagnose import Diagnosis, diagnose
from debubble.diagnosis.example import example_trace
from debubble.diagnosis.hang.dumps import are_dumps
from debubble.diagnosis.next_command import next_command
from debubble.diagnosis.observed import Observed
from debubble.diagnosis.readers.folder import is_trace, read
from debubble.diagnosis.report import report, what_if_text
from debubble.diagnosis.what_if import WhatIf, with_changes, with_schedule
from debubble.interchange.cost_files import load_costs, save_costs
from debubble.interchange.files import write_text

EXAMPLE = "--example"

FAILED = 1
"""Exit code where a condition of ``--fail-if`` holds."""

_traces, _if, _fails, _writes = (
    partial(takes, panel=panel) for panel in ("Traces", "What if", "Conditions", OUTPUT)
)


def trace(
    path: Annotated[
        Text, typer.Argument(metavar="PATH", help="Folder or file with traces.")
    ] = None,
    example: Annotated[
        bool, switch("--example", "Read a small trace with a slow stage instead of PATH.", "Traces")
    ] = False,
    format: Annotated[
        Text, _traces("NAME", "Format of the trace: kineto, nsys, …; default: detect.")
    ] = None,
    changes: Annotated[
        list[str] | None,
        _if("CHANGE", "Predict with other times: stage3.F*=0.9, p2p=0 (repeatable).", "--set"),
    ] = None,
    schedule: Annotated[Text, _if("NAME", "Predict the step time of another schedule.")] = None,
    chunks: Annotated[Text, _if("N", "Stages per rank of that schedule.", "--chunks", "-v")] = None,
    costs: Annotated[
        Text, _if("FILE", "Cost file of a plan, for the layers of --schedule.")
    ] = None,
    fail_if: Annotated[
        list[str] | None,
        _fails("CONDITION", 'Exit with code 1 if this holds: "bubble>+3%" (repeatable).'),
    ] = None,
    baseline: Annotated[
        Text, _fails("FILE", "Earlier --json output, for --fail-if conditions with +.")
    ] = None,
    details: Annotated[
        bool, switch("--details", "Show the time of every rank by cause, and the sources.", OUTPUT)
    ] = False,
    costs_out: Annotated[
        Text, _writes("FILE", "Write measured costs for other commands: .yaml, .json.")
    ] = None,
    schedule_out: Annotated[
        Text, _writes("FILE", "Write the schedule (or that of --schedule): .csv, .json.")
    ] = None,
    html: Annotated[
        Text, _writes("FILE", "Write a page with the observed and predicted step.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Find out why a run is slower than planned.

    Reads the traces of all ranks, replays them, and reports where the time went and what each
    fix would gain.
    """
    path, shown = _source(path, example=example)
    conditions, base = _conditions(fail_if or [], baseline)
    wanted = [Change.parse(part) for text in changes or [] for part in text.split() or [text]]
    if chunks is not None and schedule is None:
        raise ParameterError("-v needs --schedule; add it, or leave -v out")
    if details and (wanted or schedule is not None):
        raise ParameterError("--details is for the report of the run; leave --set, --schedule out")
    layers = None if costs is None else _layers(costs, schedule)
    if wanted and costs_out is not None:
        raise ParameterError(
            "--costs-out writes the measured costs, which --set does not change; leave one out"
        )
    check_output(
        "--schedule-out", schedule_out, (".csv", ".json"), "a schedule ends in .csv or .json"
    )
    check_output("--costs-out", costs_out, *COST_FILES)
    check_output("--html", html, (".html",), "a page ends in .html")
    needs = {"--set": changes, "--html": html, "--fail-if": fail_if, "--schedule-out": schedule_out,
             "--details": details or None}  # fmt: skip
    if format is None and are_dumps(path, is_trace):
        needs |= {"--costs": costs, "--costs-out": costs_out}
        _refuse(needs, "times", f"{path} has dumps of a job that hangs")
        answer_hang(path, schedule, Setup({"chunks": chunks}), as_json)
        return
    observed = read(path, format=format)
    if costs_only.has_only_costs(observed):
        needs |= {"--schedule": schedule}
        _refuse(needs, "points in time", f"{observed.format} has only sums")
        _costs_only(observed, costs_out, as_json)
        return
    found = diagnose(observed)
    answers: list[WhatIf] = []
    if schedule is not None:
        count = None if chunks is None else read_whole("-v", chunks)
        replay = replace(found.replay, layers=layers) if layers else found.replay
        answers.append(with_schedule(replay, schedule, wanted, count))
    elif wanted:
        answers.append(with_changes(found.replay, wanted))
    data = found.to_dict() if as_json or conditions else {}
    failed = [text for one in conditions if (text := one.failed(data, base))]
    wrote = _write_costs(found.cost_file(), costs_out)
    if schedule_out is not None:
        _schedule_of(found, answers).save(schedule_out)
        wrote.append(f"wrote {schedule_out}; try: debubble check {shlex.quote(schedule_out)}")
    if html is not None:
        # The page is drawn by matplotlib, which takes longer to load than most traces to read.
        from debubble.view.trace_view import trace_page

        write_text(html, trace_page(found, answers, shown))
        wrote.append(f"wrote {html}")
    if as_json:
        more = {"what_if": [one.to_dict() for one in answers]} if answers else {}
        print_json(data | more)
    elif answers:
        print("\n".join(line for one in answers for line in what_if_text(one, line_width())))
        if schedule is not None and schedule_out is None:
            print(f"\nnext: {next_command(found, shown, answers)}")
    else:
        style = styled if in_color() else None
        print(report(found, line_width(), style, path=shown, details=details))
    _note(*wrote, *(f"failed: {text}" for text in failed))
    if failed:
        raise typer.Exit(FAILED)


def _source(path: str | None, *, example: bool) -> tuple[str, str]:
    """Return the path of the trace, and how to type it in the next command."""
    if path is None and not example:
        raise ParameterError(
            "PATH is missing; give a folder or file with traces, or try 'debubble trace --example'"
        )
    if path is not None and example:
        raise ParameterError(f"--example comes with a trace; leave '{path}' or --example out")
    return (str(example_trace()), EXAMPLE) if path is None else (path, path)


def _layers(path: str, schedule: str | None) -> Layers:
    """Return the layers of a cost file."""
    if schedule is None:
        raise ParameterError("--costs needs --schedule; add it, or leave --costs out")
    file = load_costs(path)
    if not file.layers:
        raise ParameterError(
            f"--costs '{path}' has no section layers; 'debubble plan … -o {path}' writes one"
        )
    return make_layers(file.layers, file.costs)


def _note(*texts: str) -> None:
    sys.stdout.flush()
    for text in texts:
        note(text)


def _refuse(given: dict[str, Any], needs: str, reason: str) -> None:
    """Refuse options that need what the files do not have."""
    for flag, value in given.items():
        if value is not None:
            raise ParameterError(f"{flag} needs {needs}; {reason}")


def _costs_only(observed: Observed, costs_out: str | None, as_json: bool) -> None:
    """Report a trace of a format with sums of times alone."""
    wrote = _write_costs(costs_only.cost_file(observed), costs_out)
    if as_json:
        print_json(costs_only.to_dict(observed))
    else:
        print(costs_only.report(observed, line_width()))
    _note(*wrote)


def _conditions(texts: list[str], path: str | None) -> tuple[list[Condition], Baseline | None]:
    """Read ``--fail-if`` and ``--baseline``."""
    conditions = [Condition.parse(text) for text in texts]
    if path is None:
        return conditions, None
    if not any(one.more for one in conditions):
        raise ParameterError('--baseline needs a condition with a +; add --fail-if "bubble>+3%"')
    return conditions, Baseline.read(path)


CUT_ALIKE = {1: "1f1b zb-h1", 2: "interleaved-1f1b zb-v"}
"""Schedules to compare at measured costs, by the chunks that the costs are of."""


def _write_costs(data: dict[str, Any], path: str | None) -> list[str]:
    """Write a cost file where one is asked for; return the line about it."""
    if path is None:
        return []
    save_costs(data, path)
    names = CUT_ALIKE.get(data.get("chunks", 1), "interleaved-1f1b")
    return [f"wrote {path}; try: debubble compare {names} --costs {shlex.quote(path)}"]


def _schedule_of(found: Diagnosis, answers: list[WhatIf]) -> Schedule:
    """Return the schedule to write: that of the what-if, else what ran.

    Where what ran is not quite a registered schedule, it is the registered one.
    """
    for one in answers:
        if one.timeline is not None:
            return one.timeline.schedule
    return found.name.nearest or found.schedule


app = command(
    trace,
    [
        "trace --example",
        "trace run.json.gz",
        "trace run.json.gz --set stage3.F*=0.9 --set p2p=0",
        "trace run.json.gz --schedule zb-v",
        "trace run.json.gz --costs-out measured.yaml --html run.html",
        'trace run.json.gz --fail-if "bubble>+3%" --fail-if "step>+5%" --baseline last.json',
    ],
)
