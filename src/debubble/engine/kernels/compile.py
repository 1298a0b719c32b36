"""Compile programs of compute actions into an event graph, in one sweep over all ranks."""

from __future__ import annotations

from debubble.core.actions import KIND_MASK, MICROBATCH_SHIFT, PAIR_SHIFT, STAGE_MASK, STAGE_SHIFT
from debubble.engine.jit import Array, kernel

# Outcomes, in state[0].
DONE, STUCK, OTHER_KIND, OUT_OF_RANGE, WRONG_RANK, DUPLICATE, ORDER, BAD_PAIR, BAD_STEP = range(9)

# What an optimizer step waits for, see `debubble.core.schedule.SYNCS`.
GLOBAL, LOCAL, POST_VALIDATION = range(3)

# Indices into state.
OUTCOME, POSITION, NODES, COMPLETED, DYNAMIC = range(5)


@kernel(
    writes=(
        "first", "second", "lag", "cost", "node", "sent", "dynamic_kind", "dynamic_a",
        "dynamic_b", "next_action", "state",
    )
)  # fmt: skip
def compile_compute(
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
    table: Array,
    seen: Array,
    link_id: Array,
    pair_id: Array,
    channel_last: Array,
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
    reduced: Array,
    steps: Array,
    last_node: Array,
    queue: Array,
    state: Array,
) -> None:
    """Fill the graph's arrays in topological order.

    Ranks that can go on stand in a queue and run one action a turn, which leaves neighbouring
    nodes independent of each other: evaluating them overlaps. A rank that cannot go on leaves its
    number in the table at the action it waits for, and comes back when that action is emitted.

    ``table[s·U + u]`` is the node whose end the next stage's forward waits for, and
    ``table[(S + s)·U + u]`` the previous stage's backward; 0 is not yet there, and −(r + 1) not
    yet there while rank r waits for it. ``seen`` has one bit for every kind of action done.
    ``reduced[r·iterations + k] − 1`` is the node at which the partial norm of ranks 0..r is known
    before step k; ``reduced`` is 0 before that, and −1 while rank r + 1 waits for it.

    A link has as many costs in a row as there are `lanes`: where slices are of different lengths,
    so are their transfers, and each has a lane of its own; else one will do.
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
    for r in range(ranks):
        next_action[r] = offsets[r]
        if offsets[r] < offsets[r + 1]:
            queue[waiting] = r
            waiting += 1

    while waiting > 0:
        rank = queue[head]
        head += 1
        if head == ranks:
            head = 0
        waiting -= 1

        here = next_action[rank]
        halves = 1
        if (actions[here] >> PAIR_SHIFT) & 3 != 0:
            halves = 2
            state[POSITION] = here
            if (
                (actions[here] >> PAIR_SHIFT) & 3 != 1
                or here + 1 >= offsets[rank + 1]
                or (actions[here + 1] >> PAIR_SHIFT) & 3 != 2
                or actions[here] & KIND_MASK != 0
                or actions[here + 1] & KIND_MASK == 0
                or actions[here + 1] & KIND_MASK > 3
                or actions[here] >> STAGE_SHIFT == actions[here + 1] >> STAGE_SHIFT
            ):
                state[OUTCOME] = BAD_PAIR
                return

        # Two passes over the halves: first see that all they wait for is there, then emit.
        blocked = False
        place = 0
        place_of_forward = 0
        for half in range(halves):
            position = here + half
            action = actions[position]
            kind = action & KIND_MASK
            stage = (action >> STAGE_SHIFT) & STAGE_MASK
            unit = action >> MICROBATCH_SHIFT
            state[POSITION] = position
            place_of_forward = place
            if kind >= 5:
                break
            if stage >= stages or unit >= units:
                state[OUTCOME] = OUT_OF_RANGE
                return
            place = stage
            number = unit
            if slices > 1:
                number = unit // slices
                place += unit % slices * copies * stages
            if copies > 1:
                place += number % microbatches * copies // microbatches * stages
            if rank_of[place] != rank:
                state[OUTCOME] = WRONG_RANK
                return
            done = seen[stage * units + unit]
            wanted = -1
            if kind == 0:
                if done & 1 != 0:
                    state[OUTCOME] = DUPLICATE
                    return
                if slices > 1 and unit % slices > 0 and seen[stage * units + unit - 1] & 1 == 0:
                    state[OUTCOME] = ORDER
                    return
                if stage > 0:
                    wanted = (stage - 1) * units + unit
            elif kind == 1 or kind == 3:
                if done & 10 != 0:
                    state[OUTCOME] = DUPLICATE
                    return
                if done & 1 == 0:
                    state[OUTCOME] = ORDER
                    return
                if slices > 1 and (unit + 1) % slices > 0:
                    if seen[stage * units + unit + 1] & 10 == 0:
                        state[OUTCOME] = ORDER
                        return
                if stage < stages - 1:
                    wanted = cells + (stage + 1) * units + unit
            elif kind == 2:
                if done & 12 != 0:
                    state[OUTCOME] = DUPLICATE
                    return
                if done & 2 == 0:
                    state[OUTCOME] = ORDER
                    return
            else:
                if done & 16 != 0:
                    state[OUTCOME] = DUPLICATE
                    return
                if done & 1 == 0 or done & 10 != 0:
                    state[OUTCOME] = ORDER
                    return
                if late_recompute and stage < stages - 1:
                    wanted = cells + (stage + 1) * units + unit
            if wanted >= 0 and table[wanted] <= 0:
                table[wanted] = -(rank + 1)
                blocked = True
                break
        if blocked:
            continue

        action = actions[here]
        kind = action & KIND_MASK
        if kind > 5:
            state[OUTCOME] = OTHER_KIND
            return
        if kind == 5:
            if sync == POST_VALIDATION:
                spot = rank * iterations + steps[rank]
                if steps[rank] == iterations:
                    state[OUTCOME] = BAD_STEP
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
                    first[n] = last_node[rank]
                    second[n] = reduced[spot - iterations] - 1
                    lag[n] = link_id[link]
                    cost[n] = 0
                    last_node[rank] = n
                    n += 1
                waited = reduced[spot] < 0
                reduced[spot] = last_node[rank] + 1
                steps[rank] += 1
                if waited:
                    tail = head + waiting
                    if tail >= ranks:
                        tail -= ranks
                    queue[tail] = rank + 1
                    waiting += 1
            elif sync == GLOBAL and action >> MICROBATCH_SHIFT < steps_done:
                state[OUTCOME] = BAD_STEP
                return
            if sync != GLOBAL:
                first[n] = last_node[rank]
                second[n] = 0
                lag[n] = 0
                cost[n] = optimizer_costs + rank
                node[here] = n
                last_node[rank] = n
                n += 1
                emitted += 1
                next_action[rank] = here + 1
                if here + 1 < offsets[rank + 1]:
                    tail = head + waiting
                    if tail >= ranks:
                        tail -= ranks
                    queue[tail] = rank
                    waiting += 1
                continue
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
                lag[n] = 0
                cost[n] = 0
                gathered = n
                n += 1
            for r in range(ranks):
                first[n] = last_node[r]
                second[n] = gathered
                lag[n] = 0
                cost[n] = optimizer_costs + r
                node[next_action[r]] = n
                last_node[r] = n
                n += 1
                emitted += 1
                next_action[r] += 1
                if next_action[r] < offsets[r + 1]:
                    tail = head + waiting
                    if tail >= ranks:
                        tail -= ranks
                    queue[tail] = r
                    waiting += 1
            continue

        place_of_second = place
        for half in range(halves):
            position = here + half
            action = actions[position]
            kind = action & KIND_MASK
            stage = (action >> STAGE_SHIFT) & STAGE_MASK
            unit = action >> MICROBATCH_SHIFT
            place = place_of_second if half == halves - 1 else place_of_forward
            source = place
            wanted = -1
            if kind == 0:
                if stage > 0:
                    wanted = (stage - 1) * units + unit
                    source = place - 1
            elif kind != 2 and (kind != 4 or late_recompute) and stage < stages - 1:
                wanted = cells + (stage + 1) * units + unit
                source = place + 1
            first[n] = last_node[rank]
            second[n] = 0
            lag[n] = 0
            cost[n] = 0
            if wanted >= 0:
                second[n] = table[wanted]
                if rank_of[source] != rank and not channels:
                    link = rank_of[source] * ranks + rank
                    if link_id[link] == 0:
                        link_id[link] = dynamic_costs + dynamic
                        for lane in range(lanes):
                            dynamic_kind[dynamic] = 0
                            dynamic_a[dynamic] = rank_of[source] + lane * ranks
                            dynamic_b[dynamic] = rank
                            dynamic += 1
                    lag[n] = link_id[link]
                    if lanes > 1:
                        lag[n] = link_id[link] + unit % slices
            last_node[rank] = n
            if halves == 1:
                cost[n] = 1 + kind * places + place
            elif half == 1:
                # The node of the first half, of no duration, carries what that waits for.
                pair = ((kind - 1) * places + place_of_forward) * places + place
                if pair_id[pair] == 0:
                    dynamic_kind[dynamic] = kind
                    dynamic_a[dynamic] = place_of_forward
                    dynamic_b[dynamic] = place
                    pair_id[pair] = dynamic_costs + dynamic
                    dynamic += 1
                cost[n] = pair_id[pair]
            n += 1

        end = n - 1
        for half in range(halves):
            position = here + half
            action = actions[position]
            kind = action & KIND_MASK
            stage = (action >> STAGE_SHIFT) & STAGE_MASK
            unit = action >> MICROBATCH_SHIFT
            node[position] = end
            cell = stage * units + unit
            if halves == 2 and seen[cell] & (1 << kind) != 0:
                state[POSITION] = position
                state[OUTCOME] = DUPLICATE
                return
            seen[cell] |= 1 << kind
            if kind == 2 or kind == 3:
                completed += 1
            if kind == 2 or kind == 4:
                continue
            target = stage + 1 if kind == 0 else stage - 1
            if target < 0 or target >= stages:
                continue
            result = end
            place = place_of_second if half == halves - 1 else place_of_forward
            place += target - stage
            if channels and rank_of[place] != rank:
                link = rank * ranks + rank_of[place]
                if link_id[link] == 0:
                    link_id[link] = dynamic_costs + dynamic
                    for lane in range(lanes):
                        dynamic_kind[dynamic] = 0
                        dynamic_a[dynamic] = rank + lane * ranks
                        dynamic_b[dynamic] = rank_of[place]
                        dynamic += 1
                first[n] = channel_last[link]
                second[n] = end
                lag[n] = 0
                cost[n] = link_id[link]
                if lanes > 1:
                    cost[n] = link_id[link] + unit % slices
                channel_last[link] = n
                sent[position] = n
                result = n
                n += 1
            key = cell if kind == 0 else cells + cell
            waiter = table[key]
            table[key] = result
            if waiter < 0:
                tail = head + waiting
                if tail >= ranks:
                    tail -= ranks
                queue[tail] = -waiter - 1
                waiting += 1

        emitted += halves
        next_action[rank] = here + halves
        if here + halves < offsets[rank + 1]:
            tail = head + waiting
            if tail >= ranks:
                tail -= ranks
            queue[tail] = rank
            waiting += 1

    state[NODES] = n
    state[COMPLETED] = completed
    state[DYNAMIC] = dynamic
    state[OUTCOME] = DONE if emitted == len(actions) else STUCK
