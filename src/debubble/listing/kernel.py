"""The list scheduler itself: one pass over a problem for every policy it is given."""

from __future__ import annotations

from debubble.core.actions import MICROBATCH_SHIFT, STAGE_SHIFT
from debubble.engine.jit import Array, kernel

NEVER = 1e300
"""Time of what does not happen; the score of a policy that was given up."""

PARAMETERS = 7
"""Numbers in a policy, see :data:`debubble.listing.policies.LEVELS`."""

SCORES = 4
"""Numbers that come back: makespan, largest stage time, largest share of a limit, steps."""


GROUP = 16
"""Ranks of which the one to go on next is found together."""


@kernel(writes=("scores", "order"))
def list_schedule(
    policies: Array,
    microbatches: int,
    period: float,
    give_up: float,
    tolerance: float,
    by_stage_time: bool,
    rank_of: Array,
    offsets: Array,
    stages_of: Array,
    forward_time: Array,
    input_time: Array,
    weight_time: Array,
    link_forward: Array,
    link_backward: Array,
    activation: Array,
    more: Array,
    kept: Array,
    forward_at: Array,
    input_at: Array,
    lifespan: Array,
    memory: Array,
    filled: Array,
    extra: Array,
    lifespans: Array,
    work: Array,
    forward_in: Array,
    input_in: Array,
    forwards: Array,
    inputs: Array,
    weights: Array,
    caps: Array,
    forward_due: Array,
    input_due: Array,
    forward_key: Array,
    input_key: Array,
    forward_start: Array,
    input_start: Array,
    free: Array,
    first: Array,
    lost: Array,
    written: Array,
    wake: Array,
    next_in: Array,
    scores: Array,
    order: Array,
) -> None:
    """Schedule one problem under each policy in turn; `order` keeps that of the last.

    A step takes the rank whose next decision is the earliest (`wake`; `next_in` has that rank of
    every ``GROUP`` ranks), looks at what it could run, and starts one action, or decides to wait
    until a known time. A rank only knows what has been started, so the order of the steps is a
    topological order, and start times are those of the finished schedule.

    Parameters
    ----------
    policies
        ``PARAMETERS`` numbers per policy.
    period
        Work of the busiest rank for one microbatch.
    give_up, tolerance, by_stage_time
        A policy is dropped once it cannot stay below `give_up` or (1 + `tolerance`) times the best
        of this call, in stage time or in makespan.
    rank_of … lifespan
        Of every stage. `link_forward` is the transfer into a stage from the one before,
        `link_backward` from the one after, less than 0 where that one recomputes meanwhile;
        `activation` is what a forward leaves, `more` what the backward takes beside it;
        `forward_at` and `input_at` are the earliest starts of a lone microbatch, and `lifespan` the
        time from its forward to the end of its backward.
    memory … work
        Of every rank: its limit, what forwards of one microbatch fill of it, and its backwards
        `extra`, the sum of activation times lifespan, and the time it computes in total.
        ``stages_of[offsets[r]:offsets[r + 1]]`` are the stages on rank r.
    forward_in … next_in
        Scratch. `forward_in` and `input_in` hold when every microbatch's input arrives, at
        ``stage·(m + 1) + microbatch``; `forwards`, `inputs` and `weights` count what has started.
    scores
        ``SCORES`` numbers per policy.
    order
        Packed actions, rank by rank.
    """
    never = NEVER
    stages = len(rank_of)
    ranks = len(memory)
    last = stages - 1
    stride = microbatches + 1
    groups = (ranks + GROUP - 1) // GROUP
    total = 3 * stages * microbatches
    tiny = 1e-9 * period
    top = forward_at[last] + forward_time[last]

    for which in range(len(scores) // SCORES):
        slope = policies[PARAMETERS * which]
        back_slope = policies[PARAMETERS * which + 1]
        turn = policies[PARAMETERS * which + 2] * period
        rounding = policies[PARAMETERS * which + 3]
        delay = policies[PARAMETERS * which + 4] * period
        gap = policies[PARAMETERS * which + 5]
        patience = policies[PARAMETERS * which + 6] * period + tiny

        # The most microbatches per time that all ranks can hold for as long as they must.
        pace = never
        for r in range(ranks):
            spread = lifespans[r] + delay * filled[r]
            if memory[r] - extra[r] < pace * spread:
                pace = (memory[r] - extra[r]) / spread
        for s in range(stages):
            forward_due[s] = slope * forward_at[s]
            input_due[s] = slope * top + back_slope * (input_at[s] - top) + turn
            forward_key[s] = forward_due[s]
            input_key[s] = input_due[s]
            cap = microbatches + 0.0
            if pace < never:
                cap = pace * (lifespan[s] + delay) + rounding
            caps[s] = int(min(max(cap + 0.5, 1.0), microbatches + 0.0))
            forwards[s] = 0
            inputs[s] = 0
            weights[s] = 0
        for i in range(stages * stride):
            forward_in[i] = never
            input_in[i] = never
        for b in range(microbatches):
            forward_in[b] = 0.0
        for r in range(ranks):
            free[r] = 0.0
            first[r] = never
            lost[r] = work[r]
            wake[r] = never
            written[r] = 3 * microbatches * offsets[r]
        wake[rank_of[0]] = 0.0
        for g in range(groups):
            next_in[g] = g * GROUP
        next_in[rank_of[0] // GROUP] = rank_of[0]
        fullest = 0.0
        done = 0
        hopeless = False

        while done < total and not hopeless:
            rank = next_in[0]
            for g in range(1, groups):
                if wake[next_in[g]] < wake[rank]:
                    rank = next_in[g]
            now = wake[rank]
            assert now < never, "some rank can always go on"
            clock = free[rank]
            limit = memory[rank]
            begin = offsets[rank]
            end = offsets[rank + 1]

            # What the rank holds, what weight backwards would free, and what it must keep free
            # so that the oldest microbatch on its way up can always pass (see scheduler.py).
            held = 0.0
            freeable = 0.0
            reserve = extra[rank]
            pending = 0
            soonest = never
            demanding = False
            passed = forwards[last]
            for j in range(begin, end):
                s = stages_of[j]
                f = forwards[s]
                i = inputs[s]
                size = activation[s]
                held += size * (f - i)
                ahead = f - passed
                reserve += size * ahead if ahead > 1 else size
                waiting = i - weights[s]
                if waiting > 0:
                    pending += waiting
                    freeable += kept[s] * waiting
                start = input_in[s * stride + i]
                if start < clock:
                    start = clock
                if more[s] > 0.0:
                    demanding = True
                elif start < soonest:
                    soonest = start
                input_start[s] = start
            held += freeable
            room = limit - held
            if demanding:
                for j in range(begin, end):
                    s = stages_of[j]
                    if more[s] > room + freeable:
                        input_start[s] = never
                    elif input_start[s] < soonest:
                        soonest = input_start[s]
            for j in range(begin, end):
                s = stages_of[j]
                f = forwards[s]
                start = forward_in[s * stride + f]
                if start < never:
                    size = activation[s]
                    if (
                        f - inputs[s] >= caps[s]
                        or size > room + freeable
                        or reserve + (size if f > passed else 0.0) > limit
                    ):
                        start = never
                    elif demanding:
                        # Backwards by microbatch, the oldest first, must still fit one by one.
                        for k in range(begin, end):
                            t = stages_of[k]
                            if more[t] == 0.0 or (forwards[t] == inputs[t] and t != s):
                                continue
                            peak = held - freeable + size + more[t]
                            for i in range(begin, end):
                                u = stages_of[i]
                                if u < t:
                                    peak -= activation[u] * (inputs[t] - inputs[u])
                                elif (
                                    u > t
                                    and inputs[u] == inputs[t]
                                    and (forwards[u] > inputs[u] or u == s)
                                ):
                                    peak -= activation[u]
                            if peak > limit:
                                start = never
                    if start < never:
                        if start < clock:
                            start = clock
                        if start < soonest:
                            soonest = start
                forward_start[s] = start

            # The most urgent of what can start soonest; a forward may be worth some patience.
            kind = 2
            stage = -1
            start = clock
            urgent = never
            for j in range(begin, end):
                s = stages_of[j]
                if input_key[s] < urgent and input_start[s] <= soonest + tiny:
                    urgent = input_key[s]
                    kind = 1
                    stage = s
                    start = input_start[s]
                if forward_key[s] < urgent and forward_start[s] <= soonest + patience:
                    urgent = forward_key[s]
                    kind = 0
                    stage = s
                    start = forward_start[s]
            if start >= never:
                stage = -1
                start = clock

            # Backwards for weights make room for a forward, and fill gaps that are long enough.
            crowded = stage >= 0 and (
                (kind == 0 and activation[stage] > room)
                or (kind == 1 and more[stage] > 0.0 and more[stage] > room)
            )
            if pending > 0 and (stage < 0 or start > clock + tiny or crowded):
                oldest = -1
                urgent = never
                for j in range(begin, end):
                    s = stages_of[j]
                    if weights[s] < inputs[s]:
                        key = weights[s] * period + input_due[s]
                        if oldest < 0 or key < urgent:
                            urgent = key
                            oldest = s
                if stage < 0 or start - clock >= gap * weight_time[oldest] or crowded:
                    kind = 2
                    stage = oldest
                    start = clock

            woken = -1
            if stage < 0:
                wake[rank] = never
            elif start > now + tiny:
                wake[rank] = start
            else:
                if first[rank] >= never:
                    first[rank] = start
                    if not by_stage_time:
                        lost[rank] += start
                else:
                    lost[rank] += start - clock
                if lost[rank] > give_up:
                    hopeless = True
                consumer = -1
                arrival = never
                if kind == 0:
                    b = forwards[stage]
                    forwards[stage] = b + 1
                    forward_key[stage] = (b + 1) * period + forward_due[stage]
                    finish = start + forward_time[stage]
                    if held + activation[stage] > fullest * limit:
                        fullest = (held + activation[stage]) / limit
                    if stage < last:
                        consumer = rank_of[stage + 1]
                        arrival = finish + link_forward[stage + 1]
                        forward_in[(stage + 1) * stride + b] = arrival
                    else:
                        input_in[stage * stride + b] = finish
                elif kind == 1:
                    b = inputs[stage]
                    inputs[stage] = b + 1
                    if more[stage] > 0.0 and held + more[stage] > fullest * limit:
                        fullest = (held + more[stage]) / limit
                    input_key[stage] = (b + 1) * period + input_due[stage]
                    finish = start + input_time[stage]
                    if stage > 0:
                        consumer = rank_of[stage - 1]
                        arrival = finish + link_backward[stage - 1]
                        input_in[(stage - 1) * stride + b] = arrival
                else:
                    b = weights[stage]
                    weights[stage] = b + 1
                    finish = start + weight_time[stage]
                order[written[rank]] = (b << MICROBATCH_SHIFT) | (stage << STAGE_SHIFT) | kind
                written[rank] += 1
                done += 1
                free[rank] = finish
                wake[rank] = finish
                if consumer >= 0 and consumer != rank:
                    if arrival < free[consumer]:
                        arrival = free[consumer]
                    if arrival < wake[consumer]:
                        wake[consumer] = arrival
                        woken = consumer

            group = rank // GROUP
            earliest = wake[GROUP * group]
            soonest_rank = GROUP * group
            for r in range(GROUP * group + 1, min(GROUP * (group + 1), ranks)):
                if wake[r] < earliest:
                    earliest = wake[r]
                    soonest_rank = r
            next_in[group] = soonest_rank
            if woken >= 0 and arrival < wake[next_in[woken // GROUP]]:
                next_in[woken // GROUP] = woken

        makespan = 0.0
        stage_time = 0.0
        for r in range(ranks):
            if offsets[r] < offsets[r + 1]:
                makespan = max(makespan, free[r])
                stage_time = max(stage_time, free[r] - first[r])
        if hopeless:
            makespan = never
            stage_time = never
        target = (1.0 + tolerance) * (stage_time if by_stage_time else makespan)
        give_up = min(give_up, target)
        scores[SCORES * which] = makespan
        scores[SCORES * which + 1] = stage_time
        scores[SCORES * which + 2] = fullest
        scores[SCORES * which + 3] = done
