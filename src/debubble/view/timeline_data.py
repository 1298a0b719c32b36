"""Timelines in the format of the browser's component: a few bytes for every action.

Every action is a row of small integers, column after column:

======== ===== ============================================================================
column   bytes meaning
======== ===== ============================================================================
style    1–4   which combination of kind, half of a pair, stage, copy and duration
unit     1–4   microbatch, minus that of the previous action of the same style
start    4     start in ticks, minus that of the previous action (modulo 2³²)
slack    4     slack in ticks
critical 1     1 on the critical path
held     4     ticks of the idle time before the action in which the rank only lacked memory
wait     4     ticks at the end of that idle time in which the input was on its way
queued   4     ticks from the action's end to the start of the transfer of its result
delayed  4     the same, for the transfer of what its stage carries
level    4     memory the rank holds at most while the action runs, where copies change it meanwhile
place    1–4   position in the schedule, minus that of the previous row, minus 1
======== ===== ============================================================================

The columns that are zero throughout are left out, the bytes of the others are regrouped by
significance, and all is deflated: what repeats, as schedules do, costs next to nothing.

**Kinds.** The component knows no kind of action: ``kinds`` has names, colors and streams of all,
in the order of their numbers, and ``needs`` of every timeline the rows of the table of kinds that
hold for its schedule, from which the component finds what an action waits for.

**Precision.** A tick is the grid of the costs when there is one, and then every time is exact; else
it is the 2³²-th part of the longest time, and times are right to half of that. Durations are exact.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from debubble.analysis.bubbles import CAUSES, MEMORY, P2P, Bubbles, bubbles
from debubble.analysis.results import shared_units
from debubble.core.actions import among, kinds_of, microbatches_of, pairs_of, stages_of
from debubble.core.embedding_and_head import first_stages
from debubble.core.kind_relations import transfer_of
from debubble.core.kinds import (
    CARRY_KINDS,
    COMPUTE_KINDS,
    IN_TURN_KINDS,
    KINDS,
    STEP_KINDS,
    STREAM_TITLES,
    TRANSFER_KINDS,
    Kind,
    Per,
    Stream,
)
from debubble.core.schedule import Schedule, sizes
from debubble.engine.memory import Limit
from debubble.engine.timeline import Timeline
from debubble.view import captions
from debubble.view.bars import Ints, copies_and_shades
from debubble.view.colors import COLOR, STACKED, STRIPES, Palette, text_color
from debubble.view.transfers import MOVED, links, queued

FORMAT = 2
TICKS = 1 << 32
"""Ticks of the longest time, where the costs have no grid."""

GRID_SAMPLE = 4096
"""Costs that a grid is sought in, which is then tried on all times."""

GRID_ERROR = 1e-6
"""Part of a tick that costs may miss the grid by."""

SUM_ERROR = 1e-2
"""Part of a tick that sums of many costs may miss it by, through rounding."""

_COUNTED = {
    Per.UNIT: "microbatch",
    Per.SHARD: "microbatch",
    Per.STAGE: "",
    Per.STAGE_STEP: "iteration",
    Per.RANK_STEP: "iteration",
}
"""Noun for the number of an action, by `Per`."""


def encode(
    timelines: Sequence[Timeline],
    *,
    limit: Limit | None = None,
    time_unit: str = "",
    palette: Palette = COLOR,
    numbers_from: int = 0,
) -> dict[str, Any]:
    """Return the timelines as plain data for the component, the first one on top.

    The memory limit, one number or one for each rank, is drawn as a line. Times have the unit of
    the costs by default; `numbers_from` is the number of the first microbatch.
    """
    memory = captions.memory_scale(timelines, limit)
    return {
        "format": FORMAT,
        "time_unit": time_unit or shared_units(timelines)[0],
        "memory_unit": memory.unit,
        "memory_size": memory.size,
        "limit": limit,
        "causes": list(CAUSES),
        "numbers_from": numbers_from,
        "kinds": [_kind(kind, palette) for kind in Kind],
        "stacked": sorted(COMPUTE_KINDS, key=lambda k: (*STACKED, k).index(k)),
        "streams": [STREAM_TITLES[stream] for stream in Stream],
        "timelines": [_encoded(timeline, palette) for timeline in timelines],
    }


def _kind(kind: Kind, palette: Palette) -> dict[str, Any]:
    """Return the row of a kind for the component: legend, stream and color."""
    spec = KINDS[kind]
    return {
        "name": kind.name,
        "title": spec.title,
        "letter": spec.letter,
        "stream": spec.stream,
        "counts": _COUNTED[spec.per],
        "receives": spec.receives,
        "carried": kind in CARRY_KINDS,
        "sends": [transfer_of(kind, carried)[0] for carried in (False, True)]
        if kind in MOVED
        else [],
        "color": palette.shade(kind),
        "edge": STRIPES.get(kind, ""),
        "stripe": palette.stripes.get(kind, ""),
    }


def _needs(schedule: Schedule, present: set[int]) -> list[dict[str, Any]]:
    """Return what actions of each kind wait for: the needs that hold for a schedule."""
    explicit = not present.isdisjoint(TRANSFER_KINDS)
    return [
        {
            "kind": kind,
            "kinds": list(need.kinds),
            "of": need.of.name,
            "stage": need.stage,
            "slice": need.slice,
            "through": need.through if explicit else None,
            "last": need.last_stage_only,
            "optional": need.optional,
        }
        for kind in sorted(present)
        for need in KINDS[Kind(kind)].needs
        if need.when(schedule) and not present.isdisjoint(need.kinds)
    ]


def _tracks(schedule: Schedule) -> dict[int, list[str]]:
    """Return titles of streams on every rank, where they differ between ranks."""
    title = STREAM_TITLES[Stream.COPY]
    names = [
        title if target is None else f"copies to rank {target}" for target in schedule.copy_targets
    ]
    return {Stream.COPY.value: names} if set(names) != {title} else {}


def _encoded(timeline: Timeline, palette: Palette) -> dict[str, Any]:
    schedule = timeline.schedule
    found = bubbles(timeline)
    order, counts = _rows(timeline)
    styles, style = _styles(timeline, order)
    tick, exact = _tick(timeline)
    start = _ticks(timeline.start[order], tick)
    unit = microbatches_of(schedule.actions[order])
    columns = {
        "style": _narrow(style, signed=False),
        "unit": _differences(style, unit),
        "start": np.diff(start, prepend=np.uint32(0)),
        "slack": _ticks(timeline.slack[order], tick),
        "critical": timeline.critical[order].astype(np.uint8),
        "held": _idle(timeline, found, MEMORY, tick)[order],
        "wait": _idle(timeline, found, P2P, tick)[order],
        "queued": _ticks(queued(timeline), tick)[order],
        "level": _levels(timeline)[order],
        "place": _narrow(np.diff(order - np.arange(len(order)), prepend=0)),
    }
    if schedule.carries:
        columns["delayed"] = _ticks(queued(timeline, carried=True), tick)[order]
    kept = {name: column for name, column in columns.items() if column.any()}
    return {
        "name": captions.name(timeline),
        "setting": captions.setting(timeline),
        **sizes(schedule, "ranks", "stages", "chunks", "microbatches", "slices", "iterations"),
        "copies": schedule.placement.copies,
        "makespan": timeline.makespan,
        "bubble_ratio": timeline.bubble_ratio,
        "busy": timeline.busy.tolist(),
        "peak": timeline.peak_activation.tolist(),
        "idle": found.totals.T.tolist(),
        "tick": tick,
        "rounding": (0.5 if exact else 1.5) * tick,
        "counts": counts.tolist(),
        "needs": _needs(schedule, set(styles["kind"])),
        "shards": first_stages(schedule.placement).tolist() if schedule.vocabulary else [],
        "carries": schedule.carries,
        "tracks": _tracks(schedule),
        "palette": _palette(timeline, palette),
        "shades": captions.shades_note(timeline),
        "styles": styles,
        "columns": [[name, column.dtype.str[1:]] for name, column in kept.items()],
        # The bytes of a column, all lowest ones first.
        "data": deflated(
            *(
                column.view(np.uint8).reshape(-1, column.dtype.itemsize).T.tobytes()
                for column in kept.values()
            )
        ),
    }


def deflated(*columns: bytes) -> str:
    """Return the bytes of columns, one after the other, deflated and as text."""
    packed = zlib.compressobj(wbits=-15)
    return base64.b64encode(packed.compress(b"".join(columns)) + packed.flush()).decode()


def _palette(timeline: Timeline, palette: Palette) -> list[list[list[str]]]:
    """Return color and text color of every kind, for every shade: copies times chunks."""
    count = timeline.schedule.placement.copies * timeline.schedule.chunks
    shades = {kind: 1 if kind in STEP_KINDS else count for kind in Kind}
    return [
        [[color, text_color(color)] for color in
         (palette.shade(kind, index, shades[kind]) for index in range(shades[kind]))]
        for kind in Kind
    ]  # fmt: skip


def _rows(timeline: Timeline) -> tuple[Ints, Ints]:
    """Return positions of what is drawn, and how many each row has.

    The rows are compute of rank 0, of rank 1, …, then other streams likewise. What holds compute up
    is on its stream, and takes no time.
    """
    schedule = timeline.schedule
    kind = kinds_of(schedule.actions)
    rank = schedule.ranks_of_actions
    compute = among(kind, IN_TURN_KINDS)
    row = np.where(compute, rank, schedule.ranks + rank)
    order = np.arange(len(kind)) if compute.all() else np.lexsort((timeline.start, row))
    return order, np.bincount(row[order], minlength=2 * schedule.ranks)


def _styles(timeline: Timeline, order: Ints) -> tuple[dict[str, list[Any]], Ints]:
    """Return the distinct styles of actions, and the index of each action's style.

    The costs of actions of one style are the same entry of the vector of costs.
    """
    schedule, graph, memory = timeline.schedule, timeline.graph, timeline.memory
    actions = schedule.actions[order]
    place, held_as = schedule.places_of(actions), kinds_of(memory.actions[order])
    # Members of a group beyond the second share its half.
    half = np.minimum(pairs_of(actions), 2)
    cost = graph.cost[graph.node[order]].astype(np.int64)
    key = ((cost * graph.places + place) * 4 + half) * 32 + held_as
    _, first, style = np.unique(key, return_index=True, return_inverse=True)
    actions = actions[first]
    kind, stage, unit = kinds_of(actions), stages_of(actions), microbatches_of(actions)
    copy, shade = copies_and_shades(schedule, kind, stage, unit)
    added, freed = memory.changes(schedule, memory.actions[order[first]])
    columns: dict[str, NDArray[Any]] = {
        "kind": kind, "half": half[first], "stage": stage, "copy": copy, "shade": shade,
        "duration": timeline.duration[order[first]],
        "add": added, "free": freed,
        "link": links(timeline, actions)[0], "unit": unit,
    }  # fmt: skip
    if schedule.carries:
        columns["carry"] = links(timeline, actions, carried=True)[0]
    return {name: column.tolist() for name, column in columns.items()}, style


def _levels(timeline: Timeline) -> NDArray[np.float32]:
    """Return the rank's peak memory during each action; 0 where actions alone determine it."""
    schedule = timeline.schedule
    found = np.zeros(len(schedule), dtype=np.float32)
    if not timeline.graph.has_copies:
        return found
    for rank in range(schedule.ranks):
        part = slice(int(schedule.offsets[rank]), int(schedule.offsets[rank + 1]))
        times, held = timeline.memory_curve(rank)
        held = np.concatenate([[0.0], held, [0.0]])
        begin = np.searchsorted(times, timeline.start[part], side="right")
        end = np.searchsorted(times, timeline.end[part], side="left") + 1
        spans = np.stack([begin, np.maximum(end, begin + 1)], axis=1).ravel()
        if len(spans):
            found[part] = np.maximum.reduceat(held, spans)[::2]
    return found


def _tick(timeline: Timeline) -> tuple[float, bool]:
    """Return the length of a tick, and whether every time is a multiple: the costs' own grid."""
    makespan = timeline.makespan
    if makespan == 0:
        return 1.0, True
    graph = timeline.graph
    values = timeline.costs[np.union1d(graph.cost, graph.lag)]
    values = values[values > 0][:GRID_SAMPLE]
    parts = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 25, 50, 100, 1000)
    decimals = (0.1, 0.01, 0.001, 1e-4, 1e-6)
    for tick in (*(float(values.min()) / part for part in parts), *decimals):
        if makespan / tick < TICKS - 1 and _on_grid(values, tick):
            # Sums of many costs round, and nothing may be moved to where it does not belong.
            if _on_grid(timeline.start, tick, SUM_ERROR):
                return tick, True
            break
    return makespan / (TICKS - 2), False


def _on_grid(times: NDArray[np.float64], tick: float, error: float = GRID_ERROR) -> bool:
    counts = times / tick
    return bool(np.abs(counts - np.rint(counts)).max(initial=0.0) < error)


def _ticks(times: NDArray[np.float64], tick: float) -> NDArray[np.uint32]:
    return np.rint(np.maximum(times, 0.0) / tick).astype(np.uint32)


def _differences(style: Ints, unit: Ints) -> NDArray[Any]:
    """Return units minus that of the previous action of the same style, 0 for each first one."""
    order = np.argsort(style, kind="stable")
    change = np.diff(unit[order], prepend=0)
    change[np.flatnonzero(np.diff(style[order], prepend=-1))] = 0
    found = np.empty_like(unit)
    found[order] = change
    return _narrow(found)


def _narrow(values: Ints, *, signed: bool = True) -> NDArray[Any]:
    """Return the values in the fewest bytes that hold them: 1, 2 or 4."""
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    most = {size: 1 << (8 * size - signed) for size in (1, 2)}
    fits = (size for size in most if -most[size] * signed <= low and high < most[size])
    return values.astype(f"<{'i' if signed else 'u'}{next(fits, 4)}")


def _idle(timeline: Timeline, found: Bubbles, cause: int, tick: float) -> NDArray[np.uint32]:
    """Return ticks of idle time of one cause before every action."""
    ticks = np.zeros(len(timeline.schedule), dtype=np.uint32)
    here = np.flatnonzero((found.cause == cause) & (found.before >= 0))
    ticks[found.before[here]] = _ticks(found.end[here] - found.start[here], tick)
    return ticks
