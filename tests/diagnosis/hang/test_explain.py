"""The rank and action that a hung job waits for, from dumps of jobs that an executor stopped."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import debubble as db
from debubble.core.errors import FormatError, ParameterError
from debubble.diagnosis.hang.answer import HangReport
from debubble.diagnosis.hang.dumps import read_dumps
from debubble.diagnosis.hang.explain import explain_hang
from debubble.lowering.transfers import add_transfers
from tests.diagnosis.hang.recorded import of_schedule, replace, run, write

ONE_F_ONE_B = db.make("1f1b", ranks=4, microbatches=8)
GPIPE = db.make("gpipe", ranks=4, microbatches=8)


def told(hung: Any, schedule: db.Schedule, mode: Any = None, **files: Any) -> HangReport:
    """What is told of a job."""
    with TemporaryDirectory() as folder:
        write(run(hung), Path(folder), **files)
        return explain_hang(read_dumps(folder), schedule, mode)


def one(found: HangReport) -> tuple[str, int | None, str | None, list[int]]:
    """Kind, rank, action and waiting ranks of an answer."""
    hang = found.to_dict()["hang"]
    return hang["kind"], hang["rank"], hang["action"], sorted(hang["waiting"])


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("as_json", [False, True])
def test_a_rank_that_stops_is_named_with_the_action_it_never_began(
    steps: int, as_json: bool
) -> None:
    hung = of_schedule(ONE_F_ONE_B, stop=(0, 2, steps - 1, "2F3"), steps=steps)
    found = told(hung, ONE_F_ONE_B, as_json=as_json)
    assert one(found) == ("rank", 2, "2F3", [0, 1, 3])
    assert found.hang.text == "rank 2 never began 2F3; ranks 1, 3, 0 wait for it."


def test_a_rank_that_has_its_input_and_sends_no_result_computes() -> None:
    hung = of_schedule(ONE_F_ONE_B, stop=(0, 2, 0, "2F3"), batched=True)
    text = "rank 2 never finished 2F3, whose inputs it has; ranks 1, 3, 0 wait for it."
    assert told(hung, ONE_F_ONE_B).hang.text == text


def test_a_rank_without_a_dump_is_named_by_what_others_wait_for() -> None:
    hung = of_schedule(ONE_F_ONE_B, stop=(0, 2, 0, "2B3"))
    found = told(hung, ONE_F_ONE_B, without=[2])
    assert found.hang.kind == "rank"
    assert found.hang.stand.rank == 2
    assert "wrote no dump" in found.hang.text
    assert found.missing == (2,)


@pytest.mark.parametrize("rank", range(4))
@pytest.mark.parametrize("cell", ["F3", "B4"])
@pytest.mark.parametrize("alone", [False, True])
def test_a_dump_that_proves_its_rank_stuck_comes_before_missing_dumps(
    rank: int, cell: str, alone: bool
) -> None:
    hung = of_schedule(ONE_F_ONE_B, stop=(0, rank, 1, f"{rank}{cell}"), steps=2)
    others = [other for other in range(4) if other != rank]
    for without in [others] if alone else [[other] for other in others]:
        found = told(hung, ONE_F_ONE_B, without=without)
        stand = found.hang.stand
        assert stand.rank == rank, (without, found.text(100))
        assert f"{rank}{cell}" in (stand.action, *stand.maybe)


def test_without_proof_the_rank_without_a_dump_is_one_of_several() -> None:
    hung = of_schedule(ONE_F_ONE_B, stop=(0, 2, 0, "2F3"))
    found = told(hung, ONE_F_ONE_B, without=[1, 2, 3])
    assert found.hang.text == (
        "the job waits for rank 1, or for one that it waits for: no dump of it; "
        "rank 0 waits for it."
    )


def test_a_rank_without_a_dump_has_done_what_others_got() -> None:
    hung = of_schedule(ONE_F_ONE_B, stop=(0, 2, 0, "2F3"))
    found = told(hung, ONE_F_ONE_B, without=[0, 1, 3])
    states = {row["rank"]: row["last_sent"] for row in found.to_dict()["ranks"]}
    assert (states[0], states[1]) == ("0F2", "1F2")


def test_a_rank_between_steps_did_not_join_a_collective() -> None:
    job = run(of_schedule(ONE_F_ONE_B, copies=2, dp=True))
    job.entries[5] = [entry for entry in job.entries[5] if entry.is_p2p]
    for entry in job.entries[4]:
        if not entry.is_p2p:
            entry.works = [({4}, {4, 5})]
    with TemporaryDirectory() as folder:
        write(job, Path(folder))
        hang = explain_hang(read_dumps(folder), ONE_F_ONE_B).hang
    assert (hang.kind, hang.stand.global_rank, hang.stand.action) == ("rank", 5, "")
    assert "did not join allreduce_coalesced (mesh_dp) of ranks 4, 5 after step 1" in hang.text


def test_several_actions_that_send_nothing_are_named_all() -> None:
    found = told(of_schedule(ONE_F_ONE_B, stop=(0, 3, 0, "3F3"), batched=True), ONE_F_ONE_B)
    assert found.hang.text.startswith("rank 3 stands in 3F3 or 3B3; ")
    assert "sent no result of 3B3 (after 3F3, which sends nothing)" in found.hang.evidence[0]
    assert found.to_dict()["hang"]["maybe"] == ["3F3"]


def test_dumps_without_a_message_are_refused() -> None:
    job = run(of_schedule(ONE_F_ONE_B, dp=True))
    job.entries = [[entry for entry in entries if not entry.is_p2p] for entries in job.entries]
    with TemporaryDirectory() as folder:
        dumps = read_dumps(str(write(job, Path(folder))))
    with pytest.raises(FormatError, match="no sends or receives in these dumps"):
        explain_hang(dumps, ONE_F_ONE_B)


@pytest.mark.parametrize("drop", ["", "peers", "calls", "batches"])
def test_batches_may_lack_peers_calls_or_their_own_entry(drop: str) -> None:
    hung = of_schedule(ONE_F_ONE_B, stop=(0, 2, 1, "2F3"), steps=2, batched=True)
    assert one(told(hung, ONE_F_ONE_B, drop=drop)) == ("rank", 2, "2F3", [0, 1, 3])


def test_megatron_without_batches_sends_and_receives_by_turns() -> None:
    hung = of_schedule(ONE_F_ONE_B, stop=(0, 2, 0, "2F3"), even_odd=True)
    assert one(told(hung, ONE_F_ONE_B)) == ("rank", 2, "2F3", [0, 1, 3])


@pytest.mark.parametrize("own_group", [True, False])
@pytest.mark.parametrize("outer", [True, False])
def test_copies_wait_in_collectives_for_the_one_that_stops(own_group: bool, outer: bool) -> None:
    hung = of_schedule(
        ONE_F_ONE_B, stop=(1, 2, 0, "2F3"), copies=2, dp=True, own_group=own_group, outer=outer
    )
    found = told(hung, ONE_F_ONE_B)
    assert one(found) == ("rank", 2, "2F3", [0, 1, 3])
    hang = found.to_dict()["hang"]
    place = 5 if outer else 6
    assert (hang["copy"], hang["global_rank"]) == (1, place)
    assert hang["file"] == f"nccl_trace_rank_{place}"
    assert len(hang["waiting_global_ranks"]) == 7


def test_votes_before_the_first_step_are_no_messages_of_it() -> None:
    hung = of_schedule(ONE_F_ONE_B, stop=(0, 2, 1, "2F3"), steps=2, lead_in=2)
    assert one(told(hung, ONE_F_ONE_B)) == ("rank", 2, "2F3", [0, 1, 3])


def test_several_tensors_are_one_message() -> None:
    hung = of_schedule(ONE_F_ONE_B, stop=(0, 2, 1, "2F3"), steps=2, tensors=3)
    assert one(told(hung, ONE_F_ONE_B)) == ("rank", 2, "2F3", [0, 1, 3])


def test_ends_with_different_shapes() -> None:
    hung = of_schedule(ONE_F_ONE_B, swapped=(0, 2, 3))
    found = told(hung, ONE_F_ONE_B)
    assert found.hang.kind == "shapes"
    assert found.hang.text == (
        "rank 2 sends BFloat16[2, 128] as 2SEND_F3, and rank 3 receives BFloat16[128, 2]."
    )


@pytest.mark.parametrize(
    ("ran", "other", "words"),
    [
        (ONE_F_ONE_B, GPIPE.rows()[1], "before it had posted 1RECV_B0"),
        (GPIPE, ONE_F_ONE_B.rows()[1], "waits at 1RECV_B0, which gpipe has after 1F"),
    ],
)
def test_a_rank_that_runs_another_schedule(
    ran: db.Schedule, other: list[str], words: str
) -> None:  # fmt: skip
    found = told(of_schedule(ran, other_program=(1, other)), ran)
    assert (found.hang.kind, found.hang.stand.rank) == ("orders", 1)
    assert words in found.hang.text


def test_a_schedule_that_did_not_run_is_refused_by_what_ranks_sent() -> None:
    found = told(of_schedule(GPIPE, stop=(0, 2, 0, "2F5")), ONE_F_ONE_B)
    assert found.hang.kind == "orders"
    assert found.hang.text.startswith("the job does not run 1f1b: rank 0 sent")


def test_a_deadlock_is_proven_by_check_in_its_mode() -> None:
    lowered = add_transfers(ONE_F_ONE_B, policy="pytorch-deferred")
    hung = replace(of_schedule(ONE_F_ONE_B, explicit=True, queue="pair"), programs=lowered.rows())
    found = told(hung, lowered)
    assert (found.hang.kind, found.hang.mode) == ("deadlock", "pair")
    assert not db.check(lowered, p2p_mode="pair")
    # Without its transfers, what both ends posted shows it.
    found = told(hung, ONE_F_ONE_B)
    assert (found.hang.kind, found.hang.mode) == ("deadlock", "pair")


def test_sends_that_block_wait_for_each_other() -> None:
    found = told(of_schedule(ONE_F_ONE_B, blocking=True), ONE_F_ONE_B)
    assert (found.hang.kind, found.hang.mode) == ("deadlock", "blocking")
    assert "neither receives" in found.hang.text


def test_a_buffer_that_begins_within_the_step_says_how_to_make_it_longer() -> None:
    hung = of_schedule(ONE_F_ONE_B, stop=(0, 2, 3, "2F3"), steps=4, early=2)
    assert one(told(hung, ONE_F_ONE_B, ring=60)) == ("rank", 2, "2F3", [0, 1, 3])
    interleaved = db.make("interleaved-1f1b", ranks=4, microbatches=8, chunks=2)
    hung = of_schedule(interleaved, stop=(0, 2, 1, "6B3"), steps=2, early=3)
    found = told(hung, interleaved, ring=12)
    assert found.hang.kind == "buffer"
    assert "TORCH_FR_BUFFER_SIZE=2000" in found.hang.advice


def test_nothing_waits_where_all_messages_are_over() -> None:
    assert one(told(of_schedule(ONE_F_ONE_B, steps=2), ONE_F_ONE_B)) == ("none", None, None, [])


def test_a_schedule_for_other_ranks_is_refused() -> None:
    with pytest.raises(ParameterError, match="job of 4 ranks, and the schedule has 3"):
        told(of_schedule(ONE_F_ONE_B), db.make("1f1b", ranks=3, microbatches=8))


NAMES = {"1f1b": {}, "gpipe": {}, "interleaved-1f1b": {"chunks": 2}, "zb-h1": {}, "zb-v": {},
         "dualpipe-v": {}}  # fmt: skip


@pytest.mark.slow
@given(st.data())
def test_any_rank_that_stops_anywhere_is_found(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(NAMES)))
    ranks = data.draw(st.integers(2, 4))
    microbatches = 2 * ranks if name in ("interleaved-1f1b", "dualpipe-v") else 6
    schedule = db.make(name, ranks=ranks, microbatches=microbatches, **NAMES[name])
    steps, copies = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 2))
    copy, rank = data.draw(st.integers(0, copies - 1)), data.draw(st.integers(0, ranks - 1))
    step = data.draw(st.integers(0, steps - 1))
    cell = data.draw(st.sampled_from(schedule.rows()[rank]))
    hung = of_schedule(
        schedule, stop=(copy, rank, step, cell), steps=steps, copies=copies, dp=True,
        early=data.draw(st.sampled_from([0, 1, 3])), outer=data.draw(st.booleans()),
        own_group=data.draw(st.booleans()), lead_in=data.draw(st.sampled_from([0, 2])),
        tensors=data.draw(st.sampled_from([1, 2])),
    )  # fmt: skip
    found = told(hung, schedule)
    stand = found.hang.stand
    assert (found.hang.kind, stand.copy, stand.rank) == ("rank", copy, rank), found.text(100)
    # It stands before an action that leaves no message, or before the one that is named.
    assert any(action in cell for action in (stand.action, *stand.maybe)), found.text(100)
