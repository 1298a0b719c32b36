"""The result of comparing schedules: a ranking, a headline, tables and pictures."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from debubble.analysis.metrics import (
    MEASURES,
    MODES,
    VOCABULARY,
    amount_text,
    memory_text,
    number,
    percent,
    recompute_text,
    recompute_words,
    replicas_words,
    slices_text,
    table,
    times_text,
)
from debubble.core.costs import Costs
from debubble.core.schedule import Schedule
from debubble.engine.graph import P2PMode
from debubble.engine.timeline import Timeline

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, eq=False)
class Row:
    """One schedule of a comparison.

    Parameters
    ----------
    name
        What it is called in the comparison.
    schedule, timeline
        The order and its simulation.
    makespan, bubble_ratio, overhead, stage_bubble_rate
        As in :class:`~debubble.Timeline`.
    peak_activation
        Of the fullest rank.
    parameter_copies
        How often the ranks together hold the weights: copies of the model × weight versions.
    p2p_volume
        Boundary transfers between ranks, times the message size where costs name one.
    weight_versions
        Versions of the weights its training rule keeps, on the rank that keeps most.
    fits
        Whether every rank is within the memory limit.
    ratio
        Makespan divided by that of the best row.
    """

    name: str
    schedule: Schedule
    timeline: Timeline
    makespan: float
    bubble_ratio: float
    overhead: float
    stage_bubble_rate: float
    peak_activation: float
    parameter_copies: float
    p2p_volume: float
    weight_versions: int
    fits: bool = True
    ratio: float = 1.0

    def relative_to(self, best: float) -> Row:
        """The same row with its ratio to a makespan."""
        return replace(self, ratio=self.makespan / best if best else 1.0)

    def to_dict(self) -> dict[str, Any]:
        """The row as plain data."""
        schedule = self.schedule
        return {
            "name": self.name,
            "schedule": schedule.name,
            "ranks": schedule.ranks,
            "chunks": schedule.chunks,
            "stages": schedule.stages,
            "microbatches": schedule.microbatches,
            "iterations": schedule.iterations,
            "recompute": recompute_text(schedule) or None,
            "makespan": self.makespan,
            "ratio": self.ratio,
            "bubble_ratio": self.bubble_ratio,
            "overhead": self.overhead,
            "stage_bubble_rate": self.stage_bubble_rate,
            "peak_activation": self.peak_activation,
            "fits": self.fits,
            "parameter_copies": self.parameter_copies,
            "p2p_volume": self.p2p_volume,
            "weight_versions": self.weight_versions,
        }


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Schedules side by side; made by :func:`debubble.compare`.

    Parameters
    ----------
    rows
        By makespan, those within memory first.
    skipped
        Name and reason of schedules that could not be made or run.
    notes
        What to know before believing the ranking, for instance that the models differ.
    costs, memory, p2p_mode, time_unit, memory_unit
        What was asked for.
    baseline
        Name of the first schedule asked for, which the headline compares the best with.
    """

    rows: tuple[Row, ...]
    skipped: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    costs: Costs = field(default_factory=Costs)
    memory: float | None = None
    p2p_mode: P2PMode = "overlapped"
    time_unit: str = ""
    memory_unit: str = ""
    baseline: str = ""

    @property
    def best(self) -> Row | None:
        """The fastest row within memory; None when none is."""
        return self.rows[0] if self.rows and self.rows[0].fits else None

    @property
    def timelines(self) -> list[Timeline]:
        """The simulations, in the order of the rows."""
        return [row.timeline for row in self.rows]

    @property
    def headline(self) -> str:
        """The result in one sentence."""
        limit = self._limit()
        if not self.rows:
            return "no schedule could be compared"
        best = self.best
        if best is None:
            small = min(self.rows, key=lambda row: row.peak_activation)
            return (
                f"no schedule fits {limit}; {small.name} comes nearest, "
                f"with {self._amount(small.peak_activation)}"
            )
        head = f"{best.name} is fastest"
        if limit:
            head += f" {limit}"
        head += f": {self._time(best.makespan)}"
        other = self._reference(best)
        if other is None:
            return head
        saved = 1 - best.makespan / other.makespan if other.makespan else 0.0
        if saved >= 5e-4:
            return f"{head}, {100 * saved:.1f} % less time than {other.name}"
        head = f"{head}, the same time as {other.name}"
        if best.peak_activation < other.peak_activation:
            head += f" with less activation memory ({number(best.peak_activation)} against "
            head += f"{number(other.peak_activation)})"
        return head

    def conventions(self) -> dict[str, str]:
        """What the numbers mean, in words."""
        words = {
            "times": times_text(self.costs),
            "p2p": f"{self.p2p_mode}: {MODES[self.p2p_mode]}",
            "memory": memory_text(self.costs, *(row.schedule for row in self.rows)),
            "ratio": "makespan / makespan of the first row, the fastest within memory if any is",
            "p2p_volume": "transfers of one boundary activation or gradient between ranks",
        }
        slices: dict[str, list[str]] = {}
        for row in self.rows:
            if row.schedule.slices > 1:
                slices.setdefault(slices_text(row.timeline), []).append(row.name)
        if slices:
            words["slices"] = "; ".join(f"{', '.join(n)}: {text}" for text, n in slices.items())
        sharded: dict[int, list[str]] = {}
        for row in self.rows:
            sharded.setdefault(row.schedule.vocabulary, []).append(row.name)
        parts = [f"{', '.join(sharded[i])}: {VOCABULARY[i]}" for i in sorted(sharded) if i]
        if parts:
            words["vocabulary"] = "; ".join(parts)
        if self.costs.message > 0:
            words["p2p_volume"] += f", times the message size of {self.costs.message:g}"
        units = {"time_unit": self.time_unit, "memory_unit": self.memory_unit}
        words |= {name: unit for name, unit in units.items() if unit}
        names = ("makespan", "bubble_ratio", "stage_bubble_rate", "overhead", "parameter_copies")
        words |= {name: MEASURES[name] for name in names}
        words["peak_activation"] = "of the fullest rank"
        found = [recompute_words(row.schedule).get("recompute", "") for row in self.rows]
        if any(found):
            words["recompute"] = " / ".join(dict.fromkeys(text or "none" for text in found))
        for row in self.rows:
            words |= replicas_words(row.schedule)
        return words

    def to_dict(self) -> dict[str, Any]:
        """The comparison as plain data, for JSON."""
        return {
            "headline": self.headline,
            "best": self.best.name if self.best else None,
            "memory": self.memory,
            "rows": [row.to_dict() for row in self.rows],
            "skipped": [{"name": name, "reason": reason} for name, reason in self.skipped],
            "notes": list(self.notes),
            "conventions": self.conventions(),
        }

    def __str__(self) -> str:
        lines = [self.headline, ""]
        if self.rows:
            heads = [list(line) for line in zip(*self._heads(), strict=True)]
            lines += [*table([*heads, *self._cells()]), ""]
        return "\n".join([*lines, *self._footer()])

    def __repr__(self) -> str:
        return f"<Comparison of {len(self.rows)} schedules: {self.headline}>"

    def render(self) -> Table:
        """The table for a terminal, with the best row in green and those above memory dim."""
        from rich.table import Table
        from rich.text import Text

        grid = Table(
            title=Text(self.headline, style="bold"),
            title_justify="left",
            caption=Text("\n".join(self._footer()), style="dim"),
            caption_justify="left",
            box=None,
            pad_edge=False,
            header_style="dim",
        )
        cells = self._cells()
        for index, head in enumerate(self._heads()):
            # Folded, not cut, where the terminal is too narrow; names are the widest, and go first.
            grid.add_column(
                Text("\n".join(head)), justify="right" if index else "left", overflow="fold"
            )
        for row, line in zip(self.rows, cells, strict=True):
            style = "" if row.fits else "dim"
            grid.add_row(*map(Text, line), style="green" if row is self.best else style)
        return grid

    # Pictures live above this layer; their modules are resolved when somebody asks for one.

    def save(self, path: str | Path, **options: Any) -> None:
        """Write a picture of all timelines, best first: .png, .svg, .pdf, .html or .txt.

        The title is the headline unless there is another; options as for
        :meth:`debubble.Timeline.save`.
        """
        shared: dict[str, Any] = {"title": self.headline, "time_unit": self.time_unit}
        ending = Path(path).suffix.lower()
        if ending != ".txt":
            shared["limit"] = self.memory
        if ending == ".html":
            shared["table_html"] = self._table_html()
        files = importlib.import_module("debubble.view.files")
        files.save(self.timelines, path, **shared | options)

    def _repr_html_(self) -> str:
        footer = "<br>".join(map(escape, self._footer()))
        pictures = importlib.import_module("debubble.view.page").cell(
            self.timelines, time_unit=self.time_unit, limit=self.memory
        )
        return f"<p><b>{escape(self.headline)}</b></p>{self._table_html()}<p>{footer}</p>{pictures}"

    def _table_html(self) -> str:
        heads = "".join(f"<th>{escape(' '.join(head).strip())}</th>" for head in self._heads())
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
            for cells in self._cells()
        )
        return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"

    def _heads(self) -> list[tuple[str, str, str]]:
        """Three lines over every column, so that a table fits in 80 columns."""
        heads = [
            ("", "", "schedule"),
            ("", "makespan", f"[{self.time_unit}]") if self.time_unit else ("", "", "makespan"),
            ("", "time /", "best"),
            ("", "bubble", "ratio"),
            ("", "", "overhead"),
            ("peak", "activa-", "tion"),
            ("para-", "meter", "copies"),
            ("", "p2p", "volume"),
        ]
        return heads if self.memory is None else [*heads, ("", "within", "memory")]

    def _cells(self) -> list[list[str]]:
        cells = [
            [
                row.name,
                number(row.makespan),
                f"{row.ratio:.3f}",
                percent(row.bubble_ratio),
                percent(row.overhead),
                number(row.peak_activation),
                str(row.parameter_copies),
                number(row.p2p_volume),
            ]
            for row in self.rows
        ]
        if self.memory is not None:
            for row, line in zip(self.rows, cells, strict=True):
                line.append("yes" if row.fits else "no")
        return cells

    def _footer(self) -> list[str]:
        words = self.conventions()
        lines = [f"skipped {name}: {reason}" for name, reason in self.skipped]
        lines += [f"note: {note}" for note in self.notes]
        shown = ("times", "slices", "p2p", "p2p_volume", "memory", "recompute", "replicas")
        return lines + [f"{key.replace('_', ' ')}: {words[key]}" for key in shown if key in words]

    def _limit(self) -> str:
        return "" if self.memory is None else f"within {self._amount(self.memory)}"

    def _amount(self, value: float) -> str:
        return amount_text(value, self.costs, self.memory_unit)

    def _time(self, value: float) -> str:
        return f"{number(value)} {self.time_unit}".rstrip()

    def _reference(self, best: Row) -> Row | None:
        """The row to hold the best against: the first one asked for, or else the runner-up."""
        others = [row for row in self.rows if row.fits and row is not best]
        return next(
            (row for row in others if row.name == self.baseline), others[0] if others else None
        )
