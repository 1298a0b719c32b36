"""Orders that were computed from costs, on other costs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from debubble.core.cost_table import CostTable
from debubble.core.costs import Costs
from debubble.core.kind_relations import PASS_KINDS
from debubble.core.kinds import VOCABULARY_KINDS
from debubble.core.schedule import Schedule

DEFAULT = Costs()


def unfit(schedule: Schedule, table: CostTable) -> str:
    """Mismatch between the costs an order was made for and those it runs on; empty if none.

    Costs that are all larger by one factor lead to the same order.
    """
    made = schedule.made_for
    if made is None or made == table.costs:
        return ""
    own = made.table(schedule)
    pairs = list(zip(_shape(own), _shape(table), strict=True))
    if all(a.shape == b.shape and np.allclose(a, b, rtol=1e-9) for a, b in pairs):
        return ""
    what = "one unit of time each for F, I and W" if made == DEFAULT else "other costs"
    return f"the order was computed for {what}, not for these; make it with costs=… to have it fit"


def unaware(schedule: Schedule) -> bool:
    """Whether an order was computed from costs that nobody gave."""
    return schedule.made_for == DEFAULT


def _shape(table: CostTable) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Times and memory as shares of their sums."""
    kinds = [*PASS_KINDS, *VOCABULARY_KINDS]
    links = table.link if table.boundaries is None else table.boundaries.time
    time = np.concatenate([table.duration[kinds].ravel(), links.ravel()])
    memory = np.concatenate([table.activation, table.kept])
    return time / (time.sum() or 1.0), memory / (memory.sum() or 1.0)
