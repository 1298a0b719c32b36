"""The problems that other planners state, as grids for :mod:`frontier`.

Their code is not public, so their schedules cannot be measured here. Each grid takes the statement
of the problem, and compares the optimizer with 1F1B and the best registered schedule that fits.
Times are per rank, one stage each.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from registered import registered

import debubble as db

GRID = {"F": 10.0, "I": 12.0, "W": 8.0}


@dataclass(frozen=True)
class Rival:
    """A grid.

    Parameters
    ----------
    problem
        The problem, and who states it.
    points
        Every point: ranks, microbatches, memory, its setting in words, costs and options.
    """

    problem: str
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
        "order and offloading together (OptPipe, arXiv 2510.05186)", list(offload_points())
    ),
    "slow links": Rival(
        "two sites with slow links (CrossPipe, arXiv 2507.00217)", list(link_points())
    ),
    "unequal microbatches": Rival(
        "microbatches of different lengths (MindSpeed)", list(length_points())
    ),
}
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
