"""Charts of what benchmarks measured: pages ask for them by name, pictures.py draws them."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from debubble.view.figure import render, style

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"

INK, FAINT, GRID, GRAY = "#1f2530", "#5d6675", "#f2f4f7", "#8791a1"
"""Colors that have another one on dark pages, see pictures.py."""
BLUE, ORANGE = "#3d7fc4", "#d9822b"
"""Colors of data on light and dark pages."""


def rows_of(name: str) -> list[dict[str, str]]:
    """Return the rows of a CSV file of the benchmarks."""
    with (BENCHMARKS / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def plain(ax: Any, grid: str) -> None:
    """Leave the frame of a panel out, and draw a grid across one axis."""
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    ax.set_facecolor("none")
    ax.spines["bottom"].set_color(GRAY)
    ax.tick_params(colors=FAINT, length=0)
    ax.grid(axis=grid, color=GRID, linewidth=1)
    ax.set_axisbelow(True)


def frontier(plt: Any) -> Any:
    """How far schedules are above the proven bound: the best published one, and the one found."""
    text = (BENCHMARKS / "frontier.jsonl").read_text(encoding="utf-8")
    points = [json.loads(line) for line in text.splitlines()]
    parts = {
        "published": "published schedulers",
        "even": "registered schedules, equal ranks",
        "uneven": "registered schedules, unequal ranks",
    }
    drawing, panels = plt.subplots(3, 1, figsize=(9, 6.6), sharey=True, layout="constrained")
    for ax, (part, name) in zip(panels, parts.items(), strict=True):
        mine = [
            tuple(100 * (one[key] / one["bound"] - 1) for key in ("published", "ours"))
            for one in points
            if one["part"] == part
        ]
        before, after = zip(*sorted(mine, reverse=True), strict=True)
        places = range(len(mine))
        ax.vlines(places, after, before, color=GRAY, linewidth=1.2)
        ax.scatter(places, before, s=16, color=GRAY, label="best published", zorder=3)
        ax.scatter(places, after, s=16, color=BLUE, label="found", zorder=4)
        plain(ax, "y")
        ax.set_xticks([])
        ax.set_xlim(-1, len(mine))
        ax.set_yticks(range(0, 16, 5))
        ax.yaxis.set_major_formatter("{x:g} %")
        ax.set_title(f"Against {name}: {len(mine)} points", loc="left", color=INK, fontsize=9)
    panels[0].legend(frameon=False, loc="upper right", labelcolor=INK)
    panels[1].set_ylabel("makespan above the proven bound", color=FAINT)
    return drawing


def truth(plt: Any) -> Any:
    """How far measured steps are from simulated ones, for every schedule and runtime."""
    rows = [row for row in rows_of("truth.csv") if row["error"]]
    names = list(dict.fromkeys(row["schedule"] for row in rows))
    half = (len(names) + 1) // 2
    drawing, panels = plt.subplots(1, 2, figsize=(9, 5), sharex=True, layout="constrained")
    for ax, part in zip(panels, (names[:half], names[half:]), strict=True):
        for runtime, color in (("torch", ORANGE), ("debubble", BLUE)):
            mine = [r for r in rows if r["runtime"] == runtime and r["schedule"] in part]
            ax.scatter(
                [100 * float(row["error"]) for row in mine],
                [part.index(row["schedule"]) for row in mine],
                s=20, color=color, label=f"{runtime} runtime", zorder=3,
            )  # fmt: skip
        plain(ax, "both")
        ax.axvline(0, color=GRAY, linewidth=1)
        ax.set_yticks(range(len(part)), part, color=INK)
        ax.set_ylim(half - 0.5, -0.5)
        ax.xaxis.set_major_formatter(lambda x, _: f"{x:+g} %" if x else "0 %")
    panels[0].set_xlim(-2.5, 2.5)
    panels[1].legend(frameon=False, loc="lower right", labelcolor=INK)
    return drawing


def planner_truth(plt: Any) -> Any:
    """How far predicted steps are from published ones, by kind and by what was left out."""
    rows = [row for row in rows_of("planner_truth/errors.csv") if row["by"] == "kind"]
    names = list(dict.fromkeys(row["group"] for row in rows))
    drawing, ax = plt.subplots(figsize=(9, 5), layout="constrained")
    shown = (("release and model", BLUE, -0.17), ("publication", ORANGE, 0.17))
    for left_out, color, shift in shown:
        mine = {row["group"]: row for row in rows if row["left_out"] == left_out}
        places = [names.index(name) + shift for name in mine]
        middle, ninth = ([100 * float(row[key]) for row in mine.values()]
                         for key in ("median", "ninth"))  # fmt: skip
        ax.hlines(places, 0, ninth, color=color, linewidth=2, alpha=0.45)
        ax.scatter(middle, places, s=26, color=color, zorder=3, label=f"without {left_out}")
    counts = {row["group"]: row["rows"] for row in rows}
    plain(ax, "x")
    ax.set_yticks(range(len(names)), [f"{name} ({counts[name]})" for name in names], color=INK)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_xlim(0, 95)
    ax.xaxis.set_major_formatter("{x:g} %")
    ax.set_xlabel("error of the predicted step: median (dot), 90 % of rows (line)", color=FAINT)
    ax.legend(frameon=False, loc="lower right", labelcolor=INK)
    return drawing


CHARTS: dict[str, Callable[[Any], Any]] = {
    "frontier": frontier, "truth": truth, "planner-truth": planner_truth,
}  # fmt: skip


def draw(name: str, path: Path) -> None:
    """Write a chart as SVG."""
    import matplotlib.pyplot as plt

    with style():
        drawing = CHARTS[name](plt)
        path.write_bytes(render(drawing, "svg"))
        plt.close(drawing)
