"""Microbatches of different lengths against every order of small problems, timed by hand."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from random import Random
from typing import Any

import pytest

import debubble as db
from tests.pairs import covering

Step = tuple[str, int, int]
"""Kind, stage and microbatch."""


@dataclass(frozen=True)
class Case:
    """One stage on every rank."""

    backward: str
    times: dict[str, list[int]]
    lengths: list[float]
    recompute: list[bool]
    kept: float
    p2p: float
    overhead: float
    first_in_w: bool
    memory: list[float] | None

    @classmethod
    def drawn(cls, random: Random) -> Case:
        p = random.choice([2, 2, 3])
        backward = random.choice(["fused", "split", "free"] if p == 2 else ["fused"])
        m = random.choice([2, 3]) if backward == "fused" and p == 2 else 2
        times = {kind: [random.randint(1, 5) for _ in range(p)] for kind in "FIWR"}
        # Where B is faster than its parts, which are fused is not solved for different lengths.
        spared = 0 if backward == "free" else random.randint(0, 1)
        times["B"] = [i + w - spared for i, w in zip(times["I"], times["W"], strict=True)]
        lengths = [random.choice([0.7, 0.8, 1, 1.0001, 1.3]) for _ in range(m)]
        limits = [max(lengths) * random.choice([1, 1.5, 2]) for _ in range(p)]
        first = random.random() < 0.3 and backward != "free"
        return cls(
            backward, times, lengths, [random.random() < 0.3 and m == 2 for _ in range(p)],
            random.choice([0.5, 1.0]), random.choice([0, 0.5, 2]), random.choice([0, 0.5]), first,
            random.choice([None, limits]),
        )  # fmt: skip

    @property
    def costs(self) -> db.Costs:
        return db.Costs(
            **self.times, p2p=self.p2p, launch=self.overhead, kept_for_weight=self.kept,
            recompute_kept=0.25, runtime="debubble" if self.first_in_w else "any",
            microbatch=self.lengths,
        )  # fmt: skip

    def time(self, step: Step) -> float:
        kind, stage, b = step
        if self.first_in_w and stage == 0 and kind in "IW":
            kind = {"I": "", "W": "B"}[kind]
        return (self.times[kind][stage] if kind else 0) * self.lengths[b] + self.overhead

    def orders(self, rank: int) -> Iterator[list[Step]]:
        """Every order of a rank that fits into its memory."""
        ways = {"fused": ["B"], "split": ["IW"], "free": ["B", "IW"]}[self.backward]
        again = "R" * self.recompute[rank]
        for chosen in product(ways, repeat=len(self.lengths)):
            chains = [
                [(kind, rank, b) for kind in f"F{again}{way}"] for b, way in enumerate(chosen)
            ]
            for order in merged(chains):
                if self.memory is None or self.peak(order) <= self.memory[rank] + 1e-9:
                    yield order

    def peak(self, order: list[Step]) -> float:
        held = most = 0.0
        for kind, stage, b in order:
            kept = 1.0 if self.first_in_w and stage == 0 else self.kept
            stored = 0.25 if self.recompute[stage] else 1.0
            held += {"F": stored, "R": 1 - stored}.get(kind, 0.0) * self.lengths[b]
            most = max(most, held)
            held -= {"B": 1.0, "I": 1 - kept, "W": kept}.get(kind, 0.0) * self.lengths[b]
        return most

    def makespan(self, orders: Sequence[list[Step]]) -> float:
        """Time of the orders of all ranks; infinite where they wait for each other."""
        end: dict[tuple[bool, int, int], float] = {}
        now, place, first = [0.0] * len(orders), [0] * len(orders), math.inf
        moved = True
        while moved:
            moved = False
            for rank, order in enumerate(orders):
                while place[rank] < len(order):
                    kind, stage, b = step = order[place[rank]]
                    gradient, start = kind in "BI", now[rank]
                    other = stage + 1 if gradient else stage - 1
                    if kind in "FBI" and 0 <= other < len(orders):
                        if (gradient, other, b) not in end:
                            break
                        start = max(start, end[gradient, other, b] + self.p2p)
                    now[rank], first = start + self.time(step), min(first, start)
                    if kind in "FBI":
                        end[gradient, stage, b] = now[rank]
                    place[rank] += 1
                    moved = True
        whole = all(len(order) == done for order, done in zip(orders, place, strict=True))
        return max(now) - first if whole else math.inf

    def fastest(self) -> float:
        ranks = range(len(self.times["F"]))
        return min(map(self.makespan, product(*(list(self.orders(rank)) for rank in ranks))))


def merged(chains: list[list[Step]]) -> Iterator[list[Step]]:
    """Every order of some chains."""
    if not any(chains):
        yield []
    for number, chain in enumerate(chains):
        if chain:
            for rest in merged([*chains[:number], chain[1:], *chains[number + 1 :]]):
                yield [chain[0], *rest]


def answer(case: Case) -> db.Result:
    recompute: Any = [stage for stage, again in enumerate(case.recompute) if again] or "none"
    return db.optimize(
        ranks=len(case.recompute), chunks=1, microbatches=len(case.lengths), costs=case.costs,
        memory=case.memory, backward=case.backward, recompute=recompute, cache=False,
        published=False, effort=0.1, workers=1,
    )  # fmt: skip


def differs_in(seed: int) -> tuple[object, ...]:
    """What tells the problem of a seed apart from others."""
    case = Case.drawn(Random(seed))
    equal_fused = case.times["B"][0] == case.times["I"][0] + case.times["W"][0]
    return (
        case.backward, len(case.recompute), len(case.lengths), any(case.recompute), case.kept,
        case.p2p, case.overhead, case.first_in_w, case.memory is None, equal_fused,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("seed", covering([*range(12), *range(100, 160)], differs_in, strength=3))
def test_no_order_is_faster_than_a_proven_one(seed: int) -> None:
    agrees(Case.drawn(Random(seed)))


def agrees(case: Case) -> None:
    result, best = answer(case), case.fastest()
    assert result.lower_bound <= best * (1 + 1e-9)
    assert result.makespan >= best * (1 - 1e-9)
    assert (result.makespan == pytest.approx(best)) == (result.status == "optimal")
