"""PyTorch's CSV files: what they say is inferred, what they cannot say is refused."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import debubble as db
from debubble.core.actions import COPY_KINDS, Kind, kinds_of, pack
from debubble.core.errors import FormatError, ParameterError
from debubble.interchange.torch_csv import from_csv, to_csv, with_transfers
from debubble.schedules.registry import Entry
from tests.pairs import each_family
from tests.small import smallest
from tests.strategies import ENTRIES, made

DUALPIPE_V = """\
0F0,0F1,0F2,3F0,3I0,3W0,3F1,(0F3;3B1)OVERLAP_F_B,(3F2;0B0)OVERLAP_F_B,3B2,(3F3;0B1)OVERLAP_F_B,\
3B3,0I2,0W2,0I3,0W3
1F0,2F0,1F1,2F1,1F2,2B0,(2F2;1B0)OVERLAP_F_B,(1F3;2B1)OVERLAP_F_B,(2F3;1B1)OVERLAP_F_B,2B2,1B2,\
2I3,1I3,2W3,1W3
"""


def test_compute_only_rows_are_written_as_pytorch_writes_them() -> None:
    schedule = db.make("1f1b", ranks=2, microbatches=3)
    assert to_csv(schedule) == "0F0,0F1,0B0,0F2,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n"


def test_overlapped_pairs_are_one_cell() -> None:
    schedule = db.make("dualpipe-v", ranks=2, microbatches=4)
    assert to_csv(schedule) == DUALPIPE_V
    assert from_csv(DUALPIPE_V, "x.csv") == schedule


@each_family
@settings(max_examples=6)
@given(data=st.data())
def test_schedules_read_back_equal_or_are_refused(entry: Entry, data: st.DataObject) -> None:
    schedule = data.draw(made(entry, ranks=6, microbatches=16, chunks=3))
    steps = schedule.iterations > 1 or Kind.OPT in {a.kind for row in schedule for a in row}
    copies = np.isin(kinds_of(schedule.actions), COPY_KINDS).any()
    inexpressible = steps or copies or schedule.vocabulary > 0
    if schedule.placement.copies > 1 or schedule.slices > 1 or inexpressible:
        with pytest.raises(ParameterError):
            to_csv(schedule)
        return
    again = from_csv(to_csv(schedule), "x.csv")
    assert again.rows() == schedule.rows()
    assert again.placement.table == schedule.placement.table
    assert again.microbatches == schedule.microbatches
    if schedule.ranks > 1 and schedule.chunks > 1:
        assert again.placement == schedule.placement


def test_transfers_are_written_in_pytorchs_notation() -> None:
    lowered = with_transfers(db.make("1f1b", ranks=2, microbatches=1))
    assert to_csv(lowered, transfers=True) == (
        "0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD\n1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_GRAD\n"
    )


def test_waits_follow_the_backward_of_a_forward_send_or_stand_at_the_end() -> None:
    lowered = with_transfers(db.make("1f1b", ranks=2, microbatches=1))
    assert to_csv(lowered, transfers=True, waits=True) == (
        "0F0,0SEND_F0,0RECV_B0,0B0,0WAIT_SEND_F0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD\n"
        "1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_GRAD,1WAIT_REDUCE_GRAD,1WAIT_SEND_B0\n"
    )


def test_reductions_stand_behind_the_last_weights_of_their_stage() -> None:
    lowered = with_transfers(db.make("dualpipe-v", ranks=2, microbatches=4))
    first, second = to_csv(lowered, transfers=True).splitlines()
    assert "(3F3;0B1)OVERLAP_F_B,3B3,0RECV_B2,3SEND_B3,3REDUCE_GRAD," in first
    assert first.endswith(",0W3,0REDUCE_GRAD")
    assert second.endswith(",2W3,2REDUCE_GRAD,1W3,1REDUCE_GRAD")


def written(entry: Entry) -> bool:
    """Whether schedules of a family can be written with transfers, where they take no steps."""
    try:
        with_transfers(smallest(entry))
    except ParameterError:
        return False
    return True


@pytest.mark.parametrize("entry", list(filter(written, ENTRIES)), ids=lambda entry: entry.name)
@settings(max_examples=6)
@given(data=st.data())
def test_every_send_has_one_wait_and_every_stage_one_reduction(
    entry: Entry, data: st.DataObject
) -> None:
    schedule = data.draw(made(entry, ranks=4, microbatches=8, chunks=2))
    assume(not (kinds_of(schedule.actions) == Kind.OPT).any())
    lowered = with_transfers(schedule)
    texts = to_csv(lowered, transfers=True, waits=True).replace("\n", ",").split(",")
    sends = sorted(text for text in texts if "SEND" in text and "WAIT" not in text)
    waits = sorted(text.replace("WAIT_", "") for text in texts if "WAIT_SEND" in text)
    assert waits == sends
    for ending in ("REDUCE_GRAD", "WAIT_REDUCE_GRAD"):
        found = sorted(text for text in texts if text.lstrip("0123456789") == ending)
        assert found == sorted(f"{stage}{ending}" for stage in range(schedule.stages))
    again = from_csv(to_csv(lowered, transfers=True, waits=True), "x.csv")
    assert again.rows() == lowered.rows()


def test_transfers_read_back_equal() -> None:
    lowered = with_transfers(db.make("interleaved-1f1b", ranks=4, microbatches=8))
    again = from_csv(to_csv(lowered, transfers=True), "x.csv")
    assert again == lowered
    assert with_transfers(again) is again


def test_collectives_are_read_and_written_where_they_stand_and_waits_skipped() -> None:
    text = (
        "0UNSHARD,0F0,0SEND_F0,,0RECV_B0,0B0,0WAIT_SEND_F0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD,0RESHARD"
        "\n1UNSHARD0,1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_GRAD,1WAIT_SEND_B0\n"
    )
    schedule = from_csv(text, "x.csv")
    assert schedule.rows() == [
        ["0UNSHARD0", "0F0", "0SEND_F0", "0RECV_B0", "0B0", "0REDUCE_GRAD0", "0RESHARD0"],
        ["1UNSHARD0", "1RECV_F0", "1F0", "1B0", "1SEND_B0", "1REDUCE_GRAD0"],
    ]
    assert db.check(schedule).ok
    assert with_transfers(schedule) is schedule
    assert to_csv(schedule, transfers=True) == (
        "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD,0RESHARD\n"
        "1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_GRAD\n"
    )


@pytest.mark.parametrize(
    "text",
    [
        "0F0,0B0\n1F0,1B0\n",
        "0F0,0B0\n1F0,1B0",
        "0F0,0B0\r\n1F0,1B0\r\n",
        "0F0,0B0,,,\n,1F0,,1B0,\n",
        " 0F0 , 0B0\n1F0,1B0\n\n\n",
        '"0F0","0B0"\n1F0,1B0\n',
    ],
)
def test_line_ends_idle_slots_and_spaces_mean_nothing(text: str) -> None:
    schedule = from_csv(text, "dir/x.csv")
    assert schedule.rows() == [["0F0", "0B0"], ["1F0", "1B0"]]
    assert (schedule.name, schedule.microbatches, schedule.stages) == ("x.csv", 1, 2)


@pytest.mark.parametrize(
    ("text", "name", "table"),
    [
        ("0F0,2F0,2B0,0B0\n1F0,3F0,3B0,1B0\n", "loop", (0, 1, 0, 1)),
        ("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n", "V", (0, 1, 1, 0)),
        ("0F0,1F0,1B0,0B0\n2F0,3F0,3B0,2B0\n", "block", (0, 0, 1, 1)),
        ("0F0,1F0,3F0\n2F0\n", "explicit", (0, 0, 1, 0)),
        ("0F0\n,\n1F0\n", "explicit", (0, 2)),
    ],
)
def test_placement_follows_from_where_the_actions_are(
    text: str, name: str, table: tuple[int, ...]
) -> None:
    placement = from_csv(text, "x.csv").placement
    assert (placement.name, placement.table) == (name, (table,))
    assert placement.ranks == text.count("\n")


def test_a_given_number_of_microbatches_is_taken() -> None:
    # PyTorch's own listing of 1F1B numbers the last rank's forwards from 1.
    text = "0F0,0F1,0B0,0B1\n1F1,1B0,1F2,1B1\n"
    assert from_csv(text, "x.csv").microbatches == 3
    schedule = from_csv(text, "x.csv", microbatches=2)
    assert schedule.microbatches == 2
    assert "out-of-range" in {problem.code for problem in db.check(schedule).problems}


REFUSED = {
    "": "x.csv: empty; write one row per rank: 0F0,0F1,0B0,0B1",
    "\n\n": "x.csv: empty; write one row per rank: 0F0,0F1,0B0,0B1",
    ",\n,": "x.csv: no actions; write one row per rank: 0F0,0F1,0B0,0B1",
    "0F0\n\n1F0\n": (
        "x.csv: row 2 is blank; remove it, or write a comma for a rank without actions"
    ),
    "\n0F0\n": "x.csv: row 1 is blank; remove it, or write a comma for a rank without actions",
    "0F0,,0F0xyz\n": (
        "x.csv: row 1, column 3: '0F0xyz' is not an action; write <stage><kind><microbatch>: 3F0"
    ),
    "0F0\n1F\n": (
        "x.csv: row 2, column 1: '1F' is not an action; write <stage><kind><microbatch>: 3F0"
    ),
    "rank,step\n": (
        "x.csv: row 1, column 1: 'rank' is not an action; write <stage><kind><microbatch>: 3F0"
    ),
    "0F٣\n": (
        "x.csv: row 1, column 1: '0F٣' is not an action; write <stage><kind><microbatch>: 3F0"
    ),
    "0F0,0WAIT_SEND_F\n": (
        "x.csv: row 1, column 2: '0WAIT_SEND_F' is not an action; "
        "write <stage><kind><microbatch>: 3F0"
    ),
    "0UNSHARD\n": "x.csv: no actions; write one row per rank: 0F0,0F1,0B0,0B1",
    "(0F1;0B0)\n": (
        "x.csv: row 1, column 1: '(0F1;0B0)' is not an overlapped group; write (0F3;3B1)OVERLAP_F_B"
    ),
    "0F0\n0B0\n": (
        "x.csv: stage 0 has actions on rank 0 and on rank 1; a CSV cannot say which of two copies "
        "a microbatch uses: use a JSON schedule file"
    ),
    "0F0,2F0\n": (
        "x.csv: stage 1 has no action, stage 2 has; stages are numbered from 0 without gaps"
    ),
    "0OPT0\n": "x.csv: OPT is not part of a CSV; use a JSON schedule file",
    "0F99999999\n": (
        "x.csv: 1 actions cannot be a schedule of 1 stages and 100,000,000 microbatches; "
        "correct the numbers"
    ),
    "1000000F0\n": (
        "x.csv: 1 actions cannot be a schedule of 1,000,001 stages and 1 microbatches; "
        "correct the numbers"
    ),
    "0F0\n" * 5000: "x.csv: more than 4096 rows; each row is a rank",
    '"0F0\n': "x.csv: line 1: unexpected end of data; cells need no quotation marks",
    "x" * 200_000: (
        "x.csv: line 1: field larger than field limit (131072); cells need no quotation marks"
    ),
}


@pytest.mark.parametrize(("text", "message"), REFUSED.items(), ids=range(len(REFUSED)))
def test_what_is_wrong_is_named_with_row_and_column(text: str, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        from_csv(text, "x.csv")
    assert str(caught.value) == message


@given(st.text(alphabet='0123FBIW,;()"\n\r OVERLAP_F_B\x00é', max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(FormatError):
        schedule = from_csv(text, "x.csv")
        assert from_csv(to_csv(schedule, transfers=True), "x.csv").rows() == schedule.rows()


def explicit(codes: list[list[str]], **fields: Any) -> db.Schedule:
    return db.Schedule.from_text(codes, db.Placement.linear(len(codes)), 1, "mine", **fields)


@pytest.mark.parametrize(
    ("schedule", "transfers", "reason"),
    [
        (
            db.make("dualpipe", ranks=4, microbatches=8),
            False,
            "'dualpipe' has 2 copies of the model, and a CSV gives each stage to one rank; "
            "a JSON schedule file can say it",
        ),
        (
            db.make("1f1b", ranks=2, microbatches=2, iterations=2),
            False,
            "'1f1b' has 2 iterations, and a CSV holds one without optimizer step; leave iterations "
            "out; a JSON schedule file can say it",
        ),
        (
            db.make("1f1b", ranks=2, microbatches=2, iterations=1),
            True,
            "'1f1b' has optimizer steps, which a CSV cannot say; leave iterations out; "
            "a JSON schedule file can say it",
        ),
        (
            explicit([["0F0.0", "0F0.1", "0B0.1", "0B0.0"]], slices=2),
            False,
            "'mine' cuts sequences into slices, which a CSV cannot say; "
            "a JSON schedule file can say it",
        ),
        (
            explicit([["0F0", "0R0", "0B0"]]),
            True,
            "'mine' has R actions, which PyTorch's CSV does not know; "
            "a JSON schedule file can say it",
        ),
        (
            with_transfers(db.make("1f1b", ranks=2, microbatches=1)),
            False,
            "'1f1b' has communication actions; use torch-csv-comms; "
            "a JSON schedule file can say it",
        ),
    ],
)
def test_schedules_that_a_csv_cannot_express_are_refused_with_the_reason(
    schedule: db.Schedule, transfers: bool, reason: str
) -> None:
    with pytest.raises(ParameterError) as caught:
        to_csv(schedule, transfers)
    assert str(caught.value) == reason


def test_a_rank_without_actions_is_a_row_with_a_comma() -> None:
    placement = db.Placement(((0, 2),), ranks=3)
    programs = [pack(Kind.F, 0, 0), pack(Kind.F, 0, [])[:0], pack(Kind.F, 1, 0)]
    schedule = db.Schedule.from_programs("gap", placement, 1, programs)
    assert to_csv(schedule) == "0F0\n,\n1F0\n"
    assert from_csv(to_csv(schedule), "x.csv") == schedule


OLDER = ["0F0,0F1,0BW0,0BW1\n1F0,1B0,1F1,1B1,1W0,1W1\n", "0F0,0B0,0W0\n1F0,1B0,1W0\n"]


@pytest.mark.parametrize("text", OLDER)
def test_older_notation_is_read_as_what_it_means(text: str) -> None:
    with pytest.warns(UserWarning, match="x.csv: the notation of older PyTorch"):
        read = from_csv(text, "x.csv")
    today = text.replace("BW", "?").replace("B", "I").replace("?", "B")
    assert read == from_csv(today, "x.csv")
    assert db.check(read)


def test_a_whole_backward_beside_w_is_not_older_notation() -> None:
    report = db.check(from_csv("0F0,0F1,0B0,0B1,0W1\n", "x.csv"))
    assert [problem.code for problem in report.problems] == ["mixed-backward"]
    assert "older PyTorch writes B for I" in str(report)


def test_listings_without_reductions_are_timed_with_a_note_and_not_sound() -> None:
    plain = to_csv(with_transfers(db.make("1f1b", ranks=2, microbatches=2)), transfers=True)
    older = re.sub(r",?[0-9]REDUCE_GRAD[0-9]*", "", plain)
    read = from_csv(older, "older.csv")
    assert {problem.code for problem in db.check(read).problems} == {"reduce-grad"}
    timeline = db.simulate(read)
    assert timeline.makespan == db.simulate(from_csv(plain, "x.csv")).makespan
    assert timeline.notes[0].startswith("no REDUCE_GRAD, as in listings of older PyTorch")
    result = db.compare([read, "1f1b"], ranks=2, microbatches=2)
    assert not result.skipped
    assert any("REDUCE_GRAD" in note for note in result.notes)
