"""A change of nothing, and the schedule that ran, move nothing: not by a rounding."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from debubble.core.errors import DebubbleError
from debubble.diagnosis.changes import HOWS, KINDS, OWNERS, Change
from debubble.diagnosis.diagnose import Diagnosis, diagnose
from debubble.diagnosis.report import what_if_text
from debubble.diagnosis.times_under_schedule import under_schedule
from debubble.diagnosis.what_if import SUGGESTED, WhatIf, predict, with_changes, with_schedule
from tests.laws.executed import Job
from tests.laws.jobs import RUNS, made, noisy, run_of, runnable, uneven
from tests.pairs import covering

NOTHING = {"*=": ("1", "1.0"), "+=": ("0", "0.0"), "=": ()}
"""Values of each way to change a time that leave it as it is."""


def subjects(found: Diagnosis) -> Iterator[str]:
    """All that can be set, as far as the run has it: the first and the last of each number."""
    run = found.run
    last = {"stage": run.schedule.stages - 1, "rank": run.schedule.ranks - 1,
            "copy": int(run.copy.max())}  # fmt: skip
    for owner, kind in product(OWNERS, ("", *KINDS)):
        for number in sorted({0, last[owner]}):
            yield f"{owner}{number}.{kind}".rstrip(".")
    yield from KINDS
    yield from ("gaps", "p2p", "p2p.0-1", "p2p.1-0")


def changes(found: Diagnosis) -> list[Change]:
    """Changes of nothing that the run takes: every subject, and each spelling with each sort."""
    assert set(NOTHING) == set(HOWS)
    made: dict[Change, tuple[str, str]] = {}
    for subject, how in product(subjects(found), HOWS):
        for value in NOTHING[how]:
            change = Change.parse(f"{subject}{how}{value}")
            try:
                change.check(found.run)
            except DebubbleError:
                continue
            made[change] = (subject, f"{how}{value}")
    some = covering(made, lambda one: (made[one][0], one.what, made[one][1]), strength=1)
    some += covering(made, lambda one: (one.what, made[one][1]))
    some = list(dict.fromkeys(some))
    assert {one.what for one in some} >= {"stage", "rank", "copy", "kind", "gaps"}
    return some


def moves_nothing(one: WhatIf) -> bool:
    told = ": 0.0 % " in " ".join(what_if_text(one, 1 << 20))
    return one.after == one.before and one.gain == 0 and told


@pytest.mark.parametrize("name", RUNS)
def test_a_change_of_nothing_moves_nothing(name: str) -> None:
    found = run_of(name)
    measured = float(found.run.step_times.mean())
    for change in changes(found):
        one = with_changes(found.replay, [change])
        assert moves_nothing(one)
        assert one.before == measured


@pytest.mark.parametrize("name", RUNS)
def test_nor_under_the_schedule_that_ran(name: str) -> None:
    found = run_of(name)
    if found.name.differences:
        pytest.skip("the registered schedule is another one")
    assert moves_nothing(with_schedule(found.replay, found.name.text))
    for change in changes(found):
        assert moves_nothing(with_schedule(found.replay, found.name.text, [change]))


@pytest.mark.parametrize("name", RUNS)
def test_nor_under_another(name: str) -> None:
    found = run_of(name)
    every = changes(found)
    for other in SUGGESTED:
        try:
            plain = with_schedule(found.replay, other)
        except DebubbleError:
            continue
        for some in (every[:1], every[-1:], every):
            assert with_schedule(found.replay, other, some).after == plain.after


@pytest.mark.parametrize("name", runnable())
def test_every_schedule_that_ran_is_the_run(name: str) -> None:
    schedule = made(name)
    found = diagnose(Job(schedule, uneven(schedule), noisy, copies=2, steps=2).observed())
    run = found.run
    one = with_schedule(found.replay, found.name.text)
    assert moves_nothing(one)
    assert one.before == float(run.step_times.mean())
    assert predict(found.replay, run.schedule) == pytest.approx(one.before, rel=1e-9)


@pytest.mark.parametrize("name", RUNS)
def test_what_an_own_schedule_carries_over_is_the_run(name: str) -> None:
    replay = run_of(name).replay
    times = replay.times + replay.gaps
    theirs, delays = under_schedule(
        replay.run, times, replay.transfers.in_flight, replay.run.schedule
    )
    counted = replay.run.counted
    assert theirs[:, counted] == pytest.approx(times[:, counted], rel=1e-12)
    assert (delays == replay.transfers.in_flight).all()


def test_both_ways_to_ask_are_one() -> None:
    """A change alone, and under the schedule that ran by its name."""
    for name in RUNS:
        found = run_of(name)
        if found.name.differences:
            continue
        for text in ("stage0*=0.5", "F+=1", "rank0=3", "gaps=0", "p2p=0", "copy0*=2"):
            if text == "p2p=0" and found.schedule.ranks == 1:
                continue
            some = [Change.parse(text)]
            alone = with_changes(found.replay, some)
            named = with_schedule(found.replay, found.name.text, some)
            assert (alone.before, alone.after) == (named.before, named.after)
