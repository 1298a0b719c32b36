"""Provenance of a saved report: versions, command and costs, to make it again."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from debubble._version import __version__
from debubble.core.command import command

if TYPE_CHECKING:
    from debubble.core.costs import Costs

MOST = 20_000
"""Most characters of costs in a report; those of every stage and microbatch may have more."""


def versions() -> str:
    """Return the versions that results depend on."""
    import platform

    import numpy as np

    python = platform.python_version()
    return f"debubble {__version__}, Python {python}, NumPy {np.__version__}"


def facts(costs: Iterable[Costs]) -> list[tuple[str, str]]:
    """Return (name, text) of versions, command, and every different cost file of a report."""
    commands = [("command", command())] if command() else []
    texts = dict.fromkeys(map(costs_text, costs))
    return [("versions", versions()), *commands, *(("costs", text) for text in texts)]


def costs_text(costs: Costs) -> str:
    """Return costs as one line of JSON, a cost file; in words where a file cannot hold them."""
    from debubble.analysis.metrics import times_text
    from debubble.core.errors import CostError
    from debubble.interchange.cost_files import costs_data

    try:
        text = json.dumps(costs_data(costs), ensure_ascii=False)
    except CostError:
        return f"{times_text(costs)}; divided by {costs.chunks} chunks"
    return text if len(text) <= MOST else f"{len(text):,} characters, too long to stand here"


def details(costs: Iterable[Costs]) -> str:
    """Return the facts of a report as folded HTML."""
    rows = "".join(
        f"<dt>{name}</dt><dd><code>{html.escape(text)}</code></dd>" for name, text in facts(costs)
    )
    return f'<details class="made"><summary>How this was made</summary><dl>{rows}</dl></details>'


_DATES = {".svg": "Date", ".pdf": "CreationDate"}
"""Fields of dates that the drawing library would fill."""


def metadata(ending: str, costs: Sequence[Costs] | None = None) -> dict[str, str | None]:
    """Return the metadata of a picture: command and costs, if a command made it.

    A picture of stored results has no costs. Without the date and the version of the drawing
    library, equal pictures are equal files.
    """
    names = {
        ".png": ("Software", "Description"), ".svg": ("Creator", "Description"),
        ".pdf": ("Creator", "Subject"),
    }  # fmt: skip
    creator, about = names[ending]
    found: dict[str, str | None] = {creator: "debubble"}
    if ending in _DATES:
        found[_DATES[ending]] = None
    if command() and costs is not None:
        texts = [command(), *(f"costs: {text}" for text in dict.fromkeys(map(costs_text, costs)))]
        found |= {creator: f"debubble {__version__}", about: "\n".join(texts)}
    return found
