"""A comparison as a table for LaTeX, in the way of the package booktabs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from debubble.analysis.comparison import Comparison
from debubble.analysis.layout import Column
from debubble.analysis.metrics import amount_text
from debubble.analysis.tex import cited_by, comment, escape
from debubble.core.costs import COST_FIELDS
from debubble.core.errors import ParameterError
from debubble.core.units import number
from debubble.interchange.files import write_text
from debubble.view import provenance

MOST_RANK = 2
"""Columns that matter less are left out: a page is narrower than a terminal."""

LABEL = "tab:schedules"


def table(
    comparison: Comparison, *, cite: bool = False, title: str | None = None, source: str = ""
) -> str:
    r"""A comparison as a floating table with a caption that says what the numbers mean.

    With `cite`, names of schedules are followed by ``\cite`` of what they are from. The caption has
    `title` as its first sentence, in place of the sizes, and `source`, where the costs are from.
    """
    columns = [c for c in comparison.columns() if c.rank <= MOST_RANK]
    names, *others = columns
    cells = [escape(name) for name in names.cells]
    if cite:
        keys = [cited_by(row.schedule.name) for row in comparison.rows]
        cells = [
            rf"{cell}~\cite{{{','.join(k)}}}" if k else cell
            for cell, k in zip(cells, keys, strict=True)
        ]
    rows = zip(cells, *([escape(cell) for cell in column.cells] for column in others), strict=True)
    made = provenance.facts([comparison.costs])
    parts = [
        *(comment(f"{name}: {text}") for name, text in made),
        comment(r"The preamble needs \usepackage{booktabs}."),
        "\\begin{table}\n  \\centering\n",
        f"  \\caption{{{_caption(comparison, title, source)}}}\n  \\label{{{LABEL}}}\n",
        f"  \\begin{{tabular}}{{l{'r' * len(others)}}}\n    \\toprule\n",
        *_heads(columns),
        "    \\midrule\n",
        *map(_line, rows),
        "    \\bottomrule\n  \\end{tabular}\n\\end{table}\n",
    ]
    return "".join(parts)


def save(comparison: Comparison, path: str | Path, **options: Any) -> None:
    """Write :func:`table` into a file.

    Raises ParameterError when an option is unknown, no schedule could be compared, or the file
    cannot be written.
    """
    for name in options:
        if name not in ("cite", "title", "source"):
            raise ParameterError(
                f"a .tex table has no option '{name}'; it has cite, title and source"
            )
    if not comparison.rows:
        raise ParameterError("no schedule could be compared; there is no table to write")
    write_text(path, table(comparison, **options))


def _heads(columns: list[Column]) -> Iterable[str]:
    """Lines of the head; titles stand at its foot."""
    height = max(len(column.head) for column in columns)
    heads = [("",) * (height - len(column.head)) + column.head for column in columns]
    return (_line(escape(head[index]) for head in heads) for index in range(height))


def _line(cells: Iterable[str]) -> str:
    return f"    {' & '.join(cells)} \\\\\n"


def _caption(comparison: Comparison, title: str | None, source: str) -> str:
    sizes = [(row.schedule.ranks, row.schedule.microbatches) for row in comparison.rows]
    ranks, microbatches = (sorted(set(each)) for each in zip(*sizes, strict=True))
    first = title or (
        f"Simulated schedules on {_numbers(ranks)} ranks with {_numbers(microbatches)} microbatches"
    )
    words = comparison.conventions()
    words["times"] = f"{_times(comparison)}; {words['times']}"
    if source:
        words["source"] = source
    if comparison.memory is not None:
        words["limit"] = amount_text(comparison.memory, comparison.costs)
    told = {
        "source": "Costs", "times": "Times", "p2p": "Transfers", "makespan": "Makespan",
        "bubble_ratio": "Bubble ratio", "overhead": "Overhead", "memory": "Memory",
        "peak_activation": "Peak activation", "limit": "Memory limit",
        "recompute": "Recompute", "offload": "Offload",
    }  # fmt: skip
    sentences = [f"{name}: {words[key]}" for key, name in told.items() if key in words]
    return " ".join(f"{escape(text.rstrip('.'))}." for text in [first, *sentences])


def _times(comparison: Comparison) -> str:
    """The costs that are one number for all stages, and how many others there are."""
    costs = comparison.costs
    values = {spec.name: getattr(costs, spec.name) for spec in fields(costs)}
    times = {name: values[name] for name, spec in COST_FIELDS.items() if spec.timed}
    told = {name: time for name, time in times.items() if isinstance(time, int | float) and time}
    unit = f" {costs.time_unit}" if costs.time_unit else ""
    parts = [f"{name} {number(float(time))}{unit}" for name, time in told.items()]
    others = [name for name, time in times.items() if time and name not in told]
    if others:
        parts.append(f"{', '.join(others)} of their own for stages")
    return ", ".join(parts) or "F, I and W take 1 each"


def _numbers(values: Iterable[int]) -> str:
    return " or ".join(map(str, values))
