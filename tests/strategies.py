"""Random valid cases of every registered schedule, and random costs that fit them."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from debubble import Costs, Kind, Schedule, make, schedules
from debubble.core.actions import COPY_KINDS, kinds_of, parse_cell
from debubble.core.errors import ParameterError
from debubble.core.schedule import SYNCS
from debubble.lowering.recompute import RECOMPUTE_AT, add_recompute
from debubble.schedules.registry import Entry, find
from tests.conftest import EXPLORES

ENTRIES = schedules()
TIMES = st.integers(0, 24).map(lambda n: n / 4)
"""Multiples of a quarter: sums are exact, so that engines can be compared with ==."""

SLICES = st.sampled_from([1, 2, 4])
SHARES = st.sampled_from([0.0, 0.25, 0.5, 1.0])


ready = lru_cache(maxsize=4096)(make)
"""Tests draw the same small cases again and again, and a searched order takes long to make."""


@cache
def accepted(name: str, microbatches: int, **parameters: int | None) -> tuple[int, ...]:
    """The numbers of microbatches, up to one, that a schedule accepts with other parameters."""
    entry = find(name)
    cases = {m: entry.case(microbatches=m, **parameters) for m in range(1, microbatches + 1)}
    return tuple(
        m
        for m, case in cases.items()
        if all(constraint.holds(case) for constraint in entry.constraints)
    )


RANKS, MICROBATCHES, CHUNKS = (8, 24, 4) if EXPLORES else (6, 14, 3)
"""The most that random schedules have where a test names no others; oracles are slow."""


@st.composite
def made(
    draw: st.DrawFn,
    entry: Entry,
    ranks: int = RANKS,
    microbatches: int = MICROBATCHES,
    chunks: int = CHUNKS,
) -> Schedule:
    """A schedule of one family with random parameters it accepts."""

    def fitting(**parameters: int | None) -> tuple[int, ...]:
        return accepted(entry.name, microbatches, **parameters)

    known = {option.name for option in entry.options}
    options: dict[str, Any] = {"slices": draw(SLICES)} if "slices" in known else {}
    shapes = [
        (p, v)
        for p in range(1, ranks + 1)
        for v in ([entry.chunks] if entry.chunks else range(1, chunks + 1))
        if fitting(ranks=p, chunks=v, **options)
    ]
    assume(shapes)
    p = draw(st.sampled_from(sorted({p for p, _ in shapes})))
    v = draw(st.sampled_from([v for q, v in shapes if q == p]))
    if "group_size" in known and draw(st.booleans()):
        sizes = [
            size
            for size in range(1, max(p, microbatches) + 1)
            if fitting(ranks=p, chunks=v, group_size=size, **options)
        ]
        options["group_size"] = draw(st.sampled_from(sizes))
    counts = fitting(ranks=p, chunks=v, **options)
    if p > 1 and draw(st.booleans()):
        counts = tuple(m for m in counts if m % p == 0) or counts
    m = draw(st.sampled_from(counts))
    iterations = draw(st.sampled_from([None, None, 1, 2, 3]))
    sync = draw(st.sampled_from([None, None, *SYNCS])) if iterations else None
    try:
        schedule = ready(
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
    if "slices" in known and draw(st.booleans()):
        return replace(schedule, cut=draw(cuts(schedule.slices)))
    return schedule


@st.composite
def cuts(draw: st.DrawFn, slices: int) -> tuple[float, ...]:
    """Shares of the tokens in sixteenths, which keep sums exact."""
    ends = draw(st.sets(st.integers(1, 15), min_size=slices - 1, max_size=slices - 1))
    marks = [0, *sorted(ends), 16]
    return tuple((b - a) / 16 for a, b in pairwise(marks))


@st.composite
def recomputing(draw: st.DrawFn, schedule: Schedule, some: bool = True) -> Schedule:
    """The same schedule with recomputes of all stages, some, or some microbatches."""
    stages = st.sets(st.integers(0, schedule.stages - 1), min_size=1)
    chosen = draw(st.just("full") | stages)
    found = add_recompute(schedule, chosen, at=draw(st.sampled_from(RECOMPUTE_AT)))
    copies = np.isin(kinds_of(schedule.actions), COPY_KINDS).any()
    # Copies are of checkpoints or of activations, for all microbatches of a stage.
    if not some or copies or draw(st.booleans()):
        return found
    R = np.flatnonzero(kinds_of(found.actions) == Kind.R)
    drop = R[draw(st.integers(0, 2)) :: draw(st.integers(1, 5))]
    return found.with_programs(
        np.delete(found.program(rank), drop[(drop >= begin) & (drop < end)] - begin)
        for rank, (begin, end) in enumerate(pairwise(found.offsets.tolist()))
    )


@st.composite
def costs_for(draw: st.DrawFn, schedule: Schedule) -> Costs:
    """Costs that differ from stage to stage, with or without latency and overlap gain."""
    more: dict[str, Any] = {}
    if schedule.slices > 1:
        more = {
            "attention": draw(SHARES), "kv": draw(TIMES), "exchange": draw(TIMES),
            "message": draw(TIMES), "bandwidth": 4.0,
        }  # fmt: skip
    if np.isin(kinds_of(schedule.actions), COPY_KINDS).any():
        # Sizes and rates whose quotients are exact.
        more = {
            "activation": draw(st.sampled_from([0.25, 1.0, 3.0])),
            "offload_share": draw(st.sampled_from([0.5, 1.0])),
            "host_bandwidth": draw(st.sampled_from([0.5, 1.0, 4.0, math.inf])),
            "bandwidth": draw(st.sampled_from([1.0, 2.0, math.inf])),
        }
    if schedule.vocabulary:
        # A share of the head is a multiple of a quarter, too.
        head = {key: draw(TIMES) * schedule.ranks for key in ("F", "I", "W", "activation")}
        more = {"head": head} if draw(st.booleans()) else {}
    if schedule.carries:
        more["p2p_carry"] = draw(st.none() | TIMES)
    if draw(st.booleans()):
        return Costs(F=draw(TIMES), I=draw(TIMES), W=draw(TIMES), p2p=draw(TIMES), **more)
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
        R=draw(st.none() | per_stage),
        OPT=draw(TIMES),
        p2p=draw(TIMES | links) if ranks <= 6 else draw(TIMES),
        kept_for_weight=draw(st.sampled_from([0.0, 0.5, 1.0])),
        recompute_kept=draw(st.sampled_from([0.0, 0.25, 1.0])),
        **more,
    )


@st.composite
def carrying(draw: st.DrawFn, schedule: Schedule) -> Schedule:
    """The schedule, or the same with stages that carry something to later ones."""
    stages = st.integers(0, schedule.stages - 1)
    ends = draw(st.lists(st.tuples(stages, stages), max_size=3))
    later = [pair for pair in ends if pair[0] < pair[1]]
    from_each = dict(later)
    to_each = {target: source for source, target in from_each.items()}
    return replace(schedule, carries=[(source, target) for target, source in to_each.items()])


@st.composite
def with_copies(draw: st.DrawFn, schedule: Schedule, waits: bool = True) -> Schedule:
    """The schedule with some activations offloaded and reloaded, anywhere that is allowed.

    In between the rank may wait for the offload.
    """
    programs = []
    for program in schedule.rows():
        cells = list(program)
        for cell in program:
            found = re.fullmatch(r"(\d+)F([\d.]+)", cell)
            if found is None or not draw(st.booleans()):
                continue
            unit = re.escape(found[2])
            backwards = re.compile(rf"(^|.*;){found[1]}[IBR]{unit}(\)|$).*")
            stop = next(i for i, other in enumerate(cells) if backwards.fullmatch(other))
            out = draw(st.integers(cells.index(cell) + 1, stop))
            back = draw(st.integers(out, stop))
            cells.insert(back, f"{found[1]}RELOAD{found[2]}")
            if waits and draw(st.booleans()):
                wait = draw(st.integers(out, back))
                cells.insert(wait, f"{found[1]}WAIT_OFFLOAD{found[2]}")
            cells.insert(out, f"{found[1]}OFFLOAD{found[2]}")
        programs.append(cells)
    targets = [
        draw(st.sampled_from([None, *(r for r in range(schedule.ranks) if r != rank)]))
        for rank in range(schedule.ranks)
    ]
    made = [np.array([code for cell in row for code in parse_cell(cell, schedule.slices)])
            for row in programs]  # fmt: skip
    return schedule.with_programs(made, name="custom", offload_to=tuple(targets), made_for=None)
