"""Times of what stages carry to others that are not their neighbors, for outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from debubble.core.cost_table import CostTable


def carried_times(
    table: CostTable, sources: NDArray[Any], targets: NDArray[Any], microbatches: NDArray[Any]
) -> NDArray[np.float64]:
    """Return times of what places carry to other places, of microbatches of an iteration.

    Places include the slice. Gradients go back, from a later stage to an earlier one.
    """
    pairs, pair = np.unique(np.stack([sources, targets], axis=1), axis=0, return_inverse=True)
    known = np.array([table.carried(*one) for one in pairs.tolist()], dtype=np.float64)
    times: NDArray[np.float64] = known[pair.ravel()]
    if table.lengths is None or table.costs.p2p_carry is not None:
        return times
    part = sources // len(table.placement.ranks_of_stages)
    more = table.message_times[part] * (table.lengths[microbatches] - 1)
    return np.where(times > 0, np.maximum(times + more, 0.0), 0.0)
