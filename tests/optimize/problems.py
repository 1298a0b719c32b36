"""Problems to optimise, small enough to look at every order."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

import debubble as db
from debubble.core.actions import Kind, pack
from debubble.optimize.problem import Problem


def problem(
    ranks: int, microbatches: int, memory: Any, chunks: int = 2, mode: Any = "overlapped",
    backward: Any = "split", placement: db.Placement | None = None, **costs: Any,
) -> Problem:  # fmt: skip
    place = placement or db.Placement.wave(ranks, chunks)
    table = db.Costs(**costs).resolve(place)
    limits = np.broadcast_to(np.asarray(memory, dtype=float), (ranks,)).copy()
    return Problem(place, table, microbatches, limits, mode=mode, backward=backward)


def orders(asked: Problem, rank: int, in_turn: bool = False) -> list[NDArray[np.int64]]:
    """Every order of a rank's actions that their own data allow; in turn for that of microbatches.

    Actions that need each other over other ranks only are taken for independent.
    """
    stages = asked.placement.stages_on(rank)
    actions = list(product(asked.kinds, stages, range(asked.microbatches)))

    def first(one: tuple[Kind, int, int], other: tuple[Kind, int, int]) -> bool:
        (kind, stage, b), (later, after, c) = one, other
        if b != c:
            return in_turn and b < c and (kind, stage) == (later, after)
        if kind == Kind.F:
            return after > stage if later == Kind.F else later != Kind.W and after <= stage
        if later == Kind.W:
            return kind == Kind.I and stage == after
        return kind == later and after < stage

    before = [sum(1 << i for i, x in enumerate(actions) if first(x, y)) for y in actions]
    packed = [int(pack(*action)[0]) for action in actions]
    found: list[NDArray[np.int64]] = []

    def extend(done: int, order: list[int]) -> None:
        if len(order) == len(actions):
            found.append(np.array(order))
        for index, needed in enumerate(before):
            if not done >> index & 1 and not needed & ~done:
                extend(done | 1 << index, [*order, packed[index]])

    extend(0, [])
    return found


def fused_variants(order: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """An order with any of the I and W that follow each other fused."""
    found = [order]
    for index in reversed(range(len(order) - 1)):
        one, other = (Kind(int(action) & 31) for action in order[index : index + 2])
        if (one, other) == (Kind.I, Kind.W) and (order[index] ^ order[index + 1]) < 32:
            both = order[index] ^ Kind.I ^ Kind.B
            found += [
                np.concatenate([way[:index], [both], way[index + 2 :]]) for way in list(found)
            ]
    return found


def fastest(asked: Problem, in_turn: bool = False) -> float:
    """The smallest makespan over all orders; microbatches need not keep theirs."""
    best = float("inf")
    ways = [orders(asked, rank, in_turn) for rank in range(asked.ranks)]
    if asked.backward == "free":
        ways = [[way for order in some for way in fused_variants(order)] for some in ways]
    for chosen in product(*ways):
        schedule = asked.schedule(chosen)
        if asked.fits(schedule):
            try:
                best = min(best, asked.timeline(schedule).makespan)
            except db.ScheduleError:
                continue
    return best


def kinds(schedule: db.Schedule) -> set[Kind]:
    return {action.kind for program in schedule for action in program}
