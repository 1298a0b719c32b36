"""Vocabulary parallelism: every rank computes a shard of the output layer, in what would be idle.

A large vocabulary makes the last rank the slowest one, and all others wait for it. Cut along the
vocabulary, the output layer is the same work on every rank. Its softmax runs over all shards, which
takes two passes: S before and T behind the exchange of maxima and sums, see
:class:`debubble.core.schedule.Schedule`.

A schedule is made from a *base* whose backwards come some periods later than they could (a period
is the time a rank needs for one microbatch): room for the passes and what they exchange. It is
simulated. On **every** rank S of a microbatch then stands before the first action that starts when
the microbatch's last forward has ended, or later; T before the first that starts when the last
stage's backward does, or, where that waits for T, half-way. It cannot deadlock: each action
has a time (those of the base their start), whatever it needs has an earlier one, or the same and
stands before it (S, then T, then the base), and every rank runs its actions in order of time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from debubble.core.actions import Kind, Program, kinds_of, microbatches_of, pack, stages_of
from debubble.core.costs import Costs
from debubble.core.placement import Placement
from debubble.core.schedule import Schedule
from debubble.core.sequence import merge, moved
from debubble.engine.timeline import simulate
from debubble.schedules.controllable_memory import RANKS, V_HALF
from debubble.schedules.one_f_one_b import one_stage_per_rank
from debubble.schedules.registry import ClosedForm, makespan_is, peak_is, register

SOURCE = "@yeung2025balancing"

DELAY = {1: 2, 2: 1}
"""Periods by which backwards are delayed: one for each exchange between S, T and the backward."""

SHORTEST = 1e-9
"""Share of the makespan below which times count as equal, and default costs are taken."""


def with_shards(base: Schedule, vocabulary: int, costs: Costs | None) -> Iterator[Program]:
    """Yield the programs of a base with S and T, see above."""
    timeline = simulate(base, replace(costs or Costs(), head=None))
    if timeline.duration.min() <= SHORTEST * timeline.makespan:
        timeline = simulate(base)
    kinds, stages = kinds_of(base.actions), stages_of(base.actions)
    units = microbatches_of(base.actions)
    there = stages == base.stages - 1
    done, due = np.zeros(base.units), np.zeros(base.units)
    ends = there & (kinds == Kind.F)
    begins = there & ((kinds == Kind.I) | (kinds == Kind.B))
    done[units[ends]] = timeline.end[ends]
    due[units[begins]] = timeline.start[begins]
    due = np.maximum(due, done)
    second = (done + due) / 2 if vocabulary == 1 else due
    # Far below what any action takes: equal times may differ by rounding.
    apart = float(timeline.duration.min()) / 1000
    numbers = np.arange(base.units)
    S, T = pack(Kind.S, 0, numbers), pack(Kind.T, 0, numbers)
    for rank in range(base.ranks):
        first = base.placement.stages_on(rank)[0]
        part = slice(int(base.offsets[rank]), int(base.offsets[rank + 1]))
        yield merge(
            (done - 2 * apart, moved(S, first)),
            (second - apart, moved(T, first)),
            (timeline.start[part], base.program(rank)),
        )


def _delayed_1f1b(
    ranks: int, microbatches: int, vocabulary: int, costs: Costs | None
) -> Iterator[Program]:
    programs = one_stage_per_rank(ranks, microbatches, least=DELAY[vocabulary], pace=1)
    base = Schedule.from_programs("base", Placement.loop(ranks, 1), microbatches, programs)
    return with_shards(base, vocabulary, costs)


def _delayed_v_half(
    ranks: int, microbatches: int, vocabulary: int, costs: Costs | None
) -> Iterator[Program]:
    from debubble.schedules._blocks import repeat_block

    placement = Placement.v(ranks)
    slots = V_HALF.slots(ranks)
    slots[2 * ranks :] += 6 * DELAY[vocabulary]
    programs = repeat_block(placement, slots, microbatches)
    base = Schedule.from_programs("base", placement, microbatches, programs)
    return with_shards(base, vocabulary, costs)


def _forms(vocabulary: int) -> tuple[ClosedForm, ...]:
    delay = DELAY[vocabulary]

    def longest(k: Any) -> float:
        return float(k.m * (k.F + k.B + k.S + k.T) + (k.p - 1) * (k.F + k.B))

    return (
        makespan_is(
            "m(F + B + S + T) + (p − 1)(F + B)",
            longest,
            holds=lambda k: k.m >= k.p + delay and min(k.F, k.B) > SHORTEST * longest(k),
            condition=f"no latency, F and B take time, m ≥ p + {delay}; S and T of one shard",
        ),
        peak_is(
            f"min(p − r + {delay}, m)",
            holds=lambda k: k.shard == 0,
            condition="shards of the head that keep nothing",
        ),
    )


def _v_forms(vocabulary: int) -> tuple[ClosedForm, ...]:
    delay = DELAY[vocabulary]

    def most(k: Any) -> float:
        return float(2 * min(k.p // 2 + 1 + delay, k.m) * k.unit)

    def longest(k: Any) -> float:
        return float(k.m * (6 * k.F + k.S + k.T) + (3 * k.p - (4 if k.p % 2 else 7)) * k.F)

    thirds = "F = I = W, no latency, m ≥ 2p"
    condition = "kept_for_weight = 1, shards of the head that keep nothing"
    return (
        makespan_is(
            "m(2(F + I + W) + S + T) + (3p − 7)F, or (3p − 4)F for odd p",
            longest,
            accuracy="upper bound",
            holds=lambda k: k.F > 0 and 3 <= k.p < 11,
            condition=f"{thirds}, 3 ≤ p < 11",
        ),
        makespan_is(
            f"m(2(F + I + W) + S + T) + (3p − {7 + 6 * delay})F, or (3p − {4 + 6 * delay})F for "
            "odd p",
            lambda k: longest(k) - 6 * delay * float(k.F),
            holds=lambda k: k.F > 0 and k.p >= 11,
            condition=f"{thirds}, p ≥ 11",
        ),
        peak_is(
            f"⌊p/2⌋ + {1 + delay}",
            most,
            holds=lambda k: k.shard == 0,
            condition=f"{condition}, m ≥ 2p",
        ),
        peak_is(
            f"⌊p/2⌋ + {1 + delay}, at most m",
            most,
            accuracy="upper bound",
            holds=lambda k: k.shard == 0 and k.m < 2 * k.p,
            condition=condition,
        ),
    )


@register(
    "vocab-1",
    title="1F1B with the output layer on all ranks, two exchanges",
    year=2024,
    source=SOURCE,
    chunks=1,
    forms=_forms(1),
    vocabulary=1,
)
def vocab_1(*, ranks: int, microbatches: int, costs: Costs | None = None) -> Iterator[Program]:
    """S is the forward of a shard of the output layer, T its backward.

    The last stage's backward waits for every T, T for every S: two exchanges. 1F1B with two more
    forwards in its warm-up leaves a period for each, at p − r + 2 microbatches in flight on rank r.

    All ranks compute m(F + B + S + T) without waiting, and (p − 1)(F + B) of a bubble stays as it
    is in 1F1B, for every ratio of F, B, S and T: at the times of the base every rank puts a pass in
    at the same moment, which pushes all of them back alike. Checked for
    random costs on p from 1 to 8; with fewer than p + 2 microbatches that time is an upper bound.

    With latency ranks also wait for results, as in 1F1B, and for what shards exchange: at 0.1 for a
    transfer, F = 1, B = 2, a head of two layers and m = 8p, 4 % longer on 4 ranks and 6 % on 8.

    When to use it: a vocabulary so large that the output layer takes longer than a stage, on one
    stage per rank with a whole backward. vocab-2 exchanges once instead of twice, in less memory.

    p = 3, m = 4, a head of F = 3, B = 3::

        r0 | F0 F1 F2 S0 F3 S1 T0 .  S2 T1 T2 .  .  S3 B0--- T3 .  .  B1--- .  B2--- B3---
        r1 | .  F0 F1 S0 F2 S1 T0 F3 S2 T1 .  B0--- T2 S3 T3 .  B1--- .  B2--- B3--- .  .
        r2 | .  .  F0 S0 F1 S1 T0 F2 S2 B0--- T1 F3 T2 S3 B1--- T3 B2--- B3--- .  .  .  .

    Parameters
    ----------
    costs
        Costs of actions, for the times at which passes are put in; the default is one unit of time
        for each F, I and W. The head makes no difference.
    """
    return _delayed_1f1b(ranks, microbatches, 1, costs)


@register(
    "vocab-2",
    title="1F1B with the output layer on all ranks, one exchange",
    year=2024,
    source=SOURCE,
    chunks=1,
    forms=_forms(2),
    vocabulary=2,
)
def vocab_2(*, ranks: int, microbatches: int, costs: Costs | None = None) -> Iterator[Program]:
    """S holds the backward for the input, too, with the shard's own softmax; sums put it right.

    The last stage's backward waits for every S and T for nothing but its turn, as T is the backward
    for the weights: one exchange, and p − r + 1 microbatches in flight on rank r. In exchange S
    does with a shard's softmax what later has to be scaled.

    Times and parameters are those of :func:`vocab_1`.

    When to use it: a heavy output layer on one stage per rank with a whole backward, in less memory
    than vocab-1: one microbatch more than 1f1b. The head has to be able to run on a softmax that is
    put right later.

    p = 3, m = 4, a head of F = 2, I = 1, W = 3::

        r0 | F0 F1 F2 S0 F3 S1 T0 .  .  .  S2 T1 B0--- .  S3 T2 B1--- T3 .  B2--- .  B3---
        r1 | .  F0 F1 S0 F2 S1 T0 .  .  B0--- S2 T1 F3 B1--- S3 T2 T3 B2--- .  B3--- .  .
        r2 | .  .  F0 S0 F1 S1 T0 B0--- F2 S2 T1 B1--- F3 S3 T2 B2--- T3 B3--- .  .  .  .
    """
    return _delayed_1f1b(ranks, microbatches, 2, costs)


@register(
    "vocab-1-v-half",
    title="V-Half with the output layer on all ranks, two exchanges",
    year=2024,
    source=SOURCE,
    placement=Placement.wave,
    chunks=2,
    constraints=(RANKS,),
    forms=_v_forms(1),
    vocabulary=1,
)
def vocab_1_v_half(
    *, ranks: int, microbatches: int, costs: Costs | None = None
) -> Iterator[Program]:
    """The passes of :func:`vocab_1` in V-Half, whose last stage is on rank 0.

    All backwards of V-Half's building block come two periods (12 slots) later, in the same slots
    modulo 6. All ranks hold the same, two microbatches more than in V-Half: ⌊p/2⌋ + 3.

    With F = I = W and no latency ranks wait less than in V-Half, however long S and T take, as the
    delay fills its bubble at both ends: (3p − 19)F for even p and (3p − 16)F for odd ones from
    p = 11 on, (p − 1)F up to p = 6 (found by simulating it for p from 3 to 32). With other costs
    1 to 7 % on top of the work were measured (F, I, W of 3, 4, 2; 2, 3, 1; 1, 1, 3 and 10, 11, 7,
    a head of two chunks, p = 4 and 8, m = 8p), 2 to 16 % for V-Half's published order without head.

    Parameters are those of :func:`vocab_1`, with at most 512 ranks.

    When to use it: a heavy output layer, and a backward that can be split: it waits the least of
    the four that shard it, at two microbatches more than v-half.

    p = 3, m = 4, a head of F = 3, B = 3::

        r0 | F0F1F2F3. f0S0T0i0f1S1T1i1f2S2T2i2f3S3T3i3I0w0I1w1I2w2I3w3W0W1W2W3.
        r1 | . F0F1F2f0F3S0T0f1i0S1T1f2i1S2T2f3i2S3T3I0i3I1w0I2w1I3w2W0w3W1W2W3.
        r2 | . . F0f0F1f1S0T0F2f2S1T1F3f3S2T2i0I0S3T3i1I1i2I2i3I3w0W0w1W1w2W2w3W3
    """
    return _delayed_v_half(ranks, microbatches, 1, costs)


@register(
    "vocab-2-v-half",
    title="V-Half with the output layer on all ranks, one exchange",
    year=2024,
    source=SOURCE,
    placement=Placement.wave,
    chunks=2,
    constraints=(RANKS,),
    forms=_v_forms(2),
    vocabulary=2,
)
def vocab_2_v_half(
    *, ranks: int, microbatches: int, costs: Costs | None = None
) -> Iterator[Program]:
    """The passes of :func:`vocab_2` in V-Half, whose last stage is on rank 0.

    All backwards of V-Half's building block come one period (6 slots) later. All ranks hold one
    microbatch more than in V-Half: ⌊p/2⌋ + 2.

    With F = I = W and no latency ranks wait (3p − 13)F for even p ≥ 8 and (3p − 10)F for odd p ≥ 7
    (found by simulating it for p from 3 to 32), however long S and T take. With the
    costs of :func:`vocab_1_v_half` 1 to 13 % on top of the work were measured.

    Parameters are those of :func:`vocab_1`, with at most 512 ranks.

    When to use it: a heavy output layer where memory is short: one microbatch more than v-half.

    p = 3, m = 4, a head of F = 2, I = 1, W = 3::

        r0 | F0F1F2F3. f0S0T0i0f1S1T1i1w0f2S2I0T2i2w1W0f3S3T3i3I1w2I2w3I3W1W2W3.
        r1 | . F0F1F2f0F3S0T0f1i0S1T1w0f2I0S2i1T2W0i2f3w1S3T3I1i3I2w2I3W1w3W2W3.
        r2 | . . F0f0F1f1S0T0F2f2S1T1i0I0w0S2W0T2F3f3i1I1S3T3i2I2i3I3w1W1w2W2w3W3
    """
    return _delayed_v_half(ranks, microbatches, 2, costs)
