"""Causes of lost time in the times of actions, found one after the other.

Each cause is searched for in the times that the previous ones leave unexplained. So a slow worker
is not a heavy stage as well, and long sequences are not jitter. Only like times are compared: a
worker with the workers of other copies that have its stage, in one step; a stage with the other
stages.
"""

from __future__ import annotations

from dataclasses import replace

from debubble.diagnosis.causes.host import launch_gaps, pauses
from debubble.diagnosis.causes.lengths import lengths
from debubble.diagnosis.causes.stages import slow_stages
from debubble.diagnosis.causes.unexplained import Fault, Unexplained
from debubble.diagnosis.causes.unsteady import jitter, outliers
from debubble.diagnosis.causes.workers import slow_copies, slow_workers
from debubble.diagnosis.observed import Times
from debubble.diagnosis.run import Run

__all__ = ["Fault", "find_faults"]

CAUSES = (
    pauses, launch_gaps, lengths, slow_copies, slow_workers, slow_stages, outliers, jitter,
)  # fmt: skip
"""Search functions of the causes, in the sequence in which they run."""


def find_faults(run: Run, times: Times, gaps: Times, shares: Times) -> list[Fault]:
    """Return causes of lost time in actions, in the sequence of :data:`CAUSES`, one for each place.

    `times` of actions and `gaps`, host delays before them, are in seconds, and `shares` those of
    actions in their overlapped groups; shape ``(rows, actions)``.
    """
    left = Unexplained(run, times, gaps, shares)
    found = []
    for look in CAUSES:
        for fault in look(left):
            left = left.less(fault)
            found.append(fault)
    return _joined(found)


def _joined(faults: list[Fault]) -> list[Fault]:
    """Return one fault for each cause and place."""
    found: dict[tuple[object, ...], Fault] = {}
    for fault in faults:
        key = fault.cause, *sorted(fault.where.items())
        if key in found:
            other = found[key]
            fault = replace(
                fault, excess=other.excess + fault.excess, late=other.late + fault.late, count=0
            )
        found[key] = fault
    return list(found.values())
