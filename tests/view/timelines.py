"""Small timelines that the tests of pictures share."""

from __future__ import annotations

import debubble as db
from debubble.core.schedule import Schedule
from debubble.engine.timeline import Timeline, simulate


def run(name: str, ranks: int, microbatches: int, **options: object) -> Timeline:
    """A published schedule with F = 1 and B = 2."""
    schedule = db.make(name, ranks=ranks, microbatches=microbatches, **options)
    return simulate(schedule, db.Costs(F=1, B=2))


def pairs() -> Timeline:
    """Two ranks with overlapped pairs."""
    rows = [
        ["0F0", "0F1", "(0F2;0B0)OVERLAP_F_B", "0B1", "0B2"],
        ["1F0", "(1F1;1B0)OVERLAP_F_B", "(1F2;1B1)OVERLAP_F_B", "1B2"],
    ]
    schedule = Schedule.from_text(rows, db.Placement.linear(2), 3, name="pairs")
    return simulate(schedule, db.Costs(F=1, B=2, O=2))


def two_copies() -> Timeline:
    """Two copies of a two-stage model; microbatch 0 runs down, microbatch 1 runs up."""
    rows = [
        ["0F0", "1F1", "1B1", "0B0"],
        ["0F1", "1F0", "1B0", "0B1"],
    ]
    schedule = Schedule.from_text(rows, db.Placement.bidirectional(2), 2, name="both ways")
    return simulate(schedule, db.Costs(F=1, B=2))


def zero_bubble() -> Timeline:
    """A rank that splits its backward, with an optimizer step at the end."""
    rows = [["0F0", "0I0", "0F1", "0I1", "0W0", "0W1", "0OPT0"]]
    schedule = Schedule.from_text(rows, db.Placement.linear(1), 2, name="split")
    return simulate(schedule, db.Costs(F=1, I=1, W=1, OPT=1))
