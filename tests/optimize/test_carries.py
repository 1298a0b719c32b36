"""Searches for models with skip connections, against all orders of small ones."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest

import debubble as db
from debubble import Costs
from debubble.core.carries import Carries
from debubble.core.errors import DebubbleError, ParameterError
from debubble.engine.graph import compile_graph
from debubble.engine.modes import P2P_MODES
from debubble.engine.timeline import evaluate_graph
from debubble.interchange.schedule_json import from_json, to_json
from debubble.optimize.bounds.paths import lower_bound
from debubble.optimize.cache import key
from debubble.optimize.request import Request
from debubble.playground.faster import faster
from debubble.playground.limits import RefusedError
from debubble.playground.searches import Search
from debubble.playground.state import File, PageState, Wanted
from tests.command import call

Order = tuple[tuple[str, int], ...]
"""What a rank does: F or B, and its microbatch."""

BUDGET: dict[str, Any] = {"cache": False, "published": False, "effort": 0.005, "workers": 1}


def orders(microbatches: int) -> Iterator[Order]:
    """All orders of a rank with one stage, microbatches in any order."""
    actions = list(product("FB", range(microbatches)))
    for order in permutations(actions):
        if all(order.index(("F", b)) < order.index(("B", b)) for b in range(microbatches)):
            yield order


def makespan_of(ranks: tuple[Order, ...], carries: Carries, times: dict[str, float]) -> float:
    """The makespan of one stage per rank by its rules alone; infinite for a deadlock."""
    end: dict[tuple[str, int, int], float] = {}
    at, free, last = [0] * len(ranks), [0.0] * len(ranks), len(ranks) - 1
    moved = True
    while moved:
        moved = False
        for rank, order in enumerate(ranks):
            if at[rank] == len(order):
                continue
            kind, b = order[at[rank]]
            if kind == "F":
                waits = [(("F", rank - 1, b), "p2p")] if rank else []
                waits += [(("F", a, b), "carry") for a, to in carries if to == rank]
            else:
                waits = [(("B", rank + 1, b), "p2p")] if rank < last else []
                waits += [(("B", to, b), "carry") for a, to in carries if a == rank]
            if all(key in end for key, _ in waits):
                start = max([free[rank], *(end[key] + times[name] for key, name in waits)])
                end[kind, rank, b] = free[rank] = start + times[kind]
                at[rank] += 1
                moved = True
    return max(end.values()) if len(end) == sum(map(len, ranks)) else float("inf")


@pytest.mark.parametrize(
    ("ranks", "carries"), [(3, ((0, 2),)), (4, ((0, 3),)), (4, ((0, 2), (1, 3)))]
)
@pytest.mark.parametrize("carry", [0.5, 6.0])
def test_no_order_of_a_small_model_is_faster(ranks: int, carries: Carries, carry: float) -> None:
    # The way from stage 0 to stage 2 takes 0.2 + 1 + 0.2: the first carry delays nothing.
    times = {"F": 1.0, "B": 2.0, "p2p": 0.2, "carry": carry}
    every = product(list(orders(2)), repeat=ranks)
    least = min(makespan_of(each, carries, times) for each in every)
    costs = Costs(F=1, B=2, p2p=0.2, p2p_carry=carry)
    found = db.optimize(
        ranks=ranks, microbatches=2, costs=costs, carry=carries, backward="fused", **BUDGET
    )
    assert found.makespan == pytest.approx(least)
    assert found.lower_bound <= least * (1 + 1e-9)
    assert found.status == "optimal"
    assert found.schedule.carries == carries


@pytest.mark.slow
@pytest.mark.parametrize("mode", P2P_MODES)
def test_a_bound_is_below_every_order_in_every_mode(mode: Any) -> None:
    costs = Costs(F=1, B=2, p2p=0.6, p2p_carry=2.5)
    plain = db.make("1f1b", ranks=3, microbatches=2, carry=[(0, 2)])
    least = np.inf
    for each in product(list(orders(2)), repeat=3):
        rows = [[f"{rank}{kind}{b}" for kind, b in order] for rank, order in enumerate(each)]
        schedule = db.Schedule.from_text(rows, plain.placement, 2, carries=plain.carries)
        try:
            graph = compile_graph(schedule, mode, explain=False)
            least = min(least, evaluate_graph(graph, costs).makespan)
        except DebubbleError:
            continue
    found = db.optimize(
        ranks=3, microbatches=2, costs=costs, carry="0:2", p2p_mode=mode, backward="fused", **BUDGET
    )
    assert found.lower_bound <= least * (1 + 1e-9)
    assert found.makespan == pytest.approx(least)
    assert db.check(found.schedule, p2p_mode=mode).ok
    assert db.simulate(found.schedule, costs, mode).makespan == found.makespan


def problems(**changes: Any) -> Any:
    asked = {"ranks": 4, "microbatches": 3, "carry": [(0, 3)]} | changes
    return Request(**asked).problems


def test_only_what_arrives_later_than_through_the_stages_is_an_arc() -> None:
    # Through stages 1 and 2 it takes 3 · 0.5 + 2 · 1, back 3 · 0.5 + 2 · 2.
    for carry, count in ((3.5, 0), (3.6, 1), (5.5, 1), (5.6, 2)):
        costs = Costs(F=1, I=2, W=1, B=3, p2p=0.5, p2p_carry=carry)
        assert len(problems(costs=costs, backward="split")[0].carried) == count


def test_the_longest_path_goes_through_what_is_carried() -> None:
    costs = Costs(F=1, I=1, W=1, p2p_carry=9)
    (asked,) = problems(costs=costs, microbatches=1)
    # F0, 9, F3, I3, 9, I0, W0.
    assert lower_bound(asked) == 1 + 9 + 1 + 1 + 9 + 1 + 1


@pytest.mark.parametrize("recompute", ["full", "free"])
@pytest.mark.parametrize("chunks", [1, 2])
def test_other_choices_are_open_next_to_carries(recompute: Any, chunks: int) -> None:
    costs = Costs(F=1, I=1, W=1, R=1, p2p=0.25, p2p_carry=3)
    found = db.optimize(
        ranks=2, microbatches=4, chunks=chunks, costs=costs, carry=[(0, 2 * chunks - 1)],
        recompute=recompute, memory=3.0, **BUDGET,
    )  # fmt: skip
    assert found.schedule.carries == ((0, 2 * chunks - 1),)
    assert db.check(found.schedule, memory=3.0).ok


def test_published_schedules_are_compared_with_the_same_carries() -> None:
    costs = Costs.per_rank(F=1, I=1, W=1, p2p_carry=3)
    found = db.optimize(
        ranks=3, microbatches=4, costs=costs, carry="0:2", **(BUDGET | {"published": True})
    )
    assert found.published is not None
    rows = found.published.rows
    assert {row.schedule.carries for row in rows} == {((0, 2),)}
    assert {row.schedule.stages for row in rows} == {3}
    assert min(row.makespan for row in rows) == found.makespan


def test_a_result_with_other_carries_is_no_result_from_the_cache() -> None:
    costs = Costs(p2p_carry=3)
    kept = {key(problems(costs=costs, carry=each)) for each in (None, "0:3", "0:2")}
    kept |= {key(problems(costs=Costs(p2p_carry=4)))}
    assert len(kept) == 4


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"layers": 8}, "carry is 0:2, and the cut of layers moves what begins and ends there"),
        ({"chunks": [1, 2]}, "carry is 0:2, and these stages are others .* 1, 2; give one: 2"),
        ({"carry": "0:4"}, "carries go to stage 4; there are 3 stages, 0 to 2"),
        ({"carry": "0:1,0:2"}, "stage 0 carries to two stages, 1 and 2"),
        ({"carry": 5}, "carry is 5; give pairs"),
    ],
)
def test_carries_that_name_no_stages_are_refused(more: dict[str, Any], message: str) -> None:
    asked: dict[str, Any] = {"ranks": 3, "microbatches": 4, "carry": "0:2"} | more
    with pytest.raises(ParameterError, match=message):
        db.optimize(**asked, **BUDGET)


def test_the_command_searches_with_carries_and_sweeps_memory_with_them(tmp_path: Any) -> None:
    sizes = ["-p", 3, "-m", 4, "--carry", "0:2", "--no-cache", "--effort", "0.02"]
    best = call("optimize", *sizes, "-o", tmp_path / "best.json")
    assert best.code == 0, best.err
    again = call("simulate", tmp_path / "best.json")
    assert "carr" in (tmp_path / "best.json").read_text()
    assert again.code == 0
    swept = call("optimize", *sizes, "--memory", "sweep")
    assert swept.code == 0, swept.err


def page(*schedules: db.Schedule, **more: Any) -> PageState:
    wanted = [
        Wanted(file=File(name=f"{number}.json", text=to_json(schedule)))
        for number, schedule in enumerate(schedules)
    ]
    return PageState(schedules=wanted, **({"ranks": 3, "microbatches": 4} | more))


def test_the_page_searches_with_the_carries_of_its_schedules() -> None:
    carried = db.make("gems", ranks=3, microbatches=4, carry="0:2")
    found = faster(page(carried), Search("someone"))
    assert from_json(found["file"]["text"], found["file"]["name"]).carries == ((0, 2),)


@pytest.mark.parametrize(
    ("others", "sizes", "message"),
    [
        ([db.make("1f1b", ranks=3, microbatches=4)], {}, "have different skip connections"),
        ([], {"ranks": 4}, "has skip connections between 3 stages, and a search here is about 4"),
    ],
)
def test_a_page_of_several_models_is_not_searched(
    others: list[db.Schedule], sizes: dict[str, int], message: str
) -> None:
    carried = db.make("1f1b", ranks=3, microbatches=4, carry="0:2")
    with pytest.raises(RefusedError, match=message):
        faster(page(carried, *others, **sizes), Search("someone"))
