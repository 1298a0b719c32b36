"""``debubble export``: schedules and timelines for other programs."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from debubble.analysis.check import caveats
from debubble.analysis.metrics import above_limit, kept_text
from debubble.analysis.warnings import pytorch_warnings
from debubble.cli.app import command
from debubble.cli.options import (
    AsJson,
    ScheduleName,
    Setup,
    Text,
    refuse_faulty,
    switch,
    takes,
    with_setup,
    writes,
)
from debubble.cli.output import check_writable, note, print_json
from debubble.cli.progress import phases
from debubble.core.errors import ParameterError, did_you_mean
from debubble.core.kind_relations import PASS_KINDS
from debubble.core.schedule import Schedule, sizes
from debubble.engine.timeline import memory_use
from debubble.interchange.files import is_file_name, text_of, write_text
from debubble.interchange.launchers import automodel, megatron, torchtitan
from debubble.interchange.layouts import (
    MODULES,
    Layout,
    check_cut,
    is_layout,
    read_cut,
    read_layout,
)
from debubble.interchange.torch_csv import refuse_inexpressible
from debubble.interchange.trace_events import trace_text, write_trace

FORMATS = ("torch-csv", "torch-csv-comms", "json", "chrome-trace", "megatron")
READ_BACK = {".csv": ("torch-csv", "torch-csv-comms"), ".json": ("json", "chrome-trace")}
"""Endings by which a file is read again, and the formats that may have them."""

WITH_FLAGS = ("torch-csv", "megatron")

STANDARD_OUTPUT = "-"

PROGRAMS = {"torchtitan": "torchtitan 0.3.0", "automodel": "NeMo Automodel"}
"""Programs that run a CSV."""

SIZES = ("ranks", "stages", "microbatches", "chunks")


@with_setup
def export(
    schedule: ScheduleName,
    setup: Setup,
    to: Annotated[str, takes("FORMAT", f"Format: {', '.join(FORMATS)}.")],
    output: Annotated[str, writes("File to write; '-' prints it.")] = STANDARD_OUTPUT,
    waits: Annotated[
        bool, switch("--waits", "Add WAIT_ actions to torch-csv-comms (PyTorch 2.15).")
    ] = False,
    titan: Annotated[
        bool | None,
        typer.Option(
            "--torchtitan/--no-torchtitan",
            help="With torch-csv, print flags of torchtitan and Automodel.",
        ),
    ] = None,
    cut: Annotated[
        Text,
        takes("CUT", "Layers per stage for flags: 3/4/4/3, 'Et*3|t*3L' or x.modules.json."),
    ] = None,
    unchecked: Annotated[
        bool, switch("--unchecked", "Write even if 'debubble check' fails.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Export a schedule for other programs.

    torch-csv has the computations of one rank per row, and prints the flags of torchtitan and NeMo
    Automodel; torch-csv-comms adds sends and receives. A chrome-trace opens in ui.perfetto.dev,
    compressed if its name ends in .gz. megatron prints Megatron-LM's arguments.
    """
    if to not in FORMATS:
        raise ParameterError(f"--to '{to}' is no format; {did_you_mean(to, FORMATS)}")
    _check_ending(to, output)
    for unread, message in (
        (cut is not None and (to not in WITH_FLAGS or titan is False),
         f"--cut is for the flags that come with {' and '.join(WITH_FLAGS)}"),
        (waits and to != "torch-csv-comms", f"--waits is for torch-csv-comms, and --to is {to}"),
        (titan is not None and to != "torch-csv",
         f"--{'' if titan else 'no-'}torchtitan is for torch-csv, and --to is {to}"),
        (to == "megatron" and setup["transfers"] is not None,
         "--transfers is for files with sends and receives"),
        (unchecked and to == "chrome-trace",
         "--unchecked is for schedules, and a chrome-trace has the times of one that runs"),
    ):  # fmt: skip
        if unread:
            raise ParameterError(f"{message}; leave it out")
    inputs = setup.read()
    if output != STANDARD_OUTPUT:
        check_writable(output)
    layout = None if cut is None else _layout(cut)
    if layout is not None and layout.mtp and to != "megatron":
        raise ParameterError(
            f"--cut is '{cut}'; names of modules have no multi-token prediction: leave m out, or "
            "export --to megatron"
        )
    layers = None if layout is None else list(layout.cut)
    flags: dict[str, list[str]] = {}
    with phases(3) as phase:
        phase(f"making {schedule}")
        question = inputs.of(schedule)
        made = question.made
        if to != "chrome-trace" and not unchecked:
            refuse_faulty(inputs.verdict(made), schedule, ", --unchecked writes it all the same")
        if layers is not None:
            check_cut(made, layers)
        notes = [] if cut is not None or titan is False else _unused_cut(schedule, to)
        if inputs.memory is not None:
            peak = memory_use(made, inputs.costs_of(made), inputs.mode).peak
            if above_limit(peak, inputs.memory):
                notes.append(kept_text(peak, inputs.memory, inputs.costs))
        if to == "chrome-trace":
            phase(f"simulating {len(made):,} actions")
            timeline = inputs.simulate(question, schedule)
            notes += [*caveats(timeline), *inputs.unread(made)]
            pieces = trace_text(timeline, inputs.costs.time_unit)
        else:
            # Flags first: a schedule that torchtitan cannot run is not written for it.
            if to == "torch-csv" and titan is not False:
                flags = _flags(made, output, layers)
            if to == "megatron":
                flags = {"megatron": megatron(made, inputs.mode, layout)}
                pieces = iter(["\n".join(flags["megatron"]) + "\n"])
            else:
                pieces = iter([text_of(made, to, waits, inputs.mode)])
        phase(f"writing {output}")
        content = _write(pieces, to, output, keep=as_json)
    warnings = [str(one) for one in pytorch_warnings(made)] if to in READ_BACK[".csv"] else []
    if as_json:
        print_json({
            "schedule": {"name": made.name, **sizes(made, *SIZES)},
            "format": to,
            "output": None if output == STANDARD_OUTPUT else output,
            "content": content,
            "flags": flags,
            "notes": notes,
            "warnings": warnings,
        })  # fmt: skip
        return
    lines = [f"note: {text}" for text in notes]
    lines += [] if output == STANDARD_OUTPUT else [f"wrote {output}"]
    lines += [f"warning: {text}" for text in warnings]
    for program, title in PROGRAMS.items():
        lines += ["", f"{title} runs it with", "", *flags[program]] if program in flags else []
    for line in lines:
        note(line)


def _write(pieces: Iterator[str], to: str, output: str, *, keep: bool) -> str | None:
    """Write a file or print it; return what would be printed where the caller will `keep` it."""
    if output == STANDARD_OUTPUT:
        if keep:
            return "".join(pieces)
        sys.stdout.writelines(pieces)
    elif to == "chrome-trace":
        write_trace(pieces, output)
    else:
        write_text(output, "".join(pieces))
    return None


def _check_ending(to: str, output: str) -> None:
    """Refuse names by which a file would be read as another format."""
    for ending, formats in READ_BACK.items():
        if output.lower().endswith(ending) and to not in formats:
            fitting = next((e for e, known in READ_BACK.items() if to in known), ".txt")
            raise ParameterError(
                f"-o '{output}' would be read as {formats[0]}, and --to is {to}; name it "
                f"{output[: -len(ending)]}{fitting}, or export --to {formats[0]}"
            )


def _flags(schedule: Schedule, output: str, layers: list[int] | None) -> dict[str, list[str]]:
    """Return the flags of the programs that run a CSV, by program."""
    refuse_inexpressible(schedule, PASS_KINDS)
    path = "schedule.csv" if output == STANDARD_OUTPUT else output
    try:
        return {
            "torchtitan": torchtitan(schedule, path, layers),
            "automodel": automodel(schedule, path, layers),
        }
    except ParameterError as error:
        raise ParameterError(
            f"{error}; --no-torchtitan writes the CSV all the same, and "
            "debubble.torch.titan.pipelining_fn runs it there"
        ) from None


def _unused_cut(schedule: str, to: str) -> list[str]:
    """Return a note of a file with the cut of a schedule, which flags could have."""
    if to not in WITH_FLAGS or not is_file_name(schedule):
        return []
    beside = Path(schedule).with_suffix(MODULES)
    if not beside.is_file():
        return []
    return [f"the flags leave out the layers of stages in {beside}; add --cut {beside}"]


def _layout(text: str) -> Layout:
    if text.lower().endswith(".json"):
        return read_cut(text)
    if is_layout(text):
        return read_layout(text)
    parts = text.split("/")
    if not all(re.fullmatch(r"[0-9]{1,5}", part) for part in parts):
        raise ParameterError(f"--cut is '{text}'; give the layers of every stage, such as 3/4/4/3")
    return Layout(tuple(map(int, parts)))


app = command(
    export,
    [
        "export dualpipe-v -p 4 -m 8 --to torch-csv -o dualpipe-v.csv",
        "export 1f1b -p 4 -m 8 --to json",
        "export zb-v -p 4 -m 8 --to torch-csv --json",
        "export interleaved-1f1b -p 4 -m 8 -v 2 --to megatron",
        "export 1f1b -p 8 -m 32 --times F=10,B=20 --to chrome-trace -o trace.json.gz",
    ],
)
