"""``debubble sweep``: one command at every point of a grid, and its results."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from debubble.cli.app import command
from debubble.cli.exit_codes import BAD_INPUT, INTERRUPTED
from debubble.cli.options import AsJson, Text, switch, takes, writes
from debubble.cli.output import check_writable, note, print_json
from debubble.core.errors import ParameterError
from debubble.core.options import read_whole
from debubble.sweeps import Progress, Results, Spec, backends, read_spec, run
from debubble.sweeps.chart import Chart
from debubble.sweeps.store import ENDINGS

MOST_ERRORS = 3
"""Different errors that are shown in the end."""


def sweep(
    source: Annotated[
        str, typer.Argument(metavar="SPEC|RESULTS", help="Spec (.yaml, .json, .toml) or .sqlite.")
    ],
    output: Annotated[Text, writes("Results: .sqlite. Pictures: .png, …")] = None,
    dry_run: Annotated[bool, switch("--dry-run", "Check the spec and print its size.")] = False,
    jobs: Annotated[
        Text, takes("N", "Number of workers; default: all processors.", "--jobs", "-j")
    ] = None,
    backend: Annotated[Text, takes("NAME", "Backend: processes (default), dask or ray.")] = None,
    address: Annotated[Text, takes("URL", "Address of a cluster; default: this computer.")] = None,
    extend: Annotated[bool, switch("--extend", "Add to the results of another spec.")] = False,
    retry_failed: Annotated[bool, switch("--retry-failed", "Compute failed points again.")] = False,
    to: Annotated[Text, takes("FILE", "Write results as .csv or .parquet.")] = None,
    plot: Annotated[
        Text,
        takes(
            "x=… y=… [by=…]",
            "Plot a result against an option, one line per value of by; "
            "NAME=VALUE filters the points.",
        ),
    ] = None,
    title: Annotated[Text, takes("TEXT", "Title of the picture.")] = None,
    as_json: AsJson = False,
) -> None:
    """Repeat a command over a grid of options.

    Sweeps simulate, compare, optimize or plan, in processes on this machine or on a cluster.
    Results are saved as they arrive, so the same command resumes an interrupted sweep. With a file
    of results, prints a summary, writes a table, or draws it.
    """
    running = {"--dry-run": dry_run, "--jobs": jobs, "--backend": backend, "--address": address,
               "--extend": extend, "--retry-failed": retry_failed}  # fmt: skip
    if source.lower().endswith(ENDINGS):
        _refuse(running, f"'{source}' has results; {{}} is for a spec such as sweep.yaml")
        _look(source, output, to, plot, title, as_json)
        return
    _refuse({"--to": to, "--plot": plot, "--title": title}, "{} is for a file of results")
    spec = read_spec(source)
    if dry_run:
        running.pop("--dry-run")
        _refuse(running | {"-o": output}, "{} is for computing; leave it or --dry-run out")
        _dry_run(spec, source, as_json)
        return
    if output is None:
        raise ParameterError("results need a file; give -o, such as -o results.sqlite")
    check_writable(output)
    options = {"jobs": None if jobs is None else read_whole("--jobs", jobs),
               "backend": backend or "processes", "address": address, "extend": extend,
               "retry_failed": retry_failed}  # fmt: skip
    _run(spec, source, output, options, as_json)


def _refuse(options: dict[str, Any], message: str) -> None:
    for flag, value in options.items():
        if value:
            raise ParameterError(message.format(flag))


def _dry_run(spec: Spec, source: str, as_json: bool) -> None:
    size = sum(1 for _ in spec.points())
    if as_json:
        print_json({"spec": source, "command": spec.command, "points": size})
        return
    print(spec.describe())
    if size != spec.size:
        print(f"{size:,} of them are different")
    for point, _ in zip(spec.points(), range(3), strict=False):
        print("  " + ", ".join(f"{key}={value}" for key, value in point.options.items()))
    if size > 3:
        print("  …")


def _run(spec: Spec, source: str, output: str, options: dict[str, Any], as_json: bool) -> None:
    alone = (
        options["backend"] == "processes" and options["jobs"] is None and not backends.has_joblib()
    )
    last: list[Progress] = []
    try:
        with _bar(spec.command) as show:

            def progress(found: Progress) -> None:
                if not last:
                    before = f", {found.done:,} of them done before" if found.done else ""
                    note(f"{spec.describe()}{before}")
                    if alone:
                        note("without joblib they are computed one by one; "
                             "pip install 'debubble[sweep]'")  # fmt: skip
                last[:] = [found]
                show(found)

            end = run(spec, output, progress=progress, **options)
    except KeyboardInterrupt:
        kept = f"{last[0].done:,} of {last[0].total:,} points are" if last else "nothing new is"
        again = ["debubble", "sweep", source, "-o", output]
        note(f"interrupted; {kept} in {output}. To go on: {shlex.join(again)}")
        raise typer.Exit(INTERRUPTED) from None
    results = Results.read(output)
    if as_json:
        print_json(_data(results) | {"computed": end.here, "seconds": end.seconds})
    else:
        speed = f", {end.here / end.seconds:,.0f} a second" if end.here and end.seconds else ""
        print(f"{end.here:,} points computed in {end.seconds:.1f} s{speed}; {_summary(results)}")
    if end.here and results.failed == results.points:
        sys.stdout.flush()
        note("debubble: every point failed")
        raise typer.Exit(BAD_INPUT)


@contextmanager
def _bar(name: str) -> Iterator[Callable[[Progress], None]]:
    """A bar on standard error, if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda found: None  # noqa: ARG005 - no one looks
        return
    from rich import progress as rich
    from rich.console import Console

    bar = rich.Progress(
        rich.TextColumn(name, markup=False), rich.BarColumn(30), rich.MofNCompleteColumn(),
        rich.TextColumn("{task.fields[more]}"), rich.TimeElapsedColumn(), rich.TextColumn("left"),
        rich.TimeRemainingColumn(), console=Console(stderr=True), transient=True,
    )  # fmt: skip
    with bar:
        task = bar.add_task(name, total=None, more="")

        def show(found: Progress) -> None:
            speed = found.here / found.seconds if found.seconds else 0.0
            more = f"{speed:,.3g}/s" + (f", {found.failed:,} failed" if found.failed else "")
            bar.update(task, completed=found.done, total=found.total, more=more)

        yield show


def _look(
    source: str, output: str | None, to: str | None, plot: str | None, title: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Show a file of results: in numbers, as a table, or as a picture."""
    if plot is None:
        _refuse({"-o": output, "--title": title}, "{} is for pictures; add --plot x=ranks y=…")
    elif output is None:
        raise ParameterError("a picture needs a file; give -o, such as -o sweep.png")
    if to is not None:
        check_writable(to)
    results = Results.read(source)
    if to is not None:
        results.save(to)
        note(f"wrote {results.rows:,} rows to {to}")
    if plot is not None and output is not None:
        from debubble.view.sweep_figure import save_chart

        check_writable(output)
        save_chart(Chart.read(results, plot, title), output)
        note(f"wrote {output}")
    if as_json:
        print_json(_data(results))
    elif to is None and plot is None:
        print(_summary(results))
        print(f"options: {', '.join(results.options)}")
        print(f"results: {', '.join(c for c in results.columns if c not in results.options)}")


def _summary(results: Results) -> str:
    """Return the number of points in words, and the most frequent errors."""
    failed = f", {results.failed:,} of them with errors" if results.failed else ""
    rows = f" in {results.rows:,} rows" if results.rows != results.points else ""
    errors = results.errors(MOST_ERRORS)
    return "\n".join(
        [
            f"{results.path} has {results.points:,} points{rows}{failed}",
            *(f"  {count:,} × {text.splitlines()[0]}" for text, count in errors),
        ]
    )


def _data(results: Results) -> dict[str, Any]:
    return {
        "file": str(results.path), "command": results.command, "spec": results.spec,
        "points": results.points, "rows": results.rows, "failed": results.failed,
        "errors": [{"error": text, "rows": count} for text, count in results.errors()],
        "columns": list(results.columns),
    }  # fmt: skip


app = command(
    sweep,
    [
        "sweep examples/sweeps/microbatches.yaml --dry-run",
        "sweep examples/sweeps/microbatches.yaml -o results.sqlite",
        "sweep results.sqlite --to results.csv",
        "sweep results.sqlite --plot x=microbatches y=bubble_ratio by=schedule -o sweep.png",
    ],
    several=("--plot",),
)
