"""Does a real run take as long as the simulation says? Prints the table of docs/truth.md.

    python benchmarks/truth.py [--sleep MS] [--steps N] [schedule ...]

Every schedule runs on four processes whose actions sleep: F, I and W for MS milliseconds, the full
backward for twice that. The overhead per action is calibrated once for each runtime, on 1f1b, and
then used for all schedules.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from statistics import median

import debubble as db
from debubble.core.errors import ParameterError
from debubble.schedules.registry import find
from debubble.torch.measure import calibrate, sleeping_times
from debubble.torch.pytorch_runtime import not_for_pytorch
from debubble.torch.report import RunReport
from debubble.torch.run import Settings, run

RANKS, MICROBATCHES = 4, 8
COSTS = db.Costs(F=1, I=1, W=1)
HEAD = dict.fromkeys("FIW", RANKS)
"""Where the output layer is sharded: one unit of time on every rank for each of its passes."""


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


def main() -> None:
    """Print the table of all schedules, or of those named."""
    parser = argparse.ArgumentParser(description="Predicted against measured makespans.")
    parser.add_argument("--sleep", type=float, default=40, metavar="MS")
    parser.add_argument("--steps", type=int, default=5, metavar="N")
    parser.add_argument("schedules", nargs="*", metavar="schedule")
    typed = parser.parse_args()
    names = typed.schedules or [entry.name for entry in db.schedules()]
    settings = Settings(sleep=typed.sleep / 1e3, costs=COSTS, steps=typed.steps)
    overheads = {runtime: calibrated(settings, runtime) for runtime in ("debubble", "torch")}
    for runtime, overhead in overheads.items():
        print(f"overhead on {runtime}: {overhead * 1e3:.2f} ms per action\n")
    print("| schedule | m | runtime | predicted, ms | measured, ms | error | gradients |")
    print("|---|---|---|---|---|---|---|")
    errors = []
    for name in names:
        sharded = "vocabulary" in find(name).fields
        costs = replace(COSTS, head=HEAD) if sharded else COSTS
        schedule = made(name, costs)
        for runtime, overhead in overheads.items():
            if runtime == "torch" and not_for_pytorch(schedule):
                continue
            words = {"runtime": runtime, "overhead": overhead, "costs": costs}
            report = report_of(schedule, replace(settings, **words))
            assert report.predicted is not None, "there are steps"
            assert report.measured is not None, "there are steps"
            errors.append(report.error)
            equal = "equal" if report.equal else "NOT EQUAL"
            print(
                f"| {name} | {schedule.microbatches} | {runtime} | "
                f"{report.predicted.makespan * 1e3:.0f} | {report.measured.makespan * 1e3:.0f} | "
                f"{report.error:+.1%} | {equal} |",
                flush=True,
            )
    largest = max(errors, key=abs)
    print(f"\n{len(errors)} runs: largest error {largest:+.1%}, median of their sizes ", end="")
    print(f"{median(map(abs, errors)):.1%}")


if __name__ == "__main__":
    main()
