"""V-Min, V-Half and V-ZB: building blocks on a V that bound the memory of every rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from debubble.core.actions import Program
from debubble.core.costs import Costs
from debubble.core.placement import Placement
from debubble.engine.memory import ROUNDING
from debubble.schedules._entry import form_of
from debubble.schedules._storage import Storage, Terms, named_by
from debubble.schedules.registry import ClosedForm, Constraint, peak_is, register


@dataclass(frozen=True)
class VBlock:
    """A block whose passes go down the V, up, down and up again at two paces."""

    down: int
    """Slots from one rank to the next, away from rank 0."""
    up: int
    """Slots from one rank to the next, back to rank 0."""
    pauses: Callable[[int], tuple[int, int, int]]
    """Function of p: slots without a pass at the three turns. They keep the passes of a rank in
    different slots modulo 6."""
    memory: Callable[[int], int]
    """Function of p: the most microbatches a rank holds."""

    def slots(self, ranks: int) -> NDArray[np.int64]:
        """Return slots of the 4p passes of one microbatch."""
        down, up = [self.down] * (ranks - 1), [self.up] * (ranks - 1)
        at_last, at_first, again = (1 + pause for pause in self.pauses(ranks))
        return np.cumsum([0, *down, at_last, *up, at_first, *down, again, *up], dtype=np.int64)

    def programs(self, ranks: int, microbatches: int) -> list[Program]:
        """Return the programs of all ranks, for any costs."""
        from debubble.schedules._blocks import repeat_block

        return repeat_block(Placement.v(ranks), self.slots(ranks), microbatches)


V_ZB = VBlock(4, 2, lambda _: (0, 0, 0), lambda p: p)
V_TWO_THIRDS = VBlock(2, 2, lambda p: (0, 2 if p % 3 == 2 else 0, 0), lambda p: 2 * p // 3 + 1)
V_HALF = VBlock(2, 1, lambda p: (0, 0 if p % 2 else 3, 1), lambda p: (p + 2) // 2)
V_MIN = VBlock(1, 1, lambda p: (0, 0 if p % 3 else 2, 0), lambda p: (p + 4) // 3)

MOST_RANKS = 512
"""Blocks are laid out in a grid that grows with the square of the ranks."""


def largest_block(terms: Terms, memory: ArrayLike) -> VBlock | None:
    """Return the block that makes the most of a memory limit; None when none fits."""
    ranks = terms.table.placement.ranks
    limit = np.min(memory) * (1 + ROUNDING)
    blocks = (V_ZB, V_TWO_THIRDS, V_HALF, V_MIN)
    fitting = (block for block in blocks if terms.limit(2 * block.memory(ranks)) <= limit)
    return next(fitting, None) if ranks <= MOST_RANKS else None


def searched(
    fixed: Callable[[int, int], list[Program]],
    most: Callable[[int], int],
    own: VBlock | None = None,
) -> Callable[[Callable[[], None]], Callable[..., list[Program]]]:
    """Make a description a fixed schedule, or a faster one for costs and memory.

    `fixed` gives the programs of all ranks for ranks and microbatches, `most` the most microbatches
    that one of p ranks holds in it; `own` is the block that it repeats, if there is one.
    """

    def order(
        *,
        ranks: int,
        microbatches: int,
        costs: Costs | None = None,
        memory: float | Sequence[float] | None = None,
        storage: Storage | None = None,
        objective: str = "makespan",
        published: bool = False,
    ) -> list[Program]:
        orders = [fixed(ranks, microbatches)]
        if published:
            return orders[0]
        terms = Terms.of(Placement.v(ranks), costs, storage)
        # What is no block is no slower than one in its own memory once the pipeline is full.
        full = own is None and memory is None and microbatches >= 2 * ranks
        if memory is None:
            memory = terms.limit_of(2 * most(ranks), orders[0], microbatches)
        block = None if full else largest_block(terms, memory)
        if block is not None and block != own:
            orders.append(block.programs(ranks, microbatches))
        return terms.schedule(microbatches, memory, objective, orders)

    return lambda description: named_by(description, order)


SOURCE = "@qi2024controllable"

RANKS = Constraint(
    "ranks",
    f"at most {MOST_RANKS} ranks: a block is laid out in a grid that grows with their square",
    lambda k: k.ranks <= MOST_RANKS,
)


def _forms(
    block: VBlock, memory: str, wait: Callable[[int], int], waits: str, *, inside: bool = True
) -> tuple[ClosedForm, ...]:
    """Return closed forms of a block's schedule, bounds of what is computed in its place.

    With equal costs F, ranks wait `wait(p)`·F in all; `inside` is whether that is between their
    own first and last action.
    """

    def work(k: Any) -> float:
        return float(2 * k.m * (k.F + k.I + k.W))

    def longest(k: Any) -> float:
        return work(k) + wait(k.p) * float(k.F)

    def timed(quantity: str, value: Callable[[Any], float]) -> Iterator[ClosedForm]:
        text = "2m(F + I + W)" + (f" + {waits}" if value is longest else "")
        equal = "F = I = W, no latency, p ≥ 3, m ≥ 2p"
        own = f"{equal}, default memory, objective {quantity.replace('_', '-')}"
        yield form_of(quantity, text, value, condition=f"{equal}, published order")
        yield form_of(quantity, text, value, "upper bound", own, lambda k: not k.published)

    return (
        *timed("makespan", longest),
        *timed("stage_time", longest if inside else work),
        peak_is(
            f"{memory}, at most m",
            lambda k: 2 * min(block.memory(k.p), k.m) * k.unit,
            condition="published order, kept_for_weight = 1",
        ),
        peak_is(
            f"{memory}, or the memory limit",
            lambda k: 2 * block.memory(k.p) * k.unit if k.memory is None else k.memory,
            accuracy="upper bound",
            holds=lambda k: not k.published,
        ),
    )


@register(
    "v-half",
    title="V placement and split backward in half the memory of 1F1B",
    year=2024,
    source=f"{SOURCE}; search: debubble",
    placement=Placement.wave,
    chunks=2,
    constraints=(RANKS,),
    forms=_forms(
        V_HALF,
        "⌊p/2⌋ + 1",
        lambda p: 3 * p - (4 if p % 2 else 7),
        "(3p − 7)F, or (3p − 4)F for odd p",
    ),
)
@searched(V_HALF.programs, V_HALF.memory, V_HALF)
def v_half() -> None:
    """A microbatch takes two slots from rank to rank on the way down the V, one on the way up.

    A stage that keeps a microbatch for l of the 6 slots a rank needs per microbatch holds l/6
    activations. On the V long lifespans of the first stages meet short ones of the last, so that
    every rank holds the same: at δ slots from rank to rank down and δ' up, (δ + δ')/6 of what 1F1B
    holds on rank 0. The paces (2, 1) make a half.

    In the order published for it ranks wait (3p − 7)F for even p ≥ 4 and (3p − 4)F for odd ones
    when F = I = W (found by simulating it for p from 3 to 32), where 1F1B waits 6(p − 1)F. When
    costs differ, the steady part loses nothing as long as W + 2I ≥ 2F and W + 2F ≥ 2I.

    The authors' code lets forwards, too, overtake backwards for weights at the end. That makes no
    difference when times are equal, and costs 1 to 1.5 % with profiled ones (44.18, 40.265, 38 and
    2.17 for a transfer, p = 4 and 8), so it is not done here.

    That order is taken only where :mod:`debubble.listing` finds nothing better for the costs of all
    ranks and links.

    When to use it: half the memory of 1f1b, a backward that can be split, and links fast enough for
    two chunks. At equal times it still waits less than half as long as 1f1b.

    p = 4, m = 4::

        r0 | F0 F1 F2 F3 .  .  .  f0 i0 w0 f1 i1 w1 f2 i2 w2 I0 W0 .  f3 i3 I1 w3 I2 W1 W2 .  I3 W3
        r1 | .  F0 F1 F2 F3 .  f0 .  f1 i0 w0 f2 i1 w1 .  I0 i2 W0 f3 w2 I1 i3 I2 W1 w3 W2 I3 W3 .
        r2 | .  .  F0 F1 F2 f0 .  f1 .  f2 i0 w0 F3 i1 I0 w1 W0 f3 i2 I1 w2 I2 i3 W1 W2 I3 w3 W3 .
        r3 | .  .  .  F0 f0 F1 f1 F2 f2 .  .  i0 I0 w0 W0 F3 f3 i1 I1 i2 I2 w1 W1 i3 I3 w2 W2 w3 W3

    Parameters
    ----------
    memory
        Limit for the activations on a rank, or one for each rank, in the unit of
        ``costs.activation`` (by default, what one microbatch leaves on a rank is 1). The default
        is the published memory, ⌊p/2⌋ + 1 with the largest activation of a chunk.
    """


@register(
    "v-min",
    title="V placement and split backward in a third of the memory of 1F1B",
    year=2024,
    source=f"{SOURCE}; search: debubble",
    placement=Placement.wave,
    chunks=2,
    constraints=(RANKS,),
    forms=_forms(
        V_MIN,
        "⌊(p + 4)/3⌋",
        lambda p: 4 * p - (5 if p % 3 else 7),
        "(4p − 5)F, or (4p − 7)F when 3 divides p",
    ),
)
@searched(V_MIN.programs, V_MIN.memory, V_MIN)
def v_min() -> None:
    """A microbatch goes down and up the V as fast as it can, one slot from rank to rank.

    No block has shorter lifespans. It takes (1 + 1)/6 of what 1F1B holds on rank 0, or
    ⌊(p + 4)/3⌋ microbatches. In the order published for it ranks wait (4p − 5)F, or (4p − 7)F when
    3 divides p, with F = I = W (found by simulating it for p from 3 to 32).

    **When F, I and W differ they wait again for every microbatch**: at 3, 4, 2 for 6 on top of 18,
    as there is no spare activation to bridge the difference. The order that is computed from the
    costs loses less. Parameters are those of :func:`v_half`.

    When to use it: memory for a third of what 1f1b holds, and times of F, I and W that are close
    together. Where they differ it may wait longer than 1f1b; the order computed from the costs,
    with a little more memory, soon is faster.

    p = 3, m = 4::

        r0 | F0 F1 F2 .  .  f0 i0 w0 f1 .  .  I0 i1 W0 w1 f2 F3 I1 i2 W1 w2 f3 i3 I2 w3 W2 .  I3 W3
        r1 | .  F0 F1 .  f0 .  f1 i0 w0 .  I0 F2 W0 i1 f2 w1 I1 F3 W1 i2 f3 w2 I2 i3 W2 w3 I3 W3 .
        r2 | .  .  F0 f0 F1 f1 .  .  i0 I0 w0 W0 F2 f2 i1 I1 w1 W1 F3 f3 i2 I2 w2 W2 i3 I3 w3 W3 .
    """


@register(
    "v-zb",
    title="V placement and split backward without bubble, in the memory of 1F1B",
    year=2024,
    source=f"{SOURCE}; block and search: debubble",
    placement=Placement.wave,
    chunks=2,
    aliases=("vzb",),
    constraints=(RANKS,),
    forms=_forms(V_ZB, "p", lambda p: p - 1, "(p − 1)F", inside=False),
)
@searched(V_ZB.programs, V_ZB.memory, V_ZB)
def v_zb() -> None:
    """A microbatch takes four slots from rank to rank on the way down the V, two on the way up.

    The idea of ZB-V as a building block, with paces of the paper and turns of our own: modulo 6,
    four slots down are two slots up, so that a microbatch's passes come in the same cyclic order on
    all ranks, and none of the turns needs a pause. From rank to rank the lifespan of the first
    stage shrinks by a period of 6 slots and that of the last one grows by a period; together they
    are p microbatches.

    With F = I = W no rank waits between first and last action from m = 2p on (found by simulating
    the order for p from 3 to 32). Parameters are those of :func:`v_half`.

    When to use it: as zb-v, which this is another construction of; computed for the same costs both
    take as long. Take it to study building blocks.

    p = 3, m = 4::

        r0 | F0 F1 F2 F3 .  f0 i0 w0 f1 i1 w1 f2 i2 I0 w2 W0 f3 i3 I1 w3 I2 W1 I3 W2 W3 .
        r1 | .  F0 F1 F2 f0 F3 f1 i0 w0 f2 i1 I0 w1 i2 f3 W0 I1 w2 i3 I2 W1 I3 w3 W2 W3 .
        r2 | .  .  F0 f0 F1 f1 F2 f2 i0 I0 w0 W0 F3 f3 i1 I1 i2 I2 w1 i3 I3 W1 w2 W2 w3 W3
    """
