"""Does a real run take as long as the simulation says? Writes truth.csv and docs/truth.md.

    python benchmarks/truth.py [--sleep MS] [--steps N] [schedule ...]

Every schedule runs on four processes whose actions sleep: F, I and W for MS milliseconds, the full
backward for twice that. The overhead per action is calibrated once for each runtime, on 1f1b, and
then used for all schedules. Runs that are in the results file are not done again, so that all can
be broken off and continued; schedules that are named are measured anew. Delete the file to begin
anew with all.
"""

from __future__ import annotations

import argparse
import csv
import re
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import median

import torch

import debubble as db
from debubble.core.errors import ParameterError
from debubble.schedules.registry import find
from debubble.torch.run.report import RunReport
from debubble.torch.run.run import Settings, calibrate, run, sleeping_times
from debubble.torch.setup import not_for_pytorch

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "truth.csv"
DOCUMENT = ROOT / "docs" / "truth.md"

RANKS, MICROBATCHES = 4, 8
COSTS = db.Costs(F=1, I=1, W=1)
HEAD = dict.fromkeys("FIW", RANKS)
"""Where the output layer is sharded: one unit of time on every rank for each of its passes."""

RUNTIMES = ("debubble", "torch")
CALIBRATION = "calibration"
EQUAL = "equal"

COLUMNS = ("schedule", "runtime", "microbatches", "predicted_ms", "measured_ms", "error",
           "gradients", "overhead_ms")  # fmt: skip
Rows = dict[tuple[str, str], dict[str, str]]
"""Rows of the file by schedule and runtime; those of the calibration have the overhead alone."""


def made(name: str, costs: db.Costs) -> db.Schedule:
    """A schedule with eight microbatches, or the next number it accepts."""
    for microbatches in range(MICROBATCHES, 4 * MICROBATCHES):
        try:
            return db.make(name, ranks=RANKS, microbatches=microbatches, costs=costs)
        except ParameterError as error:
            reason = error
    raise reason


def report_of(schedule: db.Schedule, settings: Settings) -> RunReport:
    """A run's report, which only ranks of torchrun do not get."""
    report = run(schedule, settings)
    assert report is not None, "start it without torchrun"
    return report


def calibrated(settings: Settings, runtime: str) -> float:
    """The overhead per action with which the prediction for 1f1b is what it takes."""
    schedule = db.make("1f1b", ranks=RANKS, microbatches=MICROBATCHES)
    report = report_of(schedule, replace(settings, runtime=runtime, overhead=0.0))
    assert report.measured is not None, "there are steps"
    assert settings.sleep is not None, "actions sleep"
    seconds = sleeping_times(schedule, COSTS, settings.sleep)
    return calibrate(schedule, seconds, report.measured.makespan)


def measured(name: str, settings: Settings, runtime: str, overhead: float) -> dict[str, str] | None:
    """One row of the file; None where PyTorch's runtime cannot run the schedule."""
    costs = replace(COSTS, head=HEAD) if "vocabulary" in find(name).fields else COSTS
    schedule = made(name, costs)
    if runtime == "torch" and not_for_pytorch(schedule):
        return None
    words = {"runtime": runtime, "overhead": overhead, "costs": costs}
    report = report_of(schedule, replace(settings, **words))
    assert report.predicted is not None, "there are steps"
    assert report.measured is not None, "there are steps"
    return {
        "microbatches": str(schedule.microbatches),
        "predicted_ms": f"{report.predicted.makespan * 1e3:.0f}",
        "measured_ms": f"{report.measured.makespan * 1e3:.0f}",
        "error": f"{report.error:.3f}", "gradients": EQUAL if report.equal else "NOT EQUAL",
    }  # fmt: skip


def signed(share: float) -> str:
    """A share in percent with its sign."""
    return f"{100 * share:+.1f} %".replace("-", "−")


def key_figures(rows: Rows) -> str:
    """The page's answer: the number of runs, and how far predictions are off."""
    found = [row for row in rows.values() if row["error"]]
    errors = [abs(float(row["error"])) for row in found]
    names = {row["schedule"] for row in found}
    return (
        f"Yes: in {len(found)} runs of {len(names)} schedules on four processes, the largest error "
        f"is {100 * max(errors):.1f} % and the median {100 * median(errors):.1f} %."
    )


def summary(rows: Rows) -> str:
    """The table of the page: a row for each runtime."""
    lines = [
        "| runtime | schedules | median error | largest error | gradients | overhead per action |",
        "|---|---|---|---|---|---|",
    ]
    for runtime in RUNTIMES:
        found = [row for row in rows.values() if row["runtime"] == runtime and row["error"]]
        errors = [float(row["error"]) for row in found]
        equal = sum(row["gradients"] == EQUAL for row in found)
        overhead = rows[CALIBRATION, runtime]["overhead_ms"]
        lines.append(
            f"| {runtime} | {len(found)} | {median(map(abs, errors)) * 100:.1f} % | "
            f"{signed(max(errors, key=abs))} | {equal} equal | {overhead} ms |"
        )
    return "\n".join(lines)


def written(text: str, rows: Rows) -> str:
    """The document with the figures, and what they are of."""
    said = (
        "The figures are of `debubble.torch`: *debubble* is its own engine, *torch* PyTorch's "
        f"runtime as it drives it; PyTorch {torch.__version__.partition('+')[0]}."
    )
    parts = (("answer", key_figures(rows)), ("runtime", said), ("table", summary(rows)))
    for mark, new in parts:
        pattern = rf"(<!-- {mark} -->\n).*?(<!-- end of {mark} -->)"
        text = re.sub(pattern, lambda m, new=new: f"{m[1]}{new}\n{m[2]}", text, flags=re.DOTALL)
    return text


def load() -> Rows:
    """The rows that were measured."""
    if not RESULTS.exists():
        return {}
    with RESULTS.open(newline="", encoding="utf-8") as file:
        return {(row["schedule"], row["runtime"]): row for row in csv.DictReader(file)}


def save(rows: Rows) -> None:
    """Write the rows, those of schedules in the order of the registry."""
    names = [CALIBRATION, *(entry.name for entry in db.schedules())]
    with RESULTS.open("w", newline="", encoding="utf-8") as file:
        out = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        out.writeheader()
        out.writerows(rows[key] for key in product(names, RUNTIMES) if key in rows)


def main() -> None:
    """Measure what is missing or named, and write file and page after every schedule."""
    parser = argparse.ArgumentParser(description="Predicted against measured makespans.")
    parser.add_argument("--sleep", type=float, default=40, metavar="MS")
    parser.add_argument("--steps", type=int, default=5, metavar="N")
    parser.add_argument("schedules", nargs="*", metavar="schedule")
    typed = parser.parse_args()
    rows = load()
    for name in typed.schedules:
        find(name)
    names = typed.schedules or [entry.name for entry in db.schedules()]
    settings = Settings(sleep=typed.sleep / 1e3, costs=COSTS, steps=typed.steps)
    for runtime in RUNTIMES:
        if (CALIBRATION, runtime) not in rows:
            overhead = f"{calibrated(settings, runtime) * 1e3:.2f}"
            rows[CALIBRATION, runtime] = {
                "schedule": CALIBRATION, "runtime": runtime, "overhead_ms": overhead,
            }  # fmt: skip
    for name in names:
        for runtime in RUNTIMES:
            if (name, runtime) in rows and not typed.schedules:
                continue
            overhead = float(rows[CALIBRATION, runtime]["overhead_ms"]) / 1e3
            found = measured(name, settings, runtime, overhead)
            if found:
                rows[name, runtime] = {"schedule": name, "runtime": runtime, **found}
                print(f"{name} on {runtime}: error {found['error']}", flush=True)
        save(rows)
        DOCUMENT.write_text(written(DOCUMENT.read_text("utf-8"), rows), encoding="utf-8")


if __name__ == "__main__":
    main()
