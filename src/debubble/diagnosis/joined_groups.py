"""Times of overlapped groups from those of their members."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from debubble.core.actions import group_bounds

if TYPE_CHECKING:
    from debubble.diagnosis.run import Run


def join_groups(run: Run) -> None:
    """Set the times of all members of an overlapped group to those of the group."""
    first, behind = group_bounds(run.schedule.actions)
    for begin in np.unique(first[behind - first > 1]).tolist():
        part = slice(begin, int(behind[begin]))
        starts = run.start[:, part].copy()
        upto = np.full(len(starts), -np.inf)
        computed = np.zeros(len(starts))
        for member in range(part.start, part.stop):
            # What no member before it has computed is its own.
            own = np.maximum(run.end[:, member] - np.fmax(run.start[:, member], upto), 0.0)
            after = run.start[:, member] >= upto
            run.lead[:, member] = np.where(after, computed, 0.0)
            run.inside[:, member] = np.where(after & (computed > 0), upto, np.nan)
            computed = computed + own
            upto = np.fmax(upto, run.end[:, member])
        run.end[:, part] = run.end[:, part].max(axis=1, keepdims=True)
        run.start[:, part] = run.end[:, part] - computed[:, None]
        together = (starts == starts[:, :1]).all(axis=1)
        run.start[together, part] = starts[together]
        run.lead[together, part], run.inside[together, part] = 0.0, np.nan
        run.issued[:, part] = run.issued[:, part].min(axis=1, keepdims=True)
