"""Activations that wait on the host: what is searched, what is measured, what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import debubble as db
from debubble.core.actions import Kind
from debubble.lowering.offload import LEADS
from debubble.optimize.bounds.paths import lower_bound
from debubble.optimize.programs.backward import relaxed
from debubble.optimize.programs.list_scheduling import list_programs
from debubble.optimize.programs.offload import (
    relax_copies,
    with_copies_placed,
    with_room_for_copies,
)
from debubble.optimize.stage_choices.choices import choice_in, with_choice
from tests.conftest import EXPLORES
from tests.optimize.problems import kinds, problem

FAST: dict[str, Any] = {"cache": False, "published": False, "effort": 0.005, "workers": 1}
"""Little work, and by one worker: two workers may find something else every time."""
COSTS = db.Costs(F=5, I=6, W=4, host_bandwidth=0.1)


@settings(max_examples=25)
@given(st.data())
def test_no_schedule_with_copies_beats_the_problem_without(data: st.DataObject) -> None:
    p, v, m = (data.draw(st.integers(1, most)) for most in (3, 2, 6))
    costs: dict[str, Any] = {
        "F": data.draw(st.integers(1, 5)),
        "I": data.draw(st.integers(1, 5)),
        "R": 2,
        "host_bandwidth": data.draw(st.sampled_from([0.1, 1.0, 50.0])),
        "offload_share": data.draw(st.sampled_from([0.5, 1.0])),
        "kept_for_weight": data.draw(st.sampled_from([0.5, 1.0])),
        "recompute_kept": data.draw(st.sampled_from([0.0, 0.5])),
    }
    ways = data.draw(st.lists(st.integers(0, 3), min_size=p * v, max_size=p * v))
    asked = with_choice(problem(p, m, 100.0, chunks=v, **costs), ways)
    model = relax_copies(asked)
    programs = list_programs(
        replace(model, limits=model.smallest_limits * data.draw(st.floats(1, 3))), (), 0.02
    )
    plain = model.schedule(programs)
    for schedule in with_copies_placed(asked, programs):
        assert db.check(schedule, costs=asked.table.costs).ok
        assert all(a | b == b for a, b in zip(choice_in(schedule), ways, strict=True))
        timeline = asked.timeline(schedule)
        assert timeline.makespan >= model.timeline(plain).makespan - 1e-9
        held = model.timeline(plain).peak_activation
        assert np.all(timeline.peak_activation >= held - 1e-9)
        roomy = replace(model, limits=timeline.peak_activation)
        assert lower_bound(relaxed(roomy)) <= timeline.makespan + 1e-9


def test_activations_leave_behind_the_forward_and_return_before_the_backward() -> None:
    asked = with_choice(problem(1, 4, 9, chunks=1, host_bandwidth=1), (2,))
    order = [db.make("gpipe", ranks=1, microbatches=4).program(0)]
    texts = [" ".join(schedule.rows()[0]) for schedule in with_copies_placed(asked, order)]
    assert len(texts) == len(LEADS)
    assert texts[0] == (
        "0F0 0OFFLOAD0 0F1 0OFFLOAD1 0F2 0OFFLOAD2 0F3 0OFFLOAD3 "
        "0RELOAD0 0B0 0RELOAD1 0B1 0RELOAD2 0B2 0RELOAD3 0B3"
    )
    assert texts[1] == (
        "0F0 0OFFLOAD0 0F1 0OFFLOAD1 0F2 0OFFLOAD2 0RELOAD0 0F3 0OFFLOAD3 "
        "0RELOAD1 0B0 0RELOAD2 0B1 0RELOAD3 0B2 0B3"
    )
    # Whose backward follows too soon stays.
    assert texts[-1] == "0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3"


def test_tighter_limits_leave_room_for_copies() -> None:
    asked = with_choice(problem(2, 4, 2, host_bandwidth=1), (2, 0, 0, 0))
    limits = [tight.limits.tolist() for tight in with_room_for_copies(asked)]
    assert limits == [[2, 2], [1.5, 2], [1, 2], [0.5, 2]]
    assert not any(tight.offload for tight in with_room_for_copies(asked))


@pytest.mark.slow
def test_what_waits_on_the_host_makes_room() -> None:
    asked: dict[str, Any] = {
        "ranks": 4 if EXPLORES else 2,
        "chunks": 2,
        "microbatches": 8 if EXPLORES else 4,
        "memory": 1.25,
        "costs": COSTS,
    }
    none = db.optimize(**asked, **FAST)
    some = db.optimize(**asked, offload=[0, 1], **FAST)
    free = db.optimize(**asked, offload="free", **FAST)
    assert free.makespan <= none.makespan
    for result in (some, free):
        assert result.makespan < 0.9 * none.makespan
        assert db.check(result.schedule, costs=COSTS).ok
        timeline = db.simulate(result.schedule, COSTS)
        assert timeline.makespan == result.makespan >= result.lower_bound
        assert timeline.peak_activation.max() <= 1.25 * (1 + 1e-9)
        assert Kind.OFFLOAD in kinds(result.schedule)
        assert result.to_dict()["offload"] == result.offload != []
        assert "wait for their backwards on the host" in str(result)
    assert set(some.offload) <= {0, 1}


@pytest.mark.slow
def test_files_and_the_cache_keep_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    asked: dict[str, Any] = {
        "ranks": 2,
        "microbatches": 4,
        "memory": 1.25,
        "published": False,
        "effort": 0.005,
        "costs": COSTS,
    }
    # Stages that choose take as long as all else here: with one chunk they have little to choose.
    for chunks, offload in ((2 if EXPLORES else 1, "free"), (2, [0, 1])):
        asked["chunks"] = chunks
        first = db.optimize(**asked, offload=offload)
        again = db.optimize(**asked, offload=offload)
        assert again.cached
        assert again.makespan == first.makespan
    assert Kind.OFFLOAD in kinds(first.schedule)
    first.schedule.save(tmp_path / "x.json")
    assert db.simulate(db.load(tmp_path / "x.json"), COSTS).makespan == first.makespan
    other = db.optimize(**asked | {"costs": db.Costs(F=5, I=6, W=4, host_bandwidth=1)},
                        offload=[0, 1])  # fmt: skip
    assert not other.cached


@pytest.mark.slow
def test_placements_on_which_copies_have_no_room_are_passed_over() -> None:
    costs = db.Costs(F=5, I=6, W=4, host_bandwidth=4)
    result = db.optimize(
        ranks=2, chunks=2, microbatches=4, costs=costs, memory=0.8, recompute="free",
        offload="free", **FAST,
    )  # fmt: skip
    assert db.check(result.schedule, memory=0.8, costs=costs).ok
    assert result.lower_bound <= result.makespan


def test_copies_of_ranks_that_share_a_link_have_room() -> None:
    costs = db.Costs(
        host_bandwidth=1, host_link_shared_by=2, offload_share=0.7, kept_for_weight=0.5
    )
    limits = [3, 4, 3, 4]
    found = db.optimize(
        ranks=4, microbatches=4, memory=limits, costs=costs, offload="free", backward="fused",
        **FAST,
    )  # fmt: skip
    assert found.offload
    assert db.check(found.schedule, memory=limits, costs=costs).ok
    assert db.simulate(found.schedule, costs).makespan == found.makespan


@pytest.mark.slow
def test_copies_that_take_longer_than_they_save_stay_away() -> None:
    costs = db.Costs(host_bandwidth=1e-6)
    free = db.optimize(ranks=2, microbatches=4, memory=2, costs=costs, offload="free", **FAST)
    assert free.offload == []
    with pytest.raises(db.ParameterError, match="no order was found in which the copies"):
        db.optimize(ranks=2, microbatches=5, memory=[0.9, 1], offload=[0], **FAST,
                    costs=db.Costs(host_bandwidth=1e-6), chunks=2, placement="wave")  # fmt: skip


@pytest.mark.parametrize(
    ("offload", "costs", "message"),
    [
        ("free", db.Costs(), "offload needs host_bandwidth"),
        ([0], db.Costs(), "offload needs host_bandwidth"),
        ("full", COSTS, "offload is 'full'; give none, free, or stages"),
        ([8], COSTS, "offload has the stage 8"),
    ],
)
def test_what_cannot_be_used_is_refused(offload: Any, costs: db.Costs, message: str) -> None:
    with pytest.raises(db.ParameterError, match=message):
        db.optimize(
            ranks=4, chunks=2, microbatches=8, memory=2, costs=costs, offload=offload, **FAST
        )
