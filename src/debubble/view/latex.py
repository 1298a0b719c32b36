"""A comparison as a table for LaTeX with the packages booktabs and siunitx."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from debubble.analysis.comparison import MOST_RANK, Comparison
from debubble.analysis.layout import Column
from debubble.analysis.metrics import amount_text
from debubble.analysis.tex import cited_by, comment, escape
from debubble.core.costs import COST_FIELDS
from debubble.core.errors import ParameterError
from debubble.core.units import number
from debubble.interchange.files import write_text
from debubble.view import captions

HEADS = {
    "makespan": "Time",
    "time / best": "/ best",
    "bubble ratio": "Bubble",
    "peak activation": "Peak",
}
"""Titles that are shorter there."""

MOST_WORDS = 25
"""Words of a caption."""

LABEL = "tab:schedules"


def table(
    comparison: Comparison,
    *,
    cite: bool = False,
    title: str | None = None,
    source: str = "",
    label: Mapping[str, str] | None = None,
) -> str:
    r"""Return a comparison as a floating table, its numbers aligned at the decimal point.

    With `cite`, names of schedules are followed by ``\cite`` of their sources. `title` stands in
    place of the caption. Comments in front define the numbers, and give `source`, the origin of the
    costs. `label` has texts in place of names of schedules.
    """  # fmt: skip
    columns = [c for c in comparison.columns() if c.rank <= MOST_RANK]
    names, *others = columns
    texts = [(label or {}).get(row.schedule.name, row.name) for row in comparison.rows]
    cells = [escape(name) for name in texts]
    if cite:
        keys = [cited_by(row.schedule.name) for row in comparison.rows]
        cells = [
            rf"{cell}~\cite{{{','.join(k)}}}" if k else cell
            for cell, k in zip(cells, keys, strict=True)
        ]
    numbers = [_Numbers.of(column) for column in others]
    rows = zip(cells, *(column.cells for column in numbers), strict=True)
    made = captions.facts([comparison.costs])
    words = {name: text for name, text in _conventions(comparison, source) if text}
    parts = [
        *(comment(f"{name}: {text}") for name, text in [*made, *words.items()]),
        comment(r"The preamble needs \usepackage{booktabs, siunitx}."),
        "\\begin{table}\n  \\centering\n",
        f"  \\caption{{{_caption(comparison, title)}}}\n  \\label{{{LABEL}}}\n",
        f"  \\begin{{tabular}}{{@{{}}l {' '.join(c.format for c in numbers)}@{{}}}}\n",
        "    \\toprule\n",
        _line([escape(names.title.capitalize()), *(column.head for column in numbers)]),
        "    \\midrule\n",
        *map(_line, rows),
        "    \\bottomrule\n  \\end{tabular}\n\\end{table}\n",
    ]
    return "".join(parts)


@dataclass(frozen=True)
class _Numbers:
    """A column of numbers for siunitx: units stand in its head, and words in braces."""

    head: str
    format: str
    cells: tuple[str, ...]

    @classmethod
    def of(cls, column: Column) -> _Numbers:
        """Return a column of a table for terminals."""
        title, unit = column.title.partition(" [")[::2]
        percent = any(cell.endswith(" %") for cell in column.cells)
        unit = "%" if percent else unit.rstrip("]")
        plain = [cell.removesuffix(" %").replace(",", "") for cell in column.cells]
        found = [match for cell in plain if (match := _NUMBER.fullmatch(cell))]
        before, after = (
            max((len(match[place] or "") for match in found), default=0) for place in (1, 2)
        )
        title = HEADS.get(title, title[:1].upper() + title[1:])
        head = escape(title + (f" ({unit})" if unit else ""))
        return cls(
            f"{{{head}}}",
            f"S[table-format={before}.{after}]" if found else "c",
            tuple(cell if _NUMBER.fullmatch(cell) else f"{{{escape(cell)}}}" for cell in plain),
        )


_NUMBER = re.compile(r"(-?[0-9]+)(?:\.([0-9]+))?")


def save(comparison: Comparison, path: str | Path, **options: Any) -> None:
    """Write :func:`table` into a file; refuse unknown options, and a comparison without rows."""
    for name in options:
        if name not in ("cite", "title", "source", "label"):
            raise ParameterError(
                f"a .tex table has no option '{name}'; it has cite, title, source and label"
            )
    if not comparison.rows:
        raise ParameterError("no schedule could be compared; there is no table to write")
    write_text(path, table(comparison, **options))


def _line(cells: Iterable[str]) -> str:
    return f"    {' & '.join(cells)} \\\\\n"


def _caption(comparison: Comparison, title: str | None) -> str:
    """Return a caption of at most 25 words."""
    sizes = [(row.schedule.ranks, row.schedule.microbatches) for row in comparison.rows]
    ranks, microbatches = (
        " or ".join(map(str, sorted(set(each)))) for each in zip(*sizes, strict=True)
    )
    text = title or f"Simulated schedules on {ranks} ranks with {microbatches} microbatches."
    times = f" Times: {_times(comparison)}."
    if title is None and len((text + times).split()) <= MOST_WORDS:
        text += times
    return escape(text)


def _conventions(comparison: Comparison, source: str) -> list[tuple[str, str]]:
    """Return name and text of all that defines the numbers."""
    words = comparison.conventions()
    limit = comparison.memory
    return [
        ("source of the costs", source),
        ("times", f"{_times(comparison)}; {words.pop('times')}"),
        *words.items(),
        ("memory limit", "" if limit is None else amount_text(limit, comparison.costs)),
    ]


def _times(comparison: Comparison) -> str:
    """Return the costs that are one number for all stages, and the names of the others."""
    costs = comparison.costs
    times = {name: getattr(costs, name) for name, spec in COST_FIELDS.items() if spec.timed}
    single = {name: time for name, time in times.items() if isinstance(time, int | float) and time}
    unit = f" {costs.time_unit}" if costs.time_unit else ""
    parts = [f"{name} {number(float(time))}{unit}" for name, time in single.items()]
    others = [name for name, time in times.items() if time and name not in single]
    if others:
        parts.append(f"{', '.join(others)} of their own for stages")
    return ", ".join(parts) or "F, I and W take 1 each"
