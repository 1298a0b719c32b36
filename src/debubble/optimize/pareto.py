"""Makespan against memory: the fastest schedule for every limit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from debubble.analysis.layout import table
from debubble.core import hooks
from debubble.core.atomic_write import write_atomically
from debubble.core.costs import Costs
from debubble.core.errors import ParameterError
from debubble.core.given_layers import make_layers
from debubble.core.units import number, percent
from debubble.engine.graph import P2PMode
from debubble.listing import TOLERANCE
from debubble.optimize.bounds.paths import lower_bound
from debubble.optimize.layer_split.cut_bound import bound_of_cuts
from debubble.optimize.layer_split.cutting import Cutting, smallest_limit
from debubble.optimize.problem import Problem
from debubble.optimize.programs.backward import relaxed
from debubble.optimize.programs.offload import relax_copies
from debubble.optimize.programs.published import compare_with_published
from debubble.optimize.request import Request
from debubble.optimize.result import Result
from debubble.optimize.search import optimize

if TYPE_CHECKING:
    from debubble.analysis.ranking import Row

MOST_POINTS = 12
"""Memory limits of a sweep, at most."""

POINT_SHARE = 0.2
"""Effort of a point, relative to that of a single problem."""

GENEROUS = 2.0
"""Microbatches that fit on a rank at the last point, per rank."""


@dataclass(frozen=True, eq=False, repr=False)
class Frontier:
    """The fastest schedules found under rising memory limits.

    Parameters
    ----------
    points
        Limit and result, by limit; a result that is no faster than the one before is left out.
    published
        Published schedules on the same costs.
    time_unit
        For display.
    """

    points: tuple[tuple[float, Result], ...]
    published: tuple[Row, ...]
    time_unit: str = ""

    def nearest(self, row: Row) -> Result | None:
        """Return the result for the largest limit that is at most what a schedule needs."""
        within = [r for limit, r in self.points if limit <= row.peak_activation * (1 + 1e-9)]
        return within[-1] if within else None

    def to_dict(self) -> dict[str, Any]:
        """Return the frontier as plain data, for JSON."""
        return {
            "frontier": [{"memory": limit} | result.to_dict() for limit, result in self.points],
            "published": [row.to_dict() for row in self.published],
        }

    def __str__(self) -> str:
        heads = ["memory", "makespan", "bound", "gap", "status"]
        lines = [
            [number(limit), number(r.makespan), number(r.lower_bound), percent(r.gap), r.status]
            for limit, r in self.points
        ]
        other = [["published", "memory", "makespan", "best found within that memory"]]
        for row in self.published:
            best = self.nearest(row)
            found = "–" if best is None else number(best.makespan)
            other.append([row.name, number(row.peak_activation), number(row.makespan), found])
        return "\n".join([*table([heads, *lines]), "", *table(other)])

    def plot(self, ax: Any = None) -> Any:
        """Draw makespan over memory with matplotlib, into `ax` if given, and return the axes."""
        if ax is None:
            from matplotlib.figure import Figure

            ax = Figure(figsize=(7, 4.5), layout="constrained").add_subplot()
        memory = [limit for limit, _ in self.points]
        ax.step(memory, [r.makespan for _, r in self.points], where="post", marker="o",
                label="best found")  # fmt: skip
        ax.step(memory, [r.lower_bound for _, r in self.points], where="post", linestyle=":",
                label="lower bound")  # fmt: skip
        ax.scatter([row.peak_activation for row in self.published],
                   [row.makespan for row in self.published], marker="x", color="black",
                   label="published")  # fmt: skip
        for row in self.published:
            ax.annotate(row.name, (row.peak_activation, row.makespan), fontsize=7,
                        xytext=(3, 3), textcoords="offset points")  # fmt: skip
        unit = f" [{self.time_unit}]" if self.time_unit else ""
        ax.set(xlabel="activation memory of the fullest rank", ylabel=f"makespan{unit}")
        ax.legend()
        return ax

    def save(self, path: str | Path) -> None:
        """Write the plot as .png, .svg or .pdf."""
        ending = Path(path).suffix.lower().removeprefix(".")
        if ending not in ("png", "svg", "pdf"):
            raise ParameterError(f"'{path}' is no picture of a frontier; use .png, .svg or .pdf")
        drawing = self.plot().figure
        data: bytes = hooks.render_figure(drawing, ending)
        write_atomically(path, data)


def sweep_memory(
    *,
    ranks: int,
    microbatches: int,
    costs: Costs | None = None,
    p2p_mode: P2PMode = "overlapped",
    time_unit: str = "",
    progress: Callable[[float], None] | None = None,
    **options: Any,
) -> Frontier:
    """Optimize under rising memory limits, from the smallest that works.

    Parameters
    ----------
    ranks, microbatches, costs, p2p_mode
        As for :func:`debubble.optimize`.
    time_unit
        For display.
    progress
        Called with each limit before it is tried.
    **options
        Further parameters of :func:`debubble.optimize`; a time limit is for all points together,
        and a point gets a share of the effort of a single problem.

    Returns
    -------
    Frontier
        Limits grow by equal factors, until a result meets the bound for unlimited memory, or to
        2p microbatches on every rank.
    """
    costs = costs or Costs()
    if costs.microbatch not in (None, 1.0):
        raise ParameterError("memory is swept for microbatches of one length; leave microbatch out")
    given = {field.name: options[field.name] for field in fields(Request) if field.name in options}
    problems = Request(ranks, microbatches, costs=costs, p2p_mode=p2p_mode, **given).problems
    unlimited = min(
        bound_of_cuts(Cutting(problem))
        if problem.layers
        else lower_bound(relaxed(relax_copies(problem)))
        for problem in problems
    )
    points: list[tuple[float, Result]] = []
    limits = limits_for(
        min(problems, key=lambda problem: float(relax_copies(problem).smallest_limits.max()))
    )
    options["effort"] = options.get("effort", 1.0) * POINT_SHARE
    if options.get("time_limit") is not None:
        options["time_limit"] /= len(limits)
    for limit in limits:
        if progress is not None:
            progress(limit)
        result = optimize(
            ranks=ranks, microbatches=microbatches, costs=costs, memory=limit, p2p_mode=p2p_mode,
            published=False, **options,
        )  # fmt: skip
        if not points or result.makespan < points[-1][1].makespan * (1 - TOLERANCE):
            points.append((limit, result))
        if result.status == "interrupted" or result.makespan <= unlimited * (1 + TOLERANCE):
            break
    last = points[-1][1]
    model = options.get("layers")
    layers = None if model is None else make_layers(model, costs)
    rows = compare_with_published(
        last.timeline if layers else last.schedule, costs, None, p2p_mode,
        recompute=options.get("recompute", "none"), layers=layers,
    ).rows  # fmt: skip
    own = last.schedule.name
    return Frontier(tuple(points), tuple(row for row in rows if row.name != own), time_unit)


def limits_for(problem: Problem) -> list[float]:
    """Return memory limits of a sweep from the smallest that works, in whole activations."""
    step = float(problem.table.activation.max())
    least = smallest_limit(problem)
    if step == 0:
        return [1.0]
    most = float(problem.microbatch_memory.max()) * min(
        GENEROUS * problem.ranks, problem.microbatches
    )
    steps = np.unique(np.round(np.geomspace(least / step, most / step, MOST_POINTS)))
    return [max(float(count) * step, least) for count in steps]
