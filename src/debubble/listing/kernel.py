"""The list scheduler itself: one pass over a problem under one policy.

A step takes the rank whose next decision is the earliest, looks at what it could run, and starts
one action, or decides to wait until a known time. A rank only knows what has been started, so the
sequence of the steps is a topological order, and start times are those of the finished schedule.

Stages run their microbatches in order, so that three counts per stage are all that is to be known
about what has run. Memory is in the unit of the workload's activations.
"""

from __future__ import annotations

from typing import Any

from debubble.core.actions import MICROBATCH_SHIFT, STAGE_SHIFT
from debubble.core.kind_relations import FORWARD_KIND, INPUT_KIND, WEIGHT_KIND
from debubble.engine.jit import Array, helper
from debubble.listing.pass_state import NEVER, PARAMETERS, ListProblem, PassProgress, PolicyRules

GROUP = 16
"""Ranks of which the one to go on next is found together."""

F, I, W = int(FORWARD_KIND), int(INPUT_KIND), int(WEIGHT_KIND)

NO_STAGE = -1
"""In place of a stage: nothing can run."""


@helper
def run_pass(
    rules: PolicyRules, problem: ListProblem, give_up: float, by_stage_time: bool,
    progress: PassProgress, order: Array,
) -> tuple[int, float, bool]:  # fmt: skip
    """Place actions until all are placed, or the pass cannot stay below `give_up`.

    Returns how many were placed, the largest share of a limit, and whether the pass was given up.
    It is one long loop, with names bound before it: where this is interpreted, every call of a
    function in a decision would take a tenth of its time.
    """
    wake, free, first, lost = progress.wake, progress.free, progress.first, progress.lost
    memory, tiny, next_in = problem.memory, problem.tiny, progress.next_in
    activation, more, rank_of = problem.activation, problem.more, problem.rank_of
    forwards, inputs, weights = progress.forwards, progress.inputs, progress.weights
    forward_in, input_in = progress.forward_in, progress.input_in
    period, written = problem.period, progress.written
    forward_key, input_key = progress.forward_key, progress.input_key
    forward_due, input_due = progress.forward_due, progress.input_due
    forward_time, input_time = problem.forward_time, problem.input_time
    weight_time = problem.weight_time
    link_forward, link_backward = problem.link_forward, problem.link_backward
    looked_at = (
        problem.stages_of, problem.offsets, memory, problem.demanding, problem.extra, activation,
        more, problem.kept, forwards, inputs, weights, progress.caps, forward_in, input_in,
        progress.forward_start, progress.input_start, forward_key, input_key,
        problem.microbatches + 1, tiny, rules.patience,
    )  # fmt: skip
    ranks, last, stride = len(memory), len(rank_of) - 1, problem.microbatches + 1
    groups = (ranks + GROUP - 1) // GROUP
    total = 3 * len(rank_of) * problem.microbatches
    fullest = 0.0
    done = 0
    hopeless = False
    while done < total and not hopeless:
        # The earliest decision, of the lowest rank of equal ones in a group.
        rank = next_in[0]
        for g in range(1, groups):
            if wake[next_in[g]] < wake[rank]:
                rank = next_in[g]
        now = wake[rank]
        assert now < NEVER, "some rank can always go on"
        clock = free[rank]
        kind, stage, start, held = choose(rank, clock, looked_at, rules, problem, progress)

        woken = -1
        if stage == NO_STAGE:
            wake[rank] = NEVER
        elif start > now + tiny:
            wake[rank] = start
        else:
            if first[rank] >= NEVER:
                first[rank] = start
                if not by_stage_time:
                    lost[rank] += start
            else:
                lost[rank] += start - clock
            hopeless = lost[rank] > give_up
            consumer = -1
            arrival = NEVER
            taken = 0.0
            if kind == F:
                taken = held + activation[stage]
                b = forwards[stage]
                forwards[stage] = b + 1
                forward_key[stage] = (b + 1) * period + forward_due[stage]
                finish = start + forward_time[stage]
                if stage < last:
                    consumer = rank_of[stage + 1]
                    arrival = finish + link_forward[stage + 1]
                    forward_in[(stage + 1) * stride + b] = arrival
                else:
                    input_in[stage * stride + b] = finish
            elif kind == I:
                if more[stage] > 0.0:
                    taken = held + more[stage]
                b = inputs[stage]
                inputs[stage] = b + 1
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
            if taken > fullest * memory[rank]:
                fullest = taken / memory[rank]
            order[written[rank]] = (b << MICROBATCH_SHIFT) | (stage << STAGE_SHIFT) | kind
            written[rank] += 1
            free[rank] = wake[rank] = finish
            done += 1
            # The rank that gets a result decides when it arrives.
            if consumer >= 0 and consumer != rank:
                if arrival < free[consumer]:
                    arrival = free[consumer]
                if arrival < wake[consumer]:
                    wake[consumer] = arrival
                    woken = consumer

        # The first of the group to decide next; a rank that is woken may be in another group.
        begin = rank // GROUP * GROUP
        earliest = begin
        soonest = wake[begin]
        for r in range(begin + 1, min(begin + GROUP, ranks)):
            if wake[r] < soonest:
                soonest = wake[r]
                earliest = r
        next_in[rank // GROUP] = earliest
        if woken >= 0 and arrival < wake[next_in[woken // GROUP]]:
            next_in[woken // GROUP] = woken
    return done, fullest, hopeless


@helper
def read_policy(policies: Array, which: int, problem: ListProblem) -> PolicyRules:
    """Read the numbers of a policy; three of them are in periods."""
    begin, period = PARAMETERS * which, problem.period
    return PolicyRules(
        policies[begin],
        policies[begin + 1],
        policies[begin + 2] * period,
        policies[begin + 3],
        policies[begin + 4] * period,
        policies[begin + 5],
        policies[begin + 6] * period + problem.tiny,
    )


@helper
def reset(rules: PolicyRules, problem: ListProblem, progress: PassProgress) -> None:
    """Begin a pass: nothing has run, and the first stage's forwards are there."""
    stages, ranks, microbatches = len(problem.rank_of), len(problem.memory), problem.microbatches
    last = stages - 1
    top = problem.forward_at[last] + problem.forward_time[last]
    # The most microbatches per time that all ranks can hold for as long as they must.
    pace = NEVER
    for r in range(ranks):
        spread = problem.lifespans[r] + rules.delay * problem.filled[r]
        if problem.memory[r] - problem.extra[r] < pace * spread:
            pace = (problem.memory[r] - problem.extra[r]) / spread
    for s in range(stages):
        forward_due = rules.slope * problem.forward_at[s]
        input_due = rules.slope * top + rules.back_slope * (problem.input_at[s] - top) + rules.turn
        progress.forward_due[s] = progress.forward_key[s] = forward_due
        progress.input_due[s] = progress.input_key[s] = input_due
        cap = microbatches + 0.0
        if pace < NEVER:
            cap = pace * (problem.lifespan[s] + rules.delay) + rules.rounding
        progress.caps[s] = int(min(max(cap + 0.5, 1.0), microbatches + 0.0))
        progress.forwards[s] = progress.inputs[s] = progress.weights[s] = 0
    for i in range(stages * (microbatches + 1)):
        progress.forward_in[i] = progress.input_in[i] = NEVER
    for b in range(microbatches):
        progress.forward_in[b] = 0.0
    for r in range(ranks):
        progress.free[r] = 0.0
        progress.first[r] = progress.wake[r] = NEVER
        progress.lost[r] = problem.work[r]
        progress.written[r] = 3 * microbatches * problem.offsets[r]
    opens = problem.rank_of[0]
    progress.wake[opens] = 0.0
    for g in range((ranks + GROUP - 1) // GROUP):
        progress.next_in[g] = g * GROUP
    progress.next_in[opens // GROUP] = opens


@helper
def backwards_fit(
    rank: int, stage: int, held: float, problem: ListProblem, progress: PassProgress
) -> bool:
    """Return whether backwards still fit one by one, oldest microbatch first, after a forward."""
    activation, more, stages_of = problem.activation, problem.more, problem.stages_of
    forwards, inputs = progress.forwards, progress.inputs
    begin, end = problem.offsets[rank], problem.offsets[rank + 1]
    for k in range(begin, end):
        t = stages_of[k]
        if more[t] == 0.0 or (forwards[t] == inputs[t] and t != stage):
            continue
        # Before the next backward of stage t, earlier stages have done theirs of as many
        # microbatches, and later ones theirs of that microbatch.
        peak = held + activation[stage] + more[t]
        for i in range(begin, end):
            u = stages_of[i]
            if u < t:
                peak -= activation[u] * (inputs[t] - inputs[u])
            elif u > t and inputs[u] == inputs[t] and (forwards[u] > inputs[u] or u == stage):
                peak -= activation[u]
        if peak > problem.memory[rank]:
            return False
    return True


@helper
def choose(
    rank: int, clock: float, looked_at: tuple[Any, ...], rules: PolicyRules, problem: ListProblem,
    progress: PassProgress,
) -> tuple[int, int, float, float]:  # fmt: skip
    """Choose what a rank does next: its kind, stage and start; and what the rank holds.

    That is what is due first of what can start soonest, and a forward may be worth some patience.
    A backward for weights goes first where it makes room or fills a gap that is long enough.
    """
    # Interpreted, a tuple is unpacked in a fraction of the time of as many reads of fields.
    (
        stages_of, offsets, memory, demands, extra, activation, more, kept, forwards, inputs,
        weights, caps, forward_in, input_in, forward_start, input_start, forward_key, input_key,
        stride, tiny, patience,
    ) = looked_at  # fmt: skip
    begin, end = offsets[rank], offsets[rank + 1]
    limit, demanding = memory[rank], demands[rank]

    # When the next forward and backward of each stage can start.
    passed = forwards[len(forwards) - 1]
    held = 0.0
    freeable = 0.0
    # Stays free: room for one microbatch at each stage once all that has passed the last stage is
    # done. With it a pass never gets stuck, see scheduler.py.
    reserve = extra[rank]
    pending = 0
    soonest = NEVER
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
        if start < soonest and more[s] == 0.0:
            soonest = start
        input_start[s] = start
    held += freeable
    available = limit - held + freeable
    if demanding:
        # A backward that takes memory may use what is free, and what backwards for weights free.
        for j in range(begin, end):
            s = stages_of[j]
            if more[s] > available:
                input_start[s] = NEVER
            elif input_start[s] < soonest:
                soonest = input_start[s]
    for j in range(begin, end):
        s = stages_of[j]
        f = forwards[s]
        start = forward_in[s * stride + f]
        if start < NEVER:
            size = activation[s]
            if (
                f - inputs[s] >= caps[s]
                or size > available
                or reserve + (size if f > passed else 0.0) > limit
                or (demanding and not backwards_fit(rank, s, held - freeable, problem, progress))
            ):
                start = NEVER
            else:
                if start < clock:
                    start = clock
                if start < soonest:
                    soonest = start
        forward_start[s] = start

    soon, patient = soonest + tiny, soonest + patience
    kind = W
    stage = NO_STAGE
    start = clock
    urgent = NEVER
    for j in range(begin, end):
        s = stages_of[j]
        if input_key[s] < urgent and input_start[s] <= soon:
            urgent = input_key[s]
            kind = I
            stage = s
            start = input_start[s]
        if forward_key[s] < urgent and forward_start[s] <= patient:
            urgent = forward_key[s]
            kind = F
            stage = s
            start = forward_start[s]
    if start >= NEVER:
        stage = NO_STAGE
        start = clock
    if pending == 0:
        return kind, stage, start, held

    room = limit - held
    crowded = stage != NO_STAGE and (
        (kind == F and activation[stage] > room)
        or (kind == I and more[stage] > 0.0 and more[stage] > room)
    )
    if stage == NO_STAGE or start > clock + tiny or crowded:
        oldest = NO_STAGE
        urgent = NEVER
        for j in range(begin, end):
            s = stages_of[j]
            if weights[s] < inputs[s]:
                key = weights[s] * problem.period + progress.input_due[s]
                if oldest == NO_STAGE or key < urgent:
                    urgent = key
                    oldest = s
        long_enough = start - clock >= rules.gap * problem.weight_time[oldest]
        if stage == NO_STAGE or long_enough or crowded:
            return W, oldest, clock, held
    return kind, stage, start, held


@helper
def times_of(problem: ListProblem, progress: PassProgress) -> tuple[float, float]:
    """Return makespan and largest stage time of a finished pass."""
    makespan = 0.0
    stage_time = 0.0
    for r in range(len(problem.memory)):
        if problem.offsets[r] < problem.offsets[r + 1]:
            makespan = max(makespan, progress.free[r])
            stage_time = max(stage_time, progress.free[r] - progress.first[r])
    return makespan, stage_time
