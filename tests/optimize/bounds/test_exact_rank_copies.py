"""Bounds by one rank with its copies: below every order there is, and near the best."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, product
from typing import Any

import numpy as np
import pytest

import debubble as db
from debubble.core.actions import Kind, pack
from debubble.engine.modes import P2P_MODES
from debubble.optimize.bounds.exact_rank_copies import copied_bound, may_help
from debubble.optimize.problem import Problem
from debubble.optimize.programs.backward import with_fused
from debubble.optimize.programs.offload import without_copies
from debubble.optimize.stage_choices.choices import with_choice
from debubble.optimize.stage_choices.space import bound_of_all, most_free
from debubble.optimize.stop import Stop
from tests.conftest import EXPLORES
from tests.optimize.problems import problem

pytest.importorskip("ortools")

CASES, BY_HAND = (400, 60) if EXPLORES else (40, 8)
NOTICED = (73,)
"""A case whose bound is the optimum, and which copies that take one unit longer would bring it
above."""

WORK = 20.0

Step = tuple[Kind, int]
"""A kind and a microbatch."""


def bounds(asked: Problem, low: float, best: float) -> list[float]:
    """The bound by every rank that copies something, between what is known and what is reached."""
    return [
        copied_bound(asked, rank, low, best, WORK, Stop())[0]
        for rank in range(asked.ranks)
        if may_help(asked, rank)
    ]


def with_peaks(asked: Problem, programs: Sequence[Any]) -> tuple[Problem, float]:
    """The problem with the memory that an order needs, and how long the order takes."""
    timeline = asked.timeline(asked.schedule(without_copies(programs)).with_programs(programs))
    return replace(asked, limits=timeline.peak_activation.copy()), timeline.makespan


def random_costs(rng: np.random.Generator, stages: int, least: int) -> dict[str, Any]:
    whole = rng.random() < 0.7
    costs: dict[str, Any] = {
        kind: rng.integers(least, 6, stages).tolist()
        if whole
        else (rng.random(stages) * 4 + 0.1).tolist()
        for kind in "FIW"
    }
    if rng.random() < 0.3:
        more = float(rng.choice([-0.5, 0.5]))
        costs["B"] = [max(a + b + more, 0) for a, b in zip(costs["I"], costs["W"], strict=True)]
    return costs | {
        "p2p": float(rng.integers(3)) / 2,
        "host_bandwidth": 1 / float(rng.integers(1, 9)),
        "offload_share": float(rng.choice([0.5, 1.0])),
        "kept_for_weight": float(rng.choice([0.0, 0.5, 1.0])),
    }


def random_programs(asked: Problem, rng: np.random.Generator) -> list[Any]:
    """An order with copies that runs: of what is ready on any rank, something goes next."""
    S, m = asked.stages, asked.microbatches
    done: set[tuple[Kind, int, int]] = set()
    programs: list[list[int]] = [[] for _ in range(asked.ranks)]
    eager, copies = rng.random(2)
    goes = {(s, b) for s, b in product(range(S), range(m)) if asked.offload[s] and
            rng.random() < copies}  # fmt: skip
    first = asked.kinds[1]

    def ready(kind: Kind, s: int, b: int) -> bool:
        if kind == Kind.F:
            return s == 0 or (Kind.F, s - 1, b) in done
        if kind == Kind.OFFLOAD:
            return (s, b) in goes and (Kind.F, s, b) in done
        if kind == Kind.WAIT_OFFLOAD:
            return (Kind.OFFLOAD, s, b) in done and (Kind.RELOAD, s, b) not in done
        if kind == Kind.RELOAD:
            return (Kind.OFFLOAD, s, b) in done
        if kind == Kind.W:
            return (first, s, b) in done
        before = (first, s + 1, b) if s + 1 < S else (Kind.F, s, b)
        there = Kind.RELOAD if (s, b) in goes else Kind.F
        return before in done and (there, s, b) in done

    kinds = [*asked.kinds, Kind.OFFLOAD, Kind.RELOAD, Kind.WAIT_OFFLOAD]
    everything = list(product(kinds, range(S), range(m)))
    while True:
        able = [key for key in everything if key not in done and ready(*key)]
        if not able:
            found = [np.array(program, dtype=np.int64) for program in programs]
            if asked.backward != "free":
                return found
            return with_fused(found, rng.random((S, m)) < rng.choice([0, 0.5, 1]))
        late = [key for key in able if key[0] != Kind.F]
        pool = late if late and rng.random() < eager else able
        kind, s, b = pool[rng.integers(len(pool))]
        done.add((kind, s, b))
        programs[asked.homes[s]].append(int(pack(kind, s, b)[0]))


def sampled(seed: int) -> tuple[Problem, float]:
    """A random problem with the memory of a random order, and the makespan of that."""
    rng = np.random.default_rng(seed)
    p, v, m = ((1, 1, 4), (2, 1, 3), (2, 1, 4), (3, 1, 3), (2, 2, 2), (1, 2, 3))[rng.integers(6)]
    place = [db.Placement.wave(p, v), db.Placement.loop(p, v)][rng.integers(2)]
    costs = random_costs(rng, p * v, 0)
    if rng.random() < 0.3:
        costs |= {"activation": (rng.integers(1, 5, p * v) / 2).tolist(), "kv": 0.25}
    if p % 2 == 0 and rng.random() < 0.2:
        costs["host_link_shared_by"] = 2
    mode = str(rng.choice(P2P_MODES)) if rng.random() < 0.4 else "overlapped"
    backward = str(rng.choice(["split", "fused", "free"]))
    asked = problem(p, m, 1.0, mode=mode, backward=backward, placement=place, **costs)
    asked = with_choice(asked, [2 * int(flag) for flag in rng.random(p * v) < 0.8])
    if not asked.offload:
        return asked, 0.0
    found = []
    for _ in range(8):
        try:
            found.append(with_peaks(asked, random_programs(asked, rng)))
        except db.ScheduleError:
            # Blocking transfers can wait for each other.
            continue
    return min(found, key=lambda pair: pair[1], default=(asked, 0.0))


def check_sampled(seed: int) -> int:
    """Check all bounds of a sampled problem; how many there are."""
    asked, makespan = sampled(seed)
    if not asked.offload or not makespan:
        return 0
    found = bounds(asked, makespan, 1.05 * makespan)
    assert all(bound <= makespan * (1 + 1e-9) for bound in found), (seed, found, makespan)
    return len(found)


@pytest.mark.slow
def test_no_order_with_copies_is_below_the_bound() -> None:
    assert sum(map(check_sampled, range(CASES))) > CASES // 2


def merges(chains: Sequence[Sequence[Step]], in_turn: bool) -> Iterator[list[Step]]:
    """All orders of some chains of actions; in turn for the first of each chain."""
    if not any(chains):
        yield []
        return
    for number, chain in enumerate(chains):
        if chain and not (
            in_turn and chain[0][0] == Kind.F and any(c and c[0][0] == Kind.F
                                                       for c in chains[:number])
        ):  # fmt: skip
            rest = [c[1:] if n == number else c for n, c in enumerate(chains)]
            for others in merges(rest, in_turn):
                yield [chain[0], *others]


def ways(asked: Problem, rank: int) -> Iterator[list[Step]]:
    """All orders of a rank's actions and copies, whichever microbatches are copied."""
    in_turn = rank == 0
    may_be_copied = (False, True) if asked.offload[rank] else (False,)
    for chosen in product(may_be_copied, repeat=asked.microbatches):
        yield from merges(
            [
                [(kind, b) for kind in (Kind.F, *([Kind.OFFLOAD, Kind.RELOAD] if away else []),
                                        *asked.kinds[1:])]
                for b, away in enumerate(chosen)
            ],
            in_turn,
        )  # fmt: skip


COPIES = (Kind.OFFLOAD, Kind.RELOAD)


@dataclass(frozen=True)
class Plain:
    """A problem with one stage per rank, as plain numbers by kind and rank."""

    kinds: tuple[Kind, ...]
    time: dict[tuple[Kind, int], float]
    taken: dict[tuple[Kind, int], float]
    freed: dict[tuple[Kind, int], float]
    moved: list[float]
    link: dict[tuple[int, int], float]
    limits: list[float]

    @classmethod
    def of(cls, asked: Problem) -> Plain:
        table, ranks = asked.table, range(asked.ranks)
        cells = [(row, kind, r) for row, kind in enumerate(asked.kinds) for r in ranks]
        time = {(kind, r): float(table.duration[kind, r]) for _, kind, r in cells}
        time |= {(kind, r): table.copy(kind, r, None)
                 for kind in COPIES for r in ranks if asked.offload[r]}  # fmt: skip
        return cls(
            tuple(asked.kinds), time,
            {(kind, r): float(asked.taken[row, r]) for row, kind, r in cells},
            {(kind, r): float(asked.freed[row, r]) for row, kind, r in cells},
            table.moved(asked.recomputed).tolist(),
            {(a, b): table.transfer(a, b) for a in ranks for b in (a - 1, a + 1) if b in ranks},
            asked.limits_with_slack.tolist(),
        )  # fmt: skip

    def changes(self, kind: Kind, r: int, begin: float, end: float) -> list[tuple[float, float]]:
        """When an action or copy changes what its rank holds, and by how much."""
        if kind == Kind.OFFLOAD:
            return [(end, -self.moved[r])]
        if kind == Kind.RELOAD:
            return [(begin, self.moved[r])]
        return [(begin, self.taken[kind, r]), (end, -self.freed[kind, r])]


def run(
    asked: Plain, rows: Sequence[list[Step]], known: float = float("inf")
) -> tuple[float, list[list[Step]]]:
    """The makespan of an order by hand, and the order with waits for copies.

    It is infinite where ranks wait for each other, have no room, or are no faster than is known. A
    forward waits until there is room: sooner it cannot start, and later it would help nobody.
    """
    last = len(rows) - 1
    end: dict[tuple[Kind, int, int], float] = {}
    at, free, copied = [0] * len(rows), [0.0] * len(rows), [0.0] * len(rows)
    gradient = asked.kinds[1]
    waiting = [list[Step]() for _ in rows]
    held = [list[tuple[float, float]]() for _ in rows]
    left = [
        sum(asked.time[kind, r] for kind, _ in row if kind not in COPIES)
        for r, row in enumerate(rows)
    ]

    def has_room(r: int, time: float) -> bool:
        total = most = asked.taken[Kind.F, r]
        for moment, amount in held[r]:
            total += amount
            most = total if moment <= time else max(most, total)
        return most <= asked.limits[r]

    moving = True
    while moving:
        moving = False
        for r, row in enumerate(rows):
            while at[r] < len(row):
                kind, b = row[at[r]]
                key = (kind, r, b)
                if kind in COPIES:
                    begin = max(free[r], copied[r])
                    end[key] = copied[r] = begin + asked.time[kind, r]
                else:
                    step = -1 if kind == Kind.F else 1
                    other = (kind, r + step, b)
                    now = free[r]
                    if kind != Kind.W and 0 <= r + step <= last:
                        if other not in end:
                            break
                        now = max(now, end[other] + asked.link[r + step, r])
                    if kind == gradient:
                        now = max(now, end.get((Kind.RELOAD, r, b), 0.0))
                    if kind == Kind.F:
                        gone = {end[k]: k[2] for k in end if k[:2] == (Kind.OFFLOAD, r)}
                        later = [now, *sorted(time for time in gone if time > now)]
                        room = next((time for time in later if has_room(r, time)), None)
                        if room is None:
                            return float("inf"), waiting
                        if room > now:
                            waiting[r].append((Kind.WAIT_OFFLOAD, gone[room]))
                        now = room
                    begin = now
                    end[key] = free[r] = now + asked.time[kind, r]
                    left[r] -= asked.time[kind, r]
                    if free[r] + left[r] >= known:
                        return float("inf"), waiting
                for change in asked.changes(kind, r, begin, end[key]):
                    insort(held[r], change)
                waiting[r].append((kind, b))
                at[r] += 1
                moving = True
    if any(place < len(row) for place, row in zip(at, rows, strict=True)):
        return float("inf"), waiting
    for changes, limit in zip(held, asked.limits, strict=True):
        if max(accumulate(amount for _, amount in changes)) > limit:
            return float("inf"), waiting
    return max(end.values()), waiting


def fits(asked: Plain, rank: int, way: Sequence[Step]) -> bool:
    """Whether an order has room where copies out are over at once, and copies back come late."""
    moved = asked.moved[rank]
    held = most = 0.0
    away = set()
    for kind, b in way:
        if kind == Kind.OFFLOAD:
            held -= moved
            away.add(b)
        elif kind != Kind.RELOAD:
            held += asked.taken[kind, rank] + moved * (kind == asked.kinds[1] and b in away)
            most = max(most, held)
            held -= asked.freed[kind, rank]
    return most <= asked.limits[rank]


def optimum(asked: Problem) -> float:
    """The best makespan of all orders with copies of all ranks, by hand."""
    plain = Plain.of(asked)
    rows = [
        [way for way in ways(asked, rank) if fits(plain, rank, way)] for rank in range(asked.ranks)
    ]
    best, order = float("inf"), list[list[Step]]()
    for chosen in product(*rows):
        found, waiting = run(plain, chosen, best)
        if found < best:
            best, order = found, waiting
    if order:
        programs = [
            np.array([int(pack(kind, r, b)[0]) for kind, b in row]) for r, row in enumerate(order)
        ]
        again, makespan = with_peaks(asked, programs)
        assert makespan == pytest.approx(best, rel=1e-12)
        assert np.all(again.limits <= asked.limits_with_slack)
    return best


def check_copying(seed: int) -> bool:
    """Check the bound where copying pays: a rank that waits long for its backwards; if it is tight.

    The last rank has room for one microbatch, so that few orders are left.
    """
    rng = np.random.default_rng(seed)
    costs = {kind: rng.integers(1, 4, 2).tolist() for kind in "FIW"}
    copy, wait = (float(rng.integers(least, most)) for least, most in ((1, 5), (3, 12)))
    asked = problem(
        2, 3, 1.0, chunks=1, backward="fused", p2p=wait, host_bandwidth=1 / copy, **costs
    )
    asked = with_choice(replace(asked, limits=asked.smallest_limits * [2, 1]), [2, 0])
    best = optimum(asked)
    found = bounds(asked, 0.7 * best, 1.2 * best)
    assert max(found) <= best * (1 + 1e-9), (seed, found, best)
    return max(found) >= best * (1 - 1e-9)


def check_exact(seed: int) -> tuple[int, bool]:
    """Check all bounds of a problem that is solved by hand; how many, and whether one is tight."""
    rng = np.random.default_rng(seed)
    shapes = [(1, 3, "fused"), (1, 2, "split"), (2, 2, "fused")]
    p, m, backward = shapes[rng.integers(len(shapes))]
    costs = random_costs(rng, p, 1)
    costs.pop("B", None)
    asked = problem(p, m, 1.0, chunks=1, backward=backward, **costs)
    limits = asked.smallest_limits * float(rng.choice([1, 1.5, 2]))
    asked = with_choice(replace(asked, limits=limits), [2] * p)
    best = optimum(asked)
    found = bounds(asked, 0.995 * best, 1.2 * best) + bounds(asked, best, 1.2 * best)
    assert all(bound <= best * (1 + 1e-9) for bound in found), (seed, found, best)
    return len(found) // 2, bool(found) and max(found[: len(found) // 2]) >= best * (1 - 1e-9)


@pytest.mark.slow
def test_the_bound_is_below_the_optimum_and_often_meets_it() -> None:
    found = [check_exact(seed) for seed in range(BY_HAND)]
    assert sum(count for count, _ in found) > BY_HAND // 2
    assert sum(tight for _, tight in found) > BY_HAND // 4


@pytest.mark.slow
def test_no_order_is_below_the_bound_where_copying_pays() -> None:
    tight = [check_copying(seed) for seed in (range(BY_HAND) if EXPLORES else NOTICED)]
    assert any(tight)


@pytest.mark.slow
def test_copies_that_take_long_raise_the_bound_of_all_choices() -> None:
    costs = {"F": 5, "I": 6, "W": 4, "host_bandwidth": 0.1}
    asked = with_choice(problem(3, 5, 2, chunks=1, **costs), (2, 2, 2))
    bound, used = copied_bound(asked, 0, 85.0, 140.0, WORK, Stop())
    assert used > 0
    assert 85 < bound < 140
    ways = [(0, 2)] * 3
    assert most_free(ways) == (2, 2, 2)
    assert bound_of_all(asked, ways, 140.0, {(2, 2, 2): bound}, 0)[0] == bound
    assert most_free([(0, 1, 2)] * 3) == ()
    assert most_free([(1,), (1, 3)]) == (1, 3)
    assert not may_help(with_choice(asked, (2, 0, 3)), 1)
    assert not may_help(with_choice(asked, (2, 0, 3)), 2)
    assert not may_help(replace(asked, limits=np.full(3, np.inf)), 0)
