"""STP: its phases, its times where pairs hide nothing, and pairs of two forwards everywhere."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import debubble as db
from debubble.core.actions import pairs_of
from debubble.schedules.forms import closed_forms
from tests.forms import hold


def cells(p: int, m: int, rank: int) -> list[str]:
    """A rank's program as ``F0``, ``W`` and ``F1&B1``: near stage 0, far stage 1, no numbers."""
    schedule = db.make("stp", ranks=p, microbatches=m)
    names = [f"{a.kind.name}{int(a.stage >= p)}" for a in list(schedule)[rank]]
    found: list[str] = []
    for name, member in zip(names, pairs_of(schedule.program(rank)).tolist(), strict=True):
        plain = "W" if name.startswith("W") else name
        if member == 2:
            found[-1] += f"&{plain}"
        else:
            found.append(plain)
    return found


def phases(p: int, m: int, r: int) -> list[str]:
    """The nine phases as the authors' code counts them."""
    steady = 2 * (m - 3 * p + 1) + 1 + 2 * r
    pairs = [("F1&B1", "F0&B0")[k % 2] for k in range(steady)]
    pairs[steady - r :] = [pair.replace("B", "I") for pair in pairs[steady - r :]]
    return [
        *["F0"] * (2 * (p - 1 - r)),
        *["F0", "F1"] * (r + 1),
        *["F0"] * ((r + 1) % 2), *["F0&F0"] * ((r + 1) // 2),
        *["F1&I1", "F0&W"] * (p - 1 - r),
        *pairs,
        *["B0", "F1&I1"] * (m - p - steady // 2 - 1),
        *["B0", "B1"] * (r + 1),
        "B0", *["W", "W", "B0"] * (p - 1 - r),
        *["W"] * (2 * r),
    ]  # fmt: skip


@pytest.mark.parametrize("p", [1, 2, 3, 4, 5, 8])
def test_phases_are_those_of_the_authors(p: int) -> None:
    for m in (3 * p - 1, 3 * p, 4 * p + 1):
        schedule = db.make("stp", ranks=p, microbatches=m)
        assert db.check(schedule).ok
        for rank in range(p):
            assert cells(p, m, rank) == phases(p, m, rank)


def test_weights_run_in_the_order_of_their_gradients() -> None:
    for program in db.make("stp", ranks=4, microbatches=13):
        made = [a[::2] for a in program if a.kind == db.Kind.I]
        used = [a[::2] for a in program if a.kind == db.Kind.W]
        assert made == used


def test_numbers_of_four_ranks() -> None:
    # The authors' formula, (p − 1)(F + B − W), gives 42 of the former chunks' times.
    times = {"F": 10, "I": 11, "W": 7}
    timeline = db.simulate(db.make("stp", ranks=4, microbatches=12), db.Costs(**times))
    assert timeline.makespan - 2 * 12 * 28 == timeline.stage_time.max() - 2 * 12 * 28 == 63
    assert (2 * timeline.peak_activation).tolist() == [13, 13, 14, 15]


@pytest.mark.parametrize("p", [1, 2, 3, 4, 5, 8, 9])
def test_forms_hold_where_pairs_take_what_their_parts_take(p: int) -> None:
    rng = np.random.default_rng(p)
    for m in (3 * p - 1, 3 * p, 3 * p + 1, 4 * p + 2):
        schedule = db.make("stp", ranks=p, microbatches=m)
        for _ in range(20):
            W = rng.uniform(0, 2)
            F, I = W + rng.uniform(0, 2, 2)
            assert hold(schedule, db.Costs(F=F, I=I, W=W), f"p={p} m={m} {F} {I} {W}") == 3


@pytest.mark.parametrize(
    "costs",
    [
        db.Costs(F=1, I=1, W=2),
        db.Costs(O=2.5),
        db.Costs(overlap_factor=0.8),
        db.Costs(B=3, I=1, W=1),
        db.Costs(p2p=0.1),
    ],
    ids=str,
)
def test_no_formula_of_time_where_it_does_not_hold(costs: db.Costs) -> None:
    schedule = db.make("stp", ranks=3, microbatches=9)
    found = {item.form.quantity for item in closed_forms(schedule, costs)}
    assert found == {"peak_activation"}


def test_all_but_a_few_passes_are_in_pairs() -> None:
    # What a pair saves is saved by all but 2p + 1 forwards at most, whatever the microbatches.
    for p in (2, 4, 7):
        for m in (3 * p - 1, 6 * p):
            schedule = db.make("stp", ranks=p, microbatches=m)
            for rank, program in enumerate(schedule):
                alone = pairs_of(schedule.program(rank)) == 0
                kinds = np.array([a.kind for a in program])
                assert np.count_nonzero(alone & (kinds == db.Kind.F)) <= 2 * p + 1


def test_pairs_of_two_forwards_are_like_other_pairs(tmp_path: Path) -> None:
    schedule = db.make("stp", ranks=2, microbatches=5)
    assert "(1F2;1F3)OVERLAP_F_B" in schedule.rows()[1]
    timeline = db.simulate(schedule, db.Costs(F=1))
    program = list(schedule)[1]
    begin = int(schedule.offsets[1])
    for one, other in pairwise(range(len(program))):
        if program[one].kind == program[other].kind == db.Kind.F and (
            pairs_of(schedule.program(1))[one] == 1
        ):
            assert timeline.start[begin + one] == timeline.start[begin + other]
            assert timeline.duration[begin + one] == timeline.duration[begin + other] == 2
    for name in ("x.json", "x.csv"):
        schedule.save(tmp_path / name)
        again = db.load(tmp_path / name)
        assert again.rows() == schedule.rows()
        assert db.check(again).ok
    timeline.save(tmp_path / "x.html")
    assert (tmp_path / "x.html").stat().st_size > 10_000


def test_refusals() -> None:
    with pytest.raises(db.ParameterError, match=r"at least 3·ranks − 1 .* is 10; .* works is 11"):
        db.make("stp", ranks=4, microbatches=10)
