"""Random valid cases of every registered schedule, and random costs that fit them."""

from __future__ import annotations

from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from debubble import Costs, Schedule, make, schedules
from debubble.core.errors import ParameterError
from debubble.core.schedule import SYNCS
from debubble.schedules.registry import Entry

ENTRIES = schedules()
TIMES = st.integers(0, 24).map(lambda n: n / 4)
"""Multiples of a quarter: sums are exact, so that engines can be compared with ==."""


@st.composite
def made(
    draw: st.DrawFn, entry: Entry, ranks: int = 16, microbatches: int = 64, chunks: int = 4
) -> Schedule:
    """A schedule of one family with random parameters it accepts."""
    p = draw(st.integers(1, ranks))
    v = entry.chunks or draw(st.integers(1, chunks))
    m = draw(st.integers(1, microbatches))
    if p > 1 and draw(st.booleans()):
        m = min(-(-m // p) * p, microbatches // p * p)
    options: dict[str, Any] = {}
    if any(option.name == "group_size" for option in entry.options) and draw(st.booleans()):
        options["group_size"] = draw(st.integers(p, max(p, m)))
    iterations = draw(st.sampled_from([None, None, 1, 2, 3]))
    sync = draw(st.sampled_from([None, None, *SYNCS])) if iterations else None
    try:
        return make(
            entry.name,
            ranks=p,
            microbatches=m,
            chunks=None if entry.chunks else v,
            iterations=iterations,
            sync=sync,
            **options,
        )
    except ParameterError:
        assume(False)
        raise


@st.composite
def costs_for(draw: st.DrawFn, schedule: Schedule) -> Costs:
    """Costs that differ from stage to stage, with or without latency and overlap gain."""
    if draw(st.booleans()):
        return Costs(F=draw(TIMES), I=draw(TIMES), W=draw(TIMES), p2p=draw(TIMES))
    per_stage = st.lists(TIMES, min_size=schedule.stages, max_size=schedule.stages)
    ranks = schedule.ranks
    links = st.lists(
        st.lists(TIMES, min_size=ranks, max_size=ranks), min_size=ranks, max_size=ranks
    )
    return Costs(
        F=draw(per_stage),
        I=draw(per_stage),
        W=draw(per_stage),
        O=draw(st.none() | TIMES),
        OPT=draw(TIMES),
        p2p=draw(TIMES | links) if ranks <= 6 else draw(TIMES),
        kept_for_weight=draw(st.sampled_from([0.0, 0.5, 1.0])),
    )
