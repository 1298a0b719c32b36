"""Choice of the times at which a rank holds the whole weights of its stages."""

from __future__ import annotations

from typing import NamedTuple

from debubble.engine.jit import Array, helper, kernel

NEVER = 1 << 62


@kernel(writes=("following",))
def find_uses(chain: Array, stage: Array, seen: Array, following: Array) -> None:
    """Find the next use of the same stage in the same chain for every use, NEVER for none.

    ``chain`` numbers the stretches between which nothing is held; ``seen`` has a −1 per stage.
    """
    for index in range(len(stage) - 1, -1, -1):
        later = seen[stage[index]]
        following[index] = NEVER
        if later >= 0 and chain[later] == chain[index]:
            following[index] = later
        seen[stage[index]] = index


class Uses(NamedTuple):
    """Uses of weights by work, in program order.

    ``chain`` numbers the stretches between which nothing is held, ``joined`` marks uses that run
    together with the one before, and ``following`` is that of :func:`find_uses`.
    """

    chain: Array
    stage: Array
    joined: Array
    following: Array


class Weights(NamedTuple):
    """State of the weights of one chain.

    Per stage, ``held`` is 1 where they are gathered, else 0, and ``soonest`` is their next use.
    ``members`` has the stages of the chain in the order of their first uses.
    """

    held: Array
    soonest: Array
    members: Array


class Events(NamedTuple):
    """Gatherings and drops of weights, in the order in which they happen.

    Event e comes before use ``where[e] >> 1`` or, where the lowest bit is 1, after it; it is a
    gathering of stage ``what[e] >> 1`` where the lowest bit of that is 0, else a drop.
    """

    where: Array
    what: Array


@kernel(writes=("events",))
def hold_weights(uses: Uses, most: int, ahead: bool, weights: Weights, events: Events) -> int:
    """Gather weights before they are used and drop them for others; return the number of events.

    With ``ahead`` a rank holds those ``most`` stages that it needs next, and fetches one as soon
    as there is room; without, it fetches a stage for its use and drops the one that is needed
    last. At the start ``weights.held`` is 0, and the other arrays of ``weights`` are room.
    """
    count = 0
    size = 0
    active = 0
    stop = 0
    begin = 0
    while begin < len(uses.stage):
        if begin == stop:
            stop, size = open_chain(begin, uses, weights)
            active = 0
            if ahead:
                active = min(size, most)
                for member in range(active):
                    count = move(weights.members[member], 1, begin << 1, count, weights, events)
        last = begin
        while last + 1 < stop and uses.joined[last + 1]:
            last += 1
        for use in range(begin, last + 1):
            if weights.held[uses.stage[use]] == 1:
                continue
            if active == most:
                idle = farthest_idle(begin, last, size, weights)
                count = move(idle, 0, begin << 1, count, weights, events)
                active -= 1
            count = move(uses.stage[use], 1, begin << 1, count, weights, events)
            active += 1
        for use in range(begin, last + 1):
            weights.soonest[uses.stage[use]] = uses.following[use]
        for use in range(begin, last + 1):
            stage = uses.stage[use]
            if weights.held[stage] != 1:
                continue
            done = weights.soonest[stage] == NEVER
            nearest = -1
            if ahead and (active == most or done):
                nearest = nearest_absent(weights.soonest[stage], size, weights)
            if nearest >= 0 or done:
                count = move(stage, 0, last << 1 | 1, count, weights, events)
                active -= 1
            if nearest >= 0:
                count = move(nearest, 1, last << 1 | 1, count, weights, events)
                active += 1
        begin = last + 1
    return count


@helper
def open_chain(begin: int, uses: Uses, weights: Weights) -> tuple[int, int]:
    """List the stages of the chain that begins at a use; return its end and their number."""
    listed = 2
    size = 0
    stop = begin
    while stop < len(uses.stage) and uses.chain[stop] == uses.chain[begin]:
        stage = uses.stage[stop]
        if weights.held[stage] != listed:
            weights.held[stage] = listed
            weights.soonest[stage] = stop
            weights.members[size] = stage
            size += 1
        stop += 1
    for member in range(size):
        weights.held[weights.members[member]] = 0
    return stop, size


@helper
def move(stage: int, held: int, where: int, count: int, weights: Weights, events: Events) -> int:
    """Write that a stage is gathered, or dropped for `held` 0; return the number of events."""
    weights.held[stage] = held
    events.where[count] = where
    events.what[count] = stage << 1 | (1 - held)
    return count + 1


@helper
def farthest_idle(begin: int, last: int, size: int, weights: Weights) -> int:
    """Return the held stage that is needed last, of those that no use of the group needs."""
    found = -1
    for member in range(size):
        stage = weights.members[member]
        soonest = weights.soonest[stage]
        if weights.held[stage] == 1 and not begin <= soonest <= last:
            if found < 0 or soonest > weights.soonest[found]:
                found = stage
    return found


@helper
def nearest_absent(before: int, size: int, weights: Weights) -> int:
    """Return the stage not held that is needed first, before a given use; −1 for none."""
    found = -1
    for member in range(size):
        stage = weights.members[member]
        soonest = weights.soonest[stage]
        if weights.held[stage] == 0 and soonest < before:
            if found < 0 or soonest < weights.soonest[found]:
                found = stage
    return found


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
    """Delay gatherings until their stage is among the next few that the rank uses.

    ``where`` and ``what`` are those of :class:`Events`, ``home`` has the rank of every use,
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
