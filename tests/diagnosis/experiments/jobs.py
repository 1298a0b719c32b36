"""Pipeline jobs whose stages sleep, and faults to plant in them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Fault:
    """A fault of a job.

    Parameters
    ----------
    kind
        ``"stage"``, ``"rank"``, ``"copy"``, ``"link"`` or ``"jitter"``.
    at
        Number of the stage, rank or copy; the lower rank of a link.
    size
        Factor of times, half the range of a jittering factor, or seconds that a message of the
        link takes in addition.
    copy
        Copy of a rank; None for all.
    """

    kind: str
    at: int
    size: float
    copy: int | None = None

    def factors(self, job: Job, copy: int, rank: int, stage: int, seed: str) -> Iterator[float]:
        """Return the factors of an action's times, microbatch by microbatch."""
        here = {"stage": stage, "copy": copy, "rank": rank, "jitter": rank}.get(self.kind)
        if self.at != here or self.copy not in (None, copy):
            return itertools.repeat(1.0)
        if self.kind != "jitter":
            return itertools.repeat(self.size)
        return self._jittering(job.microbatches, random.Random(seed))

    def _jittering(self, microbatches: int, draw: random.Random) -> Iterator[float]:
        """Return factors that are 1 in the mean of every step."""
        last = microbatches - 1
        factors = [1 + self.size * (2 * i / last - 1) for i in range(microbatches)]
        while True:
            draw.shuffle(factors)
            yield from factors

    @property
    def words(self) -> str:
        """Description for tables."""
        if self.kind == "link":
            return f"link {self.at}–{self.at + 1} +{1e3 * self.size:g} ms"
        where = f"{'rank' if self.kind == 'jitter' else self.kind} {self.at}"
        if self.copy is not None:
            where += f" of copy {self.copy}"
        return f"{where} ±{100 * self.size:g} %" if self.kind == "jitter" else (
            f"{where} ×{self.size:g}"
        )  # fmt: skip


@dataclass(frozen=True)
class Job:
    """A pipeline on processes of this machine; times in seconds.

    Parameters
    ----------
    runtime
        ``"torch"`` for PyTorch's pipelines, traced by its profiler, or ``"debubble"`` for ours.
    schedule
        Class of PyTorch's schedule without ``Schedule``, or name of one of ours.
    forward, backward
        Time that a forward, and a full backward, of a stage sleeps.
    steps
        Recorded steps, after one without a record.
    rows
        Rows of a message, each of 256 bytes. A large one takes milliseconds from when both ends
        are ready, now more, now less.
    late
        Time by which one in four receives is posted late, of PyTorch's runtime.
    """

    runtime: str
    schedule: str
    ranks: int = 4
    copies: int = 1
    microbatches: int = 8
    forward: float = 20e-3
    backward: float = 40e-3
    steps: int = 3
    rows: int = 4
    late: float = 0.0
    fault: Fault | None = None

    def without_fault(self) -> Job:
        """Return the same job without its fault."""
        return replace(self, fault=None)

    def factors(self, copy: int, rank: int, stage: int) -> dict[str, Iterator[float]]:
        """Return the factors of the times of F, I and W, microbatch by microbatch."""
        if self.fault is None:
            return {kind: itertools.repeat(1.0) for kind in "FIW"}
        return {
            kind: self.fault.factors(self, copy, rank, stage, f"{copy} {rank} {stage} {kind}")
            for kind in "FIW"
        }

    @property
    def relayed(self) -> tuple[int, int] | None:
        """The ranks of a slow link; None without one."""
        if self.fault is None or self.fault.kind != "link":
            return None
        return self.fault.at, self.fault.at + 1
