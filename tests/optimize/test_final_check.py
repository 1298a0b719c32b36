"""Nothing but an order of what was asked for is kept, and nothing else is returned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import debubble as db
from debubble.core.actions import Kind, kinds_of
from debubble.core.errors import DebubbleError
from debubble.lowering.offload import add_offload
from debubble.lowering.recompute import add_recompute
from debubble.optimize import search
from debubble.optimize.incumbent import Incumbent
from debubble.optimize.programs.membership import outside
from debubble.optimize.request import Budget, Outcome, Request
from debubble.optimize.stage_choices.choices import OFFLOAD, RECOMPUTE, with_choice
from debubble.optimize.stop import Stop
from tests.optimize.problems import problem

COSTS = db.Costs(F=2, I=3, W=2, host_bandwidth=1)
FAST: dict[str, Any] = {"cache": False, "published": False, "effort": 0.01, "workers": 1}


def made(name: str, ranks: int = 2, microbatches: int = 4) -> db.Schedule:
    return db.make(name, ranks=ranks, microbatches=microbatches)


def plain(backward: str = "split", **more: Any) -> Any:
    return problem(2, 4, 9, chunks=1, backward=backward, **more)


def test_an_order_belongs_to_its_own_problem() -> None:
    split, fused = made("zb-h1"), made("1f1b")
    both = split.with_programs([fused.program(0), split.program(1)])
    free, one = plain("free"), with_choice(plain("fused"), (RECOMPUTE, 0))
    assert [outside(plain("split"), each) for each in (split,)] == [""]
    assert [outside(plain("fused"), each) for each in (fused,)] == [""]
    assert [outside(free, each) for each in (split, fused, both)] == ["", "", ""]
    assert outside(one, add_recompute(fused, [0])) == ""
    away = with_choice(plain("fused", host_bandwidth=1), (OFFLOAD, OFFLOAD))
    copied = add_offload(fused, [0], costs=COSTS)
    assert outside(away, copied) == outside(away, fused) == ""


@pytest.mark.parametrize(
    ("asked", "schedule", "why"),
    [
        (plain("fused"), made("zb-h1"), "its backwards are not fused"),
        (plain("split"), made("1f1b"), "its backwards are not split"),
        (plain("split"), made("zb-h1", microbatches=5), "it has other microbatches"),
        (plain("split"), made("zb-h1", ranks=3), "its stages are on other ranks"),
        (problem(2, 4, 9, backward="free"), made("zb-h1"), "its stages are on other ranks"),
        (plain("fused"), add_recompute(made("1f1b"), [0]), "more or fewer recomputes"),
        (with_choice(plain("fused"), (RECOMPUTE, 0)), made("1f1b"), "more or fewer recomputes"),
        (plain("fused"), add_offload(made("1f1b"), [0], costs=COSTS), "it offloads other stages"),
        (problem(4, 8, 9, backward="free"), made("dualpipe-v", 4, 8), "it has overlapped pairs"),
    ],
)  # fmt: skip
def test_any_other_does_not(asked: Any, schedule: db.Schedule, why: str) -> None:
    assert why in outside(asked, schedule)


def test_an_incomplete_order_does_not() -> None:
    schedule = made("zb-h1")
    program = schedule.program(0)
    short = program[kinds_of(program) != Kind.W]
    assert outside(plain(), schedule.with_programs([short, schedule.program(1)]))


def test_what_strategies_offer_beside_the_problem_is_not_kept() -> None:
    pool = Incumbent(plain("fused"), Stop())
    schedule = made("zb-h1")
    assert not pool.offer([schedule.program(rank) for rank in range(2)], "someone")
    assert pool.schedule is None


def _backward(found: Outcome) -> Outcome:
    other = found.schedule.with_programs(made("zb-h1").program(rank) for rank in range(2))
    return replace(found, schedule=other, timeline=db.simulate(other, COSTS))


WRONG: dict[str, tuple[Callable[[Outcome], Outcome], dict[str, Any], str]] = {
    "kinds": (_backward, {"backward": "fused"}, "backwards are not fused"),
    "bound": (lambda f: replace(f, bound=f.bound * 2), {}, "less than the bound"),
    "status": (lambda f: replace(f, status="feasible"), {}, "its status is feasible"),
    "too good a status": (lambda f: replace(f, bound=f.bound / 2), {}, "its status is optimal"),
    "time": (
        lambda f: replace(f, timeline=db.simulate(f.schedule, db.Costs(F=1, I=1, W=1))),
        {}, "it takes",
    ),
    "memory": (
        lambda f: replace(f, schedule=made("gpipe"), timeline=db.simulate(made("gpipe"), COSTS)),
        {"backward": "fused", "memory": 2}, "ranks hold",
    ),
    "recompute": (
        lambda f: replace(f, schedule=add_recompute(f.schedule, [1])), {},
        "stages recompute or offload",
    ),
    "not recomputed": (lambda f: f, {"recompute": "full"}, ""),
    "placement": (
        lambda f: replace(f, schedule=made("zb-v")), {}, "its placement is",
    ),
}  # fmt: skip


@pytest.mark.parametrize("lengths", [None, [1.0, 1.25, 1.0, 0.75]])
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_result_is_never_returned(
    monkeypatch: pytest.MonkeyPatch, wrong: str, lengths: list[float] | None
) -> None:
    change, more, words = WRONG[wrong]
    name = "search" if lengths is None else "search_lengths"
    right = getattr(search, name)

    def broken(*asked: Any) -> Outcome:
        return change(right(*asked))

    monkeypatch.setattr(search, name, broken)
    costs = replace(COSTS, microbatch=lengths)
    asked = {"ranks": 2, "microbatches": 4, "chunks": 1, "costs": costs, **more, **FAST}
    if not words:
        assert db.optimize(**asked).makespan > 0
        return
    with pytest.raises(AssertionError, match="that is not allowed") as caught:
        db.optimize(**asked)
    assert not isinstance(caught.value, DebubbleError)
    assert lengths is not None or words in str(caught.value)


def test_every_field_of_what_is_asked_reaches_the_problems() -> None:
    """A field that the problems do not read would be ignored by every search."""
    base: dict[str, Any] = {
        "ranks": 2, "microbatches": 4, "chunks": 1, "costs": COSTS, "layers": None, "memory": None,
        "placement": "any", "backward": "free", "recompute": "none", "offload": "none",
        "p2p_mode": "overlapped", "carry": None,
    }  # fmt: skip
    others: dict[str, Any] = {
        "ranks": 3, "microbatches": 5, "chunks": 2, "costs": db.Costs(F=3, I=3, W=2), "layers": 4,
        "memory": 2, "placement": [1, 0], "backward": "fused", "recompute": "full",
        "offload": [0], "p2p_mode": "blocking", "carry": "0:1",
    }  # fmt: skip

    def read(asked: Request) -> list[Any]:
        return [
            (each.placement.table, each.microbatches, each.mode, each.backward, each.recompute,
             each.offload, each.limits.tolist(), np.round(each.table.duration, 9).tolist(),
             each.layers and each.layers.count, each.carries)
            for each in asked.problems
        ]  # fmt: skip

    assert set(base) == set(others) == set(Request.__dataclass_fields__)
    for name, other in others.items():
        assert read(Request(**base)) != read(Request(**base | {name: other})), name


def test_a_budget_has_no_say_in_what_is_asked() -> None:
    assert not set(Budget.__dataclass_fields__) & set(Request.__dataclass_fields__)
