"""Orders that were computed from costs, on other costs."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

import debubble as db

COSTS = db.Costs(F=1, I=1.2, W=0.8, p2p=0.1)
UNFIT = "the schedule was computed for one unit of time each for F, I and W, not for these"


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
    assert notes[0].startswith("the schedule was computed for other costs, not for these")


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


def test_slices_that_were_cut_without_attention_warn_on_costs_with_it() -> None:
    schedule = db.make("seq1f1b", ranks=8, microbatches=4, slices=8)
    costs = db.Costs(F=100, B=200, attention=0.6)
    said = "the slices were computed for costs without attention, not for these"
    with pytest.warns(UserWarning, match=said):
        assert db.simulate(schedule, costs).makespan == 2005
    assert db.simulate(schedule, db.Costs(F=100, B=250, p2p=3)).notes == ()
    made = db.make("seq1f1b", ranks=8, microbatches=4, slices=8, costs=costs)
    timeline = db.simulate(made, costs)
    assert (round(timeline.makespan, 2), timeline.notes) == (1544.43, ())
    tokens = db.make("seq1f1b", ranks=8, microbatches=4, slices=8, cut="tokens")
    assert db.simulate(tokens, costs).notes == ()


def test_a_published_order_fits_all_costs() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fixed = db.make("zb-v", ranks=4, microbatches=8, published=True)
        assert db.simulate(fixed, COSTS).notes == ()


def test_a_function_of_a_file_that_takes_costs_remembers_them(tmp_path: Path) -> None:
    function = tmp_path / "mine.py"
    function.write_text(
        "def mine(ranks, microbatches, costs):\n"
        "    for rank in range(ranks):\n"
        "        yield [f'{rank}{k}{i}' for k in 'FB' for i in range(microbatches)]\n"
    )
    made = db.make(f"{function}:mine", ranks=2, microbatches=3, costs=COSTS)
    assert db.simulate(made, COSTS).notes == ()
    notes = db.simulate(made, db.Costs(F=2, B=3)).notes
    assert notes[0].startswith("the schedule was computed for")


def test_a_file_that_was_changed_is_no_order_for_its_costs(tmp_path: Path) -> None:
    made = db.make("zb-v", ranks=4, microbatches=8, costs=COSTS)
    made.save(tmp_path / "order.json")
    assert db.load(tmp_path / "order.json").name == "zb-v"
    text = (tmp_path / "order.json").read_text()
    (tmp_path / "order.json").write_text(text.replace('"0F0", "0F1"', '"0F1", "0F0"'))
    assert db.load(tmp_path / "order.json").name == "zb-v (changed)"
    (tmp_path / "order.json").write_text(text.replace('"I": 1.2', '"I": [1.2, 1]'))
    with pytest.raises(db.FormatError, match="made_for: I has 2 values"):
        db.load(tmp_path / "order.json")
    (tmp_path / "order.json").write_text(text.replace('"I": 1.2', '"J": 1.2'))
    with pytest.raises(db.FormatError, match="made_for has an unknown cost 'J'"):
        db.load(tmp_path / "order.json")
