"""``debubble export``: schedules and timelines for other programs."""

from __future__ import annotations

import re
import sys
from typing import Annotated

import typer

from debubble.cli.app import command
from debubble.cli.options import (
    Inputs,
    ScheduleName,
    Setup,
    Text,
    refuse_wrong,
    switch,
    takes,
    with_setup,
    writes,
)
from debubble.cli.output import check_writable, note
from debubble.cli.progress import phases
from debubble.core.errors import ParameterError, did_you_mean
from debubble.core.schedule import Schedule
from debubble.engine.graph import P2PMode
from debubble.engine.timeline import Timeline

FORMATS = ("torch-csv", "torch-csv-comms", "json", "chrome-trace", "megatron")
READ_BACK = {".csv": ("torch-csv", "torch-csv-comms"), ".json": ("json", "chrome-trace")}
"""Endings that say what is in a file, and the formats that may have them."""

WITH_FLAGS = ("torch-csv", "megatron")

STANDARD_OUTPUT = "-"


@with_setup
def export(
    schedule: ScheduleName,
    setup: Setup,
    to: Annotated[str, takes("FORMAT", f"{', '.join(FORMATS)}.")],
    output: Annotated[str, writes("Where to; '-' prints it.")] = STANDARD_OUTPUT,
    waits: Annotated[
        bool, switch("--waits", "Add the WAIT_ actions that PyTorch 2.15 needs in comms CSV.")
    ] = False,
    torchtitan: Annotated[
        bool,
        typer.Option(help="With torch-csv, say how torchtitan and Automodel run it, or why not."),
    ] = True,
    cut: Annotated[Text, takes("N/N/…", "Layers of every stage, for the flags: 3/4/4/3.")] = None,
    unchecked: Annotated[
        bool, switch("--unchecked", "Write also what 'debubble check' finds fault with.")
    ] = False,
) -> None:
    """Write files for other programs.

    torch-csv has one row per rank with the order of computations and comes with the flags of
    torchtitan and NeMo Automodel; torch-csv-comms also has sends and receives. A chrome-trace opens
    in ui.perfetto.dev; a name that ends in .gz compresses it. megatron prints Megatron-LM's
    arguments.
    """
    if to not in FORMATS:
        raise ParameterError(f"--to '{to}' is no format; {did_you_mean(to, FORMATS)}")
    _check_ending(to, output)
    if cut is not None and (to not in WITH_FLAGS or not torchtitan):
        raise ParameterError(
            f"--cut is for the flags that come with {' and '.join(WITH_FLAGS)}; leave it out"
        )
    if waits and to != "torch-csv-comms":
        raise ParameterError(f"--waits is for torch-csv-comms, and --to is {to}; leave it out")
    if to == "megatron" and setup["transfers"] is not None:
        raise ParameterError("--transfers is for files with sends and receives; leave it out")
    inputs = setup.read()
    if output != STANDARD_OUTPUT:
        check_writable(output)
    settings: list[str] = []
    notes: list[str] = []
    layers = None if cut is None else _layers(cut)
    with phases(3) as phase:
        phase(f"making {schedule}")
        question = inputs.of(schedule)
        made = question.made
        if to != "chrome-trace" and not unchecked:
            refuse_wrong(inputs.verdict(made), schedule, ", --unchecked writes it all the same")
        if layers is not None:
            from debubble.interchange.layouts import check_cut

            check_cut(made, layers)
        notes += _above_limit(made, inputs)
        if to == "chrome-trace":
            from debubble.analysis.check import caveats

            phase(f"simulating {len(made):,} actions")
            timeline = inputs.simulate(question, schedule)
            notes += [*caveats(timeline), *inputs.unread(made)]
            phase(f"writing {output}")
            _trace(timeline, inputs.costs.time_unit, output)
        else:
            # Settings first: what torchtitan cannot run is not written for it.
            if to == "torch-csv" and torchtitan:
                settings = _settings(made, output, layers)
            phase(f"writing {output}")
            _write(_text(made, to, waits, inputs.mode, layers), output)
    for text in notes:
        note(f"note: {text}")
    if output != STANDARD_OUTPUT:
        note(f"wrote {output}")
    if to in READ_BACK[".csv"]:
        from debubble.analysis.outputs import pytorch_warnings

        for warning in pytorch_warnings(made):
            note(f"warning: {warning}")
    if settings:
        note("\n".join(settings))


def _above_limit(schedule: Schedule, inputs: Inputs) -> list[str]:
    """A note of ranks that hold more than the memory limit."""
    from debubble.analysis.metrics import above_limit, kept_text
    from debubble.engine.timeline import memory_use

    if inputs.memory is None:
        return []
    peak = memory_use(schedule, inputs.costs, inputs.mode).peak
    above = above_limit(peak, inputs.memory)
    return [kept_text(peak, inputs.memory, inputs.costs)] if above else []


def _check_ending(to: str, output: str) -> None:
    """Refuse names by which a file would be read as something else than it is."""
    for ending, formats in READ_BACK.items():
        if output.lower().endswith(ending) and to not in formats:
            fitting = next((e for e, known in READ_BACK.items() if to in known), ".txt")
            raise ParameterError(
                f"-o '{output}' would be read as {formats[0]}, and --to is {to}; name it "
                f"{output[: -len(ending)]}{fitting}, or export --to {formats[0]}"
            )


def _settings(schedule: Schedule, output: str, layers: list[int] | None) -> list[str]:
    from debubble.core.kind_relations import PASS_KINDS
    from debubble.interchange.launchers import automodel, torchtitan
    from debubble.interchange.torch_csv import refuse_inexpressible

    refuse_inexpressible(schedule, PASS_KINDS)
    path = "schedule.csv" if output == STANDARD_OUTPUT else output
    try:
        return [
            *("", "torchtitan 0.3.0 runs it with", "", *torchtitan(schedule, path, layers)),
            *("", "NeMo Automodel runs it with", "", *automodel(schedule, path, layers)),
        ]
    except ParameterError as error:
        raise ParameterError(
            f"{error}; --no-torchtitan writes the CSV all the same, and "
            "debubble.torch.titan.pipelining_fn runs it there"
        ) from None


def _layers(text: str) -> list[int]:
    parts = text.split("/")
    if not all(re.fullmatch(r"[0-9]{1,5}", part) for part in parts):
        raise ParameterError(f"--cut is '{text}'; give the layers of every stage, such as 3/4/4/3")
    return [int(part) for part in parts]


def _text(schedule: Schedule, to: str, waits: bool, mode: P2PMode, layers: list[int] | None) -> str:
    if to == "megatron":
        from debubble.interchange.launchers import megatron

        return "\n".join(megatron(schedule, mode, layers)) + "\n"
    from debubble.interchange.files import text_of

    return text_of(schedule, to, waits, mode)


def _write(text: str, output: str) -> None:
    if output == STANDARD_OUTPUT:
        sys.stdout.write(text)
        return
    from debubble.interchange.files import write_text

    write_text(output, text)


def _trace(timeline: Timeline, time_unit: str, output: str) -> None:
    from debubble.interchange.chrome_trace import save_trace, trace_text

    if output == STANDARD_OUTPUT:
        sys.stdout.writelines(trace_text(timeline, time_unit))
    else:
        save_trace(timeline, output, time_unit)


app = command(
    export,
    [
        "export dualpipe-v -p 4 -m 8 --to torch-csv -o dualpipe-v.csv",
        "export 1f1b -p 4 -m 8 --to json",
        "export interleaved-1f1b -p 4 -m 8 -v 2 --to megatron",
        "export 1f1b -p 8 -m 32 --times F=10,B=20 --to chrome-trace -o trace.json.gz",
    ],
)
