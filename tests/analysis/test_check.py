"""Every kind of problem is found, named by rank and place, and comes with a fix."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import debubble as db
from debubble.analysis.check import caveats
from debubble.analysis.problems import CODES, LISTED
from debubble.analysis.summary import report, summary
from debubble.analysis.warnings import pytorch_warnings
from debubble.core.actions import PAIR_SHIFT, Kind, pack
from debubble.core.placement import Placement
from debubble.core.schedule import Schedule
from debubble.lowering.chain import lower
from debubble.lowering.sharding import add_sharding


def order(rows: list[str], microbatches: int = 2, **fields: Any) -> Schedule:
    placement = fields.pop("placement", Placement.linear(len(rows)))
    return Schedule.from_text([row.split() for row in rows], placement, microbatches, **fields)


def codes(report: db.Report) -> list[str]:
    return [problem.code for problem in report.problems]


def only(report: db.Report) -> Any:
    assert len(report.problems) == 1, str(report)
    return report.problems[0]


def test_a_good_schedule_is_ok_and_true() -> None:
    report = db.check(db.make("1f1b", ranks=4, microbatches=8))
    assert report
    assert report.ok
    assert report.count == 0
    assert str(report) == (
        "ok: 64 actions on 4 ranks, complete, ordered, executable, peak activation 4"
    )
    assert report.to_dict() == {
        "schedule": "1f1b",
        "ok": True,
        "actions": 64,
        "ranks": 4,
        "stages": 4,
        "microbatches": 8,
        "iterations": 1,
        "peak_activation": [4.0, 3.0, 2.0, 1.0],
        "problems": [],
        "more": {},
        "warnings": [],
    }


@pytest.mark.parametrize("entry", db.schedules(), ids=lambda entry: entry.name)
@pytest.mark.parametrize("iterations", [None, 1, 3])
def test_registered_schedules_are_ok(entry: Any, iterations: int | None) -> None:
    schedule = db.make(entry.name, ranks=4, microbatches=12, iterations=iterations)
    report = db.check(schedule)
    assert report, str(report)


def test_a_missing_forward_is_named_with_its_rank() -> None:
    problem = only(db.check(order(["0F0 0B0", "1B0"], 1)))
    assert (problem.code, problem.rank, problem.position) == ("missing", 1, None)
    assert problem.actions == ("1F0",)
    assert problem.message == "1F0 is missing"
    assert problem.fix == "add it on rank 1"


@pytest.mark.parametrize(
    ("rows", "missing"),
    [
        (["0F0 0F1 0B1"], [("0B0",)]),
        (["0F0 0F1 0I1 0W1"], [("0I0", "0W0")]),
        (["0F0 0F1 0I1 0B0"], [("0W1",)]),
        (["0F0 0F1 0W1 0B0"], [("0I1",)]),
        (["0F1 0B1"], [("0F0", "0B0")]),
        (["0F1 0I1 0W1"], [("0F0", "0I0", "0W0")]),
    ],
)
def test_missing_actions_are_listed_together_by_cell(
    rows: list[str], missing: list[tuple[str, ...]]
) -> None:
    report = db.check(order(rows))
    found = [problem.actions for problem in report.problems if problem.code == "missing"]
    assert found == missing
    assert set(codes(report)) == {"missing"}


def test_everything_missing_is_counted_without_being_listed() -> None:
    # A file can claim any number of microbatches; nothing of that size is ever laid out.
    many = 10**13
    report = db.check(order([""], microbatches=many))
    assert codes(report) == ["missing"] * LISTED
    assert report.problems[-1].actions == (f"0F{LISTED - 1}", f"0B{LISTED - 1}")
    assert report.more == {"missing": many - LISTED}
    assert report.count == many
    assert str(report).endswith(f"missing  and {many - LISTED:,} more")


def test_gaps_between_present_cells_are_the_ones_listed() -> None:
    actions = " ".join(f"0F{u} 0B{u}" for u in range(50) if u % 2)
    report = db.check(order([actions], microbatches=50))
    assert [problem.actions[0] for problem in report.problems] == [
        f"0F{2 * i}" for i in range(LISTED)
    ]
    assert report.more == {"missing": 25 - LISTED}


def test_a_duplicate_names_both_places() -> None:
    problem = only(db.check(order(["0F0 0F1 0F0 0B0 0B1"])))
    assert (problem.code, problem.rank, problem.position) == ("duplicate", 0, 2)
    assert problem.message == "rank 0, action 2: 0F0 runs again; it runs on rank 0 as action 0"


def test_out_of_range_stage_microbatch_kind_and_sign() -> None:
    program = np.concatenate(
        [
            pack(Kind.F, 0, 0),
            pack(Kind.B, 0, 0),
            pack(Kind.F, 9, 0),
            pack(Kind.F, 0, 9),
            np.array([31, -(1 << 40)]),
        ]
    )
    report = db.check(Schedule.from_programs("odd", Placement.linear(1), 1, [program]))
    assert [(p.code, p.position) for p in report.problems] == [
        ("out-of-range", 2),
        ("out-of-range", 3),
        ("out-of-range", 4),
        ("out-of-range", 5),
    ]
    assert report.problems[0].fix == "stages go to 0, microbatches to 0"
    assert "0<kind 31>0 has a kind that does not exist" in str(report)
    assert report.peak_activation is None
    assert report.to_dict()["peak_activation"] is None


def test_an_action_on_the_wrong_rank_is_sent_home() -> None:
    problem = only(db.check(order(["0F0 0B0 1F0", "1B0"], 1)))
    assert (problem.code, problem.rank, problem.position) == ("wrong-rank", 0, 2)
    assert "1F0 is on the wrong rank: stage 1 lives on rank 1" in problem.message
    assert problem.fix == "move it to rank 1"


def test_order_is_not_judged_between_ranks() -> None:
    assert codes(db.check(order(["0B0", "1F0 1B0 0F0"], 1))) == ["wrong-rank"]


def test_with_two_copies_the_microbatch_decides_which_one() -> None:
    both = Placement.bidirectional(2)
    good = ["0F0 1F1 1B1 0B0", "0F1 1F0 1B0 0B1"]
    assert db.check(order(good, placement=both))
    swapped = ["0F0 0F1 0B1 0B0", "1F1 1F0 1B0 1B1"]
    report = db.check(order(swapped, placement=both))
    assert codes(report) == ["wrong-rank"] * 4
    assert report.problems[0].message == (
        "rank 0, action 1: 0F1 is on the wrong rank: microbatch 1 is in the second half of its "
        "iteration and runs through copy 1, whose stage 0 lives on rank 1"
    )


@pytest.mark.parametrize(
    ("row", "early", "late"),
    [
        ("0B0 0F0", "0B0", "0F0"),
        ("0I0 0F0 0W0", "0I0", "0F0"),
        ("0F0 0W0 0I0", "0W0", "0I0"),
        ("0R0 0F0 0B0", "0R0", "0F0"),
        ("0F0 0B0 0R0", "0B0", "0R0"),
    ],
)
def test_an_action_before_one_it_needs(row: str, early: str, late: str) -> None:
    problem = only(db.check(order([row], 1)))
    assert problem.code == "order"
    assert problem.actions == (early, late)
    assert problem.fix == f"move {late} before {early}"
    assert problem.position == row.split().index(early)


def test_a_deadlock_shows_its_cycle_and_how_to_break_it() -> None:
    problem = only(db.check(order(["0F0 0B0 0F1 0B1", "1F1 1F0 1B0 1B1"])))
    assert problem.code == "deadlock"
    assert problem.actions == ("0B0", "1B0", "1F1", "0F1")
    assert problem.fix == "move 1B0 before 1F1 on rank 1, or move 0F1 before 0B0 on rank 0"


def test_a_turn_on_one_rank_is_a_deadlock_when_its_order_is_swapped() -> None:
    # Stages 1 and 2 live on rank 1, so that its own order decides whether 2F0 has its input.
    rows = ["0F0 3F0 3B0 0B0", "2F0 1F0 2B0 1B0"]
    problem = only(db.check(order(rows, 1, placement=Placement.v(2))))
    assert problem.code == "deadlock"
    assert set(problem.actions) == {"1F0", "2F0"}
    assert problem.fix == "move 1F0 before 2F0 on rank 1"


def test_losses_come_in_the_order_of_the_microbatches() -> None:
    report = db.check(order(["0F1 0F0 0F2 0B1 0B0 0B2", "1F1 1F0 1F2 1B1 1B0 1B2"], 3))
    assert report.ok
    (problem,) = report.warnings
    assert (problem.code, problem.rank, problem.position) == ("loss-order", 1, 1)
    assert problem.actions == ("1F0", "1F1")
    assert problem.message.startswith("rank 1, action 1: 1F0 comes after 1F1 (action 0)")
    assert problem.fix.startswith("move 1F0 before 1F1")


def test_pytorch_does_not_reduce_gradients_of_split_backwards_under_ddp() -> None:
    split, full = (db.make(name, ranks=2, microbatches=4) for name in ("zb-h1", "1f1b"))
    report = db.check(add_sharding(split))
    assert report.ok
    assert [(w.code, w.rank, w.actions) for w in report.warnings] == [("ddp-split", 1, ("1W0",))]
    assert "warning: rank 1, action" in str(report)
    for schedule in (split, add_sharding(split, mode="fsdp"), add_sharding(full)):
        assert not db.check(schedule).warnings
    assert [w.code for w in pytorch_warnings(split)] == ["ddp-split"]
    assert not pytorch_warnings(full)


def test_losses_of_each_copy_have_an_order_of_their_own() -> None:
    both = Placement.bidirectional(1)
    assert db.check(order(["0F2 0F0 0F3 0F1 0B2 0B0 0B3 0B1"], 4, placement=both))
    swapped = db.check(order(["0F2 0F1 0F3 0F0 0B2 0B0 0B3 0B1"], 4, placement=both))
    assert [(p.code, p.actions) for p in swapped.warnings] == [("loss-order", ("0F0", "0F1"))]


@pytest.mark.parametrize(
    "row",
    [
        "0F0 (0F1;0B1)OVERLAP_F_B 0B0",
        "0F0 (0I0;0W0)OVERLAP_F_B",
        "0F0 (0F1;0B0;0B1)OVERLAP_F_B",
        "(0F0;0F1;0B0)OVERLAP_F_B 0B1",
    ],
)
def test_members_of_a_group_do_not_wait_for_each_other(row: str) -> None:
    report = db.check(order([row], 1 + int("1" in row)))
    assert codes(report) == ["bad-pair"]
    assert len(report.problems[0].actions) == 2


@pytest.mark.parametrize(
    "row",
    [
        "0F0 (0F1;0F2)OVERLAP_F_B 0B0 0B1 0B2",
        "0F0 0F1 (0B0;0F2)OVERLAP_F_B 0B1 0B2",
        "0F0 0F1 0F2 0I0 (0I1;0W0)OVERLAP_F_B 0W1 0B2",
    ],
)
def test_independent_actions_of_any_kind_are_a_group(row: str) -> None:
    assert db.check(order([row], 3))


def test_a_group_has_at_most_sixteen_members() -> None:
    members = ";".join(f"0F{unit}" for unit in range(17))
    rest = " ".join(f"0B{unit}" for unit in range(17))
    report = db.check(order([f"({members})OVERLAP_F_B {rest}"], 17))
    assert codes(report) == ["bad-pair"]
    assert "0F0 begins an overlapped group of more than 16 members" in str(report)


def test_half_a_pair() -> None:
    pair = order(["0F0 (0F1;0B0)OVERLAP_F_B 0B1"]).actions
    for halves in ([0, 1, 3, 2], [0, 2, 1, 3]):
        report = db.check(Schedule.from_programs("cut", Placement.linear(1), 2, [pair[halves]]))
        assert codes(report) == ["bad-pair"] * 2
        assert "is part of an overlapped group without the rest" in str(report)


def test_a_third_half_does_not_exist() -> None:
    program = order(["0F0 0B0"], 1).actions.copy()
    program[0] |= 3 << PAIR_SHIFT
    report = db.check(Schedule.from_programs("odd", Placement.linear(1), 1, [program]))
    assert codes(report) == ["bad-pair"]


def test_a_pair_does_not_reach_over_to_the_next_rank() -> None:
    one = order(["0F0 (0F1;0B0)OVERLAP_F_B 0B1"]).actions
    cut = [one[:2], one[2:]]
    report = db.check(Schedule.from_programs("cut", Placement.linear(2), 2, cut))
    assert codes(report).count("bad-pair") == 2


@pytest.mark.parametrize("more", ["0I0", "0W0", "0I0 0W0"])
def test_a_full_backward_beside_a_part_of_it(more: str) -> None:
    report = db.check(order([f"0F0 0B0 {more}"], 1))
    assert codes(report) == ["mixed-backward"]
    assert report.problems[0].actions == ("0B0", *more.split())
    assert report.problems[0].fix == "keep 0B0, or 0I0 and 0W0"


def test_memory_names_rank_peak_limit_and_the_first_action_above() -> None:
    schedule = db.make("1f1b", ranks=4, microbatches=8)
    assert db.check(schedule, memory=4)
    problem = only(db.check(schedule, memory=3))
    assert (problem.code, problem.rank, problem.position) == ("memory", 0, 3)
    assert problem.actions == ("0F3",)
    assert "rank 0 holds up to 4 activation units, more than the limit of 3" in problem.message


def test_memory_takes_one_limit_per_rank_and_the_costs_unit() -> None:
    schedule = db.make("1f1b", ranks=4, microbatches=8)
    assert db.check(schedule, memory=[4, 3, 2, 1])
    assert [p.rank for p in db.check(schedule, memory=[4, 2, 2, 0.5]).problems] == [1, 3]
    costs = db.Costs(activation=2.5)
    assert db.check(schedule, memory=10, costs=costs)
    report = db.check(schedule, memory=9, costs=costs)
    assert "10 of activation memory, more than the limit of 9" in str(report)
    assert report.to_dict()["peak_activation"] == [10.0, 7.5, 5.0, 2.5]


def test_rounding_does_not_break_a_limit() -> None:
    schedule = db.make("1f1b", ranks=3, microbatches=6)
    assert db.check(schedule, memory=0.3, costs=db.Costs(activation=0.1))


def test_the_halves_of_a_pair_are_held_together() -> None:
    # 0B0 ends with the pair, so that both microbatches are held while 0F1 runs.
    problem = only(db.check(order(["0F0 (0F1;0B0)OVERLAP_F_B 0B1"]), memory=1))
    assert (problem.position, problem.actions) == (1, ("0F1",))
    assert db.check(order(["0F0 0B0 0F1 0B1"]), memory=1)


@pytest.mark.parametrize("memory", [0, -1, float("nan"), [1, 2], [1, 0, 1, 1]])
def test_a_limit_that_makes_no_sense_is_refused(memory: Any) -> None:
    with pytest.raises(db.ParameterError, match="memory"):
        db.check(db.make("1f1b", ranks=4, microbatches=8), memory=memory)


def test_an_unknown_mode_is_refused_with_the_nearest() -> None:
    with pytest.raises(db.ParameterError, match="did you mean 'blocking'"):
        db.check(db.make("1f1b", ranks=2, microbatches=2), p2p_mode="bloking")  # type: ignore[arg-type]


def test_several_problems_are_all_listed_under_known_codes() -> None:
    rows = ["0F0 0F1 0B0 0F5 0B1", "1F0 1F0 1B1 0F2"]
    report = db.check(order(rows))
    assert set(codes(report)) == {"out-of-range", "duplicate", "missing"}
    assert set(codes(report)) <= set(CODES)
    assert str(report).startswith(f"{report.count} problems in custom:\n")
    for problem in report.problems:
        assert problem.fix
        assert problem.message in str(report)
        assert problem.to_dict()["actions"] == list(problem.actions)


def test_at_most_some_problems_of_one_code_are_listed() -> None:
    forwards = " ".join(f"0F{u}" for u in range(100))
    backwards = " ".join(f"0B{u}" for u in range(100))
    report = db.check(order([f"{forwards} {forwards} {backwards}"], 100))
    assert codes(report) == ["duplicate"] * LISTED
    assert report.more == {"duplicate": 100 - LISTED}
    assert report.count == 100
    assert "and 80 more" in str(report)


def test_other_kinds_are_looked_at_for_range_and_rank_only() -> None:
    rows = ["0UNSHARD0 0F0 0REDUCE_GRAD0 0B0 7RESHARD0", "1F0 1B0 0REDUCE_GRAD0"]
    report = db.check(order(rows, 1))
    assert [(p.code, p.actions) for p in report.problems] == [
        ("out-of-range", ("7RESHARD0",)),
        ("wrong-rank", ("0REDUCE_GRAD0",)),
    ]


def test_sends_and_receives_are_judged_by_the_engine() -> None:
    rows = [
        "0F0 0SEND_F0 0RECV_B0 0B0",
        "1RECV_F0 1F0 1B0 1SEND_B0",
    ]
    assert db.check(order(rows, 1))
    assert db.check(order(rows, 1), p2p_mode="blocking")
    lost = only(db.check(order([rows[0], "1F0 1B0 1SEND_B0"], 1)))
    assert lost.code == "transfer"
    assert "1RECV_F0" in lost.message + lost.fix
    late = only(db.check(order(["0SEND_F0 0F0 0RECV_B0 0B0", rows[1]], 1)))
    assert late.code == "deadlock"
    assert late.fix == "move 0F0 before 0SEND_F0 on rank 0"


@pytest.mark.parametrize("sizes", [(10**30, 1), (1, 10**30), (10**18, 10**18)])
@pytest.mark.parametrize("copies", [1, 2])
def test_absurd_sizes_are_no_reason_to_fail(sizes: tuple[int, int], copies: int) -> None:
    placement = Placement.linear(2) if copies == 1 else Placement.bidirectional(2)
    schedule = order(["0F0 0B0", "1F0 1B0 1F1"], sizes[0], iterations=sizes[1], placement=placement)
    report = db.check(schedule, memory=1)
    assert report.more["missing"] == 2 * sizes[0] * sizes[1] - 3 - (LISTED - 1)
    assert str(report)


def test_simulations_note_what_the_check_refuses() -> None:
    stuck = lower(db.make("interleaved-1f1b", ranks=4, microbatches=8), transfers="just-in-time")
    (note,) = caveats(db.simulate(stuck))
    assert note == (
        "'debubble check' refuses it: with transfers queued between each two ranks, as by NCCL "
        "(pair): a deadlock: these actions wait for each other"
    )
    assert caveats(db.simulate(stuck, p2p_mode="blocking")) == ()
    assert f"interleaved-1f1b: {note}" in db.compare([stuck]).notes
    assert summary(db.simulate(stuck))["notes"] == [note]
    assert f"note: {note[:40]}" in report(db.simulate(stuck))


def test_a_time_of_a_part_is_noted() -> None:
    rows = db.make("zb-h1", ranks=2, microbatches=4).rows()
    rows[0].remove("0W3")
    part = db.simulate(db.Schedule.from_text(rows, db.Placement.linear(2), microbatches=4))
    assert ["lacks backwards" in note for note in part.notes] == [True]
    assert db.simulate(db.make("zb-h1", ranks=2, microbatches=4)).notes == ()


def test_problems_in_the_same_words_are_said_once_with_their_number() -> None:
    halves = " ".join(f"0B{u} 0W{u}" for u in range(9))
    report = db.check(order([" ".join(f"0F{u}" for u in range(9)) + " " + halves], 9))
    assert len(report.problems) == 9
    assert str(report).count("mixed-backward") == 1
    assert "(and 8 more in these words)" in str(report)
