"""Orders that were computed from costs, on other costs."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

import debubble as db

COSTS = db.Costs(F=1, I=1.2, W=0.8, p2p=0.1)
UNFIT = "the order was computed for one unit of time each for F, I and W, not for these"


@pytest.mark.parametrize("name", ["zb-v", "v-half", "v-min", "zb-auto", "zb-2p"])
def test_an_order_made_without_costs_warns_on_others(name: str) -> None:
    schedule = db.make(name, ranks=4, microbatches=8)
    with pytest.warns(UserWarning, match=f"{name}: {UNFIT}"):
        timeline = db.simulate(schedule, COSTS)
    assert timeline.notes[0].startswith(UNFIT)
    lowered = db.make(name, ranks=4, microbatches=8, recompute="full")
    with pytest.warns(UserWarning, match=UNFIT):
        db.simulate(lowered, COSTS)


def test_orders_on_their_own_costs_have_no_notes() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = db.make("zb-v", ranks=4, microbatches=8, costs=COSTS)
        assert db.simulate(made, COSTS).notes == ()
        # Other units are the same costs, and so are rank costs of two chunks.
        plain = db.make("zb-v", ranks=4, microbatches=8)
        assert db.simulate(plain, db.Costs(F=3, B=6)).notes == ()
        assert db.simulate(plain, db.Costs.per_rank()).notes == ()
        assert db.simulate(db.make("1f1b", ranks=4, microbatches=8), COSTS).notes == ()


def test_an_order_made_for_given_costs_runs_on_others_with_a_note_only() -> None:
    made = db.make("zb-v", ranks=4, microbatches=8, costs=COSTS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        notes = db.simulate(made, db.Costs(F=1, I=2, W=1)).notes
    assert notes[0].startswith("the order was computed for other costs, not for these")


def test_a_comparison_notes_orders_for_other_costs_and_makes_its_own_for_these() -> None:
    made = db.make("zb-v", ranks=4, microbatches=8)
    result = db.compare([made, "zb-v"], ranks=4, microbatches=8, costs=COSTS)
    assert [note for note in result.notes if UNFIT in note] == [
        f"zb-v: {UNFIT}; make it with costs=… to have it fit"
    ]
    assert [row.name for row in result.rows] == ["zb-v #2", "zb-v"]


def test_make_takes_whatever_the_command_line_takes(tmp_path: Path) -> None:
    made = db.make("1f1b", ranks=4, microbatches=8)
    made.save(tmp_path / "order.json")
    assert db.make(str(tmp_path / "order.json"), ranks=4, microbatches=8) == made
    function = tmp_path / "mine.py"
    function.write_text(
        "def mine(ranks, microbatches, costs):\n"
        "    assert costs.I == 1.2\n"
        "    for rank in range(ranks):\n"
        "        yield [f'{rank}{k}{i}' for k in 'FB' for i in range(microbatches)]\n"
    )
    name = f"{function}:mine"
    found = db.make(name, ranks=2, microbatches=3, costs=COSTS, recompute="full")
    assert [str(action) for action in found.rows()[1]][3:5] == ["1R0", "1B0"]
    result = db.compare([name, "1f1b"], ranks=2, microbatches=3, costs=COSTS)
    assert {row.name for row in result.rows} == {"mine", "1f1b"}
    with pytest.raises(db.ParameterError, match="which function of"):
        db.make(str(function), ranks=2, microbatches=3)
