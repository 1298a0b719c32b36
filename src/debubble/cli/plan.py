"""``debubble plan``: degrees, schedule, layer split, step time, memory and flags for a model."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from debubble.analysis.layout import line_width, table, wrap
from debubble.cli import completion
from debubble.cli.app import command
from debubble.cli.options import AsJson, Text, positive, takes, writes
from debubble.cli.output import check_writable, note, print_json
from debubble.cli.progress import overwritten_line
from debubble.core.errors import ParameterError
from debubble.core.units import read_number
from debubble.interchange.files import write_text
from debubble.interchange.text import read_count

if TYPE_CHECKING:
    from debubble.planner.answer.why import Why
    from debubble.planner.search.evaluate import Asked, Plan
    from debubble.planner.search.found import Found
    from debubble.planner.search.groups import Fixed

EXAMPLE = "debubble plan llama-3.1-8b --gpu h100 --gpus 64 --batch 512 --seq 8192"

Count = Annotated[Text, takes("N", "Hold it fixed.")]


def plan(
    model: Annotated[
        Text,
        typer.Argument(
            help="Name of a model, its config.json, or a YAML file.",
            show_default=False,
            autocompletion=completion.models,
        ),
    ] = None,
    gpu: Annotated[
        Text, takes("NAME", "h100, mi300x, …, or a YAML file.", complete=completion.gpus)
    ] = None,
    gpus: Annotated[Text, takes("N", "How many.")] = None,
    batch: Annotated[Text, takes("N", "Sequences per optimizer step.")] = None,
    seq: Annotated[
        Text, typer.Option(metavar="N", help="Tokens per sequence.", show_default="4096")
    ] = None,
    tp: Count = None,
    cp: Count = None,
    ep: Count = None,
    dp: Count = None,
    pp: Count = None,
    chunks: Count = None,
    microbatch_size: Count = None,
    schedule: Annotated[Text, takes("NAMES", "One schedule, or several: 1f1b,zb-v.")] = None,
    layers: Annotated[
        Text, takes("COUNTS", "Of every stage: 7,8,8,9. Else the best are found.")
    ] = None,
    recompute: Annotated[
        Text, takes("HOW", "none, selective, full, or full:N layers of a stage.")
    ] = None,
    zero: Annotated[
        Text, takes("0-3", "What replicas split: optimizer (1), gradients (2), weights (3).")
    ] = None,
    precision: Annotated[str, takes("NAME", "bf16, fp16 or fp8.")] = "bf16",
    framework: Annotated[
        Text, takes("NAME", "Only what megatron, torchtitan or automodel can run.")
    ] = None,
    memory: Annotated[Text, takes("LIMIT", "Memory per GPU, such as 72GB.")] = None,
    imbalance: Annotated[str, takes("X", "Tokens of the busiest experts over the mean.")] = "1",
    calibrate: Annotated[Text, takes("FILE", "Measured steps, a log, or a profile.")] = None,
    why: Annotated[
        list[str] | None, takes("KEY=VALUE", "Why not this? The best plan with it, beside.")
    ] = None,
    top: Annotated[str, takes("K", "Plans to show.")] = "5",
    optimize: Annotated[Text, takes("K", "Look for faster orders of the K best plans.")] = None,
    time_limit: Annotated[
        Text, takes("SECONDS", "For each of them; else a fixed amount of work.")
    ] = None,
    as_json: AsJson = False,
    output: Annotated[
        Text, writes("Report (.html), or costs (.yaml) or order (.csv) of the best.")
    ] = None,
) -> None:
    """Plan the training of a model on a number of GPUs.

    Chooses tensor, context, expert, data and pipeline degrees, microbatch size, schedule, layer
    split and recompute, within the memory of every GPU; says what a step takes, where the time
    goes, why other plans lose, and the flags of training frameworks. What is given stays fixed.
    """
    from debubble.planner.answer import data as plan_data
    from debubble.planner.answer import report
    from debubble.planner.answer.more_gpus import enough_gpus, one_more_node
    from debubble.planner.answer.why import why_data, why_not, why_text
    from debubble.planner.constraints import held, held_with, with_measured_steps
    from debubble.planner.request import check_request
    from debubble.planner.search.best_plans import best_plans

    asked = _asked(
        {"MODEL": model, "--gpu": gpu, "--gpus": gpus, "--batch": batch}, seq,
        precision, memory, imbalance, framework,
    )  # fmt: skip
    given = {
        "tp": tp, "cp": cp, "ep": ep, "dp": dp, "pp": pp, "chunks": chunks,
        "microbatch_size": microbatch_size, "schedule": schedule, "recompute": recompute,
        "zero": zero, "layers": layers,
    }  # fmt: skip
    fixed = held(given, framework)
    check_request(asked.model, asked.cluster, asked.training, fixed)
    if calibrate is not None:
        asked = with_measured_steps(asked, calibrate, fixed)
    if output is not None:
        _check_output(output)
    others = [(text, held_with(given, text, framework)) for text in why or []]
    count = read_count("--top", top, 1, 1000)
    how_many = 0 if optimize is None else read_count("--optimize", optimize, 1, 1000)
    if time_limit is not None and not how_many:
        raise ParameterError("--time-limit is for --optimize; give both, or neither")
    limit = None if time_limit is None else positive("--time-limit", time_limit, " of seconds")

    def found_with(fixed: Fixed, count: int) -> Found:
        with overwritten_line() as line:
            return best_plans(asked, fixed, count, _Progress(line))

    found = found_with(fixed, count)
    if how_many:
        from debubble.planner.search.faster import optimized

        optimized(asked, found, how_many, limit, lambda plan, text: note(f"plan {plan}: {text}"))
    best = found.plans[0] if found.plans else None
    if not found.interrupted:
        with overwritten_line() as line:
            found.larger = (
                enough_gpus(asked, fixed, _Progress(line))
                if best is None
                else one_more_node(asked, fixed, found.searched or best, _Progress(line))
            )
    answers = [
        why_not(asked, found.searched, text, other, lambda fixed: found_with(fixed, 1))
        for text, other in others
    ]
    try:
        if best is not None and output is not None:
            _write(asked, found, answers, output)
    finally:
        # What took long to find is printed even where it cannot be written.
        if as_json:
            data = plan_data.data(asked, found)
            print_json(data | {"why": [why_data(asked, answer) for answer in answers]})
        else:
            print(report.text(asked, found, line_width()))
            for answer in answers:
                print("\n".join(wrap(why_text(answer), line_width(), 2)))
            if best is not None:
                _print_best(asked, best, framework)
        sys.stdout.flush()
    if best is None:
        raise typer.Exit(1)
    if output is not None:
        note(f"wrote {output}")


def _asked(
    texts: dict[str, str | None], seq: str | None, precision: str, memory: str | None,
    imbalance: str, framework: str | None,
) -> Asked:  # fmt: skip
    """The question, four parts of which have to be given."""
    from debubble.planner.ask import LARGEST, ask

    for name, text in texts.items():
        if text is None:
            raise ParameterError(f"{name} is missing; for instance: {EXAMPLE}")
    model, gpu, *numbers = (str(text) for text in texts.values())
    flags = zip(("--gpus", "--batch"), numbers, strict=True)
    gpus, batch = (read_count(*pair, 1, LARGEST) for pair in flags)
    return ask(
        model, gpu, gpus, batch, None if seq is None else read_count("--seq", seq, 1, LARGEST),
        precision=precision, memory=memory, imbalance=read_number(imbalance), framework=framework,
    )  # fmt: skip


MOST_RANKS = 32
"""Pipeline ranks up to which the memory of each is printed."""


def _print_best(asked: Asked, best: Plan, framework: str | None) -> None:
    """Pictures of the best plan, and the flags of a framework that runs it."""
    from debubble.planner.answer.data import plan_flags, runs_nothing
    from debubble.planner.answer.report import whole_timeline
    from debubble.planner.frameworks.table import FRAMEWORKS
    from debubble.view.plan_page import memory_rows
    from debubble.view.terminal import print_timeline

    ranks = best.candidate.degrees.pp
    if ranks > 1:
        print("\ntime and memory of the pipeline:\n")
        print_timeline(whole_timeline(asked, best))
    if ranks <= MOST_RANKS:
        print("\nmemory of every rank at its peak:\n")
        print("\n".join(table(memory_rows(best))))
    texts = {name: plan_flags(asked, best, name) for name in FRAMEWORKS}
    chosen = framework or next((one for one in FRAMEWORKS if not runs_nothing(texts[one])), "")
    name = chosen or next(iter(FRAMEWORKS))
    others = "" if framework else ", others with --framework, -o plan.html or --json"
    print(f"\nflags for {name}{others}:\n\n{texts[name]}", end="")


def _check_output(path: str) -> None:
    if not path.lower().endswith((".html", ".yaml", ".yml", ".csv")):
        raise ParameterError(
            f"'{path}': a report is .html, the costs of the best plan are .yaml, its order is .csv"
        )
    check_writable(path)


def _write(asked: Asked, found: Found, answers: list[Why], path: str) -> None:
    """The report as a page; or of the best plan its order, or costs for all other commands."""
    if path.lower().endswith(".csv"):
        from debubble.interchange.files import save
        from debubble.planner.search.evaluate import simulated

        best = found.plans[0]
        save(simulated(asked, best.candidate, best.order).schedule, path)
        return
    if path.lower().endswith(".html"):
        from debubble.view.plan_page import plan_page

        content = plan_page(asked, found, answers)
    else:
        from debubble.planner.answer.report import costs_yaml

        content = costs_yaml(asked, found.plans[0])
    write_text(path, content)


class _Progress:
    """A line with how far the search is and the best so far, a few times per second."""

    def __init__(self, line: Callable[[str], None]) -> None:
        self.line, self.began, self.next = line, time.monotonic(), 0.0

    def __call__(self, found: Found) -> None:
        now = time.monotonic() - self.began
        if now < self.next:
            return
        self.next = now + 0.1
        best = f"best {found.best.step_time:.4g} s" if found.best else "none fits yet"
        self.line(
            f"{now:5.1f} s  {found.considered:,} plans decided, {found.simulated:,} simulated, "
            f"{best}"
        )


app = command(
    plan,
    [
        "plan llama-3.1-8b --gpu h100 --gpus 8 --batch 64 --seq 8192",
        "plan llama-3.1-70b --gpu h100 --gpus 64 --batch 128 --seq 8192 --framework megatron",
        "plan mixtral-8x7b --gpu mi300x --gpus 16 --batch 64 --seq 4096 --ep 8 --why pp=2",
    ],
)
