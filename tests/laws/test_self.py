"""Law of the same question: every surface gives the same answer, or refuses it alike."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

import debubble as db
from debubble.analysis.question import OPTIONS
from debubble.core.errors import DebubbleError
from debubble.interchange.cost_files import costs_data
from debubble.playground.state import FIELD, PageState
from debubble.schedules.registry import find, schedules
from tests.conftest import EXPLORES
from tests.laws.surfaces import (
    PAYING,
    SCHEDULES,
    SURFACES,
    Answer,
    Case,
    by_simulate,
    given,
    values_of,
)
from tests.small import smallest


def offered(surface: str, case: Case) -> bool:
    """Whether a surface has all options of a case."""
    if surface == "page" and "chunks" in case.texts and find(case.schedule).chunks is not None:
        return False  # its field stands whatever the schedules are
    if surface == "page":
        typed = [name for name in case.texts if name not in ("times", "rank_times", "costs")]
        return all(FIELD.get(name, name) in PageState.model_fields for name in typed)
    if case.varies:
        return surface in ("simulate", "compare")
    if surface in ("Python", "sweep"):
        return not {"option", "group_size", "runtime"}.intersection(case.texts)
    return True


def answer(surface: str, case: Case) -> Answer | str:
    try:
        return SURFACES[surface](case)
    except (DebubbleError, AssertionError, SystemExit) as error:
        return f"refused: {error}"


def the_same(case: Case) -> None:
    found = {name: answer(name, case) for name in SURFACES if offered(name, case)}
    refused = {name: text for name, text in found.items() if isinstance(text, str)}
    assert not refused or len(refused) == len(found), f"{case}: only some refuse: {refused}"
    answers = [one for one in found.values() if isinstance(one, Answer)]
    for one in answers[1:]:
        assert math.isclose(one.makespan, answers[0].makespan, rel_tol=1e-12), f"{case}: {found}"
        if not math.isnan(one.peaks):
            assert math.isclose(one.peaks, answers[0].peaks, rel_tol=1e-12), f"{case}: {found}"
            assert one.fits in (None, answers[0].fits) or answers[0].fits is None


@pytest.mark.parametrize("name", [entry.name for entry in schedules()])
def test_every_schedule_is_the_same_everywhere_without_costs(name: str) -> None:
    entry = next(entry for entry in schedules() if entry.name == name)
    sizes = {"microbatches": str(smallest(entry).microbatches)}
    the_same(Case(name, sizes))


@pytest.mark.parametrize("row", OPTIONS, ids=lambda row: row.name)
@pytest.mark.parametrize("name", SCHEDULES)
def test_every_option_is_the_same_everywhere(name: str, row: object, tmp_path: Path) -> None:
    plain = [given(row, text) for text in values_of(row, tmp_path)]
    asked = plain if row.panel == "Costs" and row.name != "runtime" else [PAYING | o for o in plain]
    if asked is not plain:
        asked += plain if EXPLORES else plain[:1]
    for texts in asked:
        the_same(Case(name, texts))


@pytest.mark.parametrize("name", SCHEDULES)
def test_numbers_of_chunks_are_the_same_model_without_costs(name: str) -> None:
    made = db.make(name, ranks=4, microbatches=8)
    timeline = db.simulate(made)
    assert timeline.busy.tolist() == pytest.approx([24.0] * 4)
    for costs in (db.Costs(), db.Costs(p2p=0), db.Costs(kept_for_weight=1), db.Costs.per_rank()):
        assert db.simulate(made, costs).makespan == timeline.makespan
        assert db.compare([name], ranks=4, microbatches=8, costs=costs).rows[0].makespan == (
            timeline.makespan
        )


def test_a_search_takes_the_same_model_without_costs() -> None:
    found = db.optimize(ranks=2, chunks=2, microbatches=3, effort=0.05, cache=False)
    assert db.simulate(found.schedule).makespan == found.makespan
    assert found.timeline.busy.max() == pytest.approx(9.0)


def test_costs_of_a_file_are_those_that_are_typed(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    for text in ("F=1,B=2,p2p=0.25", "p2p=0.5", "F=1/2/1/2/1/2/1/2,I=1,W=1"):
        typed = Case("interleaved-1f1b", {"times": text})
        path.write_text(json.dumps(costs_data(typed.costs)))
        assert by_simulate(typed) == by_simulate(Case("interleaved-1f1b", {"costs": str(path)}))
