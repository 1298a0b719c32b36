"""DeepSpeed's timer log (``wall_clock_breakdown``): sums of one rank, costs only.

Only rank 0 logs. A line has the time of all forwards or backwards since the line before it, in
milliseconds: of ``steps_per_print`` steps. The numbers of microbatches and stages are at the
beginning of the log (``CONFIG: micro_batches=8``, ``stage=0 layers=6``).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from debubble.core.costs import Costs
from debubble.core.errors import FormatError
from debubble.diagnosis.observed import Location, Observed, ObservedActions
from debubble.diagnosis.readers.stream import LeftOut, lines

NAME = "deepspeed"
MARKS = (b"forward_microstep: ", b"fwd_microstep: ", b"| pipe_send_output: ", b"pipe_recv_grad: ")
TIMERS = {
    "forward_microstep": "F", "fwd_microstep": "F", "backward_microstep": "B", "bwd_microstep": "B",
}  # fmt: skip
MAX_STAGES = 1 << 16
MAX_LINES = 100_000
NAMED = 8

_TIMES = re.compile(r"time \(ms\) \|(.*)")
_TIME = re.compile(r"([a-z_]{3,60}): (\d{1,12}\.\d+)", re.ASCII)
_STEP = re.compile(r"step=(\d{1,9}), skipped=", re.ASCII)
_PRINTS = re.compile(r"steps_per_print\W{1,60}(\d{1,9})", re.ASCII)
_MICROBATCHES = re.compile(
    r"(?:micro_batches=|gradient_accumulation_steps \.+ )(\d{1,9})", re.ASCII
)
_STAGE = re.compile(r"stage=(\d{1,6}) layers=|STAGE=(\d{1,6}) LAYERS=", re.ASCII)

TOO_MANY = f"lines of times beyond the first {MAX_LINES:,}"


def recognizes(head: bytes) -> bool:
    """Return True if a log has lines of DeepSpeed's timers."""
    return any(mark in head for mark in MARKS)


def read(where: str, files: Sequence[Path], left_out: LeftOut) -> Observed:
    """Read the logs of one run; raise FormatError when they do not say the microbatches."""
    log = _Breakdown()
    for path in files:
        for text in lines(path, left_out):
            for line in text.decode("utf-8", "replace").splitlines():
                log.add(line, left_out)
    means = {name: float(np.mean(each)) for name, each in log.times.items()}
    kinds = {kind: means[name] for name, kind in TIMERS.items() if name in means}
    if not means:
        raise FormatError(
            f"{where}: no line of DeepSpeed's timers (time (ms) | forward_microstep: 800.00 | …); "
            "log with wall_clock_breakdown"
        )
    seen = ", ".join(f"{name} {mean:,.2f} ms" for name, mean in [*means.items()][:NAMED])
    steps = log.steps_of_a_line
    stages = 1 + max(log.stages, default=-1)
    if len(kinds) < 2 or not log.microbatches or not steps or not 0 < stages < MAX_STAGES:
        raise FormatError(
            f"{where}: DeepSpeed's wall_clock_breakdown, which rank 0 alone logs, as sums of "
            f"several steps ({seen}); a cost of an action needs micro_batches, steps_per_print and "
            "the stages too, which stand at the beginning of the log: keep it; for causes, record "
            "all ranks with torch.profiler, or write a table"
        )
    share = steps * log.microbatches
    costs: dict[str, Any] = {kind: mean / share for kind, mean in kinds.items()}
    return Observed(
        NAME, stages, 1, (), ObservedActions.of(),
        missing=tuple((0, rank) for rank in range(1, stages)), device="gpu",
        locations=tuple(
            Location(file=files[0].name if len(files) == 1 and not rank else None)
            for rank in range(stages)
        ),
        taken_for={
            "rank": "rank 0 alone logs; its times stand for all stages",
            "stage": "rank",
            "microbatch": f"not told; sums are divided by {log.microbatches} microbatches",
            "step": f"means of {len(next(iter(log.times.values())))} sums of {steps} steps",
            "clock": "none: the log has sums and no points in time",
        },
        left_out=dict(left_out), costs=Costs(**costs, time_unit="ms"),
    )  # fmt: skip


class _Breakdown:
    """Numbers of a log: times by timer, steps, microbatches and stages."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = defaultdict(list)
        self.microbatches = 0
        self.stages: set[int] = set()
        self._prints = 0
        self._steps: list[int] = []

    def add(self, line: str, left_out: LeftOut) -> None:
        """Read a line."""
        if (times := _TIMES.search(line)) is not None:
            for name, time in _TIME.findall(times[1]):
                if len(self.times[name]) < MAX_LINES:
                    self.times[name].append(float(time))
                else:
                    left_out[TOO_MANY] += 1
        if (step := _STEP.search(line)) is not None and len(self._steps) < MAX_LINES:
            self._steps.append(int(step[1]))
        if not self._prints and (prints := _PRINTS.search(line)) is not None:
            self._prints = int(prints[1])
        if not self.microbatches and (count := _MICROBATCHES.search(line)) is not None:
            self.microbatches = int(count[1])
        if (stage := _STAGE.search(line)) is not None:
            self.stages.add(int(stage[1] or stage[2]))

    @property
    def steps_of_a_line(self) -> int:
        """Steps whose times a line sums; 0 if the log does not say it."""
        between = np.diff(self._steps)
        return self._prints or (int(np.median(between)) if len(between) else 0)
