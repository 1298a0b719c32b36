"""Memory of every rank, action by action: what a start adds, what an end frees."""

from __future__ import annotations

from debubble.core.actions import KIND_MASK, MICROBATCH_SHIFT, PAIR_SHIFT, STAGE_MASK, STAGE_SHIFT
from debubble.engine.jit import Array, kernel, unsigned
from debubble.engine.kernels.layout import Maybe


@kernel(writes=("peak", "left"))
def peak_memory(
    actions: Array,
    offsets: Array,
    stages: int,
    microbatches: int,
    slices: int,
    copies: int,
    at_start: Array,
    at_end: Array,
    lengths: Maybe,
    peak: Array,
    left: Array,
) -> None:
    """Largest memory of every rank, and what is left at its end.

    ``at_start[kind·P + place]`` is added when an action starts, ``at_end`` when it ends; both times
    the length of its microbatch, where ``lengths`` is not None. Actions of
    one rank do not run at the same time, except those of a group, so that the order alone
    decides and no times are needed.
    """
    places = slices * copies * stages
    for rank in range(len(offsets) - 1):
        held = 0.0
        most = 0.0
        later = 0.0
        for position in range(offsets[rank], offsets[rank + 1]):
            action = actions[unsigned(position)]
            place = (action >> STAGE_SHIFT) & STAGE_MASK
            unit = action >> MICROBATCH_SHIFT
            number = unit
            if slices > 1:
                number = unit // slices
                place += unit % slices * copies * stages
            if copies > 1:
                within = number if number < microbatches else number % microbatches
                for copy in range(1, copies):
                    place += stages * (copies * within >= copy * microbatches)
            spot = unsigned((action & KIND_MASK) * places + place)
            if lengths is None:
                held += at_start[spot]
                later += at_end[spot]
            else:
                length = lengths[number % microbatches]
                held += at_start[spot] * length
                later += at_end[spot] * length
            if (action >> PAIR_SHIFT) & 1 == 0:
                most = max(most, held)
                held += later
                later = 0.0
        peak[rank] = most
        left[rank] = held
