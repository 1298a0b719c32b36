"""How a saved report was made: versions, command and costs, so that it can be made again."""

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
"""Characters of costs in a report; those of every stage and microbatch may have more."""


def versions() -> str:
    """Versions that what is computed depends on."""
    import platform

    import numpy as np

    return f"debubble {__version__}, Python {platform.python_version()}, NumPy " + (np.__version__)


def facts(costs: Iterable[Costs]) -> list[tuple[str, str]]:
    """What a report is made from: names and texts.

    Costs are the content of a cost file, one text for each that differs.
    """
    found = [("versions", versions())]
    if command():
        found.append(("command", command()))
    texts = dict.fromkeys(map(costs_text, costs))
    return found + [("costs", text) for text in texts]


def costs_text(costs: Costs) -> str:
    """Costs as one line of JSON, which is a cost file; in words where a file cannot hold them."""
    from debubble.analysis.metrics import times_text
    from debubble.core.errors import CostError
    from debubble.interchange.cost_files import costs_data

    try:
        text = json.dumps(costs_data(costs), ensure_ascii=False)
    except CostError:
        return f"{times_text(costs)}; divided by {costs.chunks} chunks"
    return text if len(text) <= MOST else f"{len(text):,} characters, too long to stand here"


def details(costs: Iterable[Costs]) -> str:
    """The same as HTML, folded."""
    rows = "".join(
        f"<dt>{name}</dt><dd><code>{html.escape(text)}</code></dd>" for name, text in facts(costs)
    )
    return f'<details class="made"><summary>How this was made</summary><dl>{rows}</dl></details>'


_DATES = {".svg": "Date", ".pdf": "CreationDate"}
"""The fields of dates that the drawing library would fill."""


def metadata(ending: str, costs: Sequence[Costs] | None = None) -> dict[str, str | None]:
    """Metadata of a picture: how it was made, where a command did that.

    A picture of results that are kept in a file has no costs, and is the same however it was asked
    for; the file says how they came about.

    Without the date and the version of the drawing library, equal pictures are equal files.
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
