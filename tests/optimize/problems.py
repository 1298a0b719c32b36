"""Problems to optimise, small enough to look at every order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

import debubble as db
from debubble.core.actions import STAGE_SHIFT, Kind, pack, unpack
from debubble.engine.graph import P2P_MODES, compile_graph
from debubble.engine.memory import measure_memory
from debubble.engine.timeline import timeline_of
from debubble.optimize.bounds.paths import lower_bound
from debubble.optimize.cp_sat.model import Model
from debubble.optimize.problem import Problem
from debubble.optimize.programs.backward import relaxed
from debubble.optimize.programs.list_scheduling import listed


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

    Actions that need each other over other ranks only are taken for independent. An R may be
    anywhere between its forward and its backward.
    """
    stages = asked.placement.stages_on(rank)
    actions = list(product(asked.kinds, stages, range(asked.microbatches)))
    again = [stage for stage in stages if asked.recomputed[stage]]
    actions += product([Kind.R], again, range(asked.microbatches))

    def first(one: tuple[Kind, int, int], other: tuple[Kind, int, int]) -> bool:
        (kind, stage, b), (later, after, c) = one, other
        if b != c:
            return in_turn and b < c and (kind, stage) == (later, after)
        if later == Kind.R:
            return kind == Kind.F and after >= stage
        if kind == Kind.R:
            return later != Kind.F and after <= stage
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
    ways = [orders(asked, rank, in_turn) for rank in range(asked.ranks)]
    if asked.table.lengths is None:
        # Microbatches are alike: their numbers are those of the order in which they enter a stage.
        stage = asked.placement.stages_on(0)[0]
        entries = [int(pack(Kind.F, stage, unit)[0]) for unit in range(asked.microbatches)]
        ways[0] = [way for way in ways[0] if way[np.isin(way, entries)].tolist() == entries]
    if asked.backward == "free":
        ways = [[way for order in some for way in fused_variants(order)] for some in ways]
    base = asked.schedule([some[0] for some in ways])
    ways = [fitting(asked, base, rank, some) for rank, some in enumerate(ways)]
    rows = [[Row.of(asked, way) for way in some] for some in ways]
    best, found = float("inf"), None
    for chosen in product(*map(range, map(len, ways))):
        run = [some[number] for some, number in zip(rows, chosen, strict=True)]
        makespan = by_rows(run, best)
        if makespan >= best:
            continue
        if asked.mode != "overlapped":
            # No transfer is faster than one that occupies nobody, which is simulated sooner.
            schedule = base.with_programs(some[i] for some, i in zip(ways, chosen, strict=True))
            makespan = simulated(asked, schedule, asked.mode)
        if makespan < best:
            best, found = makespan, chosen
    if found is not None:
        schedule = base.with_programs(some[i] for some, i in zip(ways, found, strict=True))
        assert simulated(asked, schedule, asked.mode) == pytest.approx(best, rel=1e-12)
    return best


def simulated(asked: Problem, schedule: db.Schedule, mode: Any) -> float:
    """The engine's makespan; infinite where transfers wait for each other."""
    try:
        graph = compile_graph(schedule, mode, explain=False)
    except db.ScheduleError:
        return float("inf")
    return timeline_of(graph, asked.table).makespan


def fitting(
    asked: Problem, base: db.Schedule, rank: int, ways: list[NDArray[np.int64]]
) -> list[NDArray[np.int64]]:
    """Orders of a rank within its memory, which those of other ranks have no say in."""
    programs: list[Any] = list(map(base.program, range(base.ranks)))
    found = []
    for way in ways:
        schedule = base.with_programs([*programs[:rank], way, *programs[rank + 1 :]])
        if measure_memory(schedule, asked.table).peak[rank] <= asked.limits_with_slack[rank]:
            found.append(way)
    return found


Pass = tuple[bool, int, int]
"""Whether it is a backward, its stage and its microbatch: what other stages wait for."""


class Row(NamedTuple):
    """A rank's actions in order: what each takes, gives, and waits for, and for how long after."""

    work: float
    actions: list[tuple[float, Pass | None, tuple[Pass, float] | None]]

    @classmethod
    def of(cls, asked: Problem, order: NDArray[np.int64]) -> Row:
        last = asked.stages - 1
        actions: list[Any] = []
        for action in map(unpack, order.tolist()):
            kind, stage, unit = action.kind, action.stage, action.microbatch
            gives: Pass | None = None
            needs: tuple[Pass, float] | None = None
            if kind in (Kind.F, Kind.I, Kind.B):
                back = kind != Kind.F
                gives = back, stage, unit
                other = stage + 1 if back else stage - 1
                if 0 <= other <= last:
                    needs = (back, other, unit), transfer_time(asked, other, stage, unit, back)
            actions.append((time_of(asked, kind, stage, unit), gives, needs))
        return cls(sum(time for time, _, _ in actions), actions)


def time_of(asked: Problem, kind: Kind, stage: int, unit: int) -> float:
    """Time of an action, by the length of its microbatch where these differ."""
    table = asked.table
    if table.lengths is None:
        return float(table.duration[kind, stage])
    return float(table.times(np.array(kind), np.array(stage), table.lengths[unit]))


def transfer_time(asked: Problem, sender: int, receiver: int, unit: int, back: bool) -> float:
    """Time from one stage's action to the next stage's."""
    links = asked.backward_link if back else asked.forward_link
    if asked.table.lengths is None:
        return float(links[receiver])
    homes, kind = asked.homes, Kind.I if back else Kind.F
    made = [np.array([x]) for x in (homes[sender], homes[receiver], unit, int(kind), sender)]
    return float(asked.table.transfers(*made)[0])


def by_rows(rows: Sequence[Row], known: float) -> float:
    """Time of an order whose transfers occupy nobody, without the engine.

    Infinite where ranks wait for each other, or it is no faster than what is known.
    """
    known *= 1 + 1e-12
    end: dict[Pass, float] = {}
    at, free, left = [0] * len(rows), [0.0] * len(rows), [row.work for row in rows]
    moving = True
    while moving:
        moving = False
        for rank, row in enumerate(rows):
            now = free[rank]
            for time, gives, needs in row.actions[at[rank] :]:
                if needs is not None:
                    if needs[0] not in end:
                        break
                    now = max(now, end[needs[0]] + needs[1])
                if now + left[rank] >= known:
                    return float("inf")
                now += time
                left[rank] -= time
                if gives is not None:
                    end[gives] = now
                at[rank] += 1
                moving = True
            free[rank] = now
    done = all(place == len(row.actions) for place, row in zip(at, rows, strict=True))
    return max(free) if done else float("inf")


SHAPES = (
    (1, 1, 3), (1, 2, 2), (2, 1, 2), (2, 1, 3), (2, 2, 1), (2, 2, 2), (3, 1, 2), (3, 2, 1),
    (1, 3, 1), (2, 1, 4), (3, 1, 3), (2, 2, 3), (4, 1, 3), (2, 3, 2), (3, 2, 2),
)  # fmt: skip
"""Ranks, chunks and microbatches of problems that are solved exactly."""

MOST_ORDERS = 4000
"""Combinations of orders of ranks that are tried one by one."""


def random_problem(rng: np.random.Generator) -> Problem:
    """A small problem with any placement, times, memory, mode of transfers and choices."""
    p, v, m = SHAPES[rng.integers(len(SHAPES))]
    stages = p * v
    whole = rng.random() < 0.7

    def times(count: int) -> list[float]:
        return (rng.integers(0, 9, count) / 2 if whole else rng.random(count) * 4).tolist()

    place = [db.Placement.wave(p, v), db.Placement.loop(p, v)][rng.integers(2)]
    if rng.random() < 0.2:
        place = db.Placement.explicit(rng.permutation(np.repeat(np.arange(p), v)).tolist(), p)
    ways = ["split", "fused", "free"] if stages * m <= 4 else ["split", "fused"]
    backward = str(rng.choice(ways))
    costs: dict[str, Any] = {kind: times(stages) for kind in "FIWR"}
    if backward == "free":
        costs["B"] = times(stages)
    if rng.random() < 0.3:
        costs["activation"] = (rng.integers(1, 5, stages) / 2).tolist()
    links: list[Any] = [0.0, times(1)[0], [times(p) for _ in range(p)]]
    mode = str(rng.choice(P2P_MODES)) if rng.random() < 0.4 else "overlapped"
    asked = problem(
        p, m, 1.0, mode=mode, backward=backward, placement=place, p2p=links[rng.integers(3)],
        kept_for_weight=float(rng.choice([0, 0.5, 1.0])), **costs,
    )  # fmt: skip
    if rng.random() < 0.4:
        asked = replace(asked, recompute=tuple((rng.random(stages) < 0.5).tolist()))
    return replace(asked, limits=asked.smallest_limits * float(rng.choice([1, 1.2, 1.5, 2, 10])))


def optimum(asked: Problem) -> tuple[float, bool]:
    """The makespan of an order of a small problem, and whether it is sure to be the fastest.

    All orders are tried where they are few, else the exact solver finds one.
    """
    in_turn = asked.stages * asked.microbatches > 4
    held = np.bincount(asked.homes) * len(asked.kinds) + np.bincount(asked.homes, asked.recomputed)
    held = held * asked.microbatches
    if held.max() <= 9:
        count = math.prod(len(orders(asked, rank, in_turn)) for rank in range(asked.ranks))
        if count * (3 if asked.backward == "free" else 1) < MOST_ORDERS:
            return fastest(asked, in_turn), True
    known = listed(asked, ())
    solution = Model(asked, known, lower_bound(relaxed(asked))).solve(10, 60, 1, 0)
    order = asked.schedule(solution.programs or known)
    # Of other modes the solver does not know all.
    return asked.timeline(order).makespan, solution.proven and asked.mode == "overlapped"


def recomputes_between(schedule: db.Schedule) -> bool:
    """Whether every R stands behind its forward and before its backward."""
    for rank in range(schedule.ranks):
        program = schedule.program(rank).tolist()
        place = {action: number for number, action in enumerate(program)}
        for action, number in place.items():
            cell = action >> STAGE_SHIFT << STAGE_SHIFT
            if action - cell == Kind.R:
                back = place.get(cell | Kind.I, place.get(cell | Kind.B, -1))
                if not place[cell | Kind.F] < number < back:
                    return False
    return True


def kinds(schedule: db.Schedule) -> set[Kind]:
    return {action.kind for program in schedule for action in program}
