"""A sweep in a process of its own, which says how far it is; tests end it at any moment."""

from __future__ import annotations

from importlib import import_module
from multiprocessing.connection import Connection

from debubble.sweeps.run import Progress, run

END = -1
"""What comes after the last report."""


def sweep(spec: str, results: str, backend: str, alone: float, reports: Connection) -> None:
    """Run a sweep that computes some seconds alone before it starts workers."""
    running = import_module("debubble.sweeps.run")
    # Many small batches: more moments that differ.
    running.BATCH_SECONDS = 0.02
    running.ALONE_SECONDS = alone

    def say(progress: Progress) -> None:
        reports.send(progress.done)

    run(spec, results, backend=backend, jobs=2, progress=say)
    reports.send(END)
