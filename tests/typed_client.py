"""A program that uses the public surface, for ``mypy --strict``; ``test_surface.py`` runs it."""

from __future__ import annotations

from pathlib import Path

import debubble as db


def fastest(names: list[str], ranks: int, microbatches: int, memory: float) -> str:
    """The name of the fastest schedule within memory."""
    costs: db.Costs = db.Costs.per_rank(F=2, I=2, W=2, p2p=0.1)
    result: db.Comparison = db.compare(
        names, ranks=ranks, microbatches=microbatches, costs=costs, memory=memory
    )
    name: str = result.rows[0].name
    return name


def measure(schedule: db.Schedule, folder: Path) -> dict[str, float]:
    """Numbers of a schedule, which goes to a file and back on the way."""
    path = folder / "schedule.json"
    schedule.save(path)
    again: db.Schedule = db.load(path)
    report: db.Report = db.check(again, memory=float(again.ranks))
    if not report:
        raise db.ScheduleError(str(report))
    timeline: db.Timeline = db.simulate(again, db.Costs(F=1, B=2))
    peak: float = float(timeline.peak_activation.max())
    return {"makespan": timeline.makespan, "bubble_ratio": timeline.bubble_ratio, "peak": peak}


def refused(ranks: int) -> str:
    """What a wrong size is answered with."""
    try:
        db.make("1f1b", ranks=ranks, microbatches=4)
    except db.ParameterError as error:
        return str(error)
    return ""
