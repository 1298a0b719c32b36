"""A process that runs a sweep and says how far it is; tests end it at any moment.

python sweeper.py SPEC RESULTS BACKEND
"""

from __future__ import annotations

import sys
from importlib import import_module

from debubble.planner.sweeps.run import Progress, run


def say(progress: Progress) -> None:
    print(progress.done, flush=True)


if __name__ == "__main__":
    running = import_module("debubble.planner.sweeps.run")
    # Many small batches, and workers soon: more moments that differ.
    running.BATCH_SECONDS = 0.02
    running.ALONE_SECONDS = 0.05
    spec, results, backend = sys.argv[1:]
    run(spec, results, backend=backend, jobs=2, progress=say)
    print("end", flush=True)
