"""What every strategy of the optimizer is worth: problems solved with all, and with all but one.

    python benchmarks/strategies.py [problem …] [--without NAME …] [--effort E]

Each line says how much slower the result is without a strategy, and how much lower the bound, in
percent. The problems are some of those of :mod:`frontier` and :mod:`rivals`, and one of each sort
that these lack: recomputes, backwards that are faster fused, and transfers for which ranks meet.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from frontier import REAL, UNIT, uneven
from rivals import two_sites

import debubble as db
from debubble.optimize import strategies
from debubble.optimize.request import Request

GRID = {"F": 10.0, "I": 12.0, "W": 8.0, "p2p": 0.0}


def problem(p: int, m: int, v: int, memory: float, costs: dict[str, Any], **more: Any) -> Any:
    """Return arguments of :func:`debubble.optimize` for one problem, costs per rank."""
    given = db.Costs.per_rank(**costs, chunks=v)
    return {"ranks": p, "microbatches": m, "chunks": v, "costs": given, "memory": memory, **more}


def copied(p: int, m: int, memory: float, copy: float) -> Any:
    """Return a problem whose activations may be copied to the host, each in the time `copy`."""
    return problem(p, m, 1, memory, GRID | {"host_bandwidth": 1 / copy}, offload=list(range(p)))


PROBLEMS: dict[str, Any] = {
    "small": problem(4, 8, 2, 2, UNIT),
    "small uneven": problem(4, 8, 2, 3, uneven(4)),
    "real": problem(8, 16, 2, 5, REAL),
    "even": problem(8, 32, 2, 4, GRID),
    "uneven": problem(8, 32, 2, 4, uneven(8)),
    "uneven, one chunk": problem(8, 32, 1, 6, uneven(8)),
    "long": problem(8, 64, 2, 6, uneven(8)),
    "wide": problem(16, 64, 2, 6, uneven(16)),
    "copies 2, 10": copied(4, 8, 2, 10.0),
    "copies 2, 20": copied(4, 8, 2, 20.0),
    "copies 3, 20": copied(4, 8, 3, 20.0),
    "recompute": problem(3, 6, 2, 0.7, GRID | {"recompute_kept": 0.1}, recompute="full"),
    "recompute, many": problem(8, 32, 1, 4, uneven(8), recompute="full"),
    "recompute, p2p": problem(
        8, 32, 1, 1.1, uneven(8) | {"p2p": 4.0, "recompute_kept": 0.1}, recompute="full"
    ),
    "fused": problem(4, 8, 1, 4, GRID | {"B": 18.0}),
    "fused, many": problem(8, 32, 1, 8, GRID | {"B": 18.0}),
    "blocking": problem(4, 8, 2, 3, GRID | {"p2p": 2.0}, p2p_mode="blocking"),
    "channel": problem(4, 8, 1, 4, GRID | {"p2p": two_sites(4, 10.0)}, p2p_mode="channel"),
}
"""Problems by name."""


def measured(asked: Any, effort: float) -> tuple[float, float, float]:
    """Return makespan, lower bound and seconds of processor time of one search."""
    began = time.process_time()
    result = db.optimize(**asked, effort=effort, workers=1, cache=False, published=False)
    return result.makespan, result.lower_bound, time.process_time() - began


def names_of(asked: Any) -> list[str]:
    """Return strategies that are of use for a problem, each name once.

    Without list scheduling there need not be an order to begin with.
    """
    problems = Request(**asked).problems
    fitting = [s.name for s in strategies.STRATEGIES if any(map(s.applies, problems))]
    return [name for name in dict.fromkeys(fitting) if name != "list scheduling"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("problems", nargs="*", default=list(PROBLEMS))
    parser.add_argument("--without", nargs="*", help="strategies; by default each in turn")
    parser.add_argument("--effort", type=float, default=1.0)
    arguments = parser.parse_args()
    every = list(strategies.STRATEGIES)
    for name in arguments.problems:
        asked = PROBLEMS[name]
        makespan, bound, seconds = measured(asked, arguments.effort)
        print(f"{name}: {makespan:g}, bound {bound:g}, {seconds:.1f} s", flush=True)
        for left_out in arguments.without or names_of(asked):
            strategies.STRATEGIES[:] = [s for s in every if s.name != left_out]
            ours, proven, its = measured(asked, arguments.effort)
            slower, lower = 100 * (ours / makespan - 1), 100 * (1 - proven / bound)
            saved = seconds - its
            print(f"  without {left_out}: slower by {slower:.2f} %, bound lower by {lower:.2f} %,"
                  f" saves {saved:.1f} s", flush=True)  # fmt: skip
            strategies.STRATEGIES[:] = every


if __name__ == "__main__":
    main()
