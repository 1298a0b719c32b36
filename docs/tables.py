"""Tables in Markdown."""

from __future__ import annotations


def table(heads: list[str], rows: list[tuple[object, ...]]) -> list[str]:
    """A table in Markdown."""
    cells = [[str(cell).replace("|", "\\|") for cell in row] for row in rows]
    return [
        f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}",
        *(f"| {' | '.join(row)} |" for row in cells),
    ]  # fmt: skip
