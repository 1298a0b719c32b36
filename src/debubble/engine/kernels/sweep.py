"""Compile the programs of all ranks into an event graph, in one sweep.

What an action of each kind waits for comes as columns of the table of kinds, see
:mod:`debubble.engine.columns`; what transfers do, as the columns of a row of
:data:`debubble.engine.modes.MODES`.

Arrays that few schedules need are None for the others. Compiled code is made for every combination
of arrays, without what belongs to those that are None.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from debubble.core.actions import KIND_MASK, MICROBATCH_SHIFT, PAIR_SHIFT, STAGE_MASK, STAGE_SHIFT
from debubble.engine.jit import Array, helper, kernel

# Outcomes, in state[OUTCOME].
(
    DONE, STUCK, OTHER_KIND, OUT_OF_RANGE, WRONG_RANK, DUPLICATE, ORDER, BAD_GROUP, BAD_STEP,
    NO_TRANSFER, UNMATCHED, CROSSED, INCOMPLETE, MIXED, REDUCED,
) = range(15)  # fmt: skip

# Indices into state.
OUTCOME, POSITION, NODES, COMPLETED, DYNAMIC, OVERTAKEN, STATES = range(7)

# What an optimizer step waits for, see `debubble.core.schedule.SYNCS`.
GLOBAL, LOCAL, POST_VALIDATION = range(3)

# Sorts of kinds: what they have in common here. Those up to SHARD belong to a stage and microbatch.
WORK, TRANSFER, COPY, SHARD, STEP, COLLECTIVE, UNKNOWN = range(7)

# Columns of a kind, from kinds[kind * WIDTH] on, see `debubble.engine.columns`.
(
    SORT, BIT, NEVER, BEFORE, NOT, TOWARDS, RESULT, THROUGH, SLICE, SLICE_BITS, GIVES, COST,
    COMPLETES, HALF, SENDS, EDGE, GIVEN, AWAY, BACK, WEIGHTS, REDUCES, WIDTH,
) = range(22)  # fmt: skip

# Of an end of a queued transfer, from posted[end * ENDS] on: the other end and the end behind it on
# its queue, each and 1; the node, and 1, that was the last of its rank when it was posted; its cost
# index where it is a send; and whether nothing is in front of it.
OTHER, BEHIND, AFTER, TIME, HEAD, ENDS = range(6)

# Overlapped groups: bits of actions that run alone, and of the first and last of a group.
ALONE, FIRST, LAST, MIDDLE = range(4)
MOST_MEMBERS = 16
TRIES = 8
"""Places in the hash table of costs of groups that are looked at for one."""

Rare: TypeAlias = Any
"""An array, or None for schedules that have no use for it."""

ALWAYS = 1 << 16
"""Stands for what a kind needs to have been done that needs nothing."""

LINK, SUM = 0, -1
"""``dynamic_kind`` of a link, and of the summed time of a group, see ``EventGraph``."""


@helper
def new_link(
    link: int, ranks: int, lanes: int, base: int, link_id: Array, dynamic_kind: Array,
    dynamic_a: Array, dynamic_b: Array, state: Array,
) -> int:  # fmt: skip
    """Give a directed pair of ranks its cost indices, one for every lane; returns the first."""
    index: int = base + state[DYNAMIC]
    link_id[link] = index
    for lane in range(lanes):
        dynamic_kind[state[DYNAMIC]] = LINK
        dynamic_a[state[DYNAMIC]] = link // ranks + lane * ranks
        dynamic_b[state[DYNAMIC]] = link % ranks
        state[DYNAMIC] += 1
    return index


@helper
def new_time(
    kind: int, a: int, b: int, base: int, dynamic_kind: Array, dynamic_a: Array, dynamic_b: Array,
    state: Array,
) -> int:  # fmt: skip
    """Add a cost that few schedules have; returns its index."""
    index: int = state[DYNAMIC]
    dynamic_kind[index] = kind
    dynamic_a[index] = a
    dynamic_b[index] = b
    state[DYNAMIC] += 1
    return base + index


@helper
def wake(waiter: int, parked: Array, queue: Array, head: int, waiting: int) -> int:
    """Queue every rank of a list of waiters; returns how many ranks are queued now."""
    while waiter < 0:
        queue[(head + waiting) & (len(queue) - 1)] = -waiter - 1
        waiting += 1
        waiter = parked[-waiter - 1]
    return waiting


@kernel(
    writes=(
        "first", "second", "lag", "cost", "node", "sent", "dynamic_kind", "dynamic_a",
        "dynamic_b", "next_action", "state",
    )
)  # fmt: skip
def sweep(
    actions: Array,
    offsets: Array,
    rank_of: Array,
    offset_of: Array,
    kinds: Array,
    stages: int,
    units: int,
    microbatches: int,
    slices: int,
    lanes: int,
    copies: int,
    sync: int,
    iterations: int,
    vocabulary: int,
    timed: int,
    one_by_one: bool,
    blocking: bool,
    queued: bool,
    peers: int,
    ways: int,
    results: Array,
    seen: Array,
    link_id: Array,
    link_node: Array,
    first: Array,
    second: Array,
    lag: Array,
    cost: Array,
    node: Array,
    sent: Array,
    dynamic_kind: Array,
    dynamic_a: Array,
    dynamic_b: Array,
    next_action: Array,
    last_node: Array,
    queue: Array,
    steps: Array,
    reduced: Array,
    group_place: Rare,
    group_key: Rare,
    group_id: Rare,
    ends: Rare,
    made: Rare,
    link_ends: Rare,
    begins: Rare,
    stops: Rare,
    unmet: Rare,
    posted: Rare,
    queue_end: Rare,
    queue_node: Rare,
    queue_seen: Rare,
    ready: Rare,
    streams: Rare,
    time_id: Rare,
    owner_of: Rare,
    gathered: Rare,
    reductions: Rare,
    reloaded: Rare,
    ahead: Rare,
    first_stage: Rare,
    parked: Rare,
    shards: Rare,
    state: Array,
) -> None:
    """Fill the graph's arrays in topological order, or say in ``state`` what is wrong where.

    Ranks that can go on stand in ``queue``. In its turn a rank does what is beside computing, then
    computes one thing, which leaves neighbouring nodes independent of each other: evaluating them
    overlaps. A rank that cannot go on leaves its number where what it waits for is going to stand,
    and comes back when that is there. The length of ``queue`` is a power of two.

    * ``rank_of`` is the rank of every place, and unit u of stage s has place ``s + offset_of[u]``,
      or s where all units have the same.
    * ``results[s·U + u]`` is the node whose end the next stage's forward waits for, and
      ``results[(S + s)·U + u]`` the previous stage's backward; 0 is not yet there, and −(r + 1)
      not yet there while rank r waits for it. ``seen[s·U + u]`` has a bit for every kind done.
    * ``reduced[r·iterations + k] − 1`` is the node at which the partial norm of ranks 0..r is
      known before step k; 0 before that, and −1 while rank r + 1 waits for it.
    * A link has as many costs in a row as there are ``lanes``: where slices are of different
      lengths, so are their transfers, and each has a lane of its own; else one will do.

    **Overlapped groups**. ``group_key`` and ``group_id`` are a hash table of their times.

    **Transfers that are actions** (``ends`` is no None). Results of other ranks come through them.
    ``ends[key] − 1`` is the end of the transfer of a result that was reached first. ``made[key]``
    is the position behind that of its producer, and ``sent`` that of its send until all is done.
    ``link_ends`` holds the positions behind those of the last send and receive of every link that
    found each other.

    * Where transfers block, a rank in a group of them has ``begins[rank] − 1`` and ``stops[rank]``
      as its bounds. Whichever end is reached later emits the transfer; a rank leaves its group when
      ``unmet`` of its transfers is zero, behind a chain of joins over them.
    * Where they are queued, ``posted`` has a row for every end. A queue's last posted end is
      ``queue_end[q] − 1``, its last transfer to run ``queue_node[q]``, and the node after which
      that had been posted ``queue_seen[q] − 1``.

    **Copies, collectives and shards of the output layer** (``streams`` is no None).
    ``streams[3·r]`` and the two behind it are the last copy, collective and reduction of rank r.
    ``gathered`` is the node of weights that nothing has used yet, ``reductions`` whether a stage's
    gradients of an iteration are reduced, and ``reloaded`` the node of a cell's reload.
    ``ahead[i]`` is the copy in front of copy i on a link that ranks share, −1 where there is none.
    ``shards`` has six numbers for each microbatch: how many first passes were done, the node that
    joins them and who waits for it, and the same of the passes that the last stage waits for.
    Several ranks may wait for the same there: ``parked[r]`` is who waits beside rank r.
    """
    ranks = len(offsets) - 1
    places = slices * copies * stages
    cells = stages * units
    optimizer_costs = 1 + timed * places
    base = optimizer_costs + ranks
    wrap = len(queue) - 1
    n = 1
    completed = 0
    running = 0
    unmatched = 0
    posts = 0
    arrived = 0
    steps_done = 0
    head = 0
    waiting = 0
    for r in range(ranks):
        next_action[r] = offsets[r]
        if offsets[r] < offsets[r + 1]:
            queue[waiting] = r
            waiting += 1
            running += 1

    while waiting > 0:
        rank = queue[head & wrap]
        head += 1
        waiting -= 1
        here = next_action[rank]
        stop = offsets[rank + 1]
        while True:
            if ends is not None:
                if begins[rank] > 0 and here == stops[rank]:
                    if unmet[rank] > 0:
                        next_action[rank] = here
                        break
                    # Leave the group.
                    joined = 0
                    for member in range(begins[rank] - 1, here):
                        if kinds[(actions[member] & KIND_MASK) * WIDTH + SORT] != TRANSFER:
                            continue
                        if joined == 0:
                            joined = node[member]
                        else:
                            first[n] = joined
                            second[n] = node[member]
                            joined = n
                            n += 1
                    last_node[rank] = joined
                    begins[rank] = 0
            if here == stop:
                next_action[rank] = here
                running -= 1
                break
            action = actions[here]
            kind = action & KIND_MASK
            row = kind * WIDTH
            sort = kinds[row + SORT]
            wrong = DONE
            members = 1
            if group_place is not None:
                bits = (action >> PAIR_SHIFT) & 3
                if bits != ALONE:
                    if bits != FIRST or sort != WORK:
                        wrong = BAD_GROUP
                    while wrong == DONE and bits != LAST:
                        position = here + members
                        if position == stop or members == MOST_MEMBERS:
                            wrong = BAD_GROUP
                            break
                        members += 1
                        bits = (actions[position] >> PAIR_SHIFT) & 3
                        if (
                            bits < LAST
                            or kinds[(actions[position] & KIND_MASK) * WIDTH + SORT] != WORK
                        ):
                            wrong = BAD_GROUP
                        for member in range(here, position):
                            if (actions[member] ^ actions[position]) >> STAGE_SHIFT == 0:
                                wrong = BAD_GROUP
                    if wrong != DONE:
                        state[OUTCOME] = wrong
                        state[POSITION] = here
                        return

            # See that what it waits for is there.
            position = here
            blocked = False
            stage = (action >> STAGE_SHIFT) & STAGE_MASK
            unit = action >> MICROBATCH_SHIFT
            place = stage
            cell = 0
            done = 0
            wanted = -1
            if sort <= SHARD:
                for index in range(members):
                    if members > 1:
                        position = here + index
                        action = actions[position]
                        row = (action & KIND_MASK) * WIDTH
                        stage = (action >> STAGE_SHIFT) & STAGE_MASK
                        unit = action >> MICROBATCH_SHIFT
                    if stage >= stages or unit >= units or unit < 0:
                        wrong = OUT_OF_RANGE
                        break
                    place = stage
                    if len(offset_of) > 0:
                        place += offset_of[unit]
                    if rank_of[place] != rank:
                        wrong = WRONG_RANK
                        break
                    cell = stage * units + unit
                    done = seen[cell]
                    if group_place is not None:
                        if members > 1:
                            group_place[index] = place
                    if sort == TRANSFER:
                        step = kinds[row + TOWARDS]
                        far = rank
                        if 0 <= stage + step < stages:
                            far = rank_of[place + step]
                        if far == rank:
                            wrong = NO_TRANSFER
                            break
                    if (done | ALWAYS) & kinds[row + BEFORE] == 0 or done & kinds[row + NOT] != 0:
                        wrong = ORDER
                        if done & kinds[row + NEVER] != 0:
                            wrong = DUPLICATE
                        break
                    if slices > 1:
                        step = kinds[row + SLICE]
                        if step != 0 and 0 <= unit % slices + step < slices:
                            if seen[cell + step] & kinds[row + SLICE_BITS] == 0:
                                wrong = ORDER
                                break
                    if sort == WORK:
                        step = kinds[row + TOWARDS]
                        wanted = -1
                        if step != 0 and 0 <= stage + step < stages:
                            wanted = kinds[row + RESULT] * cells + cell + step * units
                            if ends is not None:
                                # It comes through a receive, or was made here, before this.
                                ready_here = done & kinds[row + THROUGH] != 0
                                if rank_of[place + step] == rank:
                                    ready_here = results[wanted] > 0
                                if not ready_here:
                                    wrong = ORDER
                                    break
                            if results[wanted] <= 0:
                                results[wanted] = -(rank + 1)
                                blocked = True
                                break
                        if streams is not None:
                            if done & kinds[row + AWAY] != 0 and done & kinds[row + BACK] == 0:
                                wrong = ORDER
                                break
                            if kinds[row + REDUCES] != 0:
                                owner = owner_of[place] * iterations
                                if reductions[owner + unit // (microbatches * slices)] != 0:
                                    wrong = REDUCED
                                    break
                            if kinds[row + EDGE] != 0 and stage == stages - 1:
                                spot = 6 * unit + 3
                                if shards[spot] < ranks:
                                    parked[rank] = shards[spot + 2]
                                    shards[spot + 2] = -(rank + 1)
                                    blocked = True
                                    break
            if wrong != DONE:
                state[OUTCOME] = wrong
                state[POSITION] = position
                return
            if blocked:
                next_action[rank] = here
                break

            if sort == WORK:
                time = 0
                halves = 0
                for index in range(members):
                    if group_place is not None:
                        if members > 1:
                            action = actions[here + index]
                            row = (action & KIND_MASK) * WIDTH
                            stage = (action >> STAGE_SHIFT) & STAGE_MASK
                            unit = action >> MICROBATCH_SHIFT
                            place = group_place[index]
                            step = kinds[row + TOWARDS]
                            wanted = -1
                            if step != 0 and 0 <= stage + step < stages:
                                wanted = kinds[row + RESULT] * cells
                                wanted += (stage + step) * units + unit
                    if streams is not None:
                        # What it waits for beside its turn and its neighbour's result.
                        for choice in range(3):
                            more = 0
                            if choice == 0:
                                if kinds[row + WEIGHTS] != 0:
                                    more = gathered[owner_of[place]]
                                    gathered[owner_of[place]] = 0
                            elif choice == 1:
                                if kinds[row + AWAY] != 0 and len(reloaded) > 0:
                                    more = reloaded[stage * units + unit]
                            elif kinds[row + EDGE] != 0 and stage == stages - 1:
                                more = shards[6 * unit + 4]
                            if more > 0:
                                first[n] = last_node[rank]
                                second[n] = more
                                last_node[rank] = n
                                n += 1
                    first[n] = last_node[rank]
                    if wanted >= 0:
                        second[n] = results[wanted]
                        if ends is None:
                            source = rank_of[place + kinds[row + TOWARDS]]
                            if source != rank and not one_by_one:
                                link = source * ranks + rank
                                if link_id[link] == 0:
                                    new_link(
                                        link, ranks, lanes, base, link_id, dynamic_kind,
                                        dynamic_a, dynamic_b, state,
                                    )  # fmt: skip
                                lag[n] = link_id[link]
                                if lanes > 1:
                                    lag[n] = link_id[link] + unit % slices
                    last_node[rank] = n
                    own = 1 + kinds[row + COST] * places + place
                    if group_place is not None:
                        if index > 0:
                            # A pair of a forward and a backward, or the sum of what came so far.
                            kind, a, b = SUM, time, own
                            if members == 2 and halves + kinds[row + HALF] == 3:
                                kind, a, b = kinds[row + COST], group_place[0], place
                                if halves == 2:
                                    kind, a, b = (time - 1) // places, place, group_place[0]
                            key = ((kind + 1) * (base + len(dynamic_kind)) + a) * base + b + 1
                            spot = (key ^ (key >> 13)) * 40503 & (len(group_key) - 1)
                            tries = 1
                            while group_key[spot] != 0 and group_key[spot] != key and tries < TRIES:
                                spot = (spot + 1) & (len(group_key) - 1)
                                tries += 1
                            if group_key[spot] != key:
                                # Where no place is left, one is used again: its cost comes twice.
                                group_key[spot] = key
                                group_id[spot] = new_time(
                                    kind, a, b, base, dynamic_kind, dynamic_a, dynamic_b, state
                                )
                            own = group_id[spot]
                        time = own
                        halves = kinds[row + HALF]
                    if index == members - 1:
                        cost[n] = own
                    n += 1
                end = n - 1
                for index in range(members):
                    if group_place is not None:
                        if members > 1:
                            action = actions[here + index]
                            row = (action & KIND_MASK) * WIDTH
                            stage = (action >> STAGE_SHIFT) & STAGE_MASK
                            unit = action >> MICROBATCH_SHIFT
                            place = group_place[index]
                            cell = stage * units + unit
                            done = seen[cell]
                    node[here + index] = end
                    seen[cell] = done | kinds[row + BIT]
                    completed += kinds[row + COMPLETES]
                    step = kinds[row + GIVES]
                    if step == 0:
                        continue
                    key = kinds[row + RESULT] * cells + cell
                    if stage + step < 0 or stage + step >= stages:
                        if streams is not None:
                            if vocabulary > 0 and step > 0:
                                waiting = wake(results[key], parked, queue, head, waiting)
                                results[key] = end
                        continue
                    result = end
                    target = rank_of[place + step]
                    if target != rank:
                        if ends is not None:
                            if len(sent) > 0:
                                made[key] = here + index + 1
                            continue
                        elif one_by_one:
                            link = rank * ranks + target
                            if link_id[link] == 0:
                                new_link(
                                    link, ranks, lanes, base, link_id, dynamic_kind, dynamic_a,
                                    dynamic_b, state,
                                )  # fmt: skip
                            first[n] = link_node[link]
                            second[n] = end
                            cost[n] = link_id[link]
                            if lanes > 1:
                                cost[n] = link_id[link] + unit % slices
                            link_node[link] = n
                            sent[here + index] = n
                            result = n
                            n += 1
                    waiter = results[key]
                    results[key] = result
                    if waiter < 0:
                        queue[(head + waiting) & wrap] = -waiter - 1
                        waiting += 1
                here += members
            elif sort == STEP:
                held = False
                for copy in range(copies):
                    if stage < stages and rank_of[copy * stages + stage] == rank:
                        held = True
                if not held:
                    # A rank without stages steps all the same, and names any.
                    for other_place in range(copies * stages):
                        if rank_of[other_place] == rank:
                            wrong = WRONG_RANK
                    if stage >= stages:
                        wrong = OUT_OF_RANGE
                if sync == POST_VALIDATION:
                    if steps[rank] == iterations:
                        wrong = BAD_STEP
                elif sync == GLOBAL and unit < steps_done:
                    wrong = BAD_STEP
                if wrong != DONE:
                    state[OUTCOME] = wrong
                    state[POSITION] = here
                    return
                if sync == POST_VALIDATION:
                    spot = rank * iterations + steps[rank]
                    if rank > 0:
                        if reduced[spot - iterations] <= 0:
                            reduced[spot - iterations] = -1
                            next_action[rank] = here
                            break
                        link = (rank - 1) * ranks + rank
                        if link_id[link] == 0:
                            new_link(
                                link, ranks, lanes, base, link_id, dynamic_kind, dynamic_a,
                                dynamic_b, state,
                            )  # fmt: skip
                        first[n] = last_node[rank]
                        second[n] = reduced[spot - iterations] - 1
                        lag[n] = link_id[link]
                        last_node[rank] = n
                        n += 1
                    if streams is not None:
                        if streams[3 * rank + 2] > 0:
                            first[n] = last_node[rank]
                            second[n] = streams[3 * rank + 2]
                            last_node[rank] = n
                            n += 1
                    if reduced[spot] < 0:
                        queue[(head + waiting) & wrap] = rank + 1
                        waiting += 1
                    reduced[spot] = last_node[rank] + 1
                    steps[rank] += 1
                if sync == GLOBAL:
                    next_action[rank] = here
                    arrived += 1
                    if arrived < ranks:
                        break
                    # The last rank has arrived: joins gather all, then every rank steps.
                    arrived = 0
                    steps_done += 1
                    joined = last_node[0]
                    for r in range(1, ranks):
                        first[n] = joined
                        second[n] = last_node[r]
                        joined = n
                        n += 1
                    if streams is not None:
                        for r in range(ranks):
                            if streams[3 * r + 2] > 0:
                                first[n] = joined
                                second[n] = streams[3 * r + 2]
                                joined = n
                                n += 1
                    for r in range(ranks):
                        first[n] = last_node[r]
                        second[n] = joined
                        cost[n] = optimizer_costs + r
                        node[next_action[r]] = n
                        last_node[r] = n
                        n += 1
                        next_action[r] += 1
                        queue[(head + waiting) & wrap] = r
                        waiting += 1
                    break
                first[n] = last_node[rank]
                if streams is not None:
                    second[n] = streams[3 * rank + 2]
                cost[n] = optimizer_costs + rank
                node[here] = n
                last_node[rank] = n
                n += 1
                here += 1
            elif sort == TRANSFER:
                if ends is not None:
                    seen[cell] = done | kinds[row + BIT]
                    step = kinds[row + TOWARDS]
                    far = rank_of[place + step]
                    sends = kinds[row + SENDS] != 0
                    key = kinds[row + RESULT] * cells + cell
                    if sends and len(sent) > 0:
                        sent[made[key] - 1] = here + 1
                    source, target = rank, far
                    if not sends:
                        key += step * units
                        source, target = far, rank
                    link = source * ranks + target
                    if link_id[link] == 0:
                        new_link(
                            link, ranks, lanes, base, link_id, dynamic_kind, dynamic_a, dynamic_b,
                            state,
                        )  # fmt: skip
                    time = link_id[link]
                    if lanes > 1:
                        time += unit % slices
                    # The last send and receive of this link that found each other.
                    one_before, two_before = link_ends[2 * link] - 1, link_ends[2 * link + 1] - 1
                    end = ends[key] - 1
                    if end < 0:
                        ends[key] = here + 1
                        unmatched += 1
                    else:
                        unmatched -= 1
                        one, two = end, here
                        if sends:
                            one, two = here, end
                        if one < one_before or two < two_before:
                            if state[OVERTAKEN] == 0:
                                state[OVERTAKEN] = here + 1
                            if blocking or queued:
                                state[OUTCOME] = CROSSED
                                state[POSITION] = here
                                return
                        link_ends[2 * link] = one + 1
                        link_ends[2 * link + 1] = two + 1
                    ran = 0
                    if blocking:
                        if begins[rank] == 0:
                            # The group ends behind its last transfer, copies in between included.
                            begins[rank] = here + 1
                            stops[rank] = here + 1
                            for member in range(here + 1, stop):
                                more = kinds[(actions[member] & KIND_MASK) * WIDTH + SORT]
                                if more == TRANSFER:
                                    stops[rank] = member + 1
                                elif more != COPY and more != COLLECTIVE:
                                    break
                        if end < 0:
                            unmet[rank] += 1
                        else:
                            if (
                                one_before >= 0
                                and one_before >= begins[source] - 1
                                and two_before >= begins[target] - 1
                            ):
                                # The link's last transfer is of the same two groups: one by one.
                                first[n] = node[one_before]
                            else:
                                first[n] = last_node[source]
                                second[n] = last_node[target]
                            ran = n
                            unmet[far] -= 1
                            if unmet[far] == 0 and next_action[far] == stops[far]:
                                queue[(head + waiting) & wrap] = far
                                waiting += 1
                    elif not queued:
                        if sends:
                            first[n] = last_node[rank]
                            if one_by_one:
                                second[n] = link_node[link]
                                link_node[link] = n
                            ran = n
                            node[here] = n
                        elif end >= 0:
                            node[here] = node[end]
                    if ran > 0:
                        cost[n] = time
                        node[here] = n
                        if end >= 0:
                            node[end] = n
                        waiter = results[key]
                        results[key] = n
                        if waiter < 0:
                            queue[(head + waiting) & wrap] = -waiter - 1
                            waiting += 1
                        n += 1
                    if queued:
                        if end >= 0:
                            posted[ENDS * here + OTHER] = end + 1
                            posted[ENDS * end + OTHER] = here + 1
                        # One queue of a rank for all, for each peer, or for each and direction.
                        spot = (rank * peers + min(far, peers - 1)) * ways
                        if sends:
                            posted[ENDS * here + TIME] = time
                        else:
                            spot += ways - 1
                        before = queue_end[spot] - 1
                        queue_end[spot] = here + 1
                        posted[ENDS * here + AFTER] = last_node[rank] + 1
                        posts += 1
                        count = 0
                        if before >= 0 and node[before] == 0:
                            posted[ENDS * before + BEHIND] = here + 1
                        else:
                            posted[ENDS * here + HEAD] = 1
                        # Both ends have to head their queues.
                        if (
                            end >= 0
                            and posted[ENDS * here + HEAD] == 1
                            and posted[ENDS * end + HEAD] == 1
                        ):
                            ready[0] = here
                            count = 1
                        while count > 0:
                            count -= 1
                            one = ready[count]
                            two = posted[ENDS * one + OTHER] - 1
                            if kinds[(actions[one] & KIND_MASK) * WIDTH + SENDS] == 0:
                                one, two = two, one
                            time = posted[ENDS * one + TIME]
                            source, target = dynamic_a[time - base], dynamic_b[time - base]
                            if lanes > 1:
                                source = source % ranks
                            from_queue = (source * peers + min(target, peers - 1)) * ways
                            into_queue = (target * peers + min(source, peers - 1)) * ways + ways - 1
                            joined = queue_node[from_queue]
                            rest = 0
                            for choice in range(3):
                                more = 0
                                if choice == 0:
                                    if queue_node[into_queue] != joined:
                                        more = queue_node[into_queue]
                                elif choice == 1:
                                    if queue_seen[from_queue] != posted[ENDS * one + AFTER]:
                                        more = posted[ENDS * one + AFTER] - 1
                                elif queue_seen[into_queue] != posted[ENDS * two + AFTER]:
                                    more = posted[ENDS * two + AFTER] - 1
                                if more == 0:
                                    continue
                                if joined == 0:
                                    joined = more
                                elif rest == 0:
                                    rest = more
                                else:
                                    first[n] = joined
                                    second[n] = rest
                                    joined = n
                                    rest = more
                                    n += 1
                            first[n] = joined
                            second[n] = rest
                            cost[n] = time
                            node[one] = n
                            node[two] = n
                            queue_node[from_queue] = n
                            queue_node[into_queue] = n
                            queue_seen[from_queue] = posted[ENDS * one + AFTER]
                            queue_seen[into_queue] = posted[ENDS * two + AFTER]
                            posts -= 2
                            action = actions[one]
                            key = kinds[(action & KIND_MASK) * WIDTH + RESULT] * cells
                            key += ((action >> STAGE_SHIFT) & STAGE_MASK) * units
                            key += action >> MICROBATCH_SHIFT
                            waiter = results[key]
                            results[key] = n
                            if waiter < 0:
                                queue[(head + waiting) & wrap] = -waiter - 1
                                waiting += 1
                            n += 1
                            for following in (
                                posted[ENDS * one + BEHIND] - 1,
                                posted[ENDS * two + BEHIND] - 1,
                            ):
                                if following >= 0:
                                    posted[ENDS * following + HEAD] = 1
                                    if (
                                        posted[ENDS * following + OTHER] > 0
                                        and posted[
                                            ENDS * (posted[ENDS * following + OTHER] - 1) + HEAD
                                        ]
                                        == 1
                                    ):
                                        ready[count] = following
                                        count += 1
                    here += 1
            elif sort == COPY:
                if streams is not None:
                    before = streams[3 * rank]
                    if len(ahead) > 0:
                        before = 0
                        if ahead[here] >= 0:
                            before = node[ahead[here]]
                            if before <= 0:
                                # Not its turn on a link that ranks share.
                                node[ahead[here]] = -(rank + 1)
                                next_action[rank] = here
                                break
                    seen[cell] = done | kinds[row + BIT]
                    if time_id[kind * places + place] == 0:
                        time_id[kind * places + place] = new_time(
                            kind, place, rank, base, dynamic_kind, dynamic_a, dynamic_b, state
                        )
                    first[n] = last_node[rank]
                    second[n] = before
                    cost[n] = time_id[kind * places + place]
                    if node[here] < 0:
                        queue[(head + waiting) & wrap] = -node[here] - 1
                        waiting += 1
                    node[here] = n
                    streams[3 * rank] = n
                    if kinds[row + BIT] == kinds[row + BACK]:
                        reloaded[cell] = n
                    n += 1
                    here += 1
            elif sort == COLLECTIVE:
                if streams is not None:
                    owner = -1
                    if stage >= stages or unit >= units or unit < 0:
                        wrong = OUT_OF_RANGE
                    else:
                        for copy in range(copies):
                            if owner < 0 and rank_of[copy * stages + stage] == rank:
                                owner = copy * stages + stage
                        if owner < 0:
                            wrong = WRONG_RANK
                    if wrong != DONE:
                        state[OUTCOME] = wrong
                        state[POSITION] = here
                        return
                    first[n] = last_node[rank]
                    node[here] = n
                    if kinds[row + COST] != 0:
                        if time_id[kind * places + owner] == 0:
                            time_id[kind * places + owner] = new_time(
                                kind, owner, owner, base, dynamic_kind, dynamic_a, dynamic_b, state
                            )
                        cost[n] = time_id[kind * places + owner]
                        second[n] = streams[3 * rank + 1]
                        streams[3 * rank + 1] = n
                    if kinds[row + REDUCES] != 0:
                        reductions[owner * iterations + min(unit, iterations - 1)] = 1
                        streams[3 * rank + 2] = n
                    else:
                        gathered[owner] = n if kinds[row + COST] != 0 else 0
                    n += 1
                    here += 1
            elif sort == SHARD:
                if streams is not None:
                    if vocabulary == 0 or first_stage[rank] != stage:
                        state[OUTCOME] = WRONG_RANK
                        state[POSITION] = here
                        return
                    home = rank_of[stages - 1]
                    opens = kinds[row + EDGE] == 0
                    spot = 6 * unit
                    wanted = (stages - 1) * units + unit
                    if opens:
                        more = results[wanted]
                        if more <= 0:
                            parked[rank] = more
                            results[wanted] = -(rank + 1)
                    else:
                        more = shards[spot + 1]
                        if shards[spot] < ranks:
                            parked[rank] = shards[spot + 2]
                            shards[spot + 2] = -(rank + 1)
                            more = 0
                    if more <= 0:
                        next_action[rank] = here
                        break
                    first[n] = last_node[rank]
                    second[n] = more
                    if home != rank:
                        link = home * ranks + rank
                        if link_id[link] == 0:
                            new_link(
                                link, ranks, lanes, base, link_id, dynamic_kind, dynamic_a,
                                dynamic_b, state,
                            )  # fmt: skip
                        lag[n] = link_id[link]
                    if time_id[kind * places + place] == 0:
                        time_id[kind * places + place] = new_time(
                            kind, place, rank, base, dynamic_kind, dynamic_a, dynamic_b, state
                        )
                    cost[n] = time_id[kind * places + place]
                    node[here] = n
                    last_node[rank] = n
                    seen[cell] = done | kinds[row + BIT]
                    n += 1
                    if opens:
                        first[n] = shards[spot + 1]
                        second[n] = last_node[rank]
                        shards[spot + 1] = n
                        n += 1
                        shards[spot] += 1
                        if shards[spot] == ranks:
                            waiting = wake(shards[spot + 2], parked, queue, head, waiting)
                    if kinds[row + GIVEN] != 0:
                        spot += 3
                        first[n] = shards[spot + 1]
                        second[n] = last_node[rank]
                        if home != rank:
                            link = rank * ranks + home
                            if link_id[link] == 0:
                                new_link(
                                    link, ranks, lanes, base, link_id, dynamic_kind, dynamic_a,
                                    dynamic_b, state,
                                )  # fmt: skip
                            lag[n] = link_id[link]
                        shards[spot + 1] = n
                        n += 1
                        shards[spot] += 1
                        if shards[spot] == ranks:
                            waiting = wake(shards[spot + 2], parked, queue, head, waiting)
                    here += 1
            else:
                state[OUTCOME] = OTHER_KIND
                state[POSITION] = here
                return
            if sort == WORK or sort == STEP or sort == SHARD:
                # What occupies the rank ends its turn.
                next_action[rank] = here
                if here < stop:
                    queue[(head + waiting) & wrap] = rank
                    waiting += 1
                else:
                    running -= 1
                break
    outcome = DONE
    if running > 0 or posts > 0:
        outcome = STUCK
    elif unmatched > 0:
        outcome = UNMATCHED
    if streams is not None:
        if vocabulary > 0 and outcome == DONE:
            # What has begun on the last stage, or on a shard, takes both passes on every rank.
            forward, backward, passes = 0, 0, 0
            for row in range(0, len(kinds), WIDTH):
                if kinds[row + SORT] == SHARD:
                    passes |= kinds[row + BIT]
                elif kinds[row + SORT] == WORK and kinds[row + GIVES] > 0:
                    forward |= kinds[row + BIT]
                elif kinds[row + SORT] == WORK and kinds[row + GIVES] < 0:
                    backward |= kinds[row + BIT]
            for unit in range(units):
                done = seen[(stages - 1) * units + unit]
                some = done & (forward | backward) != 0
                whole = done & forward != 0
                for r in range(ranks):
                    done = seen[first_stage[r] * units + unit] & passes
                    some = some or done != 0
                    whole = whole and done == passes
                if some and not whole:
                    outcome = INCOMPLETE
    for r in range(ranks):
        if ends is not None:
            if begins[r] > 0:
                next_action[r] = begins[r] - 1
    if ends is not None:
        for position in range(len(sent)):
            if sent[position] > 0:
                sent[position] = node[sent[position] - 1]
    state[NODES] = n
    state[COMPLETED] = completed
    state[OUTCOME] = outcome
