"""Look at every action once: which kinds there are, and whether each exists and is on its rank."""

from __future__ import annotations

from debubble.core.actions import (
    KIND_MASK,
    MICROBATCH_SHIFT,
    PAIR_MASK,
    PAIR_SHIFT,
    STAGE_MASK,
    STAGE_SHIFT,
)
from debubble.core.kinds import STEP_KINDS, WHOLE_STAGE_KINDS, Kind, kind_bits
from debubble.engine.jit import Array, kernel

# Indices into the state of :func:`scan_actions`: the first rank with an action that may be a stray,
# −1 where there is none; bit k for actions of kind k; and whether any actions are overlapped. And
# into that of :func:`find_strays`: the first position of each, −1 where there is none.
DOUBTFUL, FOUND, GROUPED, STATES = range(4)
OUTSIDE, AWAY, STRAYS = range(3)

KINDS = len(Kind)
(STEP,) = map(int, STEP_KINDS)
WHOLE_STAGE = kind_bits(WHOLE_STAGE_KINDS)

WORD = 64
"""Places that the bits of one integer can stand for."""


@kernel(writes=("state",))
def scan_actions(
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
    """Say which kinds there are, and the first rank that :func:`find_strays` has to look at.

    A loop without branches gathers what the actions of a rank have in common, which almost always
    shows that nothing is wrong; where one integer has not a bit for every place, it takes a second
    loop. That does not tell where it takes divisions to know the copy of a microbatch.
    """
    state[DOUBTFUL] = -1
    last = stages - 1
    behind = (copies - 1) * stages
    simple = copies == 1 or (copies == 2 and iterations == 1 and slices == 1)
    all_kinds = 0
    all_bits = 0
    for rank in range(len(offsets) - 1):
        kinds = bits = places = 0
        least = most = most_stage = most_step = 0
        for position in range(offsets[rank], offsets[rank + 1]):
            action = actions[position]
            stage = (action >> STAGE_SHIFT) & STAGE_MASK
            second = (2 * (action >> MICROBATCH_SHIFT) >= microbatches) * behind
            kinds |= 1 << (action & KIND_MASK)
            bits |= action
            places |= 1 << ((stage + second) & (WORD - 1))
            least = action if action < least else least
            most = action if action > most else most
            most_stage = stage if stage > most_stage else most_stage
            step = action if action & KIND_MASK == STEP else 0
            most_step = step if step > most_step else most_step
        all_kinds |= kinds
        all_bits |= bits
        outside = least < 0 or most >> MICROBATCH_SHIFT >= units or most_stage > last
        outside = outside or kinds >> KINDS != 0 or most_step >> MICROBATCH_SHIFT >= iterations
        if simple and not outside:
            astray = 0
            if copies * stages <= WORD:
                for place in range(copies * stages):
                    if rank_of[place] != rank:
                        astray |= places & (1 << place)
            else:
                for position in range(offsets[rank], offsets[rank + 1]):
                    action = actions[position]
                    second = (2 * (action >> MICROBATCH_SHIFT) >= microbatches) * behind
                    astray |= rank_of[((action >> STAGE_SHIFT) & STAGE_MASK) + second] ^ rank
            if astray == 0:
                continue
        if state[DOUBTFUL] < 0:
            state[DOUBTFUL] = rank
    state[FOUND] = all_kinds
    state[GROUPED] = (all_bits >> PAIR_SHIFT) & PAIR_MASK != 0


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
    begin: int,
    state: Array,
) -> None:
    """Find the first action that does not exist, and one before it that is misplaced.

    Looks from rank `begin` on. Kinds that belong to a stage whatever the microbatch may stand where
    any copy of it lives; the optimizer step of a rank without stages carries stage 0.
    """
    state[OUTSIDE] = -1
    state[AWAY] = -1
    last = stages - 1
    for rank in range(begin, len(offsets) - 1):
        for position in range(offsets[rank], offsets[rank + 1]):
            action = actions[position]
            kind = action & KIND_MASK
            stage = (action >> STAGE_SHIFT) & STAGE_MASK
            unit = action >> MICROBATCH_SHIFT
            outside = stage > last or unit < 0 or unit >= units or kind >= KINDS
            if outside or (kind == STEP and unit >= iterations):
                state[OUTSIDE] = position
                return
            here = False
            if WHOLE_STAGE >> kind & 1:
                for copy in range(copies):
                    here = here or rank_of[copy * stages + stage] == rank
                if not here and kind == STEP and stage == 0:
                    here = True
                    for place in range(copies * stages):
                        here = here and rank_of[place] != rank
            else:
                copy = 0
                if copies > 1:
                    number = unit // slices % microbatches
                    while (copy + 1) * microbatches <= number * copies:
                        copy += 1
                here = rank_of[copy * stages + stage] == rank
            if not here and state[AWAY] < 0:
                state[AWAY] = position
