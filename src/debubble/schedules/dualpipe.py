"""DualPipe and DualPipe-V: two streams of microbatches meet on every rank, in overlapped pairs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from debubble.core.actions import Kind, Program
from debubble.core.placement import Placement
from debubble.core.sequence import alternate, as_kind, backward, forward, paired, sequence
from debubble.schedules.registry import ClosedForm, Constraint, peak_is, register
from debubble.schedules.waves import EVEN_RANKS


def meeting(
    depth: int,
    distance: int,
    near: tuple[Program, Program],
    far: tuple[Program, Program],
    split_drain: bool = True,
) -> Program:
    """Return the order of one rank that serves a near and a far stage.

    Of both are given the forwards and full backwards, in microbatch order. From the end where
    microbatches enter, `depth` ranks lead to the turn, both included (H), and this rank is at a
    `distance` (h). With `split_drain` the last phases run I and W apart.

    In eight phases: near forwards; both forwards; far I, W, forward; pairs (near F; far B), (far F;
    near B); far B with pairs; both backwards, the second half without W; W with near I; W.
    """
    F0, B0 = near
    F1, B1 = far
    rest = depth - distance - 1
    both = distance + 1
    f0, f1, b0, b1 = 2 * rest, 0, 0, 0

    warm_up = F0[:f0]
    together = alternate(F0[f0 : f0 + both], F1[:both])
    f0, f1 = f0 + both, both

    I1, W1 = as_kind(B1[:rest], Kind.I), as_kind(B1[:rest], Kind.W)
    turn = alternate(I1, W1, F1[f1 : f1 + rest])
    b1, f1 = rest, f1 + rest

    pairs = len(F0) - f0
    near_pairs = paired(F0[f0:], B1[b1 : b1 + pairs])
    steady = alternate(*near_pairs, *paired(F1[f1 : f1 + pairs], B0[:pairs]))
    if rest == 0 and pairs:
        # The innermost rank has just run the forward whose backward comes first here: apart, the
        # neighbor gets its input earlier.
        steady[:2] = F0[f0], B1[b1]
    f1, b1, b0 = f1 + pairs, b1 + pairs, pairs

    late = alternate(B1[b1 : b1 + rest], *paired(F1[f1:], B0[b0 : b0 + rest]))
    b1, b0 = b1 + rest, b0 + rest

    drain = alternate(B1[b1:], B0[b0 : b0 + both])
    last = B0[b0 + both :]
    if not split_drain:
        return sequence(warm_up, together, turn, steady, late, drain, last)
    full, split = drain[:both], drain[both:]
    waiting = as_kind(sequence(split, last), Kind.W)
    return sequence(
        warm_up,
        together,
        turn,
        steady,
        late,
        full,
        as_kind(split, Kind.I),
        alternate(waiting[:rest], as_kind(last, Kind.I)),
        waiting[rest:],
    )


def _longest_idle(k: Any, depth: float, split_drain: bool) -> float:
    """Return idle time of the rank that is idle longest; `depth` ranks from an end to the turn."""
    filled = 2 * k.W if split_drain else 0
    return float((depth - 1) * (k.O + k.F - filled))


def _time(k: Any, depth: float, microbatches: float, split_drain: bool) -> float:
    """Return the makespan: longest idle time and work, all but 2·depth + 1 pairs overlapped.

    `microbatches` are those that enter at one end.
    """
    pairs = 2 * microbatches - 2 * depth - 1
    work = (2 * depth + 1) * (k.F + k.B) + pairs * k.O
    return float(work) + _longest_idle(k, depth, split_drain)


def _in_order(k: Any) -> bool:
    """Return whether no wait is longer than those on the longest path of the formulas."""
    whole = math.isclose(k.B, k.I + k.W)
    return bool(whole and k.W <= k.I <= k.F and max(k.F, k.B) <= k.O <= k.F + k.B)


_IN_ORDER = "B = I + W, W ≤ I ≤ F and B, F ≤ O"


def _forms(
    depth: str, time: str, of: Callable[[Any], tuple[float, float]], *, split_drain: bool = True
) -> Iterator[ClosedForm]:
    """Yield forms of makespan and bubble time; `of` gives depth and microbatches of a case.

    Notes
    -----
    Among the ranks that overlap most is one that is idle for (depth − 1)(O + F − 2W), or without
    `split_drain` for (depth − 1)(O + F). With F = I the former is (depth − 1)(O + B − 3W), as
    published. On grids of costs the longest path is never shorter, and no longer as long as
    W ≤ I ≤ F and max(F, B) ≤ O.
    """

    def exact(k: Any) -> bool:
        return bool(k.c == 0 and _in_order(k))

    def bound(k: Any) -> bool:
        # A full backward that is slower than its parts runs less often than the formulas count.
        return not exact(k) and bool(k.B <= (k.I + k.W) * (1 + 1e-9))

    def longest(k: Any) -> float:
        return _longest_idle(k, of(k)[0], split_drain)

    def makespan(k: Any) -> float:
        return _time(k, *of(k), split_drain)

    rows: list[tuple[str, str, Callable[[Any], float], Callable[[Any], bool], tuple[str, ...]]]
    rows = [("makespan", time, makespan, lambda _: True, ())]
    if split_drain:
        published, general = f"({depth} − 1)(O + B − 3W)", f"({depth} − 1)(O + F − 2W)"
        rows.append(("bubble_time", published, longest, lambda k: k.F == k.I, ("F = I",)))
        rows.append(("bubble_time", general, longest, lambda k: k.F != k.I, ()))
    else:
        rows.append(("bubble_time", f"({depth} − 1)(O + F)", longest, lambda _: True, ()))
    drained = () if split_drain else ("split_drain false",)
    for accuracy, applies, where in (
        ("exact", exact, f"no latency, {_IN_ORDER}"), ("lower bound", bound, "B ≤ I + W"),
    ):  # fmt: skip
        for quantity, text, value, costs, more in rows:

            def holds(k: Any, applies: Any = applies, costs: Any = costs) -> bool:
                mine = getattr(k, "split_drain", True) == split_drain
                return bool(mine and applies(k) and costs(k))

            condition = ", ".join((where, *more, *drained))
            yield ClosedForm(quantity, text, value, accuracy, holds, condition)


@register(
    "dualpipe",
    title="Two copies of the model, microbatches from both ends, overlapped pairs",
    year=2024,
    source="@deepseek2024v3; @dualpipe",
    placement=Placement.bidirectional,
    chunks=1,
    constraints=(
        EVEN_RANKS,
        Constraint(
            "microbatches",
            "an even number of microbatches, at least 2·ranks (both directions together)",
            lambda k: k.microbatches % 2 == 0 and k.microbatches >= 2 * k.ranks,
        ),
    ),
    forms=(
        *_forms(
            "p/2",
            "(3p/2)F + (m − p/2 − 2)·O + (p − 1)I + W + 2B",
            lambda k: (k.p / 2, k.m / 2),
        ),
        peak_is("p + 1"),
    ),
)  # fmt: skip
def dualpipe(*, ranks: int, microbatches: int) -> Iterator[Program]:
    """Every rank serves one stage of each of two copies that run in opposite directions.

    The first half of the microbatches enters at rank 0, the second half at the last rank. Where
    they meet, the forward of one runs together with the backward of the other, which hides the
    expert all-to-all. Parameters are held twice.

    When to use it: experts on many ranks, whose all-to-all takes long enough that a pair is clearly
    shorter than its parts, and weights small enough to hold twice. dualpipe-v does the same with
    one copy.

    p = 4, m = 8, B twice as long as F::

        r0 | F0 F1 F2 f4 i4 w4 f5 F3------ .  f6------ b6--- .  f7------ b7--- I2 W2 I3 W3
           |                      b5------    B0------          B1------
        r1 | .  F0 f4 F1 f5 F2 b4--- f6------ F3------ f7------ b6--- B2--- .  i7 I3 w7 W3
           |                         B0------ b5------ B1------
        r2 | .  f4 F0 f5 F1 f6 B0--- F2------ f7------ F3------ B2--- b6--- .  I3 i7 W3 w7
           |                         b4------ B1------ b5------
        r3 | f4 f5 f6 F0 I0 W0 F1 f7------ .  F2------ B2--- .  F3------ B3--- i6 w6 i7 w7
           |                      B1------    b4------          b5------
    """
    both = np.arange(microbatches).reshape(2, -1)
    depth = ranks // 2
    for rank in range(ranks):
        distance = min(rank, ranks - 1 - rank)
        own, other = both if rank < depth else both[::-1]
        far = ranks - 1 - distance
        yield meeting(
            depth,
            distance,
            (forward(distance, own), backward(distance, own)),
            (forward(far, other), backward(far, other)),
        )


@register(
    "dualpipe-v",
    title="DualPipe cut in half: V placement, one copy, overlapped pairs",
    year=2025,
    source="@sea2025cut; @dualpipe dualpipev.py; @pytorch ScheduleDualPipeV",
    placement=Placement.wave,
    chunks=2,
    aliases=("dualpipev",),
    constraints=(
        Constraint(
            "microbatches", "at least 2·ranks microbatches", lambda k: k.microbatches >= 2 * k.ranks
        ),
    ),
    forms=(
        *_forms("p", "(3p)F + (2m − p − 2)·O + (2p − 1)I + W + 2B", lambda k: (k.p, k.m)),
        *_forms(
            "p",
            "(3p)F + (2m − p − 2)·O + (2p − 1)(I + W) + 2B",
            lambda k: (k.p, k.m),
            split_drain=False,
        ),
        peak_is("p + 1/2"),
    ),
)
def dualpipe_v(*, ranks: int, microbatches: int, split_drain: bool = True) -> Iterator[Program]:
    """DualPipe on half its ranks: what was the other direction is the way back of the V.

    Every rank serves stage r on the way down and stage 2p − 1 − r on the way back, one copy of the
    model, the same bubble formula.

    In the end ranks put W off to fill their waits. What W needs then stays, which costs memory
    where activations are recomputed only for the backward: the last rank brings back p of them
    before the first W. `split_drain` false runs full backwards there, as MindSpeed does on Ascend
    unless it gets --dualpipev-dw-detach, for 2(p − 1)W more time.

    When to use it: experts, whose all-to-all hides behind another microbatch's computing, on two
    chunks per rank with one copy of the weights. Give the time of a pair, O: without a gain there,
    zb-v waits less.

    p = 2, m = 4, B twice as long as F::

        r0 | F0 F1 F2 f0 i0 w0 f1 F3------ .  f2------ b2--- .  f3------ b3--- I2 W2 I3 W3
           |                      b1------    B0------          B1------
        r1 | .  F0 f0 F1 f1 F2 b0--- f2------ F3------ f3------ b2--- B2--- .  i3 I3 w3 W3
           |                         B0------ b1------ B1------

    Parameters
    ----------
    split_drain
        Whether the last backwards run as I and W.
    """
    numbers = np.arange(microbatches)
    for rank in range(ranks):
        far = 2 * ranks - 1 - rank
        yield meeting(
            ranks,
            rank,
            (forward(rank, numbers), backward(rank, numbers)),
            (forward(far, numbers), backward(far, numbers)),
            split_drain,
        )
