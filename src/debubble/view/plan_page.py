"""A plan as a web page: the answer, its timeline and memory, its rivals, and flags to paste."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from debubble.analysis.layout import Column, html_table
from debubble.planner.answer.plan import Plan
from debubble.planner.answer.report import columns, gigabytes, left_out, paragraphs, ranked
from debubble.planner.answer.why import why_text
from debubble.planner.frameworks.table import FRAMEWORKS
from debubble.planner.search.evaluate import Evaluated
from debubble.planner.search.search_result import Found
from debubble.view.colors import FAINT, INK, LIMIT
from debubble.view.page import inline_svg, page

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GB = 1e9

PARTS = ("weights", "gradients", "optimizer", "activations", "buffers", "logits", "margin")
"""Parts of a rank's memory, in the order of the columns."""


def plan_page(plan: Plan) -> str:
    """Return a self-contained page about a plan, its alternatives, and why it is not another."""
    found, best = plan.found, plan.best
    memory_columns = zip(*memory_rows(best), strict=True)
    said = "".join(f"<p>{html.escape(line)}</p>" for line in paragraphs(found))
    sections = [
        said,
        *(f"<p>{html.escape(why_text(answer))}</p>" for answer in plan.why),
        "<h2>Plans</h2>",
        html_table(columns(found, verdicts=True)),
        f"<p>{html.escape(left_out(found))}</p>",
        inline_svg(front(found), "Step time and memory of plans"),
        "<h2>Memory of every rank at its peak</h2>",
        html_table([Column((head,), tuple(cells)) for head, *cells in memory_columns]),
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


def front(found: Found) -> Figure:
    """Draw step time against memory of plans, and the line of those that no other beats in both.

    Plans are dots with their numbers; faster ones that do not fit are rings.
    """
    from matplotlib.figure import Figure

    from debubble.view.figure import style

    plans = ranked(found)
    limit = found.request.limit
    with style():
        figure = Figure(figsize=(7.0, 3.2), dpi=100, facecolor="white", layout="constrained")
        ax = figure.add_subplot()
        for number, plan in enumerate(plans, 1):
            x, y = max(plan.peaks) / GB, plan.step_time
            face = INK if plan.fits else "none"
            ax.plot(x, y, "o", markersize=5, markeredgecolor=INK, markerfacecolor=face)
            ax.annotate(str(number), (x, y), xytext=(4, 4), textcoords="offset points", fontsize=7)
        best, steps = float("inf"), []
        for plan in sorted(plans, key=lambda plan: (max(plan.peaks), plan.step_time)):
            if plan.step_time < best:
                best = plan.step_time
                steps.append((max(plan.peaks) / GB, best))
        ax.step(*zip(*steps, strict=True), where="post", color=FAINT, linewidth=0.8)
        ax.axvline(limit / GB, color=LIMIT, linewidth=0.8)
        ax.set_xlabel("memory of the fullest GPU [GB]")
        ax.set_ylabel("step time [s]")
        ax.margins(x=0.12, y=0.12)
    return figure
