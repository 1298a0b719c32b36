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

**Recomputes.** An R runs anywhere between its forward and its backward on the same rank, and holds
its memory from its start on. It is work of the rank, but on no path from one rank to another: paths
count it only between its own forward and its own backward. In the above a(s) is what a forward
leaves, and what R takes at stage t needs room as well, before b can leave: if F(b + c + 1, s) ran
before I(b, t), both it and R(b, t) would be held when that starts. Sorting the R of a stage like
the other chains leaves each between its forward and its backward.

**Heads and tails.** Longest paths through these arcs, the data's arcs and transfers, and the order
of the chains bound when each action starts and how much follows it: *fill and drain*, *p2p* and the
round trips of *memory-limited throughput*. The longest path is a bound by itself.

**One busy rank.** A rank runs one action at a time, none before its head, and the end of each is
followed by its tail; an R comes after its forward, and its backward follows. Preemptive scheduling
by largest tail (Jackson) solves that exactly.

**Memory as area.** Each activation stays for at least the head-to-tail lifespan of a lone
microbatch; m of them must fit under M times the time from the first forward to the last free.

**Carries.** What a stage carries to one that is not its neighbor is an arc from its F, and the
gradient one back, at the time of the transfer. Links and queues that carries occupy as well are
left out: no schedule is faster for having more to move.

Modes of transfers
------------------
In every mode a transfer begins when its result is there, and its consumer when it is over. Sends of
one stage and kind are a chain, too: giving the b-th start of every chain to microbatch b moves none
of these intervals, so that whatever could not overlap still does not.

**Busy links.** In the mode ``"channel"`` each directed pair of ranks carries one transfer at a time
and is one machine, whose jobs have the ends of their producers as heads and what follows at their
consumers as tails. In the mode ``"pair"`` both directions share a queue, in ``"group"`` all
transfers of a rank do: each queue runs one transfer after the other, and is one machine. In all of
them, and in ``"blocking"``, where links carry one transfer at a time as well, the sends of a chain
follow each other: paths that run through them see what a slow link delays.

**Rendezvous.** In the mode ``"blocking"`` the engine puts a send right after its producer, and no
rank computes before all transfers of the group it has reached are over. So no transfer runs while
either of its ranks computes. Two sends of one rank are in different groups, since the later one's
producer stands between them; a rank leaves the earlier group first. Hence a rank with all it
computes and all it *sends* is one machine. What it receives may run together with what it sends,
but transfers of one link do not overlap: a rank with all it computes and all it receives from one
other rank is one machine as well. On paths, the next action of a chain comes after the send, and
so do W, where no backward is fused, and a forward that waits for the memory of this microbatch.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from debubble.core.kind_relations import SPLIT_KINDS
from debubble.core.units import number
from debubble.optimize.bounds._paths_kernel import Arcs, preemptive
from debubble.optimize.bounds._paths_kernel import longest_paths as find_paths
from debubble.optimize.problem import NO_MEMORY, Problem

Grid: TypeAlias = NDArray[np.float64]
"""One number per kind, stage and microbatch."""


class Paths(NamedTuple):
    """Longest paths to and from everything that takes time.

    Parameters
    ----------
    heads, tails
        Earliest start of every action but R, and least time from its end to the end of all; shape
        ``(kinds, stages, microbatches)``.
    jobs
        Heads, times and tails of all that :func:`machines` run; shapes ``(rows, microbatches)``.
    """

    heads: Grid
    tails: Grid
    jobs: tuple[Grid, Grid, Grid]


class MemoryArcs(NamedTuple):
    """Forwards that wait for the memory of older microbatches; all shapes are ``(stages,)``.

    Parameters
    ----------
    last
        The last stage of the same rank, whose I or B begins to free memory.
    later
        Microbatches by which the forward is later.
    lag
        Time from the end of that I to the first free.
    """

    last: NDArray[np.int64]
    later: NDArray[np.int64]
    lag: NDArray[np.float64]


def memory_arcs(problem: Problem) -> MemoryArcs:
    """Return the precedences that memory limits make."""
    homes, stages = problem.homes, problem.stages
    of_ranks = np.zeros(problem.ranks, dtype=np.int64)
    np.maximum.at(of_ranks, homes, np.arange(stages))
    last = of_ranks[homes]
    room = (problem.limits_with_slack - problem.microbatch_stored)[homes] - problem.taken[1, last]
    stored = np.maximum(problem.taken[0], NO_MEMORY)
    spare = np.maximum(np.minimum(np.floor(room / stored), problem.microbatches), 0)
    weight = np.zeros(stages) if problem.fused else problem.table.duration[SPLIT_KINDS[-1]]
    lag = problem.least_per_rank(np.where(problem.freed[1] <= 0, weight, 0.0))
    return MemoryArcs(last, spare.astype(np.int64) + 1, lag[homes])


def longest_paths(problem: Problem) -> Paths:
    """Return heads and tails of actions and transfers."""
    kinds, S, m = len(problem.kinds), problem.stages, problem.microbatches
    times = np.vstack([problem.pass_times, transfer_times(problem), problem.recompute_time[None]])
    heads, tails = np.zeros((2, times.size * m))
    arcs = _arcs(problem)
    find_paths.run(2 * m * len(arcs.lag), m, arcs, times.ravel(), heads, tails)
    jobs = (
        heads.reshape(-1, m),
        np.broadcast_to(times.reshape(-1, 1), (times.size, m)),
        tails.reshape(-1, m),
    )
    first, last = (grid.reshape(-1, S, m)[:kinds] for grid in (heads, tails))
    return Paths(first, last, jobs)


def _arcs(problem: Problem) -> Arcs:
    """Return all precedences between rows of :func:`machines`."""
    kinds, S, stages = len(problem.kinds), problem.stages, np.arange(problem.stages)
    sent, returned, again = range(kinds, kinds + 3)
    holding = problem.mode == "blocking"
    # Source, target, and stages and microbatches by which the target is later.
    alike = [
        *((kind, kind, 0, 1) for kind in range(kinds)),
        (0, sent, 0, 0), (sent, 0, 1, 0), (0, again, 0, 0), (again, 1, 0, 0),
        (1, returned, 0, 0), (returned, 1, -1, 0),
    ]  # fmt: skip
    if not problem.fused:
        # Where ranks meet, W comes after the send, and so does what waits for memory.
        alike.append((returned if holding and problem.backward == "split" else 1, 2, 0, 0))
    if problem.mode != "overlapped":
        alike += [(sent, sent, 0, 1), (returned, returned, 0, 1)]
    if holding:
        alike += [(sent, 0, 0, 1), (returned, 1, 0, 1)]
    source, target, step, later = np.array(alike).T[:, :, None]
    inside = (stages + step >= 0) & (stages + step < S)
    plain = (source * S + stages, target * S + stages + step, later + 0 * stages)
    last, waits, lag = memory_arcs(problem)
    parts: list[tuple[Any, ...]] = [
        (*(values[inside] for values in plain), np.zeros(np.count_nonzero(inside))),
        (S + last, stages, waits, lag + transfer_times(problem)[1, last] * holding),
    ]
    for (row, to), (_, since), time in problem.carried:
        its = time + row * problem.recompute_time[to]
        parts.append((row * S + since, row * S + to, 0, its))
    found = [np.hstack(column) for column in zip(*parts, strict=True)]
    # As a microbatch passes them: forwards, backwards from the last stage on.
    up, down = stages, 2 * S - stages
    turns = np.array([*(up, down, down + 0.5)[:kinds], up + 0.25, down + 0.25, up + 0.5])
    order = np.argsort(turns.ravel()[found[0]], kind="stable")
    return Arcs(*(column[order] for column in found))


def transfer_times(problem: Problem) -> NDArray[np.float64]:
    """Return times to send each stage's F and I or B, 0 where it stays; shape ``(2, stages)``."""
    return np.array([np.roll(problem.forward_link, -1), np.roll(problem.backward_link, 1)])


def machines(problem: Problem) -> list[NDArray[np.int64]]:
    """Return sets of rows of actions and transfers that run one at a time.

    Row ``k · S + s`` is the k-th kind of stage s. The rows after all kinds are the transfers of F
    and of I or B, and the last rows the R of every stage that has one.
    """
    homes, mode = problem.homes, problem.mode
    passes = len(problem.kinds) * problem.stages
    computing = np.tile(homes, len(problem.kinds))
    again = np.flatnonzero(problem.recompute_time)
    recomputes = passes + 2 * problem.stages + again
    ranks = [
        np.append(np.flatnonzero(computing == rank), recomputes[homes[again] == rank])
        for rank in range(problem.ranks)
    ]
    source = np.tile(homes, 2)
    target = np.concatenate([homes[1:], homes[-1:], homes[:1], homes[:-1]])
    remote = np.flatnonzero(source != target)
    source, target, rows = source[remote], target[remote], passes + remote

    def sets(owner: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        return [rows[owner == one] for one in np.unique(owner)]

    low, high = np.minimum(source, target), np.maximum(source, target)
    if mode == "channel":
        return ranks + sets(source * problem.ranks + target)
    if mode == "pair":
        return ranks + sets(low * problem.ranks + high)
    if mode == "group":
        either = [rows[(source == rank) | (target == rank)] for rank in range(problem.ranks)]
        return ranks + either
    if mode == "blocking":
        sending = [np.append(ranks[rank], rows[source == rank]) for rank in range(problem.ranks)]
        receiving = [
            np.append(ranks[there], rows[(source == here) & (target == there)])
            for here, there in np.unique(np.stack([source, target], axis=1), axis=0).tolist()
        ]
        return sending + receiving
    return ranks


class Proof(NamedTuple):
    """A bound with its reason in words."""

    bound: float
    why: str


def lower_bound(problem: Problem) -> float:
    """Return the largest of all bounds here."""
    return prove(problem).bound


def prove(problem: Problem) -> Proof:
    """Return the largest of all bounds here, and its reason."""
    paths = longest_paths(problem)
    return max((find(problem, paths) for find in BOUNDS), key=lambda proof: proof.bound)


def by_path(problem: Problem, paths: Paths) -> Proof:  # noqa: ARG001 - as all bounds
    """Return the longest path."""
    bound = float(np.sum(paths.jobs, axis=0).max())
    return Proof(bound, f"actions that wait for each other or for memory take {number(bound)}")


def by_busy_rank(problem: Problem, paths: Paths) -> Proof:
    """Return the bound of the rank, or queue of transfers, with the most to do."""
    best, least = Proof(0.0, ""), np.inf
    for rows in machines(problem):
        if not len(rows):
            continue
        heads, times, tails = (values[rows].ravel() for values in paths.jobs)
        bound = one_rank(heads, times, tails)
        first, busy, last = heads.min(), times.sum(), tails.min()
        waits = bound - first - busy - last
        slack = 1e-9 * bound
        # Of equal bounds, the one with the least waits is the easiest to follow.
        if bound > best.bound + slack or (bound > best.bound - slack and waits < least - slack):
            drain = f", and {number(last)} follows" if last > 0 else ""
            idle = f", and it waits {number(waits)} or more in any order" if waits > slack else ""
            best, least = (
                Proof(
                    max(bound, best.bound),
                    f"{_name(problem, rows)} cannot begin before {number(first)}, and has "
                    f"{number(busy)} to do, one after the other{drain}{idle}",
                ),
                waits,
            )
    return best


def by_area(problem: Problem, paths: Paths) -> Proof:
    """Return the rank whose memory is taken the longest."""
    spans = areas(problem, paths.heads, paths.tails)
    rank = int(np.argmax(spans))
    return Proof(
        float(spans[rank]),
        f"what rank {rank} stores stays so long that its memory is taken all the time",
    )


BOUNDS = [by_path, by_busy_rank, by_area]
"""Every bound that needs longest paths only."""


def _name(problem: Problem, rows: NDArray[np.int64]) -> str:
    """Return the name of a machine: a rank, or a queue of transfers."""
    passes = len(problem.kinds) * problem.stages
    if rows[0] >= passes:
        return "a queue of transfers"
    rank = int(problem.homes[rows[0] % problem.stages])
    sent = np.any((rows >= passes) & (rows < passes + 2 * problem.stages))
    return f"rank {rank}{' with its transfers' if sent else ''}"


def one_rank(
    heads: NDArray[np.float64], times: NDArray[np.float64], tails: NDArray[np.float64]
) -> float:
    """Return the least makespan of one machine whose actions can be interrupted."""
    urgent_first = np.argsort(-tails, kind="stable")
    heads, times, tails = heads[urgent_first], times[urgent_first], tails[urgent_first]
    n = len(heads)
    found = preemptive.run(
        n * n.bit_length(), np.argsort(heads, kind="stable"), heads, times.copy(), tails
    )  # fmt: skip
    return float(found)


def areas(problem: Problem, heads: Grid, tails: Grid) -> NDArray[np.float64]:
    """Return memory over time of lone microbatches per limit of their rank, shape ``(ranks,)``."""
    alone = heads[:, :, 0] + problem.pass_times
    begin = heads[0, :, 0]
    # What an action frees has been there since the forward began.
    area = (problem.freed * (alone - begin)).sum(axis=0)
    # What a backward takes has only been there since it began, and what R takes since that did.
    area -= problem.taken[1] * (heads[1, :, 0] - begin)
    area += problem.taken_by_recompute * problem.recompute_time
    area *= problem.microbatches
    first = problem.least_per_rank(begin)
    last = problem.least_per_rank(tails[1:].min(axis=(0, 2)))
    used = problem.microbatch_memory > 0
    spans = np.zeros(problem.ranks)
    spans[used] = problem.per_rank(area)[used] / problem.limits_with_slack[used]
    spans[used] += (first + last)[used]
    return spans
