"""Chimera, and what has grown out of it, Hanayo and BitPipe: every microbatch is a wave.

A wave moves on by one stage every slot: forward to the last stage, and back again in the slots
after that. The waves of one copy of the model enter two slots apart, h = ranks / copies of them in
a unit. Any two visits of waves to a rank, down or up, forward or back, from one end or the other,
are an odd number of slots apart, so that they fall between those of the waves around them, or they
are a multiple of 2h apart, by when all waves of the unit have passed.

With S stages, the 2S actions of a unit on a rank fill as many slots without a gap, and after 2S
slots the next unit enters. Only 2h − 2 slots are idle, at the ends of the first and the last unit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from debubble.core.actions import Program
from debubble.core.placement import Placement
from debubble.core.sequence import backward, by_slot, forward
from debubble.schedules.registry import ClosedForm, Constraint, makespan_is, peak_is, register

BATCHES = {"direct": 1, "doubling": 2, "halving": 2}
"""Microbatches per forward, for each way to more microbatches than ranks."""


EVEN_RANKS = Constraint("ranks", "an even number of ranks", lambda k: k.ranks % 2 == 0)


def waves(placement: Placement, microbatches: int, batch: int = 1) -> Iterator[Program]:
    """Yield the program of every rank: units of waves, one after the other, a short one last.

    One copy is placed as a wave, or two in opposite directions; microbatches are those of all
    copies together. `batch` of them go forward together, and backwards one by one, so that a unit
    has `batch` times as many microbatches, and lasts S·(1 + batch) slots; that needs one stage per
    rank and copy.
    """
    stages, copies = placement.stages, placement.copies
    homes = placement.ranks_of_stages.reshape(copies, stages)
    size = placement.ranks // copies * batch
    parts = []
    for home, numbers in zip(homes, np.array_split(np.arange(microbatches), copies), strict=True):
        unit, offset = np.divmod(np.arange(len(numbers)), size)
        start = unit * stages * (1 + batch)
        out = batch * (start + 2 * (offset // batch)) + offset % batch
        back = batch * (start + 2 * offset + 2 * stages - 1)
        parts.append((home, numbers, out, back))
    for rank in range(placement.ranks):
        actions, slots = [], []
        for home, numbers, out, back in parts:
            stage = np.flatnonzero(home == rank)[:, None]
            actions += [forward(stage, numbers), backward(stage, numbers)]
            slots += [out + batch * stage, back - batch * stage]
        yield by_slot(np.concatenate(actions, axis=None), np.concatenate(slots, axis=None))


def makespan(k: Any, copies: int) -> float:
    """Return the time of whole units without latency.

    While the pipeline fills and drains, a slot lasts as long as the longer of F and B: 2h − 2 slots
    with h = ranks / copies. In between, some ranks alternate F and B while others run first all
    forwards of a unit and then all its backwards, so that as many differences of F and B are lost
    wherever two units meet.
    """
    units = -(-k.m // k.p)
    ends = 2 * k.p // copies - 2
    idle = max(k.F, k.B) + (units - 1) * abs(k.B - k.F)
    return float(units * k.p * k.v * (k.F + k.B) + ends * idle)


def doubled(k: Any) -> float:
    """Return the time of units whose microbatches go forward in twos."""
    units = -(-k.m // (2 * k.p))
    ends = max(k.F + k.B, 2 * k.F, 2 * (k.B - k.F))
    between = max(0.0, k.F - k.B, k.B - 2 * k.F)
    work = 2 * units * k.p * (k.F + k.B)
    return float(work + (k.p / 2 - 1) * (ends + 2 * (units - 1) * between))


def peak(k: Any, copies: int, batch: int = 1) -> list[float]:
    """Return activations on every rank, from the first whole unit on.

    Half of a unit's forwards on a rank are all done before its first backward. Of the other half,
    h − 1 come later on the rank where waves enter, and one fewer on each rank from there.
    """
    half = k.p // copies
    distances = (min(rank, k.p - 1 - rank) if copies == 2 else rank for rank in range(k.p))
    return [
        min(batch * k.v * k.p - half + 1 + distance, k.m * k.v) * k.unit for distance in distances
    ]


def forms(
    copies: int, time_text: str, peak_text: str, batch: int = 1, scaling: str = ""
) -> tuple[ClosedForm, ...]:
    """Return closed forms of a schedule of waves: exact for whole units, else bounds."""
    prefix = f"{scaling}, " if scaling else ""
    unit = f"{batch}p" if batch > 1 else "p"

    def applies(k: Any) -> bool:
        return BATCHES[getattr(k, "scaling", "direct")] == batch

    def time(k: Any) -> float:
        return makespan(k, copies) if batch == 1 else doubled(k)

    def held(k: Any) -> list[float]:
        return peak(k, copies, batch)

    return (
        makespan_is(time_text, time, "exact", f"{prefix}no latency, m = U·{unit}",
            lambda k: applies(k) and k.m % (batch * k.p) == 0,
        ),
        makespan_is(f"{time_text} with m rounded up to U·{unit}", time, "upper bound",
            f"{prefix}no latency, a short last unit",
            lambda k: applies(k) and k.m % (batch * k.p) != 0,
        ),
        peak_is(peak_text, held, "exact", f"{prefix}m ≥ {unit}",
            lambda k: applies(k) and k.m >= batch * k.p,
        ),
        peak_is(f"{peak_text}, at most m", held, "upper bound", f"{prefix}m < {unit}",
            lambda k: applies(k) and k.m < batch * k.p,
        ),
    )  # fmt: skip


@register(
    "chimera",
    title="Two copies of the model in opposite directions, one backward per forward",
    year=2021,
    source="@li2021chimera; Shigangli/Chimera",
    placement=Placement.bidirectional,
    chunks=1,
    constraints=(
        EVEN_RANKS,
        Constraint(
            "scaling",
            "a scaling of 'direct', 'doubling' or 'halving'",
            lambda k: k.scaling in BATCHES,
        ),
    ),
    forms=(
        *forms(
            2,
            "m(F + B) + (p − 2)(max(F, B) + (U − 1)|B − F|)",
            "p/2 + 1 + d, d ranks from the nearer end",
            scaling="direct",
        ),
        *forms(
            2,
            "m(F + B) + (p/2 − 1)(max(F + B, 2F, 2B − 2F) + 2(U − 1)·max(0, F − B, B − 2F))",
            "3p/2 + 1 + d, d ranks from the nearer end",
            batch=2,
            scaling="doubling or halving",
        ),
    ),
)
def chimera(*, ranks: int, microbatches: int, scaling: str = "direct") -> Iterator[Program]:
    """Every rank serves stage r of one copy and stage p − 1 − r of the other.

    Half of p microbatches enters at either end, one in every second slot, and turns round at the
    other. Counted in slots, microbatch i runs F of stage s in slot 2i + s and B in slot
    2i + 2p − 1 − s: forwards and backwards of the two directions fall into different slots, and
    p − 2 slots in all stay idle at the two ends, half as many as in 1F1B. Parameters are held
    twice, and their gradients are summed over both copies.

    When to use it: about as many microbatches as ranks, and memory for two copies of the weights.
    At m = p its bubble is little more than half of 1f1b's; from a few times p microbatches on, 1f1b
    waits less, and split backwards less still.

    p = 4, m = 4, B twice as long as F::

        r0 | F0 F1 .  f2 b2--- f3 b3--- .  B0--- .  .  B1---
        r1 | .  F0 f2 F1 f3 .  b2--- B0--- b3--- B1--- .  .
        r2 | .  f2 F0 f3 F1 .  B0--- b2--- B1--- b3--- .  .
        r3 | f2 f3 .  F0 B0--- F1 B1--- .  b2--- .  .  b3---

    The figure shows the price of B = 2F: the two directions no longer interlock, and the bubble is
    that of slots as long as B.

    Parameters
    ----------
    ranks, microbatches
        An even number of ranks, any number of microbatches. The last unit may be short: it is the
        same order with some microbatches left out.
    scaling
        Order of units when there are more than p microbatches:

        ``"direct"``
            Units of p microbatches. The first forwards of a unit fill the idle slots among the last
            backwards of the one before, which is perfect when F = B; with B = 2F every unit but the
            first loses another p − 2 forwards.
        ``"doubling"``
            Units of 2p microbatches, two of which go forward together in a slot as long as one
            backward. For F ≤ B ≤ 2F nothing is lost between units, for almost twice the memory. The
            two are two actions, one behind the other: the next rank may start on the first when the
            second has just begun, so that (p − 2)(F + B)/2 stay idle. Executed as one, with
            B = 2F, they would leave p − 2 slots of 2F.
        ``"halving"``
            A microbatch is cut in half for its backward instead. As an action carries one
            microbatch, the halves are what `microbatches` counts: 2k and 2k + 1 are the halves of
            one, which go forward together and come back apart. That is the order of ``"doubling"``
            under another name; with half the times and half the activations, it needs about
            ``"direct"``'s memory, 3p/4 + 1/2 to p whole microbatches.
    """
    return waves(Placement.bidirectional(ranks), microbatches, BATCHES[scaling])


@register(
    "hanayo",
    title="One copy of the model in waves across all ranks",
    year=2023,
    source="@liu2023hanayo",
    placement=Placement.wave,
    default_chunks=2,
    constraints=(
        Constraint("chunks", "an even number of chunks, two per wave", lambda k: k.chunks % 2 == 0),
    ),
    forms=forms(
        1,
        "m·v(F + B) + 2(p − 1)(max(F, B) + (U − 1)|B − F|)",
        "p − (p − 1 − r)/v",
    ),
)
def hanayo(*, ranks: int, microbatches: int, chunks: int) -> Iterator[Program]:
    """The two directions of Chimera become the way down and the way back of one copy.

    Cut Chimera's 2p ranks in half: by symmetry, what the other direction does on a rank of the
    upper half, the way back of the own direction does on its mirror image in the lower. That leaves
    a V on p ranks, one wave, and more waves (two chunks each) make the stages shorter: the idle
    time at the ends, 2(p − 1) slots, shrinks with them.

    In slots, microbatch i of p runs F of stage s in slot 2i + s and B in slot 2i + 2S − 1 − s. More
    microbatches form further units of p, joined like Chimera's by direct concatenation: without a
    gap when F = B, but otherwise every unit but the first loses 2(p − 1)|B − F|. With B = 2F, w
    waves therefore win over 1F1B for fewer than 3w − 1 units only. The last unit may be short.

    When to use it: to reproduce its paper, or with about as many microbatches as ranks and F close
    to B, where it waits as long as interleaved-1f1b on as many chunks. That waits less everywhere
    else.

    p = 3, m = 3, B twice as long as F::

        r0 | F0 F1 F2 .  .  f0 b0--- f1 b1--- f2 b2--- .  .  B0--- .  .  B1--- .  .  B2---
        r1 | .  F0 F1 .  f0 F2 f1 .  b0--- f2 b1--- .  B0--- b2--- B1--- .  .  B2--- .  .
        r2 | .  .  F0 f0 F1 f1 F2 f2 .  .  b0--- B0--- b1--- B1--- b2--- B2--- .  .  .  .

    Parameters
    ----------
    chunks
        Stages per rank, two for each wave.
    """
    return waves(Placement.wave(ranks, chunks), microbatches)


@register(
    "bitpipe",
    title="Two copies of the model, each placed as a V, in opposite directions",
    year=2024,
    source="@wu2024bitpipe; wuhouming/BitPipe",
    placement=Placement.bidirectional,
    chunks=2,
    constraints=(EVEN_RANKS,),
    forms=forms(
        2,
        "2m(F + B) + (p − 2)(max(F, B) + (U − 1)|B − F|)",
        "3p/4 + (1 + d)/2, d ranks from the nearer end",
    ),
)
def bitpipe(*, ranks: int, microbatches: int) -> Iterator[Program]:
    """Chimera whose microbatches pass every rank twice: one copy is a V, the other a Λ.

    Every rank serves four stages of 2p, two of each copy. In slots, microbatch i of a unit runs F
    of stage s in slot 2i + s and B in slot 2i + 4p − 1 − s, which fills 4p slots of a rank without
    a gap and is, unit after unit, the order of the authors' code. The idle time at the ends is
    Chimera's in slots of half the length, so half of it. Turning round costs no transfer. As in
    Chimera, units of p microbatches follow each other directly, and parameters are held twice.

    For m = p and B = 2F, (p − 2)·2F of 6pF + (p − 2)·2F are idle, a rate of (p − 2)/(4p − 2).

    When to use it: about as many microbatches as ranks, fast links, and memory for two copies of
    the weights: half the bubble of chimera. With more microbatches split backwards wait less.

    p = 4, m = 4, B twice as long as F::

        r0 | 0F00F1.  3F24F23F34F37F07B0---7F17B1---.  4B2---3B2---4B3---3B3---0B0---.  .  0B1---
        r1 | .  1F02F21F12F35F26F05F36F1.  6B0---5B2---6B1---5B3---2B2---1B0---2B3---1B1---.  .
        r2 | .  1F22F01F32F15F06F25F16F3.  6B2---5B0---6B3---5B1---2B0---1B2---2B1---1B3---.  .
        r3 | 0F20F3.  3F04F03F14F17F27B2---7F37B3---.  4B0---3B0---4B1---3B1---0B2---.  .  0B3---
    """
    return waves(Placement.bidirectional(ranks, 2), microbatches)
