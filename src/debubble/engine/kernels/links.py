"""Look through programs with explicit sends and receives: is each action in order, and what for.

All that follows from the programs alone, without running them, is settled here once; the modes of
transfers share it.
"""

from __future__ import annotations

from debubble.core.actions import KIND_MASK, MICROBATCH_SHIFT, PAIR_SHIFT, STAGE_MASK, STAGE_SHIFT
from debubble.engine.jit import Array, kernel
from debubble.engine.kernels import compile as sweep

# Further outcomes, in state[OUTCOME].
NO_TRANSFER, UNMATCHED, CROSSED = range(9, 12)

# Further indices into state: how many sends and receives have no other end, and one more than the
# position of the first that is out of turn, 0 where none is.
OPEN, OVERTAKES = range(5, 7)


@kernel(
    writes=(
        "link_id", "other", "carrier", "work", "dynamic_kind", "dynamic_a", "dynamic_b", "state",
    )
)  # fmt: skip
def link_actions(
    actions: Array,
    offsets: Array,
    rank_of: Array,
    stages: int,
    units: int,
    microbatches: int,
    slices: int,
    lanes: int,
    copies: int,
    norms: bool,
    late_recompute: bool,
    made: Array,
    ends: Array,
    seen: Array,
    pair_id: Array,
    link_sends: Array,
    link_receives: Array,
    link_id: Array,
    other: Array,
    carrier: Array,
    work: Array,
    dynamic_kind: Array,
    dynamic_a: Array,
    dynamic_b: Array,
    state: Array,
) -> None:
    """Fill the columns of actions, or say in ``state`` what is wrong with which.

    * ``other[i]`` is the other end of a send or receive i, and the receive through which a compute
      action i gets what it needs from another rank; negative where there is none.
    * ``carrier[i]`` is the send of the result of action i, −1 where there is none.
    * ``work[i]`` is a cost index, of a pair at its first half.

    The result of stage s for microbatch u has the key s·U + u when it is a forward's, (S + s)·U + u
    when it is a backward's: ``made[key] − 1`` is the position of the action that produces it, and
    ``ends[key] − 1`` that of its receive, or of its send as long as that alone was seen. ``seen``
    has one bit for every kind of action done. With `norms` every rank hands a partial norm on.
    """
    ranks = len(offsets) - 1
    places = slices * copies * stages
    cells = stages * units
    optimizer_costs = 1 + 5 * places
    dynamic_costs = optimizer_costs + ranks
    dynamic = 0
    completed = 0
    unmatched = 0
    for rank in range(ranks):
        stop = offsets[rank + 1]
        half = 0
        place_one = 0
        for position in range(offsets[rank], stop):
            state[sweep.POSITION] = position
            action = actions[position]
            kind = action & KIND_MASK
            stage = (action >> STAGE_SHIFT) & STAGE_MASK
            unit = action >> MICROBATCH_SHIFT
            other[position] = -1
            carrier[position] = -1
            # 0 alone, 1 and 2 for the halves of a pair.
            half = 2 if half == 1 else 0
            if (action >> PAIR_SHIFT) & 3 != half:
                if (
                    (action >> PAIR_SHIFT) & 3 != 1
                    or position + 1 >= stop
                    or (actions[position + 1] >> PAIR_SHIFT) & 3 != 2
                    or kind != 0
                    or actions[position + 1] & KIND_MASK == 0
                    or actions[position + 1] & KIND_MASK > 3
                    or action >> STAGE_SHIFT == actions[position + 1] >> STAGE_SHIFT
                ):
                    state[sweep.OUTCOME] = sweep.BAD_PAIR
                    return
                half = 1
            if kind > 9:
                state[sweep.OUTCOME] = sweep.OTHER_KIND
                return
            source = rank
            target = rank
            if kind == 5:
                work[position] = optimizer_costs + rank
                if norms and rank > 0:
                    source = rank - 1
            else:
                if stage >= stages or unit >= units or unit < 0:
                    state[sweep.OUTCOME] = sweep.OUT_OF_RANGE
                    return
                place = stage
                number = unit
                if slices > 1:
                    number = unit // slices
                    place += unit % slices * copies * stages
                if copies > 1:
                    place += number % microbatches * copies // microbatches * stages
                if rank_of[place] != rank:
                    state[sweep.OUTCOME] = sweep.WRONG_RANK
                    return
                cell = stage * units + unit
                done = seen[cell]
                seen[cell] |= 1 << kind
            if 6 <= kind:
                step = 1 if kind == 6 or kind == 9 else -1
                far = rank
                if 0 <= stage + step < stages:
                    far = rank_of[place + step]
                if far == rank:
                    state[sweep.OUTCOME] = NO_TRANSFER
                    return
                if (done >> kind) & 1 != 0:
                    state[sweep.OUTCOME] = sweep.DUPLICATE
                    return
                key = cell if kind < 8 else cells + cell
                if kind == 6 or kind == 8:
                    if made[key] == 0:
                        state[sweep.OUTCOME] = sweep.ORDER
                        return
                    carrier[made[key] - 1] = position
                    target = far
                    turn = link_sends[source * ranks + target]
                    link_sends[source * ranks + target] += 1
                else:
                    key += step * units
                    source = far
                    turn = link_receives[source * ranks + target]
                    link_receives[source * ranks + target] += 1
                # An end that waits for its other end says when it has its turn.
                end = ends[key] - 1
                if end < 0:
                    other[position] = -2 - turn
                    unmatched += 1
                else:
                    if other[end] != -2 - turn and state[OVERTAKES] == 0:
                        state[OVERTAKES] = position + 1
                    other[position] = end
                    other[end] = position
                    unmatched -= 1
                if end < 0 or target == rank:
                    ends[key] = position + 1
            if source != target:
                link = source * ranks + target
                if link_id[link] == 0:
                    link_id[link] = dynamic_costs + dynamic
                    for lane in range(lanes):
                        dynamic_kind[dynamic] = 0
                        dynamic_a[dynamic] = source + lane * ranks
                        dynamic_b[dynamic] = target
                        dynamic += 1
                if kind != 5:
                    work[position] = link_id[link]
                    if lanes > 1:
                        work[position] += unit % slices
            if kind >= 5:
                continue

            # What must not have run, and what must have run before, as bits.
            never = 1
            before = 0
            step = 0
            received = 7
            if kind == 0:
                if stage > 0:
                    step = -1
            elif kind == 1 or kind == 3:
                never = 10
                before = 1
                received = 9
                if stage < stages - 1:
                    step = 1
            elif kind == 2:
                never = 12
                before = 2
            else:
                never = 16
                before = 1
                received = 9
                if late_recompute and stage < stages - 1:
                    step = 1
            if done & never != 0:
                state[sweep.OUTCOME] = sweep.DUPLICATE
                return
            if done & before != before or (kind == 4 and done & 10 != 0):
                state[sweep.OUTCOME] = sweep.ORDER
                return
            if slices > 1 and (
                (kind == 0 and unit % slices > 0 and seen[cell - 1] & 1 == 0)
                or (never == 10 and (unit + 1) % slices > 0 and seen[cell + 1] & 10 == 0)
            ):
                state[sweep.OUTCOME] = sweep.ORDER
                return
            if step != 0:
                key = cell + step * units
                if step > 0:
                    key += cells
                # A result of this rank was made earlier: no need to wait for it.
                if rank_of[place + step] == rank:
                    if made[key] == 0:
                        state[sweep.OUTCOME] = sweep.ORDER
                        return
                elif (done >> received) & 1 == 0:
                    state[sweep.OUTCOME] = sweep.ORDER
                    return
                else:
                    other[position] = ends[key] - 1
            if kind == 0:
                made[cell] = position + 1
            elif kind == 1 or kind == 3:
                made[cells + cell] = position + 1
            if kind == 2 or kind == 3:
                completed += 1
            if half == 0:
                work[position] = 1 + kind * places + place
            elif half == 1:
                place_one = place
            else:
                pair = ((kind - 1) * places + place_one) * places + place
                if pair_id[pair] == 0:
                    dynamic_kind[dynamic] = kind
                    dynamic_a[dynamic] = place_one
                    dynamic_b[dynamic] = place
                    pair_id[pair] = dynamic_costs + dynamic
                    dynamic += 1
                work[position - 1] = pair_id[pair]
                work[position] = 0

    state[OPEN] = unmatched
    state[sweep.COMPLETED] = completed
    state[sweep.DYNAMIC] = dynamic
    state[sweep.OUTCOME] = sweep.DONE
