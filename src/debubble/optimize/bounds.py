"""Proven lower bounds on the makespan, without a solver.

Every order can be changed so that each stage runs each kind of action in microbatch order, without
any action ending later: give the b-th start of a chain of actions to microbatch b. If each
microbatch's action ends before its next one starts, the same is true of the b-th ones, and memory
only counts how many have started and ended. So all bounds assume that order.

**Memory as precedence.** Let rank r hold stages s, the last of them t, with activations a(s) and a
limit M. When microbatch b passes the last stage of the model, r holds all its activations and
those of every younger microbatch that has been there. So if c more than one of stage s fit,

    c = ⌊(M − Σ a) / a(s)⌋ with the sum over all stages of r,

microbatch b + c + 1 cannot be at stage s by then, nor before the first activation of b leaves r.
That is when I of b at stage t has ended, and, where all of an activation is kept for the weights,
a W has run, too: an arc from I(b, t) to F(b + c + 1, s).

**Heads and tails.** Longest paths through these arcs, the data's arcs and transfers, and the order
of the chains bound when each action starts and how much follows it: *fill and drain*, *p2p* and the
round trips of *memory-limited throughput*. The longest path is a bound by itself.

**One busy rank.** A rank runs one action at a time, none before its head, and the end of each is
followed by its tail. Preemptive scheduling by largest tail (Jackson) solves that exactly.

**Memory as area.** Each activation stays for at least the head-to-tail lifespan of a lone
microbatch; m of them must fit under M times the time from the first forward to the last free.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import Kind
from debubble.optimize import _bounds_kernel as inner
from debubble.optimize.problem import Problem

Grid: TypeAlias = NDArray[np.float64]
"""One number per kind, stage and microbatch."""


def spare_microbatches(problem: Problem) -> NDArray[np.int64]:
    """How many microbatches besides one fit on every stage, shape ``(stages,)``; at most m."""
    room = (problem.roof - problem.filled)[problem.homes]
    activation = np.maximum(problem.table.activation, np.finfo(float).tiny)
    return np.minimum(np.floor(room / activation), problem.microbatches).astype(np.int64)


def memory_lag(problem: Problem) -> NDArray[np.float64]:
    """Time from the end of I at each rank's last stage to the first free, shape ``(ranks,)``."""
    lag = np.full(problem.ranks, np.inf)
    weight = np.zeros(problem.stages) if problem.fused else problem.table.duration[Kind.W]
    kept_all = problem.table.kept >= problem.table.activation
    np.minimum.at(lag, problem.homes, np.where(kept_all, weight, 0.0))
    return lag


def last_stages(problem: Problem) -> NDArray[np.int64]:
    """The last stage of the rank of every stage, shape ``(stages,)``."""
    last = np.zeros(problem.ranks, dtype=np.int64)
    np.maximum.at(last, problem.homes, np.arange(problem.stages))
    return last[problem.homes]


def heads_and_tails(problem: Problem) -> tuple[Grid, Grid]:
    """Earliest start of every action, and least time from its end to the end of all.

    Returns
    -------
    heads, tails
        Shape ``(kinds, stages, microbatches)``.
    """
    kinds, S, m = len(problem.kinds), problem.stages, problem.microbatches
    heads = np.zeros(problem.size)
    tails = np.zeros(problem.size)
    inner.longest_paths.run(
        2 * problem.size, S, m, kinds, problem.times.ravel(), problem.up, problem.down,
        last_stages(problem), spare_microbatches(problem), memory_lag(problem)[problem.homes],
        heads, tails,
    )  # fmt: skip
    return heads.reshape(kinds, S, m), tails.reshape(kinds, S, m)


def lower_bound(problem: Problem) -> float:
    """The largest of all bounds here."""
    heads, tails = heads_and_tails(problem)
    times = np.broadcast_to(problem.times[:, :, None], heads.shape)
    bound = max(float((heads + times + tails).max()), area_bound(problem, heads, tails))
    for rank in range(problem.ranks):
        own = problem.homes == rank
        if own.any():
            parts = (values[:, own].ravel() for values in (heads, times, tails))
            bound = max(bound, one_rank(*parts))
    return bound


def one_rank(
    heads: NDArray[np.float64], times: NDArray[np.float64], tails: NDArray[np.float64]
) -> float:
    """Least makespan of one machine with heads, times and tails, when actions can be interrupted.

    Parameters
    ----------
    heads, times, tails
        Earliest starts, times, and what follows each end; shape ``(n,)``.
    """
    urgent_first = np.argsort(-tails, kind="stable")
    heads, times, tails = heads[urgent_first], times[urgent_first], tails[urgent_first]
    n = len(heads)
    found = inner.preemptive.run(
        n * n.bit_length(), np.argsort(heads, kind="stable"), heads, times.copy(), tails,
        np.zeros(n + 1, dtype=np.int64),
    )  # fmt: skip
    return float(found)


def area_bound(problem: Problem, heads: Grid, tails: Grid) -> float:
    """Memory of lone microbatches over time, against what every rank has."""
    alone = heads[:, :, 0] + problem.times
    begin = heads[0, :, 0]
    # What an action frees has been there since the forward began.
    area = (problem.freed * (alone - begin)).sum(axis=0) * problem.microbatches
    first = np.full(problem.ranks, np.inf)
    np.minimum.at(first, problem.homes, begin)
    last = np.full(problem.ranks, np.inf)
    np.minimum.at(last, problem.homes, tails[1:].min(axis=(0, 2)))
    used = problem.filled > 0
    spans = problem.per_rank(area)[used] / problem.roof[used]
    return float((first[used] + spans + last[used]).max(initial=0.0))
