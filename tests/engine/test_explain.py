"""Whatever cannot run is explained, and every wait that a deadlock names is one."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from debubble import Kind, Placement, Schedule, ScheduleError, simulate
from debubble.core.actions import (
    COPY_KINDS,
    PAIR_MASK,
    PAIR_SHIFT,
    TRANSFER_KINDS,
    group_bounds,
    kinds_of,
    unpack,
)
from debubble.core.kinds import COMPUTE_KINDS, KINDS
from debubble.core.waits import waits_for
from debubble.engine.explain.action_faults import first_fault
from debubble.engine.explain.waits import cycle_of
from debubble.engine.graph import P2P_MODES, compile_graph
from debubble.engine.modes import MODE
from debubble.lowering.sharding import SHARDING_MODES, add_sharding
from debubble.lowering.transfers import RECEIVE_POLICIES, add_transfers
from tests.oracle_modes import end_at
from tests.strategies import ENTRIES, carrying, made, recomputing, with_copies

LINK = re.compile(
    r"(\d+[A-Z_]+[\d.]+) \(rank (\d+)\) "
    r"(waits for|runs after|is queued behind|runs together with) "
    r"(\d+[A-Z_]+[\d.]+) \(rank (\d+)\)"
)
CHANGES = ("swap", "move", "drop", "repeat", "elsewhere", "renumber")


def links_of(schedule: Schedule, error: ScheduleError) -> list[tuple[int, str, int]]:
    """What a message says of a cycle, as positions."""
    at: dict[tuple[int, str], int] = {}
    for position, code in enumerate(schedule.actions.tolist()):
        name = schedule.rank_of(position), schedule.text(unpack(code))
        at.setdefault(name, position)
    return [
        (at[int(rank), one], verb, at[int(other_rank), other])
        for one, rank, verb, other, other_rank in LINK.findall(str(error))
    ]


class Judge:
    """Which waits are real in a mode, from the table of waits and the programs alone."""

    def __init__(self, schedule: Schedule, mode: str) -> None:
        self.schedule, self.mode = schedule, mode
        waits = waits_for(schedule)
        self.pairs = set(zip(waits.consumer.tolist(), waits.producer.tolist(), strict=True))
        self.kind = kinds_of(schedule.actions).tolist()
        self.rank = [schedule.rank_of(position) for position in range(len(schedule))]
        self.begin = group_bounds(schedule.actions)[0].tolist()
        self.other_end = {}
        for one, other in self.pairs:
            if KINDS[self.kind[one]].receives:
                self.other_end |= {one: other, other: one}

    def number(self, step: int) -> int:
        """Which of its rank's optimizer steps an action is."""
        begin = int(self.schedule.offsets[self.rank[step]])
        return self.kind[begin:step].count(Kind.OPT)

    def waits(self, one: int, other: int) -> bool:
        meets = MODE[self.mode].receives is not None
        if self.kind[one] == Kind.OPT:
            # For what comes before the same step of another rank.
            return (
                self.kind[other] == Kind.OPT
                and self.number(one) == self.number(other)
                and (self.schedule.sync == "global" or self.rank[other] < self.rank[one])
            )
        if (one, other) in self.pairs or (meets and self.other_end.get(one) == other):
            return True
        received = self.other_end.get(other)
        return not meets and (one, received) in self.pairs

    def is_true(self, one: int, verb: str, other: int) -> bool:
        same_rank, earlier = self.rank[one] == self.rank[other], other < one
        if verb == "waits for":
            return self.waits(one, other)
        if verb == "runs together with":
            return same_rank and self.begin[one] == self.begin[other] and one != other
        if verb == "runs after":
            blocks = MODE[self.mode].blocks and self.kind[other] in TRANSFER_KINDS
            return same_rank and earlier and (blocks or self.kind[other] in COMPUTE_KINDS)
        key = {
            "pair": lambda end: self.rank[self.other_end[end]],
            "group": lambda end: self.rank[end],
            "directed": lambda end: (self.rank[self.other_end[end]], KINDS[self.kind[end]].sends),
        }[self.mode]
        return same_rank and earlier and key(one) == key(other)


def refusal(schedule: Schedule, mode: Any) -> ScheduleError | None:
    try:
        compile_graph(schedule, mode)
    except ScheduleError as error:
        return error
    return None


def assert_explained(schedule: Schedule, mode: Any) -> None:
    """What is refused has a fault of form, or else a cycle of waits; what runs has neither."""
    form, error = first_fault(schedule, mode), refusal(schedule, mode)
    if form is not None:
        assert str(error) == str(form), schedule.rows()
    elif error is None:
        assert not cycle_of(schedule, mode)
    else:
        assert_true_cycle(schedule, mode, error)
    if form is not None and str(form).startswith("a deadlock"):
        (one, _, other), *_ = links_of(schedule, form)
        assert (one, other) in Judge(schedule, mode).pairs
    elif form is not None:
        assert "; " in str(form)
        assert form.chain


def assert_true_cycle(schedule: Schedule, mode: str, error: ScheduleError) -> None:
    """Every wait that a message names is one, and each begins where the one before ends."""
    links, judge = links_of(schedule, error), Judge(schedule, mode)
    assert str(error).startswith("a deadlock: these actions wait for each other: ")
    assert all(judge.is_true(*link) for link in links), str(error)
    assert all(one[2] == other[0] for one, other in pairwise([*links, links[0]])), str(error)
    assert len(error.chain) == len(links) == len({link[0] for link in links})
    assert re.search("; (move|run) ", str(error))


def rebuilt(schedule: Schedule, programs: list[list[int]]) -> Schedule:
    arrays = [np.array(program, dtype=np.int64) for program in programs]
    return schedule.with_programs(arrays, made_for=None)


@st.composite
def forms(draw: st.DrawFn, transfers: bool | None = None) -> Schedule:
    """A schedule of any family, with some of all that may be added to it."""
    entry = draw(st.sampled_from(ENTRIES))
    schedule = draw(carrying(draw(made(entry, ranks=4, microbatches=6, chunks=2))))
    copied = np.isin(kinds_of(schedule.actions), COPY_KINDS).any()
    copies = not copied and not schedule.vocabulary and draw(st.booleans())
    if draw(st.booleans()):
        schedule = draw(recomputing(schedule, some=not copies))
    if copies:
        schedule = draw(with_copies(schedule))
    if draw(st.booleans()) if transfers is None else transfers:
        schedule = add_transfers(schedule, policy=draw(st.sampled_from(RECEIVE_POLICIES)))
    if draw(st.booleans()):
        mode = draw(st.sampled_from(SHARDING_MODES))
        schedule = add_sharding(schedule, mode=mode, max_active=4)
    return schedule


@st.composite
def changed(draw: st.DrawFn, schedule: Schedule) -> Schedule:
    """The schedule with a few things done to it that nobody should do."""
    programs = [schedule.program(rank).tolist() for rank in range(schedule.ranks)]
    for _ in range(draw(st.integers(1, 3))):
        program = draw(st.sampled_from(programs))
        if not program:
            continue
        one, other = (draw(st.integers(0, len(program) - 1)) for _ in range(2))
        near = max(0, one - draw(st.integers(1, 4)))
        alone = ~(PAIR_MASK << PAIR_SHIFT)
        match draw(st.sampled_from(CHANGES)):
            case "swap":
                program[one], program[near] = program[near], program[one]
            case "move":
                program.insert(other, program.pop(one))
            case "drop":
                program.pop(one)
            case "repeat":
                program.insert(other, program[one] & alone)
            case "elsewhere":
                draw(st.sampled_from(programs)).append(program.pop(one) & alone)
            case _:
                program[one] += draw(st.sampled_from([-1, 1, 2])) << 27
    return rebuilt(schedule, programs)


@pytest.mark.parametrize("mode", P2P_MODES)
@settings(max_examples=40)
@given(data=st.data())
def test_whatever_cannot_run_is_explained(mode: str, data: st.DataObject) -> None:
    schedule = data.draw(forms())
    broken = data.draw(changed(schedule))
    if (
        MODE[mode].receives is not None
        and not np.isin(kinds_of(broken.actions), TRANSFER_KINDS).any()
    ):
        mode = "overlapped"
    assert_explained(broken, mode)


@st.composite
def shifted(draw: st.DrawFn, schedule: Schedule) -> Schedule:
    """The schedule with sends later and receives earlier, those to or from one rank in order."""
    programs = [schedule.program(rank).tolist() for rank in range(schedule.ranks)]
    for _ in range(draw(st.integers(1, 6))):
        program = draw(st.sampled_from(programs))
        actions = [unpack(code) for code in program]
        ends = {
            index: end_at(schedule, action)[1:]
            for index, action in enumerate(actions)
            if action.kind in TRANSFER_KINDS
        }
        if not ends:
            continue
        here = draw(st.sampled_from(sorted(ends)))
        beside = [index for index, end in ends.items() if end == ends[here]]
        if KINDS[actions[here].kind].receives:
            least = max((index + 1 for index in beside if index < here), default=0)
            there = draw(st.integers(least, here))
        else:
            most = min((index - 1 for index in beside if index > here), default=len(program) - 1)
            there = draw(st.integers(here, most))
        program.insert(there, program.pop(here))
    return rebuilt(schedule, programs)


def test_a_wait_for_a_copy_ends_a_group_of_blocking_transfers() -> None:
    waits = "0F0 0OFFLOAD0 0RELOAD0 0SEND_F0 0F1 0RECV_B0 0B0 0RECV_B1 0OFFLOAD1 0WAIT_OFFLOAD1"
    rows = [
        f"{waits} 0SEND_F1 0RELOAD1 0B1".split(),
        ["1RECV_F0", "1F0", "1B0", "1SEND_B0", "1RECV_F1", "1F1", "1B1", "1SEND_B1"],
    ]
    schedule = Schedule.from_text(rows, Placement.linear(2), 2)
    with pytest.raises(ScheduleError, match=r"0SEND_F1 \(rank 0\) runs after 0RECV_B1 \(rank 0\)"):
        simulate(schedule, p2p_mode="blocking")
    without = [[text for text in row if "WAIT" not in text] for row in rows]
    schedule = Schedule.from_text(without, Placement.linear(2), 2)
    assert simulate(schedule, p2p_mode="blocking").makespan == 11


@settings(max_examples=40)
@given(data=st.data())
def test_fewer_queues_stop_more(data: st.DataObject) -> None:
    schedule = data.draw(forms(transfers=True))
    assume(np.isin(kinds_of(schedule.actions), TRANSFER_KINDS).any())
    schedule = data.draw(shifted(schedule))
    if data.draw(st.integers(0, 7)) == 7:
        schedule = data.draw(changed(schedule))
    assume(first_fault(schedule, "directed") is None)
    runs = {mode: refusal(schedule, mode) is None for mode in P2P_MODES}
    # Transfers in one order on both ranks never stop each other, direction by direction.
    assert runs["overlapped"] == runs["channel"] == runs["directed"]
    assert runs["directed"] >= runs["pair"] >= runs["group"]


@pytest.mark.parametrize("mode", P2P_MODES)
@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([["0F0", "0F1"], ["1F0", "1B1"]], r"1B1 \(rank 1\) waits for 1F1, which no rank"),
        ([["0F0", "0F0"], []], "rank 0, action 1: 0F0 runs twice"),
        ([["0F0", "0W0"], []], r"0W0 \(rank 0\) waits for 0I0, which no rank runs; add 0I0"),
        ([["1F0"], []], "rank 0, action 0: 1F0 is on the wrong rank; stage 1 lives on rank 1"),
        ([["0F7"], []], "rank 0, action 0: 0F7 is out of range; stages go to 1"),
        ([["1UNSHARD0"], []], "rank 0, action 0: 1UNSHARD0 is on the wrong rank; stage 1 lives"),
        ([["0F0", "0OFFLOAD0", "0OFFLOAD0"], []], "action 2: 0OFFLOAD0 runs twice; remove one"),
        ([["0OFFLOAD0"], []], r"0OFFLOAD0 \(rank 0\) waits for 0F0, which no rank runs"),
        ([["0F0", "0RELOAD0"], []], "waits for 0OFFLOAD0, which no rank runs; add 0OFFLOAD0"),
        (
            [["0F0", "0OFFLOAD0", "0B0"], ["1F0", "1B0"]],
            r"0B0 \(rank 0\) waits for 0RELOAD0, which no rank runs; add 0RELOAD0",
        ),
        (
            [["0OFFLOAD0", "0F0", "0RELOAD0", "0B0"], ["1F0", "1B0"]],
            r"0OFFLOAD0 \(rank 0\) waits for 0F0 \(rank 0\), which comes after it; move 0F0 before",
        ),
        (
            [["0F0", "0RELOAD0", "0OFFLOAD0", "0B0"], ["1F0", "1B0"]],
            r"0RELOAD0 \(rank 0\) waits for 0OFFLOAD0 \(rank 0\), which comes after it",
        ),
        (
            [["0F0", "0OFFLOAD0", "0B0", "0RELOAD0"], ["1F0", "1B0"]],
            r"0B0 \(rank 0\) waits for 0RELOAD0 \(rank 0\), which comes after it; move 0RELOAD0",
        ),
        (
            [["0F0", "0OPT0", "0B0"], ["1F0", "1B0"]],
            r"0OPT0 \(rank 0\) waits for 1OPT0, which no rank runs; add 1OPT0 on rank 1",
        ),
        (
            [["0F0", "0REDUCE_GRAD0", "0B0"], ["1F0", "1B0"]],
            r"0REDUCE_GRAD0 \(rank 0\) waits for 0B0 \(rank 0\), which comes after it; move 0B0",
        ),
        (
            [["0F0", "0REDUCE_GRAD1", "0B0"], ["1F0", "1B0"]],
            r"0REDUCE_GRAD1 \(rank 0\) waits for 0B0 \(rank 0\), which comes after it; move 0B0",
        ),
        (
            [["0F0", "0F1", "0OFFLOAD1", "0RELOAD1", "0B1", "0R0", "0B0"],
             ["1F0", "1F1", "1B1", "1B0"]],
            "0OFFLOAD1 copies what stage 0 recomputes for some microbatches and not for others",
        ),
    ],
)  # fmt: skip
def test_faults_are_named(mode: Any, rows: list[list[str]], message: str) -> None:
    schedule = Schedule.from_text(rows, Placement.linear(2), 2)
    with pytest.raises(ScheduleError, match=message):
        simulate(schedule, p2p_mode=mode)


def test_the_shortest_of_several_cycles_is_shown() -> None:
    rows = [
        ["0F0", "0B0", "0F1", "0OFFLOAD1", "0RELOAD1", "0B1"],
        ["1F1", "1B1", "1F0", "1B0"],
    ]
    with pytest.raises(ScheduleError) as caught:
        simulate(Schedule.from_text(rows, Placement.linear(2), 2))
    assert caught.value.chain == (
        "0B0 (rank 0)", "1B0 (rank 1)", "1F1 (rank 1)", "0F1 (rank 0)",
    )  # fmt: skip
    assert "0F1 (rank 0) runs after 0B0 (rank 0); move 1B0 before 1F1" in str(caught.value)
