"""Rectangles of a timeline: bars of computing actions, and layout of rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import kinds_of, microbatches_of, pairs_of, stages_of
from debubble.core.kinds import (
    COMPUTE_KINDS,
    STEP_KINDS,
    VOCABULARY_KINDS,
    Kind,
)
from debubble.core.placement import Placement
from debubble.core.schedule import Schedule
from debubble.engine.timeline import Timeline

Floats: TypeAlias = NDArray[np.floating[Any]]
Ints: TypeAlias = NDArray[np.int64]

WHOLE, UPPER, LOWER = 0, 1, 2
"""Parts of a rank's row: all of it, or the half that one action of an overlapped pair gets."""


@dataclass(frozen=True, eq=False)
class Bars:
    """Actions of the ranks' compute streams as rectangles.

    Arrays have one entry per bar, rank by rank and in order of time.
    """

    timeline: Timeline
    offsets: Ints
    """``offsets[r]:offsets[r + 1]`` are the bars of rank r."""
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    kind: Ints
    """:class:`debubble.core.actions.Kind` values."""
    shade: Ints
    """Index of the shade: chunk of the rank, those of the second copy after the first's."""
    shades: int
    """Copies times chunks."""
    half: Ints
    """:data:`WHOLE`, :data:`UPPER` or :data:`LOWER`."""
    stage: Ints
    """Stages of the model."""
    unit: Ints
    """Microbatch (or slice of one), counted on through all iterations; the iteration for OPT."""
    iteration: Ints

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.offsets) - 1

    @property
    def paired(self) -> bool:
        """Return whether any two bars overlap in time."""
        return bool(self.half.any())

    @cached_property
    def rank(self) -> Ints:
        """Rank of every bar."""
        return np.repeat(np.arange(self.ranks), np.diff(self.offsets))

    @cached_property
    def _style_index(self) -> tuple[tuple[tuple[Kind, int], ...], Ints]:
        codes = _LEGEND_PLACE[self.kind] * self.shades + self.shade
        there = np.bincount(codes) > 0
        used = (divmod(code, self.shades) for code in np.flatnonzero(there).tolist())
        return tuple((COMPUTE_KINDS[k], shade) for k, shade in used), (np.cumsum(there) - 1)[codes]

    @property
    def styles(self) -> tuple[tuple[Kind, int], ...]:
        """Each (kind, shade) that occurs, in legend order."""
        return self._style_index[0]

    @property
    def style(self) -> Ints:
        """Index into :attr:`styles` of every bar."""
        return self._style_index[1]

    def shade_of(self, style: int) -> tuple[Kind, int, int]:
        """Return a style's arguments for :meth:`debubble.view.colors.Palette.shade`."""
        kind, index = self.styles[style]
        return (kind, 0, 1) if kind in STEP_KINDS else (kind, index, self.shades)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Kinds that occur, in legend order."""
        return tuple(dict.fromkeys(kind for kind, _ in self.styles))

    def of(self, rank: int) -> slice:
        """Return the index range of a rank's bars."""
        return slice(int(self.offsets[rank]), int(self.offsets[rank + 1]))

    @cached_property
    def steps(self) -> NDArray[np.bool_]:
        """Mask of the bars that are optimizer steps."""
        return np.isin(self.kind, STEP_KINDS)

    @cached_property
    def number(self) -> Ints:
        """Argument of :meth:`text` for every bar: its unit, −1 (no label) for optimizer steps."""
        return np.where(self.steps, -1, self.unit)

    def text(self, number: int, first: int = 0) -> str:
        """Return a unit as ``microbatch`` or ``microbatch.slice``, the first microbatch `first`."""
        if number < 0:
            return ""
        slices = self.timeline.schedule.slices
        if slices == 1:
            return str(number + first)
        return f"{number // slices + first}.{number % slices}"

    def label(self, bar: int) -> str:
        """Return the label of a bar."""
        return self.text(int(self.number[bar]))

    def within(self, begin: float, end: float) -> Bars:
        """Return the bars of a stretch of time, cut where they reach beyond it."""
        kept = (self.end > begin) & (self.start < end)
        kept |= (self.start == self.end) & (self.start >= begin) & (self.end <= end)
        names = ("kind", "shade", "half", "stage", "unit", "iteration")
        return replace(
            self,
            offsets=np.concatenate([[0], np.cumsum(kept)])[self.offsets],
            start=np.maximum(self.start[kept], begin),
            end=np.minimum(self.end[kept], end),
            **{name: getattr(self, name)[kept] for name in names},
        )

    def shares(
        self, rank: int, columns: int, span: float, half: int = WHOLE, begin: float = 0.0
    ) -> NDArray[np.float64]:
        """Return the share that each style fills of each of `columns` equal time intervals.

        They cover the time `span` from `begin` on, in one row. With :data:`UPPER` or :data:`LOWER`
        it is one half of the row; for the whole row each bar of an overlapped pair counts for half
        of its time. The shape is ``(columns, styles)``; rows sum to at most 1, the rest is idle.
        """
        part = self.of(rank)
        style, count = self.style[part], len(self.styles)
        scale = columns / span if span > 0 else 0.0
        left = np.clip((self.start[part] - begin) * scale, 0, columns)
        right = np.clip((self.end[part] - begin) * scale, 0, columns)
        halves = self.half[part]
        weight = np.where(halves == WHOLE, 1.0, 0.5 if half == WHOLE else halves == half)
        head = np.minimum(left.astype(np.int64), columns - 1)
        tail = np.maximum(np.ceil(right).astype(np.int64) - 1, head)
        size = columns * count

        def add(column: Ints, amount: NDArray[np.float64]) -> NDArray[np.float64]:
            cells = column * count + style
            sums = np.bincount(cells, amount * weight, minlength=size + count)
            return sums.astype(np.float64, copy=False)

        filled = add(head, np.minimum(right, head + 1) - left)
        filled += add(tail, np.where(tail > head, right - tail, 0.0))
        # Columns that a bar fills from side to side: +1 where they begin, −1 where they end.
        wide = (tail > head + 1).astype(np.float64)
        change = add(np.minimum(head + 1, tail), wide) - add(tail, wide)
        inner = np.cumsum(change.reshape(-1, count), axis=0)[:columns]
        total: NDArray[np.float64] = filled[:size].reshape(columns, count) + inner
        return np.clip(total, 0.0, 1.0)

    def slot(self) -> float:
        """Return the longest time of which every start and end is a multiple, 0 for none.

        Only simple fractions of the shortest gap between two events are tried, which is enough for
        round costs.
        """
        times = np.unique(np.concatenate([[0.0], self.start, self.end]))
        gaps = np.diff(times)
        gaps = gaps[gaps > 1e-9 * max(times[-1], 1.0)]
        if not len(gaps):
            return 0.0
        for parts in (1, 2, 3, 4, 5):
            slot = float(gaps.min()) / parts
            counts = times / slot
            if np.abs(counts - np.rint(counts)).max() < 1e-4:
                return slot
        return 0.0


_LEGEND_PLACE = np.array([(*COMPUTE_KINDS, kind).index(kind) for kind in Kind])
"""Place in the legend of every kind; those that are no bars come after all others."""


def bars_of(timeline: Timeline) -> Bars:
    """Return the bars of a timeline; transfers, copies and other streams have none.

    Nor have passes of the output layer where costs name no head.
    """
    schedule = timeline.schedule
    kind = kinds_of(schedule.actions)
    drawn = np.isin(kind, COMPUTE_KINDS)
    drawn &= ~np.isin(kind, VOCABULARY_KINDS) | (timeline.duration > 0)
    offsets = np.concatenate([[0], np.cumsum(drawn)])[schedule.offsets]
    actions, kind = schedule.actions[drawn], kind[drawn]
    stage, unit = stages_of(actions), microbatches_of(actions)
    return Bars(
        timeline,
        offsets,
        timeline.start[drawn],
        timeline.end[drawn],
        kind,
        copies_and_shades(schedule, kind, stage, unit)[1],
        schedule.placement.copies * schedule.chunks,
        # The forward of a pair is its first action.
        np.minimum(pairs_of(actions), 2),
        stage,
        unit,
        np.where(
            np.isin(kind, STEP_KINDS), unit, unit // (schedule.microbatches * schedule.slices)
        ),
    )


def copies_and_shades(schedule: Schedule, kind: Ints, stage: Ints, unit: Ints) -> tuple[Ints, Ints]:
    """Return the model copy and the index of the shade of actions, both 0 for optimizer steps."""
    step = np.isin(kind, STEP_KINDS)
    copy = np.where(step, 0, schedule.copies_of(unit))
    shade = copy * schedule.chunks + chunks_of(schedule.placement)[copy, stage]
    return copy, np.where(step, 0, shade)


def chunks_of(placement: Placement) -> Ints:
    """Return the chunk of every (copy, stage): how many earlier stages of it its rank holds."""
    table = np.asarray(placement.table, dtype=np.int64)
    chunks = np.zeros_like(table)
    for copy, row in enumerate(table):
        order = np.argsort(row, kind="stable")
        owners = row[order]
        chunks[copy, order] = np.arange(len(row)) - np.searchsorted(owners, owners)
    return chunks


_GAP = 1 / 15
_RIBBON = 0.14
_STRIP = 7 / 15
_LANE = 0.3
_BELOW = 0.25
"""Heights of the parts of a row, in heights of a bar."""


@dataclass(frozen=True)
class RowLayout:
    """Vertical layout of a rank's row, one unit high: its middle is at y = rank, y points down."""

    top: float
    height: float
    """Top and height of bars."""
    ribbon: float
    """Height of the band below the bars that marks iterations, 0 for none."""
    transfers: float
    transfers_height: float
    """Top and height of all lanes of transfers, the upper half for sends; height 0 for none."""
    strip: float
    strip_height: float
    """Baseline and height of the memory strip; height 0 for none."""
    share: float
    """Height of a row in heights of its bars."""

    def extent(self, bars: Bars) -> tuple[Floats, Floats]:
        """Return the upper and lower edge of every bar."""
        top = bars.rank + self.top + np.where(bars.half == LOWER, self.height / 2, 0.0)
        return top, top + np.where(bars.half == WHOLE, self.height, self.height / 2)


def row_layout(*, iterations: bool, transfers: int, memory: bool, label: float = 0.0) -> RowLayout:
    """Return a layout with the wanted parts, and so many lanes of transfers.

    `label` is the least height of such a lane, in heights of a bar.
    """
    ribbon = _RIBBON if iterations else 0.0
    moving = transfers * max(_LANE, label)
    strip = _STRIP if memory else 0.0
    pieces = 1 + (moving > 0) + (strip > 0)
    # A row of bars alone has more room around it.
    gap = _GAP if pieces > 1 else 2 / 21
    # Parts below the bars stand nearer to their own rank's bars than to the next one's.
    below = _BELOW if pieces > 1 else gap
    share = 1 + ribbon + moving + strip + pieces * gap + below
    top = -0.5 + gap / share
    return RowLayout(
        top=top,
        height=1 / share,
        ribbon=ribbon / share,
        transfers=top + (1 + ribbon + gap) / share,
        transfers_height=moving / share,
        strip=0.5 - below / share if memory else 0.0,
        strip_height=strip / share,
        share=share,
    )
