"""Transfers that differ by the boundary between two stages, not only by their two ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from debubble.core.frozen import Freeze
from debubble.core.placement import Placement
from debubble.core.stage_values import PerPlace, link_times, numbers_of

if TYPE_CHECKING:
    from debubble.core.costs import Costs


class Boundaries(NamedTuple):
    """Transfers that every stage sends: row 0 for the activation, row 1 for the gradient.

    Activations go to the next stage and gradients to the one before; columns are by (copy, stage).
    """

    time: NDArray[np.float64]
    """Time of the transfer of a slice of average length; 0 where nothing goes to another rank."""
    message: NDArray[np.float64]
    """Part of it, for a whole microbatch of average length, that grows with what is sent."""
    size: NDArray[np.float64]
    """Size of the message of such a microbatch; 0 where nothing goes to another rank."""
    sends: NDArray[np.bool_]
    """Whether anything goes to another rank."""

    def times(
        self, rows: NDArray[np.int64], places: NDArray[np.int64], share: PerPlace, average: float
    ) -> NDArray[np.float64]:
        """Return times of some transfers of `share` of the average microbatch.

        `rows` is 0 for an activation and 1 for a gradient, `places` the (copy, stage) that sends
        it; `average` is the share of a slice of average length.
        """
        more = self.message[rows, places] * (share - average)
        return np.asarray(np.maximum(self.time[rows, places] + more, 0.0))


def largest_message(costs: Costs) -> float:
    """Return the size of the largest message."""
    value = costs.message
    if isinstance(value, float):
        return value
    return max(value.values() if isinstance(value, dict) else value)


def boundaries_of(
    costs: Costs, placement: Placement, slices: int, frozen: Freeze | None
) -> Boundaries | None:
    """Return the transfers of every stage; None where they depend on the ranks alone."""
    needed = None
    if frozen is not None:
        needed = frozen.needed[: placement.copies * placement.stages]
    if isinstance(costs.message, float) and (needed is None or needed.all()):
        return None
    stages, copies = placement.stages, placement.copies
    given = numbers_of(costs.message, "message", "boundary", stages - 1)
    home = placement.ranks_of_stages.reshape(copies, stages)
    latency = link_times(costs, placement.ranks, 0.0)
    time, message, size = np.zeros((3, 2, copies, stages))
    size[0, :, :-1] = size[1, :, 1:] = given
    there = np.stack([np.roll(home, -1, axis=1), np.roll(home, 1, axis=1)])
    sends = home != there
    sends[0, :, -1] = sends[1, :, 0] = False
    if needed is not None:
        sends[1, :, 1:] &= needed.reshape(copies, stages)[:, :-1]
    size[~sends] = 0.0
    message[sends] = size[sends] / costs.bandwidth
    time[sends] = latency[np.broadcast_to(home, sends.shape)[sends], there[sends]]
    time[sends] += message[sends] / slices
    time, message, size = (array.reshape(2, -1) for array in (time, message, size))
    return Boundaries(time, message, size, sends.reshape(2, -1))
