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

SCHEDULE = {
    "rank": "position in the pipeline: a GPU, or a group of tensor-parallel GPUs; p ranks",
    "stage": "consecutive layers of the model; S = p × v stages",
    "chunk": "one of the v stages of a rank",
    "microbatch": "part of a batch that passes the pipeline on its own; m of them per optimizer "
    "step, in all directions together",
    "slice": "part of the sequences of a microbatch, with its share of times and memory",
    "copy": "data-parallel replica, or a second copy of the model in the same pipeline",
    "carry, skip connection": "part of a stage's output that goes directly to a later stage "
    "(SEND_C, RECV_C), and its gradient back (SEND_CB, RECV_CB): --carry 0:2",
    "action": "work for one stage and one microbatch, in PyTorch's notation: 3I0 is I of stage 3 "
    "for microbatch 0, 3F1.2 is F of slice 2 of microbatch 1, and (0F3;3B1)OVERLAP_F_B is a pair "
    "that starts and ends together",
}
"""Parts of a schedule."""

MORE = {
    "I": "the Zero Bubble papers call it B",
    "B": "I, then W",
    "R": "the forward again, before the backward; F then leaves only the share recompute_kept of "
    "its activations (0 by default), R takes the rest, costs as much as F unless given, and counts "
    "as work",
    "stage time": "the largest one is the cost in the Zero Bubble papers",
    "idle by cause": "only a schedule made under a memory limit waits for memory",
    "overlapped": "stages of one rank hand on their results for free in all modes",
}
"""Remarks on words that have their meaning elsewhere."""


def glossary() -> dict[str, dict[str, str]]:
    """Return the words of every subject, with their meanings."""
    action, rank = Costs(F=1), Costs()
    subjects = {
        "schedule": SCHEDULE,
        "actions": {kind.name: KINDS[kind].title for kind in COMPUTE_KINDS},
        "measures": {row.title: row.words for row in MEASURES if row.words},
        "costs": {
            "times": f"{times_text(action)} (--times)",
            "rank times": f"{times_text(rank)} (--rank-times, and the default), so that schedules "
            "with different numbers of chunks are compared on the same model",
            "embedding, head, mtp": "work of only the first or the last stage, on top of its "
            "layers: --times F=10,B=18,head.F=4,head.B=8",
            "attention": "share of F and of B that is causal attention, which grows along the "
            "sequence; the other work of a slice grows with its length",
            "memory": f"{memory_text(rank)}; an action of one of v chunks takes 1/v",
        },
        "transfers (--p2p-mode)": MODES,
        "optimizer steps (--sync)": SYNCS,
    }
    return {
        subject: {
            name: f"{text}; {MORE[name]}" if name in MORE else text for name, text in rows.items()
        }
        for subject, rows in subjects.items()
    }


def words(
    word: Annotated[
        str | None, typer.Argument(metavar="[WORD]", help="A word, or part of one.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Explain the terms and numbers in the output."""
    subjects = glossary()
    found = {
        subject: {
            name: text
            for name, text in rows.items()
            if word is None or word.lower() in name.lower()
        }
        for subject, rows in subjects.items()
    }
    found = {subject: rows for subject, rows in found.items() if rows}
    if not found:
        known = [name for rows in subjects.values() for name in rows]
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
