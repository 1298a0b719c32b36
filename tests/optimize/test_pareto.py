"""Makespan against memory."""

from __future__ import annotations

from pathlib import Path

import pytest

import debubble as db
from debubble.optimize.pareto import MOST_POINTS, Frontier, limits_for, sweep_memory
from tests.optimize.problems import problem


@pytest.fixture(scope="module")
def frontier() -> Frontier:
    return sweep_memory(
        ranks=2, microbatches=6, chunks=2, costs=db.Costs(F=5, I=6, W=4), cache=False
    )


@pytest.mark.slow
def test_more_memory_is_faster(frontier: Frontier) -> None:
    limits = [limit for limit, _ in frontier.points]
    makespans = [result.makespan for _, result in frontier.points]
    assert limits == sorted(limits)
    assert limits[0] == 1
    assert makespans == sorted(set(makespans), reverse=True)
    for limit, result in frontier.points:
        assert db.check(result.schedule, memory=limit).ok


@pytest.mark.slow
def test_published_schedules_are_never_better(frontier: Frontier) -> None:
    assert {"zb-v", "interleaved-1f1b"} <= {row.name for row in frontier.published}
    for row in frontier.published:
        best = frontier.nearest(row)
        if best is not None and row.schedule.placement == best.schedule.placement:
            assert best.makespan <= row.makespan


@pytest.mark.slow
def test_it_is_a_table_and_a_picture(frontier: Frontier, tmp_path: Path) -> None:
    assert "published" in str(frontier)
    data = frontier.to_dict()
    assert data["frontier"][0]["memory"] == 1
    frontier.save(tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 5000
    with pytest.raises(db.ParameterError, match=r"use \.png"):
        frontier.save(tmp_path / "x.gif")


def test_limits_begin_with_the_smallest_that_works() -> None:
    asked = problem(16, 64, 99, chunks=1, activation=[4.0] + [3.0] * 15)
    limits = limits_for(asked)
    assert limits[0] == 4
    assert len(limits) <= MOST_POINTS
    assert limits_for(problem(2, 2, 2, activation=0)) == [1.0]
