"""What schedules take on the CUDA devices of this machine, beside the prediction.

Gradients are verified on gpt-tiny, times measured on wide layers.

    python benchmarks/gpu.py [--steps N] [--microbatches M] [schedule ...]

One rank per device, or four ranks that share a single one. Needs CUDA; says so and ends where there
is none.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

import debubble as db
from debubble.core.errors import ParameterError
from debubble.torch.run.run import Settings, run

SHARED = 4
"""Ranks where there is one device."""

WIDTH, TOKENS, ROWS = 2048, 512, 8


def build(stages: int) -> object:
    """Wide layers, large enough to keep a device busy."""
    import torch
    from torch import nn

    modules = [
        nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(2)))
        for _ in range(stages)
    ]

    def data(microbatch: int) -> tuple[torch.Tensor, torch.Tensor]:
        source = torch.Generator().manual_seed(microbatch)
        pair = torch.randn(2, ROWS, TOKENS, WIDTH, generator=source)
        return pair[0], pair[1]

    return modules, nn.functional.mse_loss, data


def main() -> None:
    """Print a table of all schedules, or of those named."""
    parser = argparse.ArgumentParser(description="Schedules on CUDA devices.")
    parser.add_argument("--steps", type=int, default=10, metavar="N")
    parser.add_argument("--microbatches", type=int, default=8, metavar="M")
    parser.add_argument("schedules", nargs="*", metavar="schedule")
    words = parser.parse_args()
    import torch

    count = torch.cuda.device_count()
    if not count:
        print("no CUDA device here: nothing to measure")
        return
    ranks = count if count > 1 else SHARED
    # In a process of its own: once CUDA runs in this one, those forked from it cannot use it.
    code = "import torch; print(torch.cuda.get_device_name(0))"
    name = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    print(f"{count} × {name.stdout.strip()}, {ranks} ranks, m = {words.microbatches}, ", end="")
    print(f"PyTorch {torch.__version__}\n")
    print("| schedule | runtime | predicted, ms | measured, ms | error | gradients |")
    print("|---|---|---|---|---|---|")
    small = Settings("gpt-tiny", steps=0, device="cuda")
    large = Settings(build, verify=False, steps=words.steps, device="cuda")
    for name in words.schedules or [entry.name for entry in db.schedules()]:
        try:
            schedule = db.make(name, ranks=ranks, microbatches=words.microbatches)
            checked = run(schedule, small)
            report = run(schedule, large)
        except ParameterError as error:
            print(f"| {name} | {error} | – | – | – | – |")
            continue
        assert checked is not None, "start it without torchrun"
        assert report is not None, "start it without torchrun"
        assert report.predicted is not None, "there are steps"
        assert report.measured is not None, "there are steps"
        equal = "equal" if checked.equal else "NOT EQUAL"
        print(
            f"| {name} | {report.runtime} | {report.predicted.makespan * 1e3:.1f} | "
            f"{report.measured.makespan * 1e3:.1f} | {report.error:+.1%} | {equal} |",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
