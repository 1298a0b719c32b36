"""Step time against memory of plans, with the ones that no other beats in both."""

from __future__ import annotations

from typing import TYPE_CHECKING

from debubble.planner.answer.report import ranked
from debubble.planner.search.found import Found
from debubble.view.colors import FAINT, INK, LIMIT
from debubble.view.figure import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GB = 1e9


def front(found: Found) -> Figure:
    """Draw plans as dots with their numbers; faster ones that do not fit are rings."""
    from matplotlib.figure import Figure

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
