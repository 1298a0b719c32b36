"""Run programs with explicit sends and receives in one sweep, and write them as an event graph."""

from __future__ import annotations

from debubble.core.actions import KIND_MASK, MICROBATCH_SHIFT, PAIR_SHIFT
from debubble.engine.jit import Array, kernel
from debubble.engine.kernels import compile as sweep

# What transfers do, see `debubble.engine.streams`.
OVERLAPPED, CHANNEL, BLOCKING, PAIR, GROUP = range(5)


@kernel(writes=("first", "second", "cost", "node", "sent", "next_action", "state"))
def run_programs(
    actions: Array,
    offsets: Array,
    other: Array,
    work: Array,
    mode: int,
    sync: int,
    iterations: int,
    optimizer_costs: int,
    link_id: Array,
    carrier: Array,
    source_of: Array,
    target_of: Array,
    first: Array,
    second: Array,
    cost: Array,
    node: Array,
    sent: Array,
    next_action: Array,
    reached: Array,
    unmet: Array,
    posted: Array,
    behind: Array,
    heads: Array,
    queue_end: Array,
    queue_node: Array,
    queue_seen: Array,
    ready: Array,
    wanted: Array,
    reduced: Array,
    steps: Array,
    last_node: Array,
    turns: Array,
    state: Array,
) -> None:
    """Fill the graph's arrays in topological order.

    Ranks take turns as in ``compile_compute``, a whole group of transfers in one turn. ``other``,
    ``carrier`` and ``work`` are as :func:`debubble.engine.kernels.links.link_actions` fills them;
    ``source_of`` and ``target_of`` are the ranks of a link by its cost, counted from the first. A
    rank whose next action needs a transfer stands aside with its receive as ``wanted[rank] − 1``.

    Where transfers meet, ``reached[rank]`` is the position up to which a rank has come. Where they
    block, whichever end is reached later emits the transfer; a rank leaves its group when ``unmet``
    of its members is zero, and goes on behind a chain of joins over them.

    Where they are queued, ``posted[i] − 1`` is the node that was the last of its rank when end i
    was posted, ``behind[i] − 1`` the end behind it on its queue, and ``heads[i]`` whether nothing
    is in front of it. A queue's last posted end is ``queue_end[q] − 1``, its last transfer to run
    ``queue_node[q]``, and what that had ``posted`` is ``queue_seen[q]``. On a link that carries one
    transfer at a time ``queue_end[link] − 1`` is its last send.

    ``reduced`` is as in ``compile_compute``. The length of ``turns`` is a power of two.
    """
    ranks = len(offsets) - 1
    link_costs = optimizer_costs + ranks
    queued = mode == PAIR or mode == GROUP
    n = 1
    running = 0
    posts = 0
    arrived = 0
    steps_done = 0
    head = 0
    waiting = 0
    wrap = len(turns) - 1
    for r in range(ranks):
        next_action[r] = offsets[r]
        if offsets[r] < offsets[r + 1]:
            turns[waiting] = r
            waiting += 1
            running += 1

    while waiting > 0:
        rank = turns[head & wrap]
        head += 1
        waiting -= 1
        here = next_action[rank]
        stop = offsets[rank + 1]
        kind = actions[here] & KIND_MASK
        if kind >= 6:
            position = here
            if reached[rank] <= here:
                # Reach a group of transfers.
                while position < stop and actions[position] & KIND_MASK >= 6:
                    kind = actions[position] & KIND_MASK
                    end = other[position]
                    sends = kind == 6 or kind == 8
                    source = source_of[work[position] - link_costs]
                    target = target_of[work[position] - link_costs]
                    far = target if sends else source
                    if mode == BLOCKING:
                        if end < 0 or end >= reached[far]:
                            unmet[rank] += 1
                            position += 1
                            continue
                        link = source * ranks + target
                        send = position if sends else end
                        before = queue_end[link] - 1
                        if before >= (here if sends else next_action[far]) and other[before] >= (
                            next_action[far] if sends else here
                        ):
                            # The link's last transfer is of the same two groups: one by one.
                            first[n] = node[before]
                        else:
                            first[n] = last_node[source]
                            second[n] = last_node[target]
                        queue_end[link] = send + 1
                        cost[n] = work[send]
                        node[position] = n
                        node[end] = n
                        n += 1
                        unmet[far] -= 1
                        if unmet[far] == 0:
                            turns[(head + waiting) & wrap] = far
                            waiting += 1
                    elif queued:
                        queue = rank if mode == GROUP else rank * ranks + far
                        ahead = queue_end[queue] - 1
                        queue_end[queue] = position + 1
                        posted[position] = last_node[rank] + 1
                        posts += 1
                        count = 0
                        if ahead >= 0 and node[ahead] == 0:
                            behind[ahead] = position + 1
                        else:
                            heads[position] = 1
                            if end >= 0 and heads[end] == 1:
                                ready[0] = position
                                count = 1
                        while count > 0:
                            # Both ends head their queues.
                            count -= 1
                            one = ready[count]
                            two = other[one]
                            source = source_of[work[one] - link_costs]
                            target = target_of[work[one] - link_costs]
                            from_queue = source if mode == GROUP else source * ranks + target
                            into_queue = target if mode == GROUP else target * ranks + source
                            # Receives have odd kinds.
                            if actions[one] & 1 != 0:
                                one, two = two, one
                            gathered = queue_node[from_queue]
                            rest = 0
                            for choice in range(3):
                                more = 0
                                if choice == 0:
                                    if queue_node[into_queue] != gathered:
                                        more = queue_node[into_queue]
                                elif choice == 1:
                                    if queue_seen[from_queue] != posted[one]:
                                        more = posted[one] - 1
                                elif queue_seen[into_queue] != posted[two]:
                                    more = posted[two] - 1
                                if more == 0:
                                    continue
                                if gathered == 0:
                                    gathered = more
                                elif rest == 0:
                                    rest = more
                                else:
                                    first[n] = gathered
                                    second[n] = rest
                                    gathered = n
                                    rest = more
                                    n += 1
                            first[n] = gathered
                            second[n] = rest
                            cost[n] = work[one]
                            node[one] = n
                            node[two] = n
                            queue_node[from_queue] = n
                            queue_node[into_queue] = n
                            queue_seen[from_queue] = posted[one]
                            queue_seen[into_queue] = posted[two]
                            n += 1
                            posts -= 2
                            if wanted[target] == two + 1:
                                wanted[target] = 0
                                turns[(head + waiting) & wrap] = target
                                waiting += 1
                            for following in (behind[one] - 1, behind[two] - 1):
                                if following >= 0:
                                    heads[following] = 1
                                    if other[following] >= 0 and heads[other[following]] == 1:
                                        ready[count] = following
                                        count += 1
                    elif sends:
                        if mode == CHANNEL:
                            link = source * ranks + target
                            if queue_end[link] > 0:
                                first[n] = node[queue_end[link] - 1]
                            second[n] = last_node[rank]
                            queue_end[link] = position + 1
                        else:
                            first[n] = last_node[rank]
                        cost[n] = work[position]
                        node[position] = n
                        if end >= 0:
                            node[end] = n
                            if wanted[target] == end + 1:
                                wanted[target] = 0
                                turns[(head + waiting) & wrap] = target
                                waiting += 1
                        n += 1
                    position += 1
                reached[rank] = position
                if unmet[rank] > 0:
                    continue
            # Leave the group.
            position = reached[rank]
            if mode == BLOCKING:
                gathered = node[here]
                for member in range(here + 1, position):
                    first[n] = gathered
                    second[n] = node[member]
                    gathered = n
                    n += 1
                last_node[rank] = gathered
            next_action[rank] = position
        elif kind == 5:
            state[sweep.POSITION] = here
            if sync == sweep.POST_VALIDATION:
                spot = rank * iterations + steps[rank]
                if steps[rank] == iterations:
                    state[sweep.OUTCOME] = sweep.BAD_STEP
                    return
                if rank > 0:
                    if reduced[spot - iterations] <= 0:
                        reduced[spot - iterations] = -1
                        continue
                    first[n] = reduced[spot - iterations] - 1
                    cost[n] = link_id[(rank - 1) * ranks + rank]
                    n += 1
                    first[n] = last_node[rank]
                    second[n] = n - 1
                    last_node[rank] = n
                    n += 1
                if reduced[spot] < 0:
                    turns[(head + waiting) & wrap] = rank + 1
                    waiting += 1
                reduced[spot] = last_node[rank] + 1
                steps[rank] += 1
            elif sync == sweep.GLOBAL:
                if actions[here] >> MICROBATCH_SHIFT < steps_done:
                    state[sweep.OUTCOME] = sweep.BAD_STEP
                    return
                arrived += 1
                if arrived < ranks:
                    continue
                # The last rank has arrived: a chain of joins gathers all, then every rank steps.
                arrived = 0
                steps_done += 1
                gathered = last_node[0]
                for r in range(1, ranks):
                    first[n] = gathered
                    second[n] = last_node[r]
                    gathered = n
                    n += 1
                for r in range(ranks):
                    first[n] = last_node[r]
                    second[n] = gathered
                    cost[n] = optimizer_costs + r
                    node[next_action[r]] = n
                    last_node[r] = n
                    n += 1
                    next_action[r] += 1
                    if r == rank:
                        continue
                    if next_action[r] < offsets[r + 1]:
                        turns[(head + waiting) & wrap] = r
                        waiting += 1
                    else:
                        running -= 1
            if sync != sweep.GLOBAL:
                first[n] = last_node[rank]
                cost[n] = optimizer_costs + rank
                node[here] = n
                last_node[rank] = n
                n += 1
                next_action[rank] = here + 1
        else:
            halves = 1 if (actions[here] >> PAIR_SHIFT) & 3 == 0 else 2
            arrival = 0
            later = 0
            # Where transfers block their rank, its receives are over.
            if mode != BLOCKING:
                blocked = False
                for position in range(here, here + halves):
                    end = other[position]
                    if end < 0:
                        continue
                    if node[end] == 0:
                        wanted[rank] = end + 1
                        blocked = True
                        break
                    if arrival == 0:
                        arrival = node[end]
                    else:
                        later = node[end]
                if blocked:
                    continue
            first[n] = last_node[rank]
            second[n] = arrival
            if later > 0:
                # A node of no duration carries what the first half waits for.
                n += 1
                first[n] = n - 1
                second[n] = later
            cost[n] = work[here]
            last_node[rank] = n
            node[here] = n
            if halves == 2:
                node[here + 1] = n
            n += 1
            next_action[rank] = here + halves
        if next_action[rank] < stop:
            turns[(head + waiting) & wrap] = rank
            waiting += 1
        else:
            running -= 1

    state[sweep.NODES] = n
    state[sweep.OUTCOME] = sweep.DONE if running == 0 and posts == 0 else sweep.STUCK
    for position in range(len(sent)):
        if carrier[position] >= 0:
            sent[position] = node[carrier[position]]
