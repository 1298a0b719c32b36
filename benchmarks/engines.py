"""Processor time per action: our engine beside PyTorch's, in one run, by turns.

    python benchmarks/engines.py [--ranks P] [--microbatches M] [--rounds N] [schedule ...]

Both train gpt-tiny on the same processes. All threads of a rank count, those of gloo, too. Times
are medians over the rounds, summed over the ranks; what one rank waits for is the other's work.
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import Any

import torch

import debubble as db
import debubble.torch as dt
from debubble.torch.models.build import gpt_tiny
from debubble.torch.ranks.world import World, run_local

ENGINES = ("debubble", "torch")
WARM_UP = 3


def measured(schedule: db.Schedule, rounds: int) -> dict[str, float]:
    """Seconds of a step on all ranks, by engine."""

    def work(_: World) -> dict[str, float]:
        torch.set_num_threads(1)
        data = [gpt_tiny(schedule.stages).data(unit) for unit in range(schedule.microbatches)]
        x, y = (torch.cat(column) for column in zip(*data, strict=True))
        pipes = {}
        for engine in ENGINES:
            model = gpt_tiny(schedule.stages)
            pipes[engine] = dt.Pipeline(schedule, model.stages, model.loss, engine=engine)
        times: dict[str, list[float]] = {engine: [] for engine in ENGINES}
        for turn in range(WARM_UP + rounds):
            for engine in ENGINES if turn % 2 else ENGINES[::-1]:
                begin = time.process_time()
                pipes[engine].step(x, target=y)
                if turn >= WARM_UP:
                    times[engine].append(time.process_time() - begin)
                pipes[engine].zero_grad()
        return {engine: median(values) for engine, values in times.items()}

    def text(*_: Any) -> str:
        return "its work"

    found = run_local(work, schedule.ranks, text, timeout=120, device="cpu")
    return {engine: sum(rank[engine] for rank in found) for engine in ENGINES}


def main() -> None:
    """Print a row for every schedule."""
    parser = argparse.ArgumentParser(description="Processor time per action of both engines.")
    parser.add_argument("--ranks", type=int, default=2, metavar="P")
    parser.add_argument("--microbatches", type=int, default=8, metavar="M")
    parser.add_argument("--rounds", type=int, default=30, metavar="N")
    parser.add_argument("schedules", nargs="*", metavar="schedule")
    typed = parser.parse_args()
    print("| schedule | debubble, µs per action | torch, µs per action | ratio |")
    print("|---|---|---|---|")
    for name in typed.schedules or ["1f1b", "interleaved-1f1b", "zb-h1", "zb-v"]:
        schedule = db.make(name, ranks=typed.ranks, microbatches=typed.microbatches)
        found = measured(schedule, typed.rounds)
        ours, theirs = (found[engine] / len(schedule) * 1e6 for engine in ENGINES)
        print(f"| {name} | {ours:.0f} | {theirs:.0f} | {ours / theirs:.2f} |", flush=True)


if __name__ == "__main__":
    main()
