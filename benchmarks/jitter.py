"""Speed of samples: times of single actions evaluated again, and jitter drawn on the way.

Processor time of one thread, in a warm process; the least and the median of several runs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

import debubble as db
from debubble.engine.action_times import with_times

CASES = [("1f1b", 12, 500, None), ("zb-h1", 8, 500, None), ("interleaved-1f1b", 8, 192, 4)]
COSTS = db.Costs.per_rank(F=10, I=11, W=7, p2p=0.5)
SAMPLES = 1000


def timed(action: Callable[[], object], runs: int = 9) -> tuple[float, float]:
    """Least and median seconds."""
    action()
    times = []
    for _ in range(runs):
        begin = time.process_time()
        action()
        times.append(time.process_time() - begin)
    return min(times), statistics.median(times)


def given_times(timeline: db.Timeline) -> tuple[float, float]:
    """Nanoseconds per action and sample where every action has a time of its own."""
    graph, vector = with_times(timeline.graph, timeline.table)
    rng = np.random.default_rng(0)
    rows = vector * rng.uniform(0.9, 1.1, (64, len(vector)))
    count = rows.shape[0] * len(timeline.duration)
    least, usual = timed(lambda: graph.makespans(rows))
    return least / count * 1e9, usual / count * 1e9


def main() -> None:
    print("| schedule | actions | given times, per action and sample | 1,000 samples of jitter |")
    print("|---|---|---|---|")
    for name, ranks, microbatches, chunks in CASES:
        schedule = db.make(name, ranks=ranks, microbatches=microbatches, chunks=chunks)
        timeline = db.simulate(schedule, COSTS)
        least, usual = given_times(timeline)
        fast, slow = timed(lambda t=timeline: t.jitter("normal:3%", samples=SAMPLES))  # type: ignore[misc]
        per = 1e9 / SAMPLES / len(schedule)
        print(
            f"| {name} | {len(schedule):,} | {least:.2f}–{usual:.2f} ns | "
            f"{fast * 1e3:.0f}–{slow * 1e3:.0f} ms ({fast * per:.1f}–{slow * per:.1f} ns) |",
            flush=True,
        )


if __name__ == "__main__":
    main()
