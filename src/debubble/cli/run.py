"""``debubble run``: run a schedule on PyTorch."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from debubble.cli.app import command
from debubble.cli.errors import require_torch
from debubble.cli.options import (
    AsJson,
    ScheduleName,
    Setup,
    Text,
    refuse_faulty,
    switch,
    takes,
    with_setup,
)
from debubble.cli.output import COST_FILES, check_output, note, print_json
from debubble.cli.progress import phases
from debubble.core.errors import ParameterError
from debubble.core.options import read_whole
from debubble.core.units import read_number

if TYPE_CHECKING:
    from debubble.torch.run.report import RunReport

NOT_EQUAL = 1


@with_setup
def run(
    schedule: ScheduleName,
    setup: Setup,
    model: Annotated[str, takes("MODEL", "Model: gpt-tiny, mlp or file.py:function.")] = "gpt-tiny",
    steps: Annotated[str, takes("N", "Measured steps; 0 only verifies.")] = "5",
    no_verify: Annotated[
        bool, switch("--no-verify", "Skip the gradient check (slow for large models).")
    ] = False,
    sleep: Annotated[
        Text, takes("MS", "Sleep for each action's cost; MS for the shortest.")
    ] = None,
    runtime: Annotated[
        str, takes("NAME", "Runtime: torch, debubble, or auto (torch if it can).")
    ] = "auto",
    device: Annotated[str, takes("NAME", "Device: auto, cpu or cuda.")] = "auto",
    timeout: Annotated[str, takes("S", "Stop after S seconds without progress.")] = "60",
    trace: Annotated[
        Text, takes("FILE", "Write predicted and measured times: .json or .json.gz.")
    ] = None,
    dtype: Annotated[
        str, takes("NAME", "Type of the measured steps: float32, bfloat16, float16.")
    ] = "float32",
    costs_out: Annotated[
        Text, takes("FILE", "Write measured times for --costs: .yaml or .json.", "--costs-out")
    ] = None,
    unchecked: Annotated[
        bool, switch("--unchecked", "Run even if 'debubble check' fails.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run a schedule on PyTorch; verify gradients and time.

    Starts one process per rank on this machine, or joins the processes of torchrun. Compares loss
    and gradients with those of the model without a pipeline, and measured with predicted times.
    Exits with 1 if a gradient differs.
    """
    require_torch()
    _start_server(runtime)
    from debubble.torch.run.run import Settings
    from debubble.torch.run.run import run as execute

    inputs = setup.read()
    settings = Settings(
        model=model,
        verify=not no_verify,
        steps=read_whole("--steps", steps, 0, 999_999),
        sleep=None if sleep is None else _number("--sleep", sleep, "milliseconds", 10**9) / 1e3,
        costs=inputs.costs,
        runtime=runtime,
        timeout=_number("--timeout", timeout, "seconds", 10**6),
        device=device,
        dtype=dtype,
    )
    for flag, path in (("--trace", trace), ("--costs-out", costs_out)):
        if path is not None and not settings.steps:
            raise ParameterError(f"{flag} needs measured steps; leave --steps 0 out")
    check_output("--trace", trace, (".json", ".json.gz"), "traces end in .json or .json.gz")
    check_output("--costs-out", costs_out, *COST_FILES)
    with phases(2) as phase:
        phase(f"making {schedule}")
        made = inputs.of(schedule).made
        if not unchecked:
            refuse_faulty(inputs.verdict(made), schedule, ", --unchecked runs it all the same")
        phase(f"running {len(made):,} actions on {made.ranks} ranks")
        report = execute(made, replace(settings, costs=inputs.costs_of(made)))
    if report is None:
        return
    if trace is not None and report.measured is not None:
        report.measured.save_trace(trace, report.measured.typical, report.predicted)
    if costs_out is not None:
        _write_costs(report, costs_out)
    if as_json:
        print_json(report.to_dict())
    else:
        print(report, flush=True)
    if trace is not None:
        note(f"wrote {trace}")
    if costs_out is not None:
        note(f"wrote {costs_out}; try: debubble optimize --costs {costs_out}")
    if not report.equal:
        raise typer.Exit(NOT_EQUAL)


def _start_server(runtime: str) -> None:
    """Start the process that ranks are forked from; it loads PyTorch while this one does."""
    if "WORLD_SIZE" in os.environ:
        return  # torchrun has started the ranks
    from multiprocessing import forkserver

    engine = [] if runtime == "debubble" else ["debubble.torch.pytorch.engine"]
    forkserver.set_forkserver_preload(["debubble.torch.run.job", *engine])
    forkserver.ensure_running()


def _number(flag: str, text: str, unit: str, most: int) -> float:
    number = read_number(text)
    if not 0 < number < most:
        raise ParameterError(
            f"{flag} is '{text}'; give a number of {unit} above 0 and below {most:,}"
        )
    return number


def _write_costs(report: RunReport, path: str) -> None:
    from debubble.interchange.cost_files import save_costs

    schedule = report.schedule
    labels = {
        "name": report.model,
        "source": f"debubble run of {schedule.name} on {report.runtime}, in {report.dtype}",
        "ranks": schedule.ranks, "chunks": schedule.chunks, "microbatches": schedule.microbatches,
    }  # fmt: skip
    costs = dict(report.costs)
    if report.overhead:
        # In milliseconds. It was calibrated with the way from rank to rank included.
        times = {name: time for name, time in costs["times"].items() if name != "p2p"}
        costs["times"] = times | {"launch": round(report.overhead * 1e3, 6)}
    save_costs(labels | costs, path)


app = command(
    run,
    [
        "run 1f1b -p 4 -m 8",
        "run dualpipe -p 4 -m 8 --sleep 20 --times F=1,I=1,W=1,O=2.5 --trace dualpipe.json.gz",
        "run schedule.csv --model examples/model.py:build --steps 0",
    ],
)
