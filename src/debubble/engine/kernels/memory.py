"""Memory of every rank, action by action: what a start adds, what an end frees."""

from __future__ import annotations

from debubble.core.actions import KIND_MASK, MICROBATCH_SHIFT, PAIR_SHIFT, STAGE_MASK, STAGE_SHIFT
from debubble.engine.jit import Array, helper, kernel, unsigned
from debubble.engine.kernels.layout import Maybe


@helper
def spot_of(action: int, stages: int, microbatches: int, slices: int, copies: int) -> int:
    """Return the index of an action's kind and place in arrays over both."""
    place = (action >> STAGE_SHIFT) & STAGE_MASK
    number = action >> MICROBATCH_SHIFT
    if slices > 1:
        place += number % slices * copies * stages
        number = number // slices
    if copies > 1:
        within = number if number < microbatches else number % microbatches
        for copy in range(1, copies):
            place += stages * (copies * within >= copy * microbatches)
    return (action & KIND_MASK) * (slices * copies * stages) + place


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
    for rank in range(len(offsets) - 1):
        held = 0.0
        most = 0.0
        later = 0.0
        for position in range(offsets[rank], offsets[rank + 1]):
            action = actions[unsigned(position)]
            spot = unsigned(spot_of(action, stages, microbatches, slices, copies))
            if lengths is None:
                held += at_start[spot]
                later += at_end[spot]
            else:
                length = lengths[(action >> MICROBATCH_SHIFT) // slices % microbatches]
                held += at_start[spot] * length
                later += at_end[spot] * length
            if (action >> PAIR_SHIFT) & 1 == 0:
                most = max(most, held)
                held += later
                later = 0.0
        peak[rank] = most
        left[rank] = held
