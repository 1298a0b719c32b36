"""Which schedules PyTorch's own pipeline runtime can run, told without loading it.

It takes longer to load than all else beside PyTorch, and our engine does without.
"""

from __future__ import annotations

import numpy as np

from debubble.core.actions import pairs_of
from debubble.core.errors import ParameterError
from debubble.core.schedule import Schedule
from debubble.interchange.torch_csv import COMMUNICATING, refuse_inexpressible


def not_for_pytorch(schedule: Schedule) -> str:
    """Why PyTorch's runtime cannot run a schedule as it says, empty when it can."""
    if np.any(pairs_of(schedule.actions)):
        return "it overlaps forwards and backwards, which PyTorch runs one after the other"
    if np.any(np.diff(schedule.offsets) == 0):
        return "a rank has nothing to do"
    if schedule.newest_weights:
        return "its backwards take newer weights than their forwards"
    if max(schedule.versions) > 1:
        return "it keeps several versions of the weights"
    try:
        refuse_inexpressible(schedule, COMMUNICATING)
    except ParameterError as error:
        return "it " + str(error).removeprefix(f"'{schedule.name}' ").partition(";")[0]
    return ""
