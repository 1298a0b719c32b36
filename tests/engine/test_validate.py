"""The one look at every action: kinds, groups, and what does not exist or is misplaced."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import debubble as db
from debubble.core.actions import (
    KIND_MASK,
    MICROBATCH_SHIFT,
    PAIR_SHIFT,
    STAGE_SHIFT,
    Kind,
    pack,
)
from debubble.core.schedule import Schedule
from debubble.engine.kernels.validate import find_strays, scan_actions
from debubble.engine.validate import scan
from debubble.lowering.transfers import add_transfers

CASES = {
    "one copy": lambda: db.make("1f1b", ranks=4, microbatches=8),
    "many places": lambda: db.make("interleaved-1f1b", ranks=24, microbatches=24, chunks=3),
    "two copies": lambda: db.make("dualpipe", ranks=4, microbatches=8),
    "two copies, twice": lambda: db.make("dualpipe", ranks=4, microbatches=8, iterations=2),
    "slices": lambda: db.make("seq1f1b", ranks=2, microbatches=4, slices=2),
    "transfers": lambda: add_transfers(db.make("zb-v", ranks=2, microbatches=4)),
}  # fmt: skip


def _changed(schedule: Schedule, position: int, code: int) -> Schedule:
    actions = schedule.actions.copy()
    actions[position] = code
    return replace(schedule, actions=actions)


@pytest.mark.parametrize("name", CASES)
def test_kinds_and_groups_are_those_of_the_actions(name: str) -> None:
    schedule = CASES[name]()
    survey = scan(schedule)
    kinds = np.unique(schedule.actions & KIND_MASK)
    assert survey.kinds == sum(1 << int(kind) for kind in kinds)
    assert survey.grouped == bool((schedule.actions >> PAIR_SHIFT & 3).any())
    assert survey.strays == (None, None)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("position", [0, 5, -1])
def test_a_stray_is_found_where_it_stands(name: str, position: int) -> None:
    schedule = CASES[name]()
    position %= len(schedule)
    here = schedule.rank_of(position)
    away = next(s for s in range(schedule.stages) if s not in schedule.placement.stages_on(here))
    last = schedule.units - 1
    for code in (
        -1,
        int(pack(Kind.F, schedule.stages, 0)[0]),
        int(pack(Kind.F, 0, schedule.units)[0]),
        int(pack(Kind.F, 0, 0)[0]) | KIND_MASK,
        int(pack(Kind.OPT, 0, schedule.iterations)[0]),
    ):
        assert scan(_changed(schedule, position, code)).strays == (position, None)
    wrong = int(pack(Kind.F, away, last)[0])
    assert scan(_changed(schedule, position, wrong)).strays == (None, position)


def test_what_stands_behind_one_that_does_not_exist_still_counts_as_a_kind() -> None:
    schedule = db.make("1f1b", ranks=2, microbatches=4)
    far = _changed(schedule, 0, schedule.stages << STAGE_SHIFT)
    assert scan(far).kinds == 1 << Kind.F | 1 << Kind.B
    assert scan(far).strays == (0, None)


@pytest.mark.parametrize("name", CASES)
def test_interpreted_it_says_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = CASES[name]()
    away = _changed(schedule, len(schedule) // 2, 1 << STAGE_SHIFT)
    far = _changed(schedule, len(schedule) - 1, 1 << MICROBATCH_SHIFT + 20)
    cases = [schedule, away, far]
    found = []
    for way in ("compiled", "interpret"):
        for kernel in (scan_actions, find_strays):
            run = getattr(kernel, way)
            monkeypatch.setattr(kernel, "run", lambda _work, *args, run=run: run(*args))
        found.append([scan(replace(case)) for case in cases])
    assert found[0] == found[1]
