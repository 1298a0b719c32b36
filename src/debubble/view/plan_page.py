"""A plan as a web page: the answer, its timeline and memory, its rivals, and the flags to paste."""

from __future__ import annotations

import html
from collections.abc import Iterable

from debubble.analysis.layout import html_table
from debubble.planner.answer.plan import Plan
from debubble.planner.answer.report import columns, gigabytes, left_out, paragraphs
from debubble.planner.answer.why import why_text
from debubble.planner.frameworks.table import FRAMEWORKS
from debubble.planner.search.evaluate import Evaluated
from debubble.view.page import inline_svg, page
from debubble.view.plan_figure import front

PARTS = ("weights", "gradients", "optimizer", "activations", "buffers", "logits", "margin")
"""Parts of a rank's memory, in the order of the columns."""


def plan_page(plan: Plan) -> str:
    """Return a self-contained page about a plan, its alternatives, and why it is not another."""
    found, best = plan.found, plan.best
    said = "".join(f"<p>{html.escape(line)}</p>" for line in paragraphs(found))
    sections = [
        said,
        *(f"<p>{html.escape(why_text(answer))}</p>" for answer in plan.why),
        "<h2>Plans</h2>",
        html_table(columns(found, verdicts=True)),
        f"<p>{html.escape(left_out(found))}</p>",
        inline_svg(front(found), "Step time and memory of plans"),
        "<h2>Memory of every rank at its peak</h2>",
        _table(memory_rows(best)),
        "<h2>Flags</h2>",
        *(
            f"<h3>{html.escape(name)}</h3><pre>{html.escape(plan.flags(name))}</pre>"
            for name in FRAMEWORKS
        ),
    ]
    request = found.request
    return page(
        [plan.timeline], title=f"A plan for {request.model.name}", table_html="\n".join(sections),
        limit=request.limit,
    )  # fmt: skip


def memory_rows(plan: Evaluated) -> list[list[str]]:
    """Return the memory of every rank at its peak, part by part; heads first."""
    heads = ["rank", "peak", *PARTS, "at action"]
    rows = [
        [
            str(rank.rank), gigabytes(rank.peak), *(gigabytes(getattr(rank, p)) for p in PARTS),
            rank.at.action,
        ]
        for rank in plan.memory
    ]  # fmt: skip
    return [heads, *rows]


def _table(rows: Iterable[Iterable[str]]) -> str:
    head, *others = [[html.escape(cell) for cell in row] for row in rows]
    lines = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in others)
    titles = "".join(f"<th>{cell}</th>" for cell in head)
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{lines}</tbody></table>"
