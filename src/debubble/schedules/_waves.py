"""The slots of Chimera, and of what has grown out of it: every microbatch is a wave.

A wave moves on by one stage every slot: forward to the last stage, and back again in the slots
after that. The waves of one copy of the model enter two slots apart, h = ranks / copies of them in
a unit. Any two visits of waves to a rank, down or up, forward or back, from one end or the other,
are an odd number of slots apart, so that they fall between those of the waves around them, or they
are a multiple of 2h apart, by when all waves of the unit have passed.

With S stages, the 2S actions of a unit on a rank fill as many slots without a gap, and after 2S
slots the next unit enters. Only 2h − 2 slots are idle, at the ends of the first and the last unit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from debubble.core.actions import Program
from debubble.core.placement import Placement
from debubble.core.sequence import backward, by_slot, forward
from debubble.schedules.registry import ClosedForm, makespan_is, peak_is


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
    copies: int,
    time: Callable[[Any], float],
    time_text: str,
    peak_text: str,
    *,
    batch: int = 1,
    applies: Callable[[Any], bool] = lambda case: True,  # noqa: ARG005 - the trivial default
    condition: str = "",
) -> tuple[ClosedForm, ...]:
    """Return closed forms of a schedule of waves: exact for whole units, else bounds."""
    prefix = f"{condition}, " if condition else ""
    unit = f"{batch}p" if batch > 1 else "p"

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
