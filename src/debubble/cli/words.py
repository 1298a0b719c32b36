"""``debubble words``: what the words and numbers of all outputs mean."""

from __future__ import annotations

from typing import Annotated

import typer

from debubble.analysis.layout import definitions, line_width, unstyled
from debubble.analysis.measures import MEASURES
from debubble.analysis.metrics import MODES, SYNCS, memory_text, times_text
from debubble.cli.app import command
from debubble.cli.options import AsJson
from debubble.cli.output import in_color, print_json, styled
from debubble.core.costs import Costs
from debubble.core.errors import ParameterError, did_you_mean
from debubble.core.kinds import COMPUTE_KINDS, KINDS


def _glossary() -> dict[str, dict[str, str]]:
    """Return the words of every subject, with their meanings."""
    rank, action = Costs(), Costs(F=1)
    return {
        "schedule": {
            "rank": "position in the pipeline: a GPU, or a group of tensor-parallel GPUs",
            "stage": "consecutive layers of the model; a rank has one stage per chunk",
            "microbatch": "part of a batch that passes the pipeline on its own",
            "copy": "data-parallel replica, or a second copy of the model in the same pipeline",
        },
        "actions": {kind.name: KINDS[kind].title for kind in COMPUTE_KINDS},
        "measures": {row.title: row.words for row in MEASURES if row.words},
        "costs": {
            "times": f"{times_text(action)} (--times)",
            "rank times": f"{times_text(rank, 2)} (--rank-times, and the default)",
            "memory": memory_text(rank),
        },
        "transfers (--p2p-mode)": dict(MODES),
        "optimizer steps (--sync)": dict(SYNCS),
    }


def words(
    word: Annotated[
        str | None, typer.Argument(metavar="[WORD]", help="A word, or a part of one.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Explain the words and numbers in outputs."""
    found = {
        subject: {
            name: text
            for name, text in rows.items()
            if word is None or word.lower() in name.lower()
        }
        for subject, rows in _glossary().items()
    }
    found = {subject: rows for subject, rows in found.items() if rows}
    if not found:
        known = [name for rows in _glossary().values() for name in rows]
        raise ParameterError(f"no word has '{word}'; {did_you_mean(word or '', known)}")
    if as_json:
        print_json(found)
        return
    style, blocks = styled if in_color() else unstyled, []
    for subject, rows in found.items():
        lines = definitions([(f"  {name}", "", text) for name, text in rows.items()], line_width())
        blocks.append("\n".join([style(subject, "head"), *lines]))
    print("\n\n".join(blocks))


app = command(words, ["words", "words bubble", "words --json"])
