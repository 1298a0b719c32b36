"""Compile programs with explicit sends and receives into an event graph, in one sweep."""

from __future__ import annotations

from debubble.core.actions import KIND_MASK, MICROBATCH_SHIFT, PAIR_SHIFT, STAGE_MASK, STAGE_SHIFT
from debubble.engine.jit import Array, kernel
from debubble.engine.kernels import compile as sweep

# Further outcomes, in state[OUTCOME].
NO_TRANSFER, UNMATCHED, CROSSED = range(9, 12)


@kernel(
    writes=(
        "first", "second", "cost", "node", "sent", "dynamic_kind", "dynamic_a", "dynamic_b",
        "next_action", "state",
    )
)  # fmt: skip
def compile_transfers(
    actions: Array,
    offsets: Array,
    rank_of: Array,
    stages: int,
    units: int,
    microbatches: int,
    slices: int,
    lanes: int,
    copies: int,
    sync: int,
    iterations: int,
    late_recompute: bool,
    channels: bool,
    blocking: bool,
    table: Array,
    made: Array,
    seen: Array,
    link_id: Array,
    pair_id: Array,
    link_send: Array,
    link_receive: Array,
    first: Array,
    second: Array,
    cost: Array,
    node: Array,
    sent: Array,
    dynamic_kind: Array,
    dynamic_a: Array,
    dynamic_b: Array,
    next_action: Array,
    group_end: Array,
    unmet: Array,
    reduced: Array,
    steps: Array,
    last_node: Array,
    queue: Array,
    state: Array,
) -> None:
    """Fill the graph's arrays in topological order.

    Ranks take turns as in ``compile_compute``, a whole group of transfers in one turn. The result
    of stage s for microbatch u has the key s·U + u when it is a forward's, (S + s)·U + u when it
    is a backward's:

    * ``made[key] − 1`` is the position of the action that produces it;
    * when transfers occupy no rank, ``table[key]`` is the node of its transfer, or −(r + 1) while
      rank r waits for that; the send emits it;
    * when they block, ``table[key] − 1`` is the position of whichever of send and receive is
      reached first; the other one emits the transfer. A rank leaves its group when ``unmet``
      of its members is zero, and goes on behind a chain of joins over them.

    ``link_send[link] − 1`` and ``link_receive[link] − 1`` are the ends of the link's last transfer.
    ``seen`` has one bit for every kind of action done. The length of ``queue`` is a power of two.
    """
    ranks = len(offsets) - 1
    places = slices * copies * stages
    cells = stages * units
    optimizer_costs = 1 + 5 * places
    dynamic_costs = optimizer_costs + ranks
    dynamic = 0
    n = 1
    completed = 0
    emitted = 0
    arrived = 0
    steps_done = 0
    head = 0
    waiting = 0
    wrap = len(queue) - 1
    for r in range(ranks):
        next_action[r] = offsets[r]
        if offsets[r] < offsets[r + 1]:
            queue[waiting] = r
            waiting += 1

    while waiting > 0:
        rank = queue[head & wrap]
        head += 1
        waiting -= 1

        here = next_action[rank]
        stop = offsets[rank + 1]
        kind = actions[here] & KIND_MASK
        if kind >= 6 and here >= group_end[rank]:
            # Reach a group of transfers.
            position = here
            while position < stop:
                action = actions[position]
                kind = action & KIND_MASK
                if kind < 6:
                    break
                state[sweep.POSITION] = position
                if kind > 9:
                    state[sweep.OUTCOME] = sweep.OTHER_KIND
                    return
                stage = (action >> STAGE_SHIFT) & STAGE_MASK
                unit = action >> MICROBATCH_SHIFT
                if stage >= stages or unit >= units:
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
                step = 1 if kind == 6 or kind == 9 else -1
                other = -1
                if 0 <= stage + step < stages:
                    other = rank_of[place + step]
                if other == -1 or other == rank:
                    state[sweep.OUTCOME] = NO_TRANSFER
                    return
                cell = stage * units + unit
                if (seen[cell] >> kind) & 1 != 0:
                    state[sweep.OUTCOME] = sweep.DUPLICATE
                    return
                seen[cell] |= 1 << kind
                sends = kind == 6 or kind == 8
                key = cell if sends else cell + step * units
                if kind >= 8:
                    key += cells
                if sends and made[key] == 0:
                    state[sweep.OUTCOME] = sweep.ORDER
                    return
                sender = rank if sends else other
                link = sender * ranks + (other if sends else rank)
                if link_id[link] == 0:
                    link_id[link] = dynamic_costs + dynamic
                    for lane in range(lanes):
                        dynamic_kind[dynamic] = 0
                        dynamic_a[dynamic] = sender + lane * ranks
                        dynamic_b[dynamic] = other if sends else rank
                        dynamic += 1
                link_cost = link_id[link]
                if lanes > 1:
                    link_cost += unit % slices
                if not blocking:
                    if sends:
                        if channels:
                            if link_send[link] > 0:
                                first[n] = node[link_send[link] - 1]
                            second[n] = last_node[rank]
                            sent[made[key] - 1] = n
                            link_send[link] = position + 1
                        else:
                            first[n] = last_node[rank]
                        cost[n] = link_cost
                        node[position] = n
                        waiter = table[key]
                        table[key] = n
                        n += 1
                        if waiter < 0:
                            queue[(head + waiting) & wrap] = -waiter - 1
                            waiting += 1
                elif table[key] == 0:
                    table[key] = position + 1
                    unmet[rank] += 1
                else:
                    partner = table[key] - 1
                    send = position if sends else partner
                    receive = partner if sends else position
                    if link_send[link] > send + 1 or link_receive[link] > receive + 1:
                        state[sweep.OUTCOME] = CROSSED
                        return
                    receiver = other if sends else rank
                    begin_send = here if sends else next_action[other]
                    begin_receive = next_action[other] if sends else here
                    if link_send[link] > begin_send and link_receive[link] > begin_receive:
                        # The link's last transfer is of the same two groups: one by one.
                        first[n] = node[link_send[link] - 1]
                    else:
                        first[n] = last_node[sender]
                        second[n] = last_node[receiver]
                    cost[n] = link_cost
                    node[send] = n
                    node[receive] = n
                    sent[made[key] - 1] = n
                    link_send[link] = send + 1
                    link_receive[link] = receive + 1
                    n += 1
                    unmet[other] -= 1
                    if unmet[other] == 0:
                        queue[(head + waiting) & wrap] = other
                        waiting += 1
                position += 1
            group_end[rank] = position
            if unmet[rank] > 0:
                continue
            kind = 6
        if kind >= 6:
            # Leave the group.
            position = group_end[rank]
            if blocking:
                gathered = node[here]
                for member in range(here + 1, position):
                    first[n] = gathered
                    second[n] = node[member]
                    gathered = n
                    n += 1
                last_node[rank] = gathered
            emitted += position - here
            next_action[rank] = position
            if position < stop:
                queue[(head + waiting) & wrap] = rank
                waiting += 1
            continue

        if kind == 5:
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
                    link = (rank - 1) * ranks + rank
                    if link_id[link] == 0:
                        link_id[link] = dynamic_costs + dynamic
                        for lane in range(lanes):
                            dynamic_kind[dynamic] = 0
                            dynamic_a[dynamic] = rank - 1 + lane * ranks
                            dynamic_b[dynamic] = rank
                            dynamic += 1
                    first[n] = reduced[spot - iterations] - 1
                    cost[n] = link_id[link]
                    n += 1
                    first[n] = last_node[rank]
                    second[n] = n - 1
                    last_node[rank] = n
                    n += 1
                if reduced[spot] < 0:
                    queue[(head + waiting) & wrap] = rank + 1
                    waiting += 1
                reduced[spot] = last_node[rank] + 1
                steps[rank] += 1
            if sync != sweep.GLOBAL:
                first[n] = last_node[rank]
                cost[n] = optimizer_costs + rank
                node[here] = n
                last_node[rank] = n
                n += 1
                emitted += 1
                next_action[rank] = here + 1
                if here + 1 < stop:
                    queue[(head + waiting) & wrap] = rank
                    waiting += 1
                continue
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
                emitted += 1
                next_action[r] += 1
                if next_action[r] < offsets[r + 1]:
                    queue[(head + waiting) & wrap] = r
                    waiting += 1
            continue

        halves = 1
        if (actions[here] >> PAIR_SHIFT) & 3 != 0:
            halves = 2
            state[sweep.POSITION] = here
            if (
                (actions[here] >> PAIR_SHIFT) & 3 != 1
                or here + 1 >= stop
                or (actions[here + 1] >> PAIR_SHIFT) & 3 != 2
                or actions[here] & KIND_MASK != 0
                or actions[here + 1] & KIND_MASK == 0
                or actions[here + 1] & KIND_MASK > 3
            ):
                state[sweep.OUTCOME] = sweep.BAD_PAIR
                return

        # Two passes over the halves: first see that all they wait for is there, then emit.
        blocked = False
        arrival_one = 0
        arrival_two = 0
        place_one = 0
        place_two = 0
        for half in range(halves):
            position = here + half
            state[sweep.POSITION] = position
            action = actions[position]
            kind = action & KIND_MASK
            stage = (action >> STAGE_SHIFT) & STAGE_MASK
            unit = action >> MICROBATCH_SHIFT
            if stage >= stages or unit >= units:
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
                if done & 10 != 0:
                    state[sweep.OUTCOME] = sweep.ORDER
                    return
                received = 9
                if late_recompute and stage < stages - 1:
                    step = 1
            if done & never != 0:
                state[sweep.OUTCOME] = sweep.DUPLICATE
                return
            if done & before != before:
                state[sweep.OUTCOME] = sweep.ORDER
                return
            if slices > 1 and (
                (kind == 0 and unit % slices > 0 and seen[cell - 1] & 1 == 0)
                or (never == 10 and (unit + 1) % slices > 0 and seen[cell + 1] & 10 == 0)
            ):
                state[sweep.OUTCOME] = sweep.ORDER
                return
            arrival = 0
            if step != 0:
                key = cell + step * units
                if step > 0:
                    key += cells
                if rank_of[place + step] == rank:
                    # Made earlier on this rank: no need to wait for it.
                    if made[key] == 0:
                        state[sweep.OUTCOME] = sweep.ORDER
                        return
                elif (done >> received) & 1 == 0:
                    state[sweep.OUTCOME] = sweep.ORDER
                    return
                elif not blocking:
                    if table[key] <= 0:
                        table[key] = -(rank + 1)
                        blocked = True
                        break
                    arrival = table[key]
            if half == 0:
                arrival_one = arrival
                place_one = place
            else:
                arrival_two = arrival
                place_two = place
        if blocked:
            continue

        first[n] = last_node[rank]
        second[n] = arrival_one
        if halves == 1:
            cost[n] = 1 + (actions[here] & KIND_MASK) * places + place_one
        else:
            if arrival_two > 0:
                # A node of no duration carries what the first half waits for.
                n += 1
                first[n] = n - 1
                second[n] = arrival_two
            pair = ((actions[here + 1] & KIND_MASK) - 1) * places
            pair = (pair + place_one) * places + place_two
            if pair_id[pair] == 0:
                dynamic_kind[dynamic] = actions[here + 1] & KIND_MASK
                dynamic_a[dynamic] = place_one
                dynamic_b[dynamic] = place_two
                pair_id[pair] = dynamic_costs + dynamic
                dynamic += 1
            cost[n] = pair_id[pair]
        last_node[rank] = n
        for position in range(here, here + halves):
            action = actions[position]
            kind = action & KIND_MASK
            cell = ((action >> STAGE_SHIFT) & STAGE_MASK) * units + (action >> MICROBATCH_SHIFT)
            node[position] = n
            seen[cell] |= 1 << kind
            if kind == 2 or kind == 3:
                completed += 1
            if kind == 0:
                made[cell] = position + 1
            elif kind == 1 or kind == 3:
                made[cells + cell] = position + 1
        n += 1
        emitted += halves
        next_action[rank] = here + halves
        if here + halves < stop:
            queue[(head + waiting) & wrap] = rank
            waiting += 1

    state[sweep.NODES] = n
    state[sweep.COMPLETED] = completed
    state[sweep.DYNAMIC] = dynamic
    state[sweep.OUTCOME] = sweep.DONE if emitted == len(actions) else sweep.STUCK
    if blocking or emitted < len(actions):
        return
    # Receives wait for nothing in the sweep, so that their transfers are looked up at the end.
    for position in range(len(actions)):
        action = actions[position]
        kind = action & KIND_MASK
        if kind < 6:
            continue
        cell = ((action >> STAGE_SHIFT) & STAGE_MASK) * units + (action >> MICROBATCH_SHIFT)
        if kind == 7:
            node[position] = table[cell - units]
        elif kind == 9:
            node[position] = table[cells + cell + units]
        elif kind == 6 and (seen[cell + units] >> 7) & 1 == 0:
            node[position] = 0
        elif kind == 8 and (seen[cell - units] >> 9) & 1 == 0:
            node[position] = 0
        if node[position] <= 0:
            state[sweep.OUTCOME] = UNMATCHED
            state[sweep.POSITION] = position
            return
