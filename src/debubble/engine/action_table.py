"""Start and end of every action of a timeline, as a table for spreadsheets and data frames."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import Kind, among, kinds_of, microbatches_of, stages_of
from debubble.core.kinds import WHOLE_STAGE_KINDS

if TYPE_CHECKING:
    from debubble.engine.timeline import Timeline

_KIND_NAMES = np.array([kind.name for kind in Kind], dtype=object)


class ActionTime(NamedTuple):
    """One action and when it runs; see :class:`ActionTable`."""

    rank: int
    action: str
    stage: int
    kind: str
    microbatch: int
    slice: int
    start: float
    end: float
    duration: float


@dataclass(frozen=True, eq=False, repr=False)
class ActionTable:
    """A row for every action, rank by rank in the order of the programs.

    Parameters
    ----------
    rank, stage, microbatch, slice
        Rank, stage and microbatch, integers of shape ``(n,)``. An OPT has the number of its
        iteration for a microbatch.
    action, kind
        ``"3B2"`` and ``"B"``, text of shape ``(n,)``.
    start, end, duration
        In the unit of the costs, shape ``(n,)``. The halves of an overlapped pair have the pair's.

    Examples
    --------
    >>> import debubble as db
    >>> table = db.simulate(db.make("1f1b", ranks=2, microbatches=2), db.Costs(F=1, B=2)).actions()
    >>> table[2].action, table[2].start, table[2].end
    ('0B0', 4.0, 6.0)
    >>> float(table.end[table.kind == "F"].max())
    5.0
    """

    rank: NDArray[np.int64]
    action: NDArray[np.object_]
    stage: NDArray[np.int64]
    kind: NDArray[np.object_]
    microbatch: NDArray[np.int64]
    slice: NDArray[np.int64]
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    duration: NDArray[np.float64]

    @classmethod
    def of(cls, timeline: Timeline) -> ActionTable:
        """Return the table of a timeline."""
        schedule = timeline.schedule
        actions = schedule.actions
        kind, stage, unit = kinds_of(actions), stages_of(actions), microbatches_of(actions)
        whole = among(kind, WHOLE_STAGE_KINDS)
        part = np.where(whole, 0, unit % schedule.slices)
        microbatch = np.where(whole, unit, unit // schedule.slices)
        names = _KIND_NAMES[kind]
        numbers = (stage.tolist(), names.tolist(), microbatch.tolist())
        texts = [f"{s}{k}{m}" for s, k, m in zip(*numbers, strict=True)]
        if schedule.slices > 1:
            shown = zip(texts, part.tolist(), whole.tolist(), strict=True)
            texts = [text if alone else f"{text}.{j}" for text, j, alone in shown]
        return cls(
            schedule.ranks_of_actions,
            np.array(texts, dtype=object),
            stage.astype(np.int64),
            names,
            microbatch.astype(np.int64),
            part.astype(np.int64),
            timeline.start,
            timeline.end,
            timeline.duration,
        )

    def __len__(self) -> int:
        return len(self.rank)

    def __getitem__(self, index: int) -> ActionTime:
        return ActionTime(*(column[index].item() if isinstance(column[index], np.generic)
                            else column[index] for column in self.columns.values()))  # fmt: skip

    def __iter__(self) -> Iterator[ActionTime]:
        return map(ActionTime, *(column.tolist() for column in self.columns.values()))

    def __repr__(self) -> str:
        return f"<ActionTable of {len(self):,} actions>"

    @property
    def columns(self) -> dict[str, NDArray[Any]]:
        """All columns by name, as a data frame takes them."""
        return {spec.name: getattr(self, spec.name) for spec in fields(self)}

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Rows of plain values, times to twelve digits of the last end: without those of rounding.

        That is 58.9, where sums of the costs are 58.900000000000006.
        """
        last = float(self.end.max(initial=0.0))
        digits = 12 - math.ceil(math.log10(last)) if last > 1e-290 else 300
        plain = (
            np.round(column, digits) + 0.0 if column.dtype == np.float64 else column
            for column in self.columns.values()
        )
        return zip(*(column.tolist() for column in plain), strict=True)

    def records(self) -> list[dict[str, Any]]:
        """Return a dictionary per action."""
        names = list(self.columns)
        return [dict(zip(names, row, strict=True)) for row in self.rows()]

    def csv(self) -> str:
        """Return the table as CSV with a line of column names."""
        lines = [",".join(self.columns)]
        row = ",".join(["{}"] * len(self.columns)).format
        lines += [row(*values) for values in self.rows()]
        return "\n".join(lines) + "\n"
