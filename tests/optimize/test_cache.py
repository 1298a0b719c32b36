"""Results on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import debubble as db
from debubble.optimize import cache, strategies, variants
from debubble.optimize.incumbent import Incumbent
from debubble.optimize.request import Request
from debubble.optimize.stop import Stop
from tests.optimize.problems import problem

ASKED: dict[str, Any] = {
    "ranks": 2, "chunks": 2, "microbatches": 4, "memory": 1.5, "published": False,
    "costs": db.Costs(F=2, I=3, W=1), "effort": 0.05, "workers": 1,
}  # fmt: skip
"""By one worker: two workers may find something else every time."""
LARGER = ASKED | {"ranks": 4, "microbatches": 8, "costs": db.Costs(F=5, I=6, W=4)}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "debubble" / "optimize"


def no_search(*_: Any, **__: Any) -> None:
    raise AssertionError("searched again")


def test_the_second_time_nothing_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    first = db.optimize(**ASKED)
    monkeypatch.setattr(variants.Variants, "run", no_search)
    second = db.optimize(**ASKED)
    assert (first.cached, second.cached) == (False, True)
    assert second.schedule == first.schedule
    assert (second.makespan, second.lower_bound, second.status) == (
        first.makespan, first.lower_bound, first.status,
    )  # fmt: skip
    assert second.found_by == first.found_by
    assert "; read from the cache, nothing was searched now" in str(second)


@pytest.mark.slow
def test_nothing_is_kept_when_not_wanted(folder: Path) -> None:
    db.optimize(**ASKED, cache=False)
    assert not folder.exists()


def test_another_problem_has_another_key() -> None:
    known = {
        cache.key([problem(2, 4, memory, mode=mode, backward=backward, F=F)])
        for memory in (1, 2)
        for mode in ("overlapped", "channel")
        for backward in ("split", "free")
        for F in (1, 1 + 1e-15)
    }
    assert len(known) == 16


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["text", "order", "bound", "microbatches", "folder"])
def test_what_is_not_right_is_not_used(folder: Path, damage: str) -> None:
    first = db.optimize(**ASKED)
    (path,) = folder.glob("*.json")
    data = json.loads(path.read_text())
    if damage == "order":
        data["schedule"]["programs"][0].reverse()
    elif damage == "bound":
        data["bound"] = "x"
    elif damage == "microbatches":
        data["schedule"]["microbatches"] = 3
    if damage == "folder":
        path.unlink()
        path.mkdir()
    else:
        path.write_text("{" if damage == "text" else json.dumps(data))
    again = db.optimize(**ASKED)
    assert not again.cached
    assert again.makespan == first.makespan


@pytest.mark.slow
def test_a_bound_on_disk_is_not_taken_below_the_own(folder: Path) -> None:
    asked = ASKED | {"effort": 0.01, "costs": db.Costs(F=5, I=6, W=4), "ranks": 4, "memory": 2,
                     "microbatches": 16}  # fmt: skip
    first = db.optimize(**asked)
    (path,) = folder.glob("*.json")
    data = json.loads(path.read_text())
    data["bound"] = -1.0
    path.write_text(json.dumps(data))
    again = db.optimize(**asked)
    assert again.makespan == first.makespan
    # What took a search is gone; what is known without one is not.
    places = Request(4, 16, 2, db.Costs(F=5, I=6, W=4), memory=2).problems
    bounds = [Incumbent(place, Stop()).bound for place in places]
    assert 0 < min(bounds) <= again.lower_bound <= first.lower_bound


@pytest.mark.slow
def test_more_effort_begins_with_the_earlier_result() -> None:
    asked = ASKED | {"ranks": 4, "memory": 2, "microbatches": 16, "costs": db.Costs(F=5, I=6, W=4)}
    little = db.optimize(**asked | {"effort": 0.005})
    more = db.optimize(**asked | {"effort": 0.01})
    assert not more.cached
    assert more.makespan <= little.makespan


@pytest.mark.slow
@pytest.mark.parametrize("later", ["a solver", "other code", "time", "workers"])
def test_what_another_search_could_better_is_searched_again(
    later: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = LARGER | {"effort": 0.005}
    with monkeypatch.context() as patch:
        patch.setattr(strategies, "has_solver", lambda: False)
        first = db.optimize(**asked)
        assert first.status == "feasible"
        assert db.optimize(**asked).cached
    if later != "a solver":
        monkeypatch.setattr(strategies, "has_solver", lambda: False)
    if later == "other code":
        monkeypatch.setattr(cache, "code", lambda: "other")
    more: dict[str, Any] = {"time": {"time_limit": 1}, "workers": {"workers": 2}}.get(later, {})
    second = db.optimize(**asked | more)
    assert not second.cached
    assert second.makespan <= first.makespan
    assert "from the cache" not in str(second)
    if second.makespan == first.makespan:
        assert second.found_by == f"an earlier search ({first.found_by})"
    if later == "other code":
        # Its bound is not taken over; the schedule is.
        assert db.optimize(**asked).cached


@pytest.mark.slow
def test_what_the_solver_found_is_used_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = LARGER | {"effort": 0.005}
    first = db.optimize(**asked)
    monkeypatch.setattr(strategies, "has_solver", lambda: False)
    second = db.optimize(**asked)
    assert (second.cached, second.makespan) == (True, first.makespan)


@pytest.mark.slow
def test_the_oldest_entries_go(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MOST_ENTRIES", 2)
    for microbatches in (1, 2, 3):
        db.optimize(**ASKED | {"microbatches": microbatches})
    assert len(list(folder.iterdir())) == 2


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert db.optimize(**ASKED).status == "optimal"
