"""The problems that other planners state, as grids for :mod:`frontier`.

Their code is not public, so their orders cannot be measured here. Each grid takes the statement of
the problem, and sets 1F1B and the best schedule registered here that fits beside the optimizer.
Times are per rank, one stage each.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from registered import registered

import debubble as db

GRID = {"F": 10.0, "I": 12.0, "W": 8.0}


@dataclass(frozen=True)
class Rival:
    """A grid: what it is about, what is published, and its points.

    Parameters
    ----------
    about
        The problem, its source, and the figure that is published for it.
    setting
        Name of the column that tells the points of one p, m and memory apart.
    points
        Every point: ranks, microbatches, memory, its setting in words, costs and options.
    """

    about: str
    setting: str
    points: list[tuple[int, int, float, str, dict[str, Any], dict[str, Any]]]


def offload_points() -> Iterator[tuple[int, int, float, str, dict[str, Any], dict[str, Any]]]:
    for p, m, memories in ((4, 8, (2, 3)), (8, 16, (4, 6))):
        for memory in memories:
            for copy in (5.0, 10.0, 20.0):
                yield (
                    p, m, memory, f"{copy:g}", {"host_bandwidth": 1 / copy}, {"offload": "free"}
                )  # fmt: skip


def two_sites(ranks: int, delay: float) -> list[list[float]]:
    """Half of the ranks on either side of links with a delay."""
    half = ranks // 2
    return [[delay * ((a < half) != (b < half)) for b in range(ranks)] for a in range(ranks)]


def link_points() -> Iterator[tuple[int, int, float, str, dict[str, Any], dict[str, Any]]]:
    for p, m in ((4, 8), (8, 16)):
        for memory in (p, 2 * p - 1):
            for delay in (10.0, 40.0):
                costs = {"p2p": two_sites(p, delay)}
                yield p, m, memory, f"latency {delay:g}", costs, {}
            costs = {"p2p": two_sites(p, 20.0)}
            yield p, m, memory, "one transfer of 20 at a time", costs, {"p2p_mode": "channel"}


def length_points() -> Iterator[tuple[int, int, float, str, dict[str, Any], dict[str, Any]]]:
    lengths = {
        "equal": [1.0] * 8,
        "small at both ends": [0.5, 1, 1, 1.5, 1.5, 1, 1, 0.5],
        "as they come": [1.6, 0.7, 0.4, 1.2, 0.9, 1.5, 0.6, 1.1],
    }
    for p in (4, 8):
        for attention in (0.0, 0.3):
            for name, each in lengths.items():
                shown = f"{name}, attention {attention:g}"
                yield p, 8, p * 1.25, shown, {"microbatch": each, "attention": attention}, {}


RIVALS = {
    "offload": Rival(
        "Orders and offloads together, within the memory of every rank: the problem of OptPipe "
        "(arXiv 2510.05186, a mixed integer program on up to 16 GPUs), published with up to 50 % "
        "less idle time than other schedules at the same memory. A copy of one activation to the "
        "host takes the time below, F takes 10.",
        "copy", list(offload_points()),
    ),
    "slow links": Rival(
        "Few slow links: two sites with half of the ranks each, the problem of CrossPipe (arXiv "
        "2507.00217, constraint programming and a greedy method), published with up to 33.6 % "
        "less time than traditional schedules at the same memory. F takes 10; all other links "
        "take nothing.",
        "link", list(link_points()),
    ),
    "unequal microbatches": Rival(
        "Microbatches of different lengths. MindSpeed's automated pipeline makes the first and the "
        "last ones smaller, published with 7.6 % more throughput; elsewhere lengths are as the "
        "data come, and may be arranged. All rows are of 8 microbatches with the same sum; the "
        "published orders take the microbatches as they are listed.",
        "lengths", list(length_points()),
    ),
}  # fmt: skip
"""Every grid by the name of its part."""


def rival_key(part: str, number: int) -> dict[str, Any]:
    """What tells a point apart, as the first columns of its row."""
    p, m, memory, setting, *_ = RIVALS[part].points[number]
    return {"part": part, "p": p, "m": m, "v": 1, "costs": setting, "memory": memory}


def measure_rival(part: str, number: int, seconds: float | None) -> dict[str, Any]:
    """Optimize one point, and simulate what it is compared with."""
    p, m, memory, _, more, options = RIVALS[part].points[number]
    costs, mode = db.Costs.per_rank(**GRID, **more, chunks=1), options.get("p2p_mode", "overlapped")
    wall, used = time.perf_counter(), time.process_time()
    result = db.optimize(
        ranks=p, microbatches=m, costs=costs, memory=memory, time_limit=seconds, cache=False,
        published=False, **options,
    )  # fmt: skip
    wall, used = time.perf_counter() - wall, time.process_time() - used
    plain = db.simulate(db.make("1f1b", ranks=p, microbatches=m), costs, mode)
    known = registered(p, m, 1, costs, mode, copies="offload" in options)
    fitting = [(makespan, name) for peak, makespan, name in known if peak <= memory * (1 + 1e-9)]
    best, name = min(fitting, default=(None, ""))
    return {
        **rival_key(part, number), "plain": plain.makespan,
        "plain_peak": float(plain.peak_activation.max()), "published": best, "name": name,
        "ours": result.makespan, "bound": result.lower_bound, "status": result.status,
        "found_by": result.found_by, "seconds": wall, "cpu": used,
    }  # fmt: skip


def table(part: str, rows: list[dict[str, Any]]) -> list[str]:
    """A grid for the document."""
    rival = RIVALS[part]
    lines = [
        f"## {part}", "", *textwrap.wrap(rival.about, 96), "",
        f"| p | m | memory | {rival.setting} | 1F1B, its memory | published that fits | ours "
        "| gain | bound | gap | found by | CPU s |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for row in rows:
        published, gain = "none", "–"
        if row["published"] is not None:
            published = f"{row['published']:.6g} ({row['name']})"
            gain = f"{100 * (1 - row['ours'] / row['published']) + 0.0:.1f} %"
        gap = f"{100 * (row['ours'] / row['bound'] - 1):.1f} %"
        lines.append(
            f"| {row['p']} | {row['m']} | {row['memory']:g} | {row['costs']} "
            f"| {row['plain']:.6g}, {row['plain_peak']:.3g} | {published} | {row['ours']:.6g} "
            f"| {gain} | {row['bound']:.6g} | {'optimal' if row['status'] == 'optimal' else gap} "
            f"| {row['found_by']} | {row['cpu']:.1f} |"
        )
    return [*lines, ""]
