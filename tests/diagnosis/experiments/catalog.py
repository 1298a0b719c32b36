"""Experiments: jobs with a fault, the change that removes it, and the finding that names it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.diagnosis.experiments.jobs import Fault, Job

SLOW, LATE, UNSTEADY = 1.5, 15e-3, 0.6
"""Factor of slow stages, ranks and copies; seconds of a slow link; range of jitter."""

LARGE = 16384
"""Rows of messages of 4 MB."""

QUICK_LINK = 0.5
"""Milliseconds of a message between processes of one machine."""


@dataclass(frozen=True)
class Experiment:
    """A job with a fault.

    Parameters
    ----------
    job
        The job.
    cause
        Cause of the first finding.
    where
        Place in the first finding.
    bound
        Largest error of the what-if, as a share of the healthy run, and of the gain, as a share of
        the step.
    """

    job: Job
    cause: str
    where: dict[str, Any]
    bound: float = 0.05

    @property
    def name(self) -> str:
        assert self.job.fault is not None
        words = f"{self.job.runtime} {self.job.schedule}: {self.job.fault.words}"
        words += ", large messages" if self.job.rows > Job.rows else ""
        return words + (", receives posted late" if self.job.late else "")

    def changes(self, computed: float) -> tuple[str, ...]:
        """Return the changes for ``--set`` that remove the fault.

        A forward with its backward computes for `computed` seconds, which are no slower with it.
        """
        fault, sleeps = self.job.fault, self.job.forward + self.job.backward
        assert fault is not None
        if fault.kind == "link":
            return (f"p2p.{fault.at}-{fault.at + 1}={QUICK_LINK}",)
        if fault.kind == "jitter":
            times = {"F": self.job.forward, "B": self.job.backward}
            return tuple(f"rank{fault.at}.{name}={1e3 * time:g}" for name, time in times.items())
        factor = (sleeps + computed) / (fault.size * sleeps + computed)
        return (f"{fault.kind}{fault.at}*={factor:.6f}",)


def _experiment(
    runtime: str, schedule: str, kind: str, at: int, *, copy: int | None = None, **sizes: Any
) -> Experiment:
    size = {"link": LATE, "jitter": UNSTEADY}.get(kind, SLOW)
    job = Job(runtime, schedule, fault=Fault(kind, at, size, copy), **sizes)
    several = schedule not in ONE_STAGE
    cause, where = {
        "stage": ("slow-stage", {"stage": at}),
        # Of one stage a rank and one copy, nobody can tell a heavy stage from a slow rank.
        "rank": ("slow-worker", {"rank": at}) if several or copy is not None
        else ("slow-stage", {"rank": at}),
        "copy": ("slow-copy", {"copy": at}),
        "link": ("slow-link", {"link": [at, at + 1]}),
        "jitter": ("jitter", {"rank": at}),
    }[kind]  # fmt: skip
    if copy is not None:
        where["copy"] = copy
    return Experiment(job, cause, where, 0.1 if several else 0.05)


ONE_STAGE = ("GPipe", "1F1B", "gpipe", "1f1b", "zb-h1")
"""Schedules with one stage on each rank."""


EXPERIMENTS = [
    _experiment("torch", "GPipe", "stage", 2),
    _experiment("torch", "GPipe", "link", 1),
    _experiment("torch", "GPipe", "jitter", 1),
    _experiment("torch", "1F1B", "stage", 2),
    _experiment("torch", "1F1B", "stage", 0),
    _experiment("torch", "1F1B", "link", 1),
    _experiment("torch", "1F1B", "jitter", 2),
    _experiment("torch", "Interleaved1F1B", "stage", 5),
    _experiment("torch", "Interleaved1F1B", "rank", 1),
    _experiment("torch", "Interleaved1F1B", "link", 2),
    _experiment("torch", "InterleavedZeroBubble", "rank", 1),
    _experiment("torch", "ZBVZeroBubble", "rank", 2),
    _experiment("torch", "ZBVZeroBubble", "stage", 3),
    _experiment("torch", "DualPipeV", "rank", 2),
    _experiment("torch", "DualPipeV", "stage", 5),
    _experiment("torch", "1F1B", "copy", 1, copies=2, ranks=3),
    _experiment("torch", "1F1B", "rank", 1, copies=2, ranks=3, copy=1),
    _experiment("torch", "GPipe", "stage", 1, copies=2, ranks=3),
    _experiment("debubble", "gpipe", "stage", 1),
    _experiment("debubble", "1f1b", "stage", 2),
    _experiment("debubble", "1f1b", "link", 1),
    _experiment("debubble", "1f1b", "jitter", 2),
    _experiment("debubble", "zb-h1", "stage", 2),
    _experiment("debubble", "interleaved-1f1b", "rank", 1),
    _experiment("debubble", "interleaved-1f1b", "stage", 5),
    _experiment("debubble", "interleaved-1f1b", "link", 2),
    _experiment("debubble", "zb-v", "rank", 2),
    _experiment("debubble", "dualpipe-v", "rank", 1),
    _experiment("torch", "GPipe", "stage", 2, rows=LARGE),
    _experiment("torch", "GPipe", "stage", 0, rows=LARGE),
    _experiment("torch", "1F1B", "stage", 0, rows=LARGE),
    _experiment("torch", "1F1B", "stage", 2, rows=LARGE),
    _experiment("torch", "1F1B", "stage", 3, rows=LARGE),
    _experiment("torch", "Interleaved1F1B", "rank", 1, rows=LARGE),
    _experiment("torch", "ZBVZeroBubble", "rank", 2, rows=LARGE),
    _experiment("torch", "DualPipeV", "rank", 2, rows=LARGE),
    _experiment("torch", "GPipe", "stage", 2, late=2e-3),
    _experiment("torch", "GPipe", "stage", 0, late=2e-3),
    _experiment("torch", "1F1B", "stage", 2, late=2e-3),
    _experiment("torch", "1F1B", "jitter", 1, late=2e-3),
    _experiment("debubble", "gpipe", "stage", 1, rows=LARGE),
    _experiment("debubble", "1f1b", "stage", 2, rows=LARGE),
    _experiment("debubble", "interleaved-1f1b", "rank", 1, rows=LARGE),
]
"""All experiments."""
