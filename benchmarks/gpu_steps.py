"""Training steps on one GPU, as the planner predicts them and as they were measured.

    python benchmarks/gpu_steps.py [ROWS.csv]

Rows have the columns that `debubble plan --calibrate` reads, and the bytes that PyTorch allocated
and the device had in use at the peak, in GB.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from debubble.planner.cost.measured_rows import parse_rows, read_row
from debubble.planner.cost.published_efficiencies import shipped_factors
from debubble.planner.cost.step import step_time
from debubble.planner.memory.peaks import memory_of

ROWS = Path(__file__).with_name("gpu_steps_h200.csv")


def main() -> None:
    """Print a line a row: seconds and GB, predicted and measured."""
    path = Path(sys.argv[1]) if sys.argv[1:] else ROWS
    for row in parse_rows(path.read_text(encoding="utf-8"), str(path)):
        name = f"{row['model']}, {row['layers']} layers, {row['notes']}"
        plan = read_row(row, name)
        case = replace(plan.request, factors=shipped_factors()).case(plan.candidate)
        step = step_time(case)
        peak = max(rank.peak for rank in memory_of(case, step.timeline)) / 1e9
        took, used = float(row["step_s"]), float(row["used_gb"])
        print(
            f"{name}, {row['micro_batch']} of {row['global_batch']} sequences, "
            f"recompute {row['recompute']}: {step.seconds:.3f} s for {took:.3f} "
            f"({took / step.seconds:.2f} of it, 9 of 10 are {case.step_range.low} to "
            f"{case.step_range.high}), "
            f"{peak:.1f} GB for {used:.1f} ({peak / used - 1:+.1%})"
        )


if __name__ == "__main__":
    main()
