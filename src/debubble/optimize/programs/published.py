"""Published schedules: starts of a search, and comparisons for its result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from debubble.core.actions import COPY_KINDS, PAIR_MASK, PAIR_SHIFT, Program, among, kinds_of
from debubble.core.costs import Costs
from debubble.core.errors import DebubbleError, ParameterError
from debubble.core.kind_relations import PASS_KINDS
from debubble.core.layers import Layers
from debubble.core.schedule import Schedule
from debubble.engine.graph import P2PMode
from debubble.engine.timeline import Timeline, simulate
from debubble.lowering.recompute import add_recompute
from debubble.optimize.problem import Problem
from debubble.optimize.programs.backward import fusable, separate
from debubble.optimize.stage_choices.choices import Recompute, same_for_all, ways_of
from debubble.optimize.stop import Stop
from debubble.schedules.registry import Entry, entries, made_once, make

if TYPE_CHECKING:
    from debubble.analysis.comparison import Comparison


def published_orders(problem: Problem) -> Iterator[tuple[str, list[Program]]]:
    """Yield registered schedules for the same placement, halves of pairs one after the other.

    If the costs have a speed of copies to the host, schedules made for copies are included, without
    their copies.
    """
    place, limits = problem.placement, problem.limits
    memory = limits.tolist() if np.isfinite(limits).all() else None
    copies = COPY_KINDS if np.isfinite(problem.table.costs.host_bandwidth) else ()
    for entry in entries().values():
        if entry.chunks not in (None, place.chunks):
            continue
        try:
            if entry.placement(place.ranks, place.chunks).table != place.table:
                continue
        except DebubbleError:
            continue
        schedule = _made(
            entry, place.ranks, problem.microbatches, place.chunks, problem.table.costs, memory
        )
        if schedule is None or schedule.slices > 1 or _more_kinds(schedule) - set(copies):
            continue
        programs = (schedule.program(rank) for rank in range(schedule.ranks))
        yield (
            entry.name,
            [
                program[among(kinds_of(program), PASS_KINDS)] & ~(PAIR_MASK << PAIR_SHIFT)
                for program in programs
            ],
        )


def own_orders(problem: Problem, programs: Sequence[Program]) -> Iterator[list[Program]]:
    """Yield published programs in each way of the problem's backwards that differs."""
    ways = [separate(problem, programs)]
    if problem.backward == "free":
        ways += [list(programs), separate(problem, programs, fusable(problem).tolist())]
    found: list[list[Program]] = []
    for way in ways:
        if not any(all(map(np.array_equal, way, other)) for other in found):
            found.append(way)
            yield way


def compare_with_published(
    found: Schedule | Timeline,
    costs: Costs,
    memory: Any,
    mode: P2PMode,
    *,
    recompute: Recompute = "none",
    copies: bool = False,
    layers: Layers | None = None,
    stop: Stop | None = None,
) -> Comparison:
    """Compare a schedule with published ones of the same model on the same costs.

    Those that train by another rule, cut sequences, or move activations elsewhere solve another
    problem and are left out, but for those that use the host if `copies` is true. The others
    recompute the same stages; where the choice is free, all of them or none, whichever fits and is
    faster. Where layers are cut, every published schedule has its own balanced cut, and the found
    one is as it was simulated. Where stages carry something, those with as many stages carry the
    same, and others are left out. A note counts those for which `stop` leaves no time.
    """
    from debubble.analysis.compare import compare

    schedule = found if isinstance(found, Schedule) else found.schedule
    ranks, microbatches = schedule.ranks, schedule.microbatches
    carries = schedule.carries
    same_model = (costs.same_model or bool(layers and layers.each)) and not carries
    limit = None if memory is None else np.asarray(memory, dtype=float).tolist()
    items: list[Schedule | Timeline] = [found]
    notes: list[str] = []
    if layers:
        notes.append(
            f"{schedule.name} has its own cut of the {layers.count} layers; the others have the "
            "cut under which their busiest rank does as little as possible"
        )
    asked = list(entries().values())
    for index, entry in enumerate(asked):
        if stop is not None and stop():
            notes.append(f"no time left: {len(asked) - index} published schedules are not compared")
            break
        chunks = entry.chunks or schedule.chunks
        if not (same_model or chunks == schedule.chunks):
            continue
        its = costs
        if layers:
            try:
                its = layers.for_placement(entry.placement(ranks, chunks))[1]
            except DebubbleError:
                continue
        known = _made(entry, ranks, microbatches, chunks, its, limit)
        if known is None or (carries and known.stages != schedule.stages):
            continue
        if known.carries != carries:
            known = replace(known, carries=carries)
        more = _more_kinds(known)
        if copies and more == set(COPY_KINDS) and not known.offload_to:
            items.append(simulate(known, its, mode))
        if known.slices > 1 or more:
            continue
        try:
            choices = same_for_all(ways_of(recompute, "none", known.stages))
        except ParameterError:
            continue
        both = [add_recompute(known, np.flatnonzero(chosen).tolist()) for chosen in choices]
        tried = [simulate(each, its, mode) for each in both]
        rows = compare(tried, costs=its, memory=limit, p2p_mode=mode).rows
        items += [row.timeline for row in rows[:1]]
    compared = compare(items, costs=costs, memory=limit, p2p_mode=mode)
    return replace(compared, notes=(*notes, *compared.notes))


def _made(
    entry: Entry, ranks: int, microbatches: int, chunks: int, costs: Costs, memory: Any
) -> Schedule | None:
    """Return a published schedule for these costs; None where none trains by the same rule.

    Those with shards of the output layer have actions that no order here has.
    """
    if entry.weight_versions != 1 or entry.fields.get("vocabulary"):
        return None
    chosen = None if entry.chunks else chunks
    try:
        if entry.uses_costs or "memory" in entry.parameters:
            return make(
                entry.name, ranks=ranks, microbatches=microbatches, chunks=chosen, costs=costs,
                memory=memory,
            )  # fmt: skip
        return made_once(entry.name, ranks=ranks, microbatches=microbatches, chunks=chosen)
    except DebubbleError:
        return None


def _more_kinds(schedule: Schedule) -> set[int]:
    """Return kinds of a schedule other than forwards and backwards."""
    return set(np.unique(kinds_of(schedule.actions)).tolist()) - set(PASS_KINDS)
