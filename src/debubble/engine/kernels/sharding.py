"""Decide when a rank holds the whole weights of which of its stages, and see that it does."""

from __future__ import annotations

from debubble.core.actions import KIND_MASK, MICROBATCH_SHIFT, PAIR_SHIFT, STAGE_MASK, STAGE_SHIFT
from debubble.core.kinds import KINDS, SHARDING_KINDS, WEIGHT_KINDS, WORK_KINDS, Of, Per, kind_bits
from debubble.engine.jit import Array, kernel

NEVER = 1 << 62

SHARDING, WORK, WEIGHTS = map(kind_bits, (SHARDING_KINDS, WORK_KINDS, WEIGHT_KINDS))
REDUCE = next(int(kind) for kind in SHARDING_KINDS if KINDS[kind].per is Per.STAGE_STEP)
GATHER = next(int(kind) for spec in KINDS for need in spec.needs if need.of is Of.LATEST
              for kind in need.kinds)  # fmt: skip
GATHERED = SHARDING & ~(1 << REDUCE)
"""What replicas do with gathered weights: get and drop them."""


@kernel(writes=("following",))
def find_uses(chain: Array, stage: Array, seen: Array, following: Array) -> None:
    """Index of the next use of the same stage in the same chain of uses, NEVER for none.

    ``chain`` numbers the stretches between which nothing is held; ``seen`` has a −1 per stage.
    """
    for index in range(len(stage) - 1, -1, -1):
        later = seen[stage[index]]
        following[index] = NEVER
        if later >= 0 and chain[later] == chain[index]:
            following[index] = later
        seen[stage[index]] = index


@kernel(writes=("where", "what"))
def hold_weights(
    chain: Array,
    stage: Array,
    joined: Array,
    following: Array,
    most: int,
    ahead: bool,
    held: Array,
    soonest: Array,
    members: Array,
    where: Array,
    what: Array,
) -> int:
    """Gather weights before they are used and drop them for others; returns how many events.

    Event e comes before use ``where[e] >> 1`` or, where the lowest bit is 1, behind it; it is a
    gathering of stage ``what[e] >> 1`` where the lowest bit of that is 0, else a drop.

    With ``ahead`` a rank holds those ``most`` stages that it needs next, and fetches one as soon
    as there is room; without, it fetches a stage for its use and drops the one that is needed
    last. ``joined`` marks uses that run together with the one before. Per stage, ``held`` is 0,
    ``soonest`` anything, and ``members`` room for the stages of a chain.
    """
    events = 0
    index = 0
    while index < len(stage):
        if index == 0 or chain[index] != chain[index - 1]:
            # The stages of this chain in the order of their first uses, and when those are.
            size = 0
            stop = index
            while stop < len(stage) and chain[stop] == chain[index]:
                stop += 1
            for use in range(index, stop):
                if held[stage[use]] != 2:
                    held[stage[use]] = 2
                    soonest[stage[use]] = use
                    members[size] = stage[use]
                    size += 1
            for member in range(size):
                held[members[member]] = 0
            active = 0
            if ahead:
                while active < size and active < most:
                    held[members[active]] = 1
                    where[events] = index << 1
                    what[events] = members[active] << 1
                    events += 1
                    active += 1
        last = index
        while last + 1 < stop and joined[last + 1]:
            last += 1
        for use in range(index, last + 1):
            if held[stage[use]] == 1:
                continue
            if active == most:
                farthest = -1
                for member in range(size):
                    other = members[member]
                    busy = soonest[other] >= index and soonest[other] <= last
                    if held[other] == 1 and not busy:
                        if farthest < 0 or soonest[other] > soonest[farthest]:
                            farthest = other
                held[farthest] = 0
                active -= 1
                where[events] = index << 1
                what[events] = farthest << 1 | 1
                events += 1
            held[stage[use]] = 1
            active += 1
            where[events] = index << 1
            what[events] = stage[use] << 1
            events += 1
        for use in range(index, last + 1):
            soonest[stage[use]] = following[use]
        for use in range(index, last + 1):
            here = stage[use]
            if held[here] != 1:
                continue
            nearest = -1
            if ahead and (active == most or soonest[here] == NEVER):
                for member in range(size):
                    other = members[member]
                    if held[other] == 0 and soonest[other] < soonest[here]:
                        if nearest < 0 or soonest[other] < soonest[nearest]:
                            nearest = other
            if nearest >= 0 or soonest[here] == NEVER:
                held[here] = 0
                active -= 1
                where[events] = last << 1 | 1
                what[events] = here << 1 | 1
                events += 1
            if nearest >= 0:
                held[nearest] = 1
                active += 1
                where[events] = last << 1 | 1
                what[events] = nearest << 1
                events += 1
        index = last + 1
    return events


@kernel(writes=("where",))
def delay_gathers(
    stage: Array,
    joined: Array,
    home: Array,
    distance: Array,
    what: Array,
    seen: Array,
    where: Array,
) -> None:
    """Put gatherings off until their stage is among the next few that the rank uses.

    ``where`` and ``what`` are those of :func:`hold_weights`, ``home`` has the rank of every use,
    and ``distance`` how many different stages ahead each rank gathers. ``seen`` has a zero per
    stage.
    """
    for event in range(len(where)):
        if what[event] & 1 == 1:
            continue
        start = (where[event] >> 1) + (where[event] & 1)
        use = start
        while stage[use] != what[event] >> 1:
            use += 1
        count = 0
        here = use + 1
        while True:
            # The group before ``here``, and how many stages it adds.
            begin = here - 1
            while joined[begin]:
                begin -= 1
            added = 0
            for member in range(begin, max(here, use + 1)):
                if seen[stage[member]] != event + 1:
                    added += 1
                    seen[stage[member]] = event + 1
            if here <= use and count + added > distance[home[use]]:
                break
            count += added
            here = begin
            if here <= start:
                break
        if here > start:
            where[event] = here << 1


@kernel()
def sharding_holds(
    actions: Array,
    offsets: Array,
    holds: Array,
    stages: int,
    units: int,
    iterations: int,
    asked: bool,
    sharded: Array,
    held: Array,
    made: Array,
    reduced: Array,
) -> bool:
    """Whether gradients are reduced once, when complete, and weights are there when used.

    Weights are gathered only where the rank does not hold them, used before they are dropped, and
    dropped only where it does.

    For compute that is complete and in place. ``holds[rank·S + stage]`` says which rank has which
    stage. Reductions have to be there when they are `asked` for, or when there is any. The other
    arrays are zero, with an entry per stage, or per stage and iteration: they become one more than
    the rank that has seen to it last. ``held`` becomes its negative for weights that are gathered
    and not yet used.
    """
    period = units // iterations
    reductions = 0
    missing = 0
    for rank in range(len(offsets) - 1):
        mark = rank + 1
        for position in range(offsets[rank], offsets[rank + 1]):
            stage = (actions[position] >> STAGE_SHIFT) & STAGE_MASK
            if GATHERED >> (actions[position] & KIND_MASK) & 1 != 0 and stage < stages:
                sharded[stage] = mark
        joined = False
        unused = 0
        for position in range(offsets[rank], offsets[rank + 1]):
            action = actions[position]
            kind = action & KIND_MASK
            stage = (action >> STAGE_SHIFT) & STAGE_MASK
            unit = action >> MICROBATCH_SHIFT
            pair = (action >> PAIR_SHIFT) & 3
            if SHARDING >> kind & 1 != 0:
                if joined or pair != 0 or stage >= stages or unit >= units or unit < 0:
                    return False
                if not holds[rank * stages + stage]:
                    return False
                if kind == REDUCE:
                    key = stage * iterations + unit
                    if unit >= iterations or made[key] != mark or reduced[key] == mark:
                        return False
                    reduced[key] = mark
                    reductions += 1
                    missing -= 1
                elif kind == GATHER:
                    if held[stage] == mark or held[stage] == -mark:
                        return False
                    held[stage] = -mark
                    unused += 1
                else:
                    if held[stage] != mark:
                        return False
                    held[stage] = 0
            elif WORK >> kind & 1 != 0:
                if sharded[stage] == mark and held[stage] != mark:
                    if held[stage] != -mark:
                        return False
                    held[stage] = mark
                    unused -= 1
                if WEIGHTS >> kind & 1 != 0:
                    key = stage * iterations + unit // period
                    if reduced[key] == mark:
                        return False
                    if made[key] != mark:
                        made[key] = mark
                        missing += 1
            joined = pair % 2 == 1
        if unused > 0:
            return False
    return missing == 0 or not (asked or reductions > 0)
