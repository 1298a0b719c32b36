"""Break good schedules in every way: the check finds it, and an independent judge agrees."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

import debubble as db
from debubble.core.actions import (
    KIND_MASK,
    MICROBATCH_SHIFT,
    PAIR_MASK,
    PAIR_SHIFT,
    Kind,
    unpack,
)
from debubble.core.placement import Placement
from debubble.core.schedule import Schedule
from tests import oracle, strategies

ALONE = ~(PAIR_MASK << PAIR_SHIFT)
some_entry = st.sampled_from(strategies.ENTRIES)


def in_turn(schedule: Schedule) -> bool:
    """Whether the losses of every copy come in the order of its microbatches."""
    losses: dict[int, list[int]] = {}
    for program in schedule:
        for stage, kind, unit in program:
            if stage == schedule.stages - 1 and kind == Kind.F:
                losses.setdefault(oracle.copy_of(schedule, unit), []).append(unit)
    return all(units == sorted(units) for units in losses.values())


def good(schedule: Schedule) -> bool:
    """Complete, in place, runnable, by dictionaries; for orders without steps."""
    counts: Counter[tuple[int, Kind, int]] = Counter()
    for rank, program in enumerate(schedule):
        halves = ((schedule.program(rank) >> PAIR_SHIFT) & PAIR_MASK).tolist()
        for index, action in enumerate(program):
            if action.stage >= schedule.stages or action.microbatch >= schedule.units:
                return False
            copy = oracle.copy_of(schedule, action.microbatch)
            if schedule.placement.table[copy][action.stage] != rank:
                return False
            counts[action] += 1
            if halves[index] == 3:
                return False
            if halves[index] == 1:
                partner = program[index + 1] if index + 1 < len(program) else action
                if halves[index + 1 : index + 2] != [2] or action.kind != Kind.F:
                    return False
                if partner.kind not in (Kind.I, Kind.W, Kind.B):
                    return False
            if halves[index] == 2 and (index == 0 or halves[index - 1] != 1):
                return False
    for stage in range(schedule.stages):
        for unit in range(schedule.units):
            parts = [counts[stage, kind, unit] for kind in (Kind.F, Kind.I, Kind.W, Kind.B)]
            if parts not in ([1, 1, 1, 0], [1, 0, 0, 1]):
                return False
            if counts[stage, Kind.OFFLOAD, unit] != counts[stage, Kind.RELOAD, unit]:
                return False
    passes = Counter({action: counts[action] for action in counts if action.kind >= Kind.S})
    if passes != Counter(
        action
        for unit in range(schedule.units if schedule.vocabulary else 0)
        for kind in (Kind.S, Kind.T)
        for action in oracle.shards_of(schedule, kind, unit)
    ):
        return False
    try:
        oracle.simulate(schedule, db.Costs())
    except oracle.CannotRunError:
        return False
    return True


def rebuilt(schedule: Schedule, programs: list[list[int]]) -> Schedule:
    arrays = [np.array(program, dtype=np.int64) for program in programs]
    return schedule.with_programs(arrays, made_for=None)


@st.composite
def picked(draw: st.DrawFn, with_steps: bool = True) -> tuple[Schedule, list[list[int]], int, int]:
    """A small good schedule, its programs, and one action of it as (rank, index)."""
    schedule = draw(strategies.made(draw(some_entry), ranks=4, microbatches=8, chunks=2))
    has_steps = bool((schedule.actions & KIND_MASK == Kind.OPT).any())
    assume(with_steps or not has_steps)
    programs = [schedule.program(rank).tolist() for rank in range(schedule.ranks)]
    rank = draw(st.integers(0, schedule.ranks - 1))
    return schedule, programs, rank, draw(st.integers(0, len(programs[rank]) - 1))


def codes_of(schedule: Schedule) -> set[str]:
    report = db.check(schedule)
    assert report.ok == (not report.problems)
    assert str(report)
    return {problem.code for problem in report.problems}


@given(picked())
def test_a_good_schedule_has_no_problems(case: tuple[Schedule, list[list[int]], int, int]) -> None:
    assert codes_of(case[0]) == set()


@given(picked())
def test_a_dropped_action_is_missed(case: tuple[Schedule, list[list[int]], int, int]) -> None:
    schedule, programs, rank, index = case
    action = unpack(programs[rank].pop(index))
    # One iteration without any step is a schedule too.
    assume(action.kind != Kind.OPT or schedule.iterations > 1 or schedule.ranks > 1)
    codes = codes_of(rebuilt(schedule, programs))
    assert ("optimizer" if action.kind == Kind.OPT else "missing") in codes


@given(picked(), st.data())
def test_a_repeated_action_is_found(
    case: tuple[Schedule, list[list[int]], int, int], data: st.DataObject
) -> None:
    schedule, programs, rank, index = case
    code = programs[rank][index] & ALONE
    programs[rank].insert(data.draw(st.integers(0, len(programs[rank]))), code)
    codes = codes_of(rebuilt(schedule, programs))
    assert ("optimizer" if unpack(code).kind == Kind.OPT else "duplicate") in codes


@given(picked(), st.data())
def test_an_action_on_another_rank_is_found(
    case: tuple[Schedule, list[list[int]], int, int], data: st.DataObject
) -> None:
    schedule, programs, rank, index = case
    assume(schedule.ranks > 1)
    other = data.draw(st.integers(0, schedule.ranks - 1).filter(lambda r: r != rank))
    code = programs[rank].pop(index) & ALONE
    programs[other].insert(data.draw(st.integers(0, len(programs[other]))), code)
    codes = codes_of(rebuilt(schedule, programs))
    assert ("optimizer" if unpack(code).kind == Kind.OPT else "wrong-rank") in codes


@given(picked(), st.data())
def test_a_renumbered_action_is_missing_where_it_was(
    case: tuple[Schedule, list[list[int]], int, int], data: st.DataObject
) -> None:
    schedule, programs, rank, index = case
    action = unpack(programs[rank][index])
    unit = data.draw(
        st.integers(0, schedule.units + 3).filter(lambda u: u != action.microbatch), label="unit"
    )
    programs[rank][index] += (unit - action.microbatch) << MICROBATCH_SHIFT
    codes = codes_of(rebuilt(schedule, programs))
    if action.kind == Kind.OPT:
        assert "optimizer" in codes
    elif unit >= schedule.units:
        assert {"missing", "out-of-range"} <= codes
    else:
        assert "missing" in codes
        assert codes & {"duplicate", "mixed-backward"}


@given(picked(with_steps=False), st.data())
def test_two_swapped_actions_are_judged_as_by_an_independent_run(
    case: tuple[Schedule, list[list[int]], int, int], data: st.DataObject
) -> None:
    schedule, programs, rank, index = case
    other = data.draw(st.integers(0, len(programs[rank]) - 1))
    program = programs[rank]
    program[index], program[other] = program[other], program[index]
    mutant = rebuilt(schedule, programs)
    codes = codes_of(mutant)
    assert (codes == set()) == good(mutant)
    assert codes <= {"order", "deadlock", "bad-pair"}
    warned = {warning.code for warning in db.check(mutant).warnings}
    assert codes or warned == (set() if in_turn(mutant) else {"loss-order"})


@st.composite
def soup(draw: st.DrawFn) -> Schedule:
    """Any programs at all, made of codes that exist and a few that do not."""
    placement = draw(
        st.sampled_from(
            [
                Placement.linear(1),
                Placement.linear(2),
                Placement.v(2),
                Placement.loop(2, 2),
                Placement.bidirectional(2),
            ]
        )
    )
    kinds = draw(st.sampled_from([[0, 3], [0, 1, 2], [0, 1, 2, 3], list(range(20))]))
    codes = st.builds(
        lambda kind, pair, stage, unit: kind | pair << PAIR_SHIFT | stage << 7 | unit << 27,
        st.sampled_from(kinds),
        st.sampled_from([0, 0, 0, 0, 0, 0, 1, 2, 3]),
        st.integers(0, placement.stages - (draw(st.integers(0, 4)) > 0)),
        st.integers(-1 if draw(st.integers(0, 4)) == 0 else 0, 2),
    )
    programs = draw(
        st.lists(st.lists(codes, max_size=10), min_size=placement.ranks, max_size=placement.ranks)
    )
    arrays = [np.array(program, dtype=np.int64) for program in programs]
    return Schedule.from_programs(
        "soup", placement, draw(st.integers(1, 3)), arrays, iterations=draw(st.integers(1, 2))
    )


@given(soup())
def test_nothing_makes_it_raise(schedule: Schedule) -> None:
    report = db.check(schedule, memory=1)
    assert report.ok == (not report.problems)
    assert str(report)
    assert report.to_dict()["ok"] == report.ok


@st.composite
def shuffled(draw: st.DrawFn) -> Schedule:
    """The right actions of a tiny schedule on the right ranks, in any order."""
    placement = draw(st.sampled_from([Placement.linear(1), Placement.linear(2), Placement.v(2)]))
    units = draw(st.integers(1, 2))
    split = draw(st.booleans())
    programs = []
    for rank in range(placement.ranks):
        cells = [
            f"{stage}{kind}{unit}"
            for stage in placement.stages_on(rank)
            for kind in ("FIW" if split else "FB")
            for unit in range(units)
        ]
        programs.append(draw(st.permutations(cells)))
    return Schedule.from_text(programs, placement, units)


@given(shuffled())
def test_any_order_is_judged_as_by_an_independent_run(schedule: Schedule) -> None:
    codes = codes_of(schedule)
    assert (codes == set()) == good(schedule)
    assert codes <= {"order", "deadlock"}
    warned = {warning.code for warning in db.check(schedule).warnings}
    assert codes or warned == (set() if in_turn(schedule) else {"loss-order"})
