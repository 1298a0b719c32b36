"""Look at every action once: whether its kind, stage and microbatch exist, and on its rank."""

from __future__ import annotations

from debubble.core.actions import KIND_MASK, MICROBATCH_SHIFT, STAGE_MASK, STAGE_SHIFT
from debubble.engine.jit import Array, kernel

# Indices into state: the first position of each, −1 where there is none.
OUTSIDE, AWAY = range(2)

KINDS = 17
OPT, REDUCE_GRAD, RESHARD = 5, 12, 14


@kernel(writes=("state",))
def find_strays(
    actions: Array,
    offsets: Array,
    rank_of: Array,
    stages: int,
    units: int,
    microbatches: int,
    iterations: int,
    slices: int,
    copies: int,
    state: Array,
) -> None:
    """Find the first action that does not exist, and the first on a rank without its stage.

    Kinds that belong to a stage whatever the microbatch may stand where any copy of it lives; the
    optimizer step of a rank without stages carries stage 0.
    """
    state[OUTSIDE] = -1
    state[AWAY] = -1
    last = stages - 1
    # Where the copy of a microbatch is told without divisions, almost every rank is done after a
    # first pass without branches, which takes a third of the time of the second.
    simple = copies == 1 or (copies == 2 and iterations == 1 and slices == 1)
    behind = (copies - 1) * stages
    for rank in range(len(offsets) - 1):
        odd = not simple
        least = most = 0
        if simple:
            for position in range(offsets[rank], offsets[rank + 1]):
                action = actions[position]
                kind = action & KIND_MASK
                stage = (action >> STAGE_SHIFT) & STAGE_MASK
                unit = action >> MICROBATCH_SHIFT
                least = min(least, action)
                most = max(most, action)
                odd |= (stage > last) | (kind >= KINDS) | ((kind == OPT) & (unit >= iterations))
                odd |= rank_of[min(stage, last) + (2 * unit >= microbatches) * behind] != rank
            odd |= (least < 0) | (most >> MICROBATCH_SHIFT >= units)
        if not odd:
            continue
        for position in range(offsets[rank], offsets[rank + 1]):
            action = actions[position]
            kind = action & KIND_MASK
            stage = (action >> STAGE_SHIFT) & STAGE_MASK
            unit = action >> MICROBATCH_SHIFT
            outside = stage > last or unit < 0 or unit >= units or kind >= KINDS
            if outside or (kind == OPT and unit >= iterations):
                state[OUTSIDE] = position
                return
            here = False
            if kind == OPT or (kind >= REDUCE_GRAD and kind <= RESHARD):
                for copy in range(copies):
                    here = here or rank_of[copy * stages + stage] == rank
                if not here and kind == OPT and stage == 0:
                    here = True
                    for place in range(copies * stages):
                        here = here and rank_of[place] != rank
            else:
                number = unit // slices % microbatches
                copy = 0
                while (copy + 1) * microbatches <= number * copies:
                    copy += 1
                here = rank_of[copy * stages + stage] == rank
            if not here and state[AWAY] < 0:
                state[AWAY] = position
