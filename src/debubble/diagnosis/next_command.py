"""Next command to type after a diagnosis."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from debubble.diagnosis.diagnose import Diagnosis
from debubble.diagnosis.what_if import WhatIf
from debubble.schedules.registry import entries, find

RUN = "RUN"
"""Stands for the path of a trace if it is unknown."""


def next_command(found: Diagnosis, path: str = RUN, answers: Sequence[WhatIf] = ()) -> str:
    """Return the command that acts on the first finding, or on a what-if.

    It replays the run without the finding, if ``--set`` can say that, or tries the fastest other
    schedule. After a what-if of a schedule, it writes the schedule to run.
    """
    words = ["debubble", "trace", path]
    first = found.findings[0] if found.findings else None
    schedules = [one for one in answers if one.timeline is not None]
    if schedules:
        assert schedules[0].timeline is not None
        schedule = schedules[0].timeline.schedule
        words += ["--schedule", schedule.name]
        if schedule.name in entries() and find(schedule.name).chunks is None:
            words += ["-v", str(schedule.chunks)]
        words += ["--schedule-out", f"{schedule.name}.csv"]
    elif first is not None and first.cause == "order":
        words += ["--schedule-out", "schedule.csv"]
    elif first is not None and first.change:
        words += ["--set", first.change]
    elif found.faster:
        words += ["--schedule", found.faster[0].text]
    elif first is not None:
        words += ["--html", "run.html"]
    else:
        words += ["--costs-out", "costs.yaml"]
    return shlex.join(words)
