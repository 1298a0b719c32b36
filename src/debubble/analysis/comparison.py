"""The result of comparing schedules: a ranking, a headline, tables and pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Any

from debubble.analysis.layout import PIPED, Column, html_table, text_table, unstyled, wrap
from debubble.analysis.measures import FULLEST, compared
from debubble.analysis.metrics import (
    MODES,
    VOCABULARY,
    amount_text,
    in_short,
    measure_words,
    memory_text,
    offload_text,
    recompute_words,
    replicas_words,
    slices_text,
    times_text,
    units,
)
from debubble.analysis.ranking import RankedBy, Row
from debubble.analysis.results import result_columns, spread_columns, spread_words
from debubble.core import hooks
from debubble.core.costs import Costs
from debubble.core.units import amount, percent, time
from debubble.engine.graph import P2PMode
from debubble.engine.memory import Limit, memory_limits
from debubble.engine.timeline import Timeline

MOST_RANK = 1
"""Largest rank of the columns of a table that is not wide."""

RATIO = {
    "makespan": "makespan / makespan of the first row, the fastest within memory if any is",
    "overhead": "none: the makespans are of different work",
}
"""Definition of the column `ratio`, for each criterion that rows are ranked by."""


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Schedules side by side; made by :func:`debubble.compare`.

    Parameters
    ----------
    rows
        By `ranked_by`, those within memory first.
    skipped
        Name and reason of schedules that could not be made or run.
    notes
        Caveats of the ranking, for instance that the models differ.
    unlike
        Why makespans cannot be compared, see :func:`debubble.analysis.same_work.differences`.
    costs, memory, p2p_mode, time_unit, memory_unit
        Arguments of the comparison.
    baseline
        Name of the first schedule asked for, which the headline compares the best with.
    """

    rows: tuple[Row, ...]
    skipped: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    unlike: tuple[str, ...] = ()
    costs: Costs = field(default_factory=Costs)
    memory: Limit | None = None
    p2p_mode: P2PMode = "overlapped"
    time_unit: str = ""
    memory_unit: str = ""
    baseline: str = ""

    @property
    def ranked_by(self) -> RankedBy:
        """Criterion of the ranking: makespan, or overhead where rows do different work."""
        return "overhead" if self.unlike else "makespan"

    @property
    def best(self) -> Row | None:
        """The fastest row within memory; None when none is, or where they do other work."""
        return None if self.unlike else self._first

    @property
    def _first(self) -> Row | None:
        return self.rows[0] if self.rows and self.rows[0].fits else None

    @property
    def timelines(self) -> list[Timeline]:
        """The simulations, in the order of the rows."""
        return [row.timeline for row in self.rows]

    @property
    def headline(self) -> str:
        """The result in one sentence."""
        winner = max(self.rows, key=lambda row: row.wins, default=None)
        if winner is None or winner.spread is None or len(self.rows) == 1 or self.unlike:
            return self._headline()
        return (
            f"{self._headline()}; under jitter {winner.name} is fastest in {percent(winner.wins)} "
            "of the steps"
        )

    def _headline(self) -> str:
        limit = "" if self.memory is None else f"within {self._amount(self.memory)}"
        if not self.rows:
            return "no schedule could be compared"
        best = self._first
        if best is None:
            small = min(self.rows, key=self._excess)
            return (
                f"no schedule fits {limit}; {small.name} comes nearest, "
                f"with {self._amount(small.peak_activation)}"
            )
        other = self._reference(best)
        within = f" {limit}" if limit else ""
        if self.unlike:
            head = f"{' and '.join(self.unlike)}, so none is fastest; {best.name} has the smallest "
            head += f"overhead{within}: {percent(best.overhead)}"
            if other is not None:
                theirs = percent(other.overhead)
                equal = theirs == percent(best.overhead)
                head += f", as {other.name}" if equal else f" against {theirs} of {other.name}"
            return head
        head = f"{best.name} is fastest{within}: {time(best.makespan, self.time_unit)}"
        if other is None:
            return head
        saved = 1 - best.makespan / other.makespan if other.makespan else 0.0
        if saved >= 5e-4:
            theirs = f"{other.name} ({time(other.makespan, self.time_unit)})"
            return f"{head}, {100 * saved:.1f} % less time than {theirs}"
        about = "the same" if saved < 1e-9 else "about the same"
        head = f"{head}, {about} time as {other.name}"
        if best.peak_activation < other.peak_activation:
            head += f" with less activation memory ({self._peak(best)} against "
            head += f"{self._peak(other)})"
        return head

    def conventions(self) -> dict[str, str]:
        """Return the conventions of the numbers, in words."""
        words = {
            "times": times_text(self.costs),
            "p2p": f"{self.p2p_mode}: {MODES[self.p2p_mode]}",
            "memory": memory_text(self.costs, *(row.schedule for row in self.rows)),
            "ratio": RATIO[self.ranked_by],
        }
        slices = self._names_by(lambda row: slices_text(row.timeline))
        if slices:
            words["slices"] = "; ".join(f"{names}: {text}" for text, names in slices.items())
        sharded = self._names_by(lambda row: VOCABULARY[row.schedule.vocabulary])
        parts = [f"{sharded[text]}: {text}" for text in VOCABULARY if text in sharded]
        if parts:
            words["vocabulary"] = "; ".join(parts)
        spreads = [row.spread for row in self.rows if row.spread is not None]
        if spreads:
            words["jitter"] = spread_words(spreads[0])
        units = {"time_unit": self.time_unit, "memory_unit": self.memory_unit}
        words |= {name: unit for name, unit in units.items() if unit}
        meanings = measure_words(self.costs)
        words |= {m.key: meanings[m.key] for m in compared() if m.words}
        words["peak_activation"] = FULLEST
        found = [recompute_words(row.schedule).get("recompute", "") for row in self.rows]
        if any(found):
            words["recompute"] = " / ".join(dict.fromkeys(text or "none" for text in found))
        copied = self._names_by(lambda row: offload_text(row.timeline))
        if copied:
            every = len({offload_text(row.timeline) for row in self.rows}) == 1
            words["offload"] = "; ".join(
                text if every else f"{names}: {text}" for text, names in copied.items()
            )
        for row in self.rows:
            words |= replicas_words(row.schedule)
        return words

    def _names_by(self, text_of: Callable[[Row], str]) -> dict[str, str]:
        """Return names of the rows that share a text, by that; rows without text are left out."""
        found: dict[str, list[str]] = {}
        for row in self.rows:
            found.setdefault(text_of(row), []).append(row.name)
        return {text: ", ".join(names) for text, names in found.items() if text}

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as plain data, for JSON."""
        return {
            "headline": self.headline,
            "best": self.best.name if self.best else None,
            "ranked_by": self.ranked_by,
            "memory": list(self.memory) if isinstance(self.memory, Sequence) else self.memory,
            "units": units(self.costs),
            "rows": [row.to_dict() for row in self.rows],
            "skipped": [{"name": name, "reason": reason} for name, reason in self.skipped],
            "notes": list(self.notes),
            "conventions": self.conventions(),
        }

    def __str__(self) -> str:
        return self.text(PIPED)

    def __repr__(self) -> str:
        return f"<Comparison of {len(self.rows)} schedules: {self.headline}>"

    def text(
        self, width: int, style: Callable[[str, str], str] = unstyled, *, wide: bool = True
    ) -> str:
        """Return the headline, table and conventions in lines of at most `width` characters.

        Parameters
        ----------
        width
            Characters of a line. Columns that have no room are left out, and named below.
        style
            Puts text in one of the styles ``"head"``, ``"best"`` and ``"faint"``, for terminals.
        wide
            Whether all columns are shown; else time, bubble and memory.
        """
        lines = [style(line, "head") for line in wrap(self.headline, width)] + [""]
        left_out: list[str] = []
        if self.rows:
            columns = [c for c in self.columns() if wide or c.rank <= MOST_RANK]
            (head, *rows), left_out = text_table(columns, width)
            lines += [style(line, "faint") for line in head]
            for row, block in zip(self.rows, rows, strict=True):
                name = "best" if row is self.best else "" if row.fits else "faint"
                lines += [style(line, name) if name else line for line in block]
            lines.append("")
        footer = self._footer()
        if left_out:
            footer.insert(0, f"no room for {', '.join(left_out)}: use a wider terminal, or --json")
        lines += [style(line, "faint") for text in footer for line in wrap(text, width, 2)]
        return "\n".join(lines)

    def save(self, path: str | Path, **options: Any) -> None:
        """Write a picture of all timelines, best first: .png, .svg, .pdf, .html or .txt.

        The title is the headline unless there is another; options as for
        :meth:`debubble.Timeline.save`. A .tex file has the table for LaTeX, with the options of
        :func:`debubble.view.latex.table`.
        """
        shown = self.with_names(options.get("label") or {})
        shared: dict[str, Any] = {"title": shown.headline, "time_unit": self.time_unit}
        ending = Path(path).suffix.lower()
        if ending == ".tex":
            hooks.save_table(self, path, **options)
            return
        if ending != ".txt":
            shared["limit"] = self.memory
        if ending == ".html":
            shared["table_html"] = shown._table_html()
        hooks.save_timelines(self.timelines, path, **shared | options)

    def with_names(self, names: Mapping[str, str]) -> Comparison:
        """Return the comparison with other names of rows in its headline and tables."""
        rows = (replace(row, name=names.get(row.name, row.name)) for row in self.rows)
        return replace(self, rows=tuple(rows)) if names else self

    def _repr_html_(self) -> str:
        footer = "<br>".join(map(escape, self._footer()))
        pictures = hooks.timelines_html(self.timelines, time_unit=self.time_unit, limit=self.memory)
        return f"<p><b>{escape(self.headline)}</b></p>{self._table_html()}<p>{footer}</p>{pictures}"

    def _table_html(self) -> str:
        return html_table(self.columns())

    def columns(self) -> list[Column]:
        """Return the table, column by column."""
        found = result_columns(
            [row.name for row in self.rows],
            self.timelines,
            ratios=[row.ratio for row in self.rows],
            limit=self.memory,
        )
        spreads = [row.spread for row in self.rows if row.spread is not None]
        if spreads:
            # Behind the makespan, and what it is of the best.
            after = 3 if len(self.rows) > 1 else 2
            wins = [row.wins for row in self.rows if len(self.rows) > 1 and not self.unlike]
            found[after:after] = spread_columns(spreads, wins, self.time_unit)
        return found

    def _footer(self) -> list[str]:
        words = self.conventions()
        lines = [f"skipped {name}: {reason}" for name, reason in self.skipped]
        lines += [f"note: {note}" for note in self.notes]
        lines += [f"jitter: {words['jitter']}"] if "jitter" in words else []
        return lines + in_short(words)

    def _excess(self, row: Row) -> float:
        """Return by how much the rank that is most above its limit is."""
        limits = memory_limits(self.memory, row.schedule.ranks)
        assert limits is not None, "without a limit every row fits"
        return float((row.timeline.peak_activation - limits).max())

    def _amount(self, value: Limit) -> str:
        return amount_text(value, self.costs)

    def _peak(self, row: Row) -> str:
        return amount(row.peak_activation, self.costs.activation_unit)

    def _reference(self, best: Row) -> Row | None:
        """Return the row to compare the best with: the first one asked for, or the runner-up."""
        others = [row for row in self.rows if row.fits and row is not best]
        return next(
            (row for row in others if row.name == self.baseline), others[0] if others else None
        )
