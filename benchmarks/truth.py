"""Does a real run take as long as the simulation says? Writes the table of docs/truth.md.

    python benchmarks/truth.py [--sleep MS] [--steps N] [schedule ...]

Every schedule runs on four processes whose actions sleep: F, I and W for MS milliseconds, the full
backward for twice that. The overhead per action is calibrated once for each runtime, on 1f1b, and
then used for all schedules. Runs that are in the results file are not done again, so that all can
be broken off and continued; schedules that are named are measured anew. Delete the file to begin
anew with all.
"""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

import debubble as db
from debubble.core.errors import ParameterError
from debubble.schedules.registry import find
from debubble.torch.run.report import RunReport
from debubble.torch.run.run import Settings, calibrate, run, sleeping_times
from debubble.torch.setup import not_for_pytorch

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "truth.jsonl"
DOCUMENT = ROOT / "docs" / "truth.md"

RANKS, MICROBATCHES = 4, 8
COSTS = db.Costs(F=1, I=1, W=1)
HEAD = dict.fromkeys("FIW", RANKS)
"""Where the output layer is sharded: one unit of time on every rank for each of its passes."""

RUNTIMES = ("debubble", "torch")
CALIBRATION = "calibration"


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


def measured(name: str, settings: Settings, runtime: str, overhead: float) -> dict[str, Any] | None:
    """One row of the table; None where PyTorch's runtime cannot run the schedule."""
    costs = replace(COSTS, head=HEAD) if "vocabulary" in find(name).fields else COSTS
    schedule = made(name, costs)
    if runtime == "torch" and not_for_pytorch(schedule):
        return None
    words = {"runtime": runtime, "overhead": overhead, "costs": costs}
    report = report_of(schedule, replace(settings, **words))
    assert report.predicted is not None, "there are steps"
    assert report.measured is not None, "there are steps"
    return {
        "microbatches": schedule.microbatches, "predicted": report.predicted.makespan,
        "measured": report.measured.makespan, "error": report.error, "equal": report.equal,
    }  # fmt: skip


def table(rows: dict[tuple[str, str], dict[str, Any]]) -> str:
    """All rows, in the order of the registry, and how far they are off."""
    lines = []
    for runtime in RUNTIMES:
        overhead = rows.get((CALIBRATION, runtime))
        if overhead:
            lines.append(f"overhead on {runtime}: {overhead['overhead'] * 1e3:.2f} ms per action\n")
    lines += [
        "| schedule | m | runtime | predicted, ms | measured, ms | error | gradients |",
        "|---|---|---|---|---|---|---|",
    ]
    errors = []
    for name in [entry.name for entry in db.schedules()]:
        for runtime in RUNTIMES:
            row = rows.get((name, runtime))
            if not row or "measured" not in row:
                continue
            errors.append(row["error"])
            lines.append(
                f"| {name} | {row['microbatches']} | {runtime} | {row['predicted'] * 1e3:.0f} | "
                f"{row['measured'] * 1e3:.0f} | {row['error']:+.1%} | "
                f"{'equal' if row['equal'] else 'NOT EQUAL'} |"
            )
    if errors:
        largest = max(errors, key=abs)
        lines.append(
            f"\n{len(errors)} runs: largest error {largest:+.1%}, median of their sizes "
            f"{median(map(abs, errors)):.1%}"
        )
    return "\n".join(lines)


def written(text: str, rows: dict[tuple[str, str], dict[str, Any]]) -> str:
    """The document with the figures, and what they are of."""
    said = (
        "The figures are of `debubble.torch`: *debubble* is its own engine, *torch* PyTorch's "
        f"runtime as it drives it; PyTorch {torch.__version__.partition('+')[0]}."
    )
    for mark, new in (("runtime", said), ("table", table(rows))):
        pattern = rf"(<!-- {mark} -->\n).*?(<!-- end of {mark} -->)"
        text = re.sub(pattern, lambda m, new=new: f"{m[1]}{new}\n{m[2]}", text, flags=re.DOTALL)
    return text


def main() -> None:
    """Measure what is missing or named, and write the document after every schedule."""
    parser = argparse.ArgumentParser(description="Predicted against measured makespans.")
    parser.add_argument("--sleep", type=float, default=40, metavar="MS")
    parser.add_argument("--steps", type=int, default=5, metavar="N")
    parser.add_argument("schedules", nargs="*", metavar="schedule")
    typed = parser.parse_args()
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    if RESULTS.exists():
        for line in RESULTS.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            rows[row["schedule"], row["runtime"]] = row
    for name in typed.schedules:
        find(name)
    names = typed.schedules or [entry.name for entry in db.schedules()]
    settings = Settings(sleep=typed.sleep / 1e3, costs=COSTS, steps=typed.steps)

    def keep(name: str, runtime: str, row: dict[str, Any]) -> None:
        rows[name, runtime] = {"schedule": name, "runtime": runtime, **row}
        with RESULTS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(rows[name, runtime]) + "\n")

    for runtime in RUNTIMES:
        if (CALIBRATION, runtime) not in rows:
            keep(CALIBRATION, runtime, {"overhead": calibrated(settings, runtime)})
    for name in names:
        for runtime in RUNTIMES:
            if (name, runtime) in rows and not typed.schedules:
                continue
            found = measured(name, settings, runtime, rows[CALIBRATION, runtime]["overhead"])
            keep(name, runtime, found or {})
            if found:
                print(f"{name} on {runtime}: {found['error']:+.1%}", flush=True)
        DOCUMENT.write_text(written(DOCUMENT.read_text("utf-8"), rows), encoding="utf-8")


if __name__ == "__main__":
    main()
