"""Files and folders of any kind."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from debubble.core.errors import FormatError
from debubble.diagnosis.readers.folder import read
from tests.diagnosis.readers import made


def test_what_is_nothing(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="there is no file or folder"):
        read(tmp_path / "gone")
    with pytest.raises(FormatError, match="an empty folder; give the folder with the traces"):
        read(tmp_path)
    with pytest.raises(FormatError, match="there is no format 'kino'"):
        read(tmp_path, format="kino")
    with pytest.raises(FormatError, match="there is no file or folder"):
        read("a\0b")


def test_unrelated_files(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# A run")
    (tmp_path / "empty.json").write_text("")
    (tmp_path / "weights.bin").write_bytes(bytes(range(256)) * 400)
    (tmp_path / "broken.json.gz").write_bytes(b"\x1f\x8bnothing")
    (tmp_path / ".hidden").write_text("x")
    with pytest.raises(FormatError) as error:
        read(tmp_path)
    assert "no trace in 4 files (2 × files of no format that is known here, 2 × empty files" in str(
        error.value
    )
    assert "a CSV with the columns rank, action, start, end" in str(error.value)
    assert "--format names the format of a file that is not recognized: debubble" in str(
        error.value
    )


REFUSED = {
    "traces.tar": (bytes(257) + b"ustar\x0000" + bytes(300), "tar archives; unpack them first"),
    "traces.zip": (b"PK\x03\x04" + bytes(40), "zip archives; unpack them first: unzip"),
    "trace.json.zst": (b"\x28\xb5\x2f\xfd" + bytes(40), "files packed by zstd; unpack them"),
    "report.nsys-rep": (b"anything", "'nsys export --type sqlite' makes readable files of them"),
    "snapshot.pickle": (b"\x80\x04\x95" + bytes(40), "pickles, which are not read here"),
    "fr.json": (b'{"pg_config": {}, "entries": []}', "dumps of NCCL's Flight Recorder"),
    "x.json": (
        b'[{"ph": "X", "name": "fwd_mb0", "ts": 1, "dur": 1}]',
        "Chrome traces with ranges of other names than ours, such as fwd_mb0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_says_what_the_file_is(tmp_path: Path, name: str) -> None:
    content, reason = REFUSED[name]
    for packed in (content, gzip.compress(content)):
        (tmp_path / name).write_bytes(packed)
        with pytest.raises(FormatError) as error:
            read(tmp_path)
        assert reason in str(error.value)
        assert "rank, action, start, end" in str(error.value)
        assert "--format" in str(error.value)


def test_a_run_among_other_files(tmp_path: Path) -> None:
    run = made.run("1f1b")
    made.write_table(run, tmp_path / "a" / "b" / "run.csv")
    (tmp_path / "notes.txt").write_text("slow")
    found = read(tmp_path)
    made.assert_recovered(found, run)
    assert found.left_out == {"files of no format that is known here": 1}


def test_one_format_at_a_time(tmp_path: Path) -> None:
    run = made.run("1f1b")
    made.write_table(run, tmp_path / "run.csv")
    made.write_ndtimeline(run, tmp_path / "run.json")
    found = read(tmp_path)
    assert found.format == "ndtimeline"
    assert found.left_out == {"files of the format table beside those of ndtimeline": 1}
    assert read(tmp_path / "run.csv", format="table").format == "table"
    found = read(tmp_path, format="table")
    assert found.format == "table"
    assert found.left_out == {"files of the format ndtimeline beside those of table": 1}
    with pytest.raises(FormatError, match="the folder that Primus wrote"):
        read(tmp_path, format="primus")


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="neither a file nor a folder; give one"):
        read(os.devnull)
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FormatError, match=r"no trace in 1 file \(1 × files that cannot be read\)"):
        read(tmp_path)


def test_files_that_tell_of_no_run_do_not_hide_one(tmp_path: Path) -> None:
    run = made.run("1f1b")
    made.write_table(run, tmp_path / "run.csv")
    profile = {"schemaVersion": 1, "distributedInfo": {"rank": 0}, "traceEvents": [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 1},
    ]}  # fmt: skip
    (tmp_path / "profile.json").write_text(json.dumps(profile))
    found = read(tmp_path)
    assert found.format == "table"
    assert found.left_out == {"files of the format kineto beside those of table": 1}
    (tmp_path / "run.csv").write_text("rank,action,start,end\n")
    with pytest.raises(FormatError, match="no pipeline in 1 file: no range is called like"):
        read(tmp_path)


def test_a_cut_file_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    run = made.run("1f1b", steps=6, microbatches=40)
    made.write_ndtimeline(run, tmp_path / "run.json.gz", names_last=False)
    path = tmp_path / "run.json.gz"
    path.write_bytes(path.read_bytes()[:-2000])
    found = read(path)
    assert found.left_out["files whose compressed data ends early (read as far as they go)"] == 1
    assert found.left_out["steps that are not complete on every rank"] >= 1
    assert 0 < len(found.steps) < 6


def test_damaged_bytes(tmp_path: Path) -> None:
    run = made.run("1f1b", steps=6, microbatches=40)
    made.write_ndtimeline(run, tmp_path / "run.json.gz", names_last=False)
    path = tmp_path / "run.json.gz"
    content = bytearray(path.read_bytes())
    content[-2500:-2400] = b"\xff" * 100
    path.write_bytes(content)
    found = read(path)
    assert sum(count for reason, count in found.left_out.items() if "damaged" in reason) == 1


def test_members_and_padding_of_gzip(tmp_path: Path) -> None:
    run = made.run("1f1b")
    made.write_table(run, tmp_path / "run.csv")
    text = (tmp_path / "run.csv").read_bytes()
    half = len(text) // 2
    packed = gzip.compress(text[:half]) + gzip.compress(text[half:]) + bytes(512)
    (tmp_path / "run.csv").write_bytes(packed)
    found = read(tmp_path)
    made.assert_recovered(found, run)
    assert not found.left_out


def test_steps_that_occur_twice(tmp_path: Path) -> None:
    run = made.run("1f1b", steps=3)
    made.write_table(run, tmp_path / "run.csv")
    lines = (tmp_path / "run.csv").read_text().splitlines()
    again = [line for line in lines if line.startswith("8,")]
    late = [f"9,0,0,0F0,{99.5},{99.6}"]
    (tmp_path / "run.csv").write_text("\n".join([*lines, *again, *late]))
    found = read(tmp_path)
    assert found.steps == (7, 8)
    assert found.left_out == {
        "actions that occur twice with the same times": len(again),
        "steps in which an action occurs twice with different times": 1,
    }


def test_a_rank_whose_trace_is_cut_counts_as_missing(tmp_path: Path) -> None:
    run = made.run("1f1b", ranks=4, steps=1)
    made.write_table(run, tmp_path / "run.csv")
    lines = (tmp_path / "run.csv").read_text().splitlines()
    kept = [line for line in lines if not line.startswith("7,0,2,") or "F0" in line]
    (tmp_path / "run.csv").write_text("\n".join(kept))
    found = read(tmp_path)
    assert found.missing == ((0, 2),)
    assert found.left_out == {
        "ranks of which no step is complete (taken as missing): rank 2 lacks 2B0, 2B1, 2F1 and 4 "
        "more": 1
    }
    assert set(found.actions.rank.tolist()) == {0, 1, 3}


def test_the_only_step_lacks_an_action(tmp_path: Path) -> None:
    """Ranks that have all are read, the last one counts though it has nothing left."""
    run = made.run("1f1b", ranks=4, steps=1)
    made.write_table(run, tmp_path / "run.csv")
    without(tmp_path / "run.csv", "0F0", "3B3")
    found = read(tmp_path)
    assert (found.ranks, found.missing) == (4, ((0, 0), (0, 3)))
    assert found.left_out == {
        "ranks of which no step is complete (taken as missing): rank 0 lacks 0F0; rank 3 lacks 3B3":
        2
    }  # fmt: skip


@pytest.mark.parametrize(
    ("lost", "message"),
    [
        (["0F0", "1B2"], r"rank 0 lacks 0F0; rank 1 lacks 1B2; begin the trace before a step"),
        (["0F0", "1F0", "0B0", "1B0"], r"microbatch 0 is in no action, and 3 is; begin the trace"),
    ],
)
@pytest.mark.parametrize("steps", [1, 2])
def test_no_rank_has_a_whole_step(
    tmp_path: Path, lost: list[str], message: str, steps: int
) -> None:
    made.write_table(made.run("1f1b", ranks=2, steps=steps), tmp_path / "run.csv")
    without(tmp_path / "run.csv", *lost)
    with pytest.raises(FormatError, match=message):
        read(tmp_path)


def without(path: Path, *actions: str) -> None:
    """Take lines of actions out of a table."""
    lines = path.read_text().splitlines()
    path.write_text("\n".join(line for line in lines if line.split(",")[3] not in actions))
