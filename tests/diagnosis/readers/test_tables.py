"""Plain tables."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from random import Random

import numpy as np
import pytest

from debubble import Kind
from debubble.core.errors import FormatError
from debubble.diagnosis.readers.folder import read
from debubble.diagnosis.readers.stream import CHUNK
from tests.diagnosis.readers import made


@pytest.mark.parametrize("unit", ["", "_ms", "_us", "_ns"])
def test_what_was_written_is_read(tmp_path: Path, unit: str) -> None:
    run = made.run("interleaved-1f1b", copies=2)
    made.write_table(run, tmp_path / "run.csv", unit)
    found = read(tmp_path / "run.csv")
    made.assert_recovered(found, run)
    assert (found.format, found.ranks, found.copies, found.clocks) == ("table", 2, 2, "one")
    assert (found.steps, found.stages, found.microbatches) == ((7, 8), 4, 4)
    assert not found.left_out


def test_nanoseconds_since_1970_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    path.write_text(
        "rank,action,start_ns,end_ns\n"
        "0,0F0,1761234567890123456,1761234567890123459\n"
        "0,0B0,1761234567890123460,1761234567890123464\n"
    )
    rows = read(path).actions
    assert np.round(rows.start * 1e9).tolist() == [0, 4]
    assert np.round(rows.end * 1e9).tolist() == [3, 8]


def test_transfers_hosts_pauses_and_pairs(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    path.write_text(
        "rank,action,start,end,waited,host\n"
        "0,0F0,1,2,,a\n0,0SEND_F0,2.5,,,a\n"
        "1,1RECV_F0,2,3,2.25,b\n1,1F0,3,4,3,b\n1,1B0,4,6,,b\n"
        "0,0RECV_B0,4,6.5,5,a\n1,1SEND_B0,6,6,,b\n"
        '0,"(0F1;0B0)OVERLAP_F_B",7,9,6.5,a\n'
        "1,1F1,9,10,9,b\n1,1B1,10,11,,b\n0,0B1,12,13,,a\n1,garbage-collection,6,8,,\n"
    )
    found = read(path)
    assert (found.hosts, found.clocks) == (("a", "b"), "hosts")
    messages = found.messages
    assert messages.kind.tolist() == [Kind.F, Kind.B]
    assert (messages.source.tolist(), messages.target.tolist()) == ([0, 1], [1, 0])
    assert (messages.stage.tolist(), messages.microbatch.tolist()) == ([0, 1], [0, 0])
    assert (messages.sent + 1).tolist() == [2.5, 6]
    assert (messages.posted + 1).tolist() == [2, 4]
    assert (messages.waited + 1).tolist() == [2.25, 5]
    assert (messages.arrived + 1).tolist() == [3, 6.5]
    rows = found.actions
    assert len({n for n in rows.pair.tolist() if n >= 0}) == 1
    assert sorted(rows.kind[rows.pair >= 0].tolist()) == [Kind.F, Kind.B]
    assert (found.pauses.rank.tolist(), found.pauses.start.tolist()) == ([1], [5])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rank,action,start\n0,0F0,1\n", "column 'end' is missing"),
        ("rank,action,start,start,end\n", "column 'start' is there twice; keep one"),
        ("rank,action,start_ms,end_us\n", "columns of times have several units"),
        ("rank,action,start,end\n", "no action has a start and, behind it"),
        ("rank,action,start,end\n0,0F0,1,0\n", "no action has a start and, behind it"),
        ("rank,action,start,end\n0,0F0,0,1\n0,0B0,1,2\n", "a drawing of a schedule"),
        ("rank,action,start,end\n99999,0F0,0,1\n", "rank 99,999; they go to 65,535"),
        ("rank,action,start,end\n0,0F0,1,1\n0,0B0,2,2\n", "all 2 actions take 0, so it is a"),
        ("rank,action,start,end\n0,0F9999999,0,1\n", "row 1 below the header: action is"),
        ("rank,copy,action,start,end\n65000,9999,0F0,0,2\n", "10,000 copies of 65,001 ranks"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "run.csv"
    path.write_text(text)
    with pytest.raises(FormatError, match=message):
        read(path)


def test_lines_that_tell_nothing_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    path.write_text(
        "rank,action,start,end,note\n0,0F0,0,2,x\n0,0B0,2,5,\n\n"
        "-1,0F0,0,1,\n0,aten::mm,0,1,\n0,0F1,nan,1,\n0\n\x00,\x1b[2J,1,2\n"
    )
    found = read(path)
    assert len(found.actions) == 2
    assert found.left_out == {
        "columns called 'note', which says nothing here": 1,
        "lines that are no action with a rank and times": 5,
    }


@pytest.mark.parametrize(
    ("line", "cell"),
    [
        ("0,0F0,1.2,x", "end is 'x'"), ("0,0F0,1.2", "end is empty"),
        ("0,0F0,,2", "start is empty"), ("x,0F0,1,2", "rank is 'x'"),
        ("0,aten::mm,1,2", "action is 'aten::mm'"),
    ],
)  # fmt: skip
def test_a_table_of_nothing_names_its_first_wrong_cell(
    tmp_path: Path, line: str, cell: str
) -> None:
    path = tmp_path / "run.csv"
    path.write_text("rank,action,start,end\n" + f"{line}\n" * 2)
    with pytest.raises(FormatError, match=rf"row 1 below the header: {cell}; a line is like"):
        read(path)
    path.write_text("rank,action,start,end\n0,0F0,0,1\n0,0B0,1,3\n" + line)
    assert read(path).left_out == {"lines that are no action with a rank and times": 1}


def test_a_column_of_any_numbers_is_read(tmp_path: Path) -> None:
    """Plain ones at once, those with exponents and quotes one by one: the same comes of both."""
    run = made.run("1f1b", ranks=4, microbatches=8)
    path = tmp_path / "run.csv"
    made.write_table(run, path)
    plain = read(path)
    lines = path.read_text().splitlines()
    cells = lines[5].split(",")
    for start in (f"{float(cells[4]):.17e}", f'"{cells[4]}"', f" {cells[4]} "):
        lines[5] = ",".join([*cells[:4], start, cells[5]])
        for end in ("\n", "\r\n", "\n\n"):
            path.write_text(end.join(lines), newline="")
            found = read(path)
            assert found.left_out == {}
            np.testing.assert_allclose(found.actions.start, plain.actions.start, atol=1e-12)
            np.testing.assert_allclose(found.actions.end, plain.actions.end, atol=1e-12)
    more = ["1e-9999999999999999999999", "1e400", "1_0", "٣"]
    path.write_text("\n".join([*lines, *(f"7,0,0,0F0,{text},1" for text in more)]))
    assert read(path).left_out == {"lines that are no action with a rank and times": len(more)}


def test_a_cell_with_a_line_break_where_two_pieces_of_a_file_meet(tmp_path: Path) -> None:
    """A note goes on from the first megabyte into the second: it is one line, and tells nothing."""
    lines = ["rank,action,start,end", "0,0F0,0,1.5", '0,"a note', 'goes on",1,2', "0,0B0,2,4"]
    room = CHUNK - 5 - sum(len(line) + 1 for line in lines[:3])
    lines[1:1] = [" " * 1023] * (room // 1024) + [" " * (room % 1024)]
    path = tmp_path / "run.csv"
    path.write_text("\n".join(lines))
    found = read(path)
    assert found.actions.start.tolist() == [0, 2]
    assert found.left_out == {"lines that are no action with a rank and times": 1}


def some_number(random: Random) -> str:
    """A number as writers have it, also one that lies between two floats or has many digits."""
    sort = random.randrange(4)
    if sort == 0:
        return repr(random.random() * 10 ** random.randint(-5, 9))
    if sort == 1:
        return str(random.randrange(10 ** random.randint(1, 19)))
    if sort == 2:
        halves = (2 * random.randrange(1 << 26) + 1) / 2 ** random.randint(0, 20)
        return repr(halves + 2 ** random.randint(30, 52))
    digits = "".join(random.choice("0123456789") for _ in range(random.randint(1, 14)))
    return f"{random.randrange(10**9)}.{digits}"


@pytest.mark.parametrize(
    "zero", ["1790857026123456789", "1790857026.25", "3.5", "0.1234567890123", "0"]
)
def test_differences_of_long_numbers_are_exact(tmp_path: Path, zero: str) -> None:
    """Times count from the first start, and are rounded once."""
    random = Random(2)
    near = [Decimal(zero) + random.randrange(10**9) for _ in range(50)]
    texts = [f"{each:f}" for each in near] + [some_number(random) for _ in range(200)]
    texts = [zero, *(text for text in texts if Decimal(text) > Decimal(zero))]
    path = tmp_path / "run.csv"
    rows = [f"0,0F{unit},{text},{Decimal(text) * 2 + 1}" for unit, text in enumerate(texts)]
    path.write_text("\n".join(["rank,action,start,end", *rows]))
    found = read(path)
    assert found.actions.start.tolist() == sorted(
        float(Decimal(text) - Decimal(zero)) for text in texts
    )
