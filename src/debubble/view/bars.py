"""Bars: a timeline as arrays of rectangles, and what many of them look like from afar."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import kinds_of, microbatches_of, pairs_of, stages_of
from debubble.core.kinds import COMPUTE_KINDS, STEP_KINDS, VOCABULARY_KINDS, Kind
from debubble.core.placement import Placement
from debubble.engine.timeline import Timeline

WHOLE, UPPER, LOWER = 0, 1, 2
"""Parts of a rank's row: all of it, or the half that one action of an overlapped pair gets."""


@dataclass(frozen=True, eq=False)
class Bars:
    """The actions that occupy a rank's compute stream, as rectangles.

    Arrays have one entry per bar, rank by rank and in order of time.
    """

    timeline: Timeline
    """The timeline."""
    offsets: NDArray[np.int64]
    """``offsets[r]:offsets[r + 1]`` are the bars of rank r."""
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    kind: NDArray[np.int64]
    """:class:`debubble.core.actions.Kind` values."""
    shade: NDArray[np.int64]
    """Index of the shade: chunk of the rank, those of the second copy after the first's."""
    shades: int
    """Copies times chunks."""
    half: NDArray[np.int64]
    """:data:`WHOLE`, :data:`UPPER` or :data:`LOWER`."""
    stage: NDArray[np.int64]
    """Stages of the model."""
    unit: NDArray[np.int64]
    """Microbatch (or slice of one), counted on through all iterations; the iteration for OPT."""
    iteration: NDArray[np.int64]
    """Iteration of the action."""

    @property
    def ranks(self) -> int:
        """Number of rows."""
        return len(self.offsets) - 1

    @property
    def paired(self) -> bool:
        """Whether any two bars overlap."""
        return bool(self.half.any())

    @cached_property
    def rank(self) -> NDArray[np.int64]:
        """Rank of every bar."""
        return np.repeat(np.arange(self.ranks), np.diff(self.offsets))

    @cached_property
    def _style_index(self) -> tuple[tuple[tuple[Kind, int], ...], NDArray[np.int64]]:
        codes = self.kind * self.shades + self.shade
        counts = np.bincount(codes, minlength=len(Kind) * self.shades)
        used = [
            kind * self.shades + shade
            for kind in COMPUTE_KINDS
            for shade in range(self.shades)
            if counts[kind * self.shades + shade]
        ]
        place = np.zeros(len(counts), dtype=np.int64)
        place[used] = np.arange(len(used))
        return tuple((Kind(code // self.shades), code % self.shades) for code in used), place[codes]

    @property
    def styles(self) -> tuple[tuple[Kind, int], ...]:
        """The (kind, shade) that occur, in the order of a legend."""
        return self._style_index[0]

    @property
    def style(self) -> NDArray[np.int64]:
        """Index into :attr:`styles` of every bar."""
        return self._style_index[1]

    def shade_of(self, style: int) -> tuple[Kind, int, int]:
        """Kind, index and number of shades of a style, as :func:`debubble.view.colors.shade`."""
        kind, index = self.styles[style]
        return (kind, 0, 1) if kind in STEP_KINDS else (kind, index, self.shades)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds that occur, in the order of a legend."""
        return tuple(dict.fromkeys(kind for kind, _ in self.styles))

    def of(self, rank: int) -> slice:
        """Index range of the bars of one rank."""
        return slice(int(self.offsets[rank]), int(self.offsets[rank + 1]))

    @cached_property
    def steps(self) -> NDArray[np.bool_]:
        """Mask of the bars that are optimizer steps."""
        return np.isin(self.kind, STEP_KINDS)

    @cached_property
    def number(self) -> NDArray[np.int64]:
        """Argument of :meth:`text` for every bar: its unit, −1 (no label) for optimizer steps."""
        return np.where(self.steps, -1, self.unit)

    def text(self, number: int, first: int = 0) -> str:
        """The microbatch, or microbatch.slice, of a unit; microbatches count from `first`."""
        if number < 0:
            return ""
        slices = self.timeline.schedule.slices
        if slices == 1:
            return str(number + first)
        return f"{number // slices + first}.{number % slices}"

    def label(self, bar: int) -> str:
        """Label of a bar."""
        return self.text(int(self.number[bar]))

    def within(self, begin: float, end: float) -> Bars:
        """The bars of a stretch of time, cut where they reach beyond it."""
        kept = (self.end > begin) & (self.start < end)
        kept |= (self.start == self.end) & (self.start >= begin) & (self.end <= end)
        counts = np.concatenate([[0], np.cumsum(kept)])
        return Bars(
            self.timeline, counts[self.offsets], np.maximum(self.start[kept], begin),
            np.minimum(self.end[kept], end), self.kind[kept], self.shade[kept], self.shades,
            self.half[kept], self.stage[kept], self.unit[kept], self.iteration[kept],
        )  # fmt: skip

    def shares(
        self, rank: int, columns: int, span: float, half: int = WHOLE, begin: float = 0.0
    ) -> NDArray[np.float64]:
        """Share of each of `columns` equal time intervals that each style fills.

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
        if half == WHOLE:
            weight = np.where(halves == WHOLE, 1.0, 0.5)
        else:
            weight = np.where((halves == WHOLE) | (halves == half), 1.0, 0.0)
        head = np.minimum(left.astype(np.int64), columns - 1)
        tail = np.maximum(np.ceil(right).astype(np.int64) - 1, head)
        size = columns * count

        def add(column: NDArray[np.int64], amount: NDArray[np.float64]) -> NDArray[np.float64]:
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
        """The longest time of which every start and end is a multiple, 0 when there is none.

        Looked for among simple fractions of the shortest gap between two events, which finds it
        for the round costs that figures are drawn with.
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


def bars_of(timeline: Timeline) -> Bars:
    """The bars of a timeline; transfers, offloads and other streams are left out.

    So are passes of the output layer where costs name no head.
    """
    schedule = timeline.schedule
    kind = kinds_of(schedule.actions)
    drawn = np.isin(kind, COMPUTE_KINDS)
    drawn &= ~np.isin(kind, VOCABULARY_KINDS) | (timeline.duration > 0)
    counts = np.concatenate([[0], np.cumsum(drawn)])
    offsets = counts[schedule.offsets]
    actions = schedule.actions[drawn]
    kind, start, end = kind[drawn], timeline.start[drawn], timeline.end[drawn]

    stage, unit = stages_of(actions), microbatches_of(actions)
    period = schedule.microbatches * schedule.slices
    copies, chunks = schedule.placement.copies, schedule.chunks
    step = np.isin(kind, STEP_KINDS)
    copy = np.where(step, 0, schedule.copies_of(unit))
    iteration = np.where(step, unit, unit // period)
    shade = np.where(step, 0, copy * chunks + chunks_of(schedule.placement)[copy, stage])

    # The forward of a pair is its first action.
    half = np.minimum(pairs_of(actions), 2)
    return Bars(
        timeline, offsets, start, end, kind, shade, copies * chunks, half, stage, unit, iteration
    )


def chunks_of(placement: Placement) -> NDArray[np.int64]:
    """Chunk of every (copy, stage): how many earlier stages of the copy its rank holds."""
    table = np.asarray(placement.table, dtype=np.int64)
    chunks = np.zeros_like(table)
    for copy, row in enumerate(table):
        order = np.argsort(row, kind="stable")
        owners = row[order]
        chunks[copy, order] = np.arange(len(row)) - np.searchsorted(owners, owners)
    return chunks
