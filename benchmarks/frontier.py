"""What the optimizer reaches next to the best published schedules.

Writes frontier.jsonl, and docs/frontier.md from it.

    python benchmarks/frontier.py [part …] [--seconds S] [--effort E] [--gap PERCENT]

A part is ``published`` (points somebody else's schedulers reach, measured with another simulator),
``small`` (p ≤ 4, m ≤ 8: is optimality proven?), ``even`` and ``uneven`` (a grid, against the
schedules registered here), or one of the other planners' problems in :mod:`rivals`. Points that are
in the results file are not computed again, so that a run can be broken off and continued; the
page is written from all of them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from registered import registered
from rivals import RIVALS, measure_rival, rival_key

import debubble as db

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "frontier.jsonl"
DOCUMENT = ROOT / "docs" / "frontier.md"

REAL = {"F": 44.18, "I": 40.265, "W": 38.0, "p2p": 2.17}
UNIT = {"F": 1.0, "I": 1.0, "W": 1.0, "p2p": 0.0}
PUBLISHED: list[tuple[int, int, int, dict[str, float], dict[float, tuple[float, str]]]] = [
    (4, 8, 1, REAL, {4: (1144.93, "zb_1p_w"), 8: (1118.61, "zb_2p_h")}),
    (4, 8, 2, REAL, {2: (1353.74, "zbvgreedy_min"), 3: (1151.24, "zbvgreedy_half"),
                     4: (1078.38, "zbv_h"), 8: (1059.49, "zbv_h_3p")}),
    (4, 8, 1, UNIT, {4: (27, "zb_1p_h")}),
    (4, 8, 2, UNIT, {2: (29.5, "zbvgreedy_min"), 3: (26.5, "zbvgreedy_half"), 4: (25.5, "zbv_h")}),
    (4, 16, 1, REAL, {4: (2124.49, "zb_1p_w"), 8: (2098.17, "zb_2p_w")}),
    (4, 16, 2, REAL, {2: (2483.5, "zbvgreedy_min"), 3: (2130.8, "zbvgreedy_half"),
                      4: (2057.94, "zbv_h"), 8: (2039.05, "zbv_h_3p")}),
    (4, 16, 1, UNIT, {4: (51, "zb_1p_h")}),
    (4, 16, 2, UNIT, {2: (53.5, "zbvgreedy_min"), 3: (50.5, "zbvgreedy_half"), 4: (49.5, "zbv_h")}),
    (8, 16, 1, REAL, {8: (2344.99, "zb_1p_h"), 16: (2283.57, "zb_2p_h")}),
    (8, 16, 2, REAL, {4: (2713.7, "vauto_min"), 5: (2436.41, "vauto_half"),
                      6: (2412.67, "ginter_v2_h"), 8: (2189.7, "vauto_2p"),
                      15.5: (2147.15, "zbv_h_3p")}),
    (8, 16, 1, UNIT, {8: (55, "zb_1p_h")}),
    (8, 16, 2, UNIT, {4: (59.5, "vauto_min"), 5: (56.5, "vauto_half"), 8: (51.5, "vauto_2p")}),
    (8, 32, 1, REAL, {8: (4304.11, "zb_1p_w"), 16: (4242.69, "zb_2p_w")}),
    (8, 32, 2, REAL, {4: (4973.22, "vauto_min"), 5: (4395.53, "vauto_half"),
                      6: (4371.79, "ginter_v2_h"), 8: (4148.82, "vauto_2p"),
                      15.5: (4106.27, "zbv_h_3p")}),
    (8, 32, 1, UNIT, {8: (103, "zb_1p_h")}),
    (8, 32, 2, UNIT, {4: (107.5, "vauto_min"), 5: (104.5, "vauto_half"), 8: (99.5, "vauto_2p")}),
]  # fmt: skip
"""Ranks, microbatches, chunks, costs per rank, and the best makespan by peak activation."""

GRID = {"F": 10.0, "I": 12.0, "W": 8.0, "p2p": 0.0}
PARTS = ("published", "small", "even", "uneven")
ROUNDING = 0.006
"""Error of the published makespans, which have two decimals."""

Point = tuple[int, int, int, dict[str, Any], float, float | None, str]
"""Ranks, microbatches, chunks, costs per rank, memory, published makespan and its schedule."""


def uneven(ranks: int) -> dict[str, Any]:
    """Ranks of different speed: by up to a quarter, the last one slowest as a head makes it."""
    factors = [1 + 0.05 * (rank * 3 % 4) for rank in range(ranks - 1)] + [1.25]
    return {key: [GRID[key] * f for f in factors] for key in ("F", "I", "W")} | {"p2p": 0.5}


def points(part: str) -> Iterator[Point]:
    """All points of a part."""
    if part == "published":
        for p, m, v, costs, best in PUBLISHED:
            for memory, (makespan, name) in best.items():
                yield p, m, v, costs, memory, makespan, name
        return
    if part == "small":
        for p in (2, 3, 4):
            for m in (4, 8):
                for costs in (UNIT, REAL, GRID):
                    for memory in (p / 2, 3 * p / 4, p):
                        yield p, m, 2, costs, max(memory, 1.0), None, ""
        return
    for p in (2, 4, 8, 16):
        for m in (p, 2 * p, 4 * p, 8 * p):
            costs = GRID if part == "even" else uneven(p)
            for v in (1, 2):
                for memory, (makespan, name) in frontier(p, m, v, costs).items():
                    yield p, m, v, costs, memory, makespan, name


def frontier(p: int, m: int, v: int, costs: dict[str, Any]) -> dict[float, tuple[float, str]]:
    """The best makespan of the schedules here by peak activation, where more memory is faster."""
    best: dict[float, tuple[float, str]] = {}
    fastest = float("inf")
    for peak, makespan, name in sorted(registered(p, m, v, db.Costs.per_rank(**costs, chunks=v))):
        if makespan < fastest * (1 - 1e-9):
            best[peak] = makespan, name
            fastest = makespan
    return best


def measure(part: str, point: Point, seconds: float | None, effort: float) -> dict[str, Any]:
    p, m, v, costs, memory, makespan, name = point
    wall, used = time.perf_counter(), time.process_time()
    result = db.optimize(
        ranks=p, microbatches=m, chunks=v, costs=db.Costs.per_rank(**costs, chunks=v),
        memory=memory, time_limit=seconds, effort=effort, cache=False, published=False,
    )  # fmt: skip
    return {
        "part": part, "p": p, "m": m, "v": v, "costs": costs, "memory": memory,
        "published": makespan, "name": name, "ours": result.makespan,
        "bound": result.lower_bound, "status": result.status, "found_by": result.found_by,
        "seconds": time.perf_counter() - wall, "cpu": time.process_time() - used,
    }  # fmt: skip


def tasks(
    part: str, seconds: float | None, effort: float
) -> Iterator[tuple[dict[str, Any], Callable[[], dict[str, Any]]]]:
    """Every point of a part: what tells it apart, and what measures it."""
    if part in RIVALS:
        for number in range(len(RIVALS[part].points)):
            yield rival_key(part, number), partial(measure_rival, part, number, seconds)
        return
    for point in points(part):
        p, m, v, costs, memory, *_ = point
        row = {"part": part, "p": p, "m": m, "v": v, "costs": costs, "memory": memory}
        yield row, partial(measure, part, point, seconds, effort)


def key(row: dict[str, Any]) -> str:
    return json.dumps([row[name] for name in ("part", "p", "m", "v", "costs", "memory")])


def load() -> dict[str, dict[str, Any]]:
    if not RESULTS.exists():
        return {}
    rows = map(json.loads, RESULTS.read_text(encoding="utf-8").splitlines())
    return {key(row): row for row in rows}


def merged(row: dict[str, Any], again: dict[str, Any]) -> dict[str, Any]:
    """A point that was measured twice: the faster order, the higher bound, and the time of both."""
    faster = min(row, again, key=lambda one: one["ours"])
    bound = max(row["bound"], again["bound"])
    spent = {name: row[name] + again[name] for name in ("seconds", "cpu")}
    status = "optimal" if faster["ours"] <= bound * (1 + 1e-9) else "feasible"
    return {**faster, **spent, "bound": bound, "status": status}


def document(rows: list[dict[str, Any]]) -> str:
    """The page: its summary, and the problems of other planners."""
    rivals = {part: rival.problem for part, rival in RIVALS.items()}
    return (
        (ROOT / "benchmarks" / "frontier.md").read_text(encoding="utf-8")
        .replace("{{answer}}", answer(rows))
        .replace("{{parts}}", "\n".join(summary(rows, "compared with", HEADS)))
        .replace("{{rivals}}", "\n".join(summary(rows, "problem", rivals)))
    )  # fmt: skip


def gap(row: dict[str, Any]) -> float:
    """How far a found schedule is above the proven bound, as a share of it."""
    return float(row["ours"] / row["bound"] - 1)


def gain(row: dict[str, Any]) -> float:
    """How much less time it takes than the best published one."""
    return float(1 - row["ours"] / row["published"])


def answer(rows: list[dict[str, Any]]) -> str:
    """The first paragraph of the page."""
    mine = [row for row in rows if row["part"] in PARTS]
    known = [row for row in mine if row["published"] is not None]
    slower = sum(row["ours"] > row["published"] + ROUNDING for row in known)
    room = [row for row in known if row["published"] > 1.01 * row["bound"]]
    faster = sum(row["ours"] < row["published"] - ROUNDING for row in room)
    near = sum(gap(row) <= 0.03 for row in mine)
    return (
        f"At {slower or 'none'} of {len(known)} points is a schedule found by `debubble optimize` "
        f"slower than the best published one. Where the published one is more than 1 % above the "
        f"proven bound, it is faster at {faster} of {len(room)} points, by up to "
        f"{100 * max(map(gain, known)):.1f} %. At {near} of {len(mine)} points it is within 3 % of "
        f"the bound, and at all within {100 * max(map(gap, mine)):.1f} %."
    )


HEADS = {
    "published": "published schedulers",
    "even": "registered schedules, equal ranks",
    "uneven": "registered schedules, unequal ranks",
    "small": "none: is the optimum proven?",
}
"""What each part is compared with, in the order of the page."""


def summary(rows: list[dict[str, Any]], title: str, names: Mapping[str, str]) -> Iterator[str]:
    """A table with a row for every part that has a name."""
    yield f"| {title} | points | proven optimal | faster | median gain | most | largest gap |"
    yield "|---|---|---|---|---|---|---|"
    for part, name in names.items():
        mine = [row for row in rows if row["part"] == part]
        known = [row for row in mine if row["published"] is not None]
        yield f"| {name} | {figures(mine, known)} |"


def figures(mine: list[dict[str, Any]], known: list[dict[str, Any]]) -> str:
    """Cells of a row: points, proofs, how many are faster and by how much, and the largest gap."""
    proven = sum(row["status"] == "optimal" for row in mine)
    gains = "– | – | –"
    if known:
        faster = [gain(row) for row in known if row["ours"] < row["published"] - ROUNDING]
        gains = f"{len(faster)} | {100 * median(faster):.1f} % | {100 * max(faster):.1f} %"
    return f"{len(mine)} | {proven} | {gains} | {100 * max(map(gap, mine)):.1f} %"


def open_gap(row: dict[str, Any], percent: float | None) -> bool:
    """Whether a point is to be measured again."""
    return percent is not None and row["ours"] > (1 + percent / 100) * row["bound"]


def keep(rows: dict[str, dict[str, Any]]) -> None:
    RESULTS.write_text("".join(json.dumps(row) + "\n" for row in rows.values()), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=(*PARTS, *RIVALS))
    parser.add_argument("--seconds", type=float, help="time limit of every point")
    parser.add_argument("--effort", type=float, default=1.0, help="work on every point of a grid")
    parser.add_argument("--gap", type=float, help="measure points with a larger gap again")
    arguments = parser.parse_args()
    done = load()
    for part in arguments.parts:
        for row, run in tasks(part, arguments.seconds, arguments.effort):
            known = done.get(key(row))
            if known and not open_gap(known, arguments.gap):
                continue
            row = merged(known, run()) if known else run()
            done[key(row)] = row
            keep(done)
            print({name: row[name] for name in row if name != "costs"}, flush=True)
            DOCUMENT.write_text(document(list(done.values())), encoding="utf-8")
    DOCUMENT.write_text(document(list(done.values())), encoding="utf-8")


if __name__ == "__main__":
    main()
