"""A comparison as a table for LaTeX with the package booktabs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from debubble.analysis.comparison import Comparison
from debubble.analysis.metrics import amount_text
from debubble.analysis.tex import cited_by, comment, escape
from debubble.core.costs import COST_FIELDS
from debubble.core.errors import ParameterError
from debubble.core.units import number
from debubble.interchange.files import write_text
from debubble.view import captions

MOST_RANK = 2
"""Largest rank of a column in the table: a page is narrower than a terminal."""

LABEL = "tab:schedules"


def table(
    comparison: Comparison, *, cite: bool = False, title: str | None = None, source: str = ""
) -> str:
    r"""Return a comparison as a floating table whose caption explains the numbers.

    With `cite`, names of schedules are followed by ``\cite`` of their sources. The caption has
    `title` as its first sentence, in place of the sizes, and `source`, the origin of the costs.
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
    height = max(len(column.head) for column in columns)
    heads = [("",) * (height - len(column.head)) + column.head for column in columns]
    made = captions.facts([comparison.costs])
    parts = [
        *(comment(f"{name}: {text}") for name, text in made),
        comment(r"The preamble needs \usepackage{booktabs}."),
        "\\begin{table}\n  \\centering\n",
        f"  \\caption{{{_caption(comparison, title, source)}}}\n  \\label{{{LABEL}}}\n",
        f"  \\begin{{tabular}}{{l{'r' * len(others)}}}\n    \\toprule\n",
        # Titles stand at the foot of the head.
        *(_line(escape(head[index]) for head in heads) for index in range(height)),
        "    \\midrule\n",
        *map(_line, rows),
        "    \\bottomrule\n  \\end{tabular}\n\\end{table}\n",
    ]
    return "".join(parts)


def save(comparison: Comparison, path: str | Path, **options: Any) -> None:
    """Write :func:`table` into a file; refuse unknown options, and a comparison without rows."""
    for name in options:
        if name not in ("cite", "title", "source"):
            raise ParameterError(
                f"a .tex table has no option '{name}'; it has cite, title and source"
            )
    if not comparison.rows:
        raise ParameterError("no schedule could be compared; there is no table to write")
    write_text(path, table(comparison, **options))


def _line(cells: Iterable[str]) -> str:
    return f"    {' & '.join(cells)} \\\\\n"


def _caption(comparison: Comparison, title: str | None, source: str) -> str:
    sizes = [(row.schedule.ranks, row.schedule.microbatches) for row in comparison.rows]
    ranks, microbatches = (
        " or ".join(map(str, sorted(set(each)))) for each in zip(*sizes, strict=True)
    )
    first = title or f"Simulated schedules on {ranks} ranks with {microbatches} microbatches"
    words = comparison.conventions()
    words["times"] = f"{_times(comparison)}; {words['times']}"
    if source:
        words["source"] = source
    if comparison.memory is not None:
        words["limit"] = amount_text(comparison.memory, comparison.costs)
    names = {
        "source": "Costs", "times": "Times", "p2p": "Transfers", "makespan": "Makespan",
        "bubble_ratio": "Bubble ratio", "overhead": "Overhead", "memory": "Memory",
        "peak_activation": "Peak activation", "limit": "Memory limit",
        "recompute": "Recompute", "offload": "Offload",
    }  # fmt: skip
    sentences = [f"{name}: {words[key]}" for key, name in names.items() if key in words]
    return " ".join(f"{escape(text.rstrip('.'))}." for text in [first, *sentences])


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
